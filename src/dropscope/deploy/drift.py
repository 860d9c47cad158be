"""Drift without labels: have uncertainties, deferrals or class probabilities left the range of the calibration?

Three looks share the level: a two-sample Kolmogorov-Smirnov test of the uncertainties, Fisher's exact test of the
deferrals, and Kolmogorov-Smirnov tests of every class's probability (Lipton et al. 2018, Rabanser et al. 2019). The
accuracy is estimated as the mean of 1 − P(error).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from dropscope.checks import check_share
from dropscope.deploy.bounds import Floats
from dropscope.deploy.calibration import Calibration
from dropscope.display import headed
from dropscope.errors import BadInput, Phrase

LEAST = 20  # recent examples
_CLASSES = 50  # class probabilities that are looked at, those of the most frequent predictions
_WIDTH = 1.96  # standard errors of an interval


@dataclass(frozen=True)
class DriftCheck:
    """What recent inputs look like beside the calibration. Prints itself.

    Attributes:
        drifted: Whether any look raised the alarm.
        p_values: Of every look, corrected for their number: below `alpha` is an alarm.
        alpha: How often there is a false alarm, at most, where nothing changed.
        n: Recent examples.
        deferred: Share of them that is deferred; None without a rule.
        deferred_before: The same in the calibration.
        accuracy: Estimated accuracy of all predictions, without labels.
        accuracy_low: Lower end of its 95 % interval, by the draw of the examples alone.
        accuracy_high: Upper end.
        accuracy_before: Accuracy in the calibration.
        disagreement: Mean share of passes that predict another class; None for a plain pass.
        disagreement_before: The same in the calibration.
    """

    drifted: bool
    p_values: dict[str, float]
    alpha: float
    n: int
    deferred: float | None
    deferred_before: float | None
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    accuracy_before: float
    disagreement: float | None
    disagreement_before: float | None

    def facts(self) -> dict[str, Any]:
        """The check in values that JSON can hold."""
        return asdict(self)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        loud = [name for name, p in self.p_values.items() if p <= self.alpha]
        said = f"alarm: {' and '.join(loud)} left the calibration's range" if loud else "no alarm"
        lines = headed("drift", f"{said} ({self.n:,} examples, false alarms at most {100 * self.alpha:g} %)")
        lines += headed("p", ", ".join(f"{name} {p:.3g}" for name, p in self.p_values.items()))
        if self.deferred is not None and self.deferred_before is not None:
            lines += headed("deferred", f"{100 * self.deferred:.1f} %, {100 * self.deferred_before:.1f} % before")
        ends = f"{100 * self.accuracy_low:.1f} to {100 * self.accuracy_high:.1f} %"
        estimate = f"{100 * self.accuracy:.1f} % estimated ({ends}), {100 * self.accuracy_before:.1f} % before"
        lines += headed("accuracy", estimate)
        if self.disagreement is not None and self.disagreement_before is not None:
            apart = f"{100 * self.disagreement:.1f} % of passes, {100 * self.disagreement_before:.1f} % before"
            lines += headed("disagree", apart)
        return "\n".join(lines)


def check_drift(
    before: Calibration,
    uncertainty: Floats,
    probabilities: np.ndarray,
    disagreement: np.ndarray,
    deferred: tuple[np.ndarray, np.ndarray] | None,
    alpha: float,
) -> DriftCheck:
    """Compares recent answers with the calibration.

    Args:
        before: The calibration.
        uncertainty: Of the recent examples.
        probabilities: Their class probabilities.
        disagreement: Their passes' disagreement.
        deferred: Which recent and which calibration examples are deferred; None without a rule.
        alpha: How often there may be a false alarm.

    Raises:
        BadInput: For a level that is none, or too few examples.
    """
    number = check_share(alpha, "alpha", 0.05)
    if len(uncertainty) < LEAST:
        got = Phrase(f"{len(uncertainty)}")
        raise BadInput(f"inputs must hold at least {LEAST} examples to be compared", "inputs", got, "collect more")
    looks = {"uncertainty": _same(before.uncertainty, uncertainty)}
    if deferred is not None and not _all_alike(*deferred):
        looks["deferral rate"] = _same_rate(*deferred)
    looks["class probabilities"] = _same_classes(before, probabilities)
    corrected = {name: min(1.0, len(looks) * p) for name, p in looks.items()}
    errors = before.curve(uncertainty)
    accuracy, wide = 1 - float(errors.mean()), _WIDTH * float(errors.std(ddof=1)) / np.sqrt(len(errors))
    now, earlier = (None, None) if deferred is None else (float(deferred[0].mean()), float(deferred[1].mean()))
    apart, apart_before = (
        None if np.isnan(values).any() else float(values.mean()) for values in (disagreement, before.disagreement)
    )
    return DriftCheck(
        drifted=any(p <= number for p in corrected.values()),
        p_values=corrected,
        alpha=number,
        n=len(uncertainty),
        deferred=now,
        deferred_before=earlier,
        accuracy=accuracy,
        accuracy_low=max(0.0, accuracy - wide),
        accuracy_high=min(1.0, accuracy + wide),
        accuracy_before=float(before.right.mean()),
        disagreement=apart,
        disagreement_before=apart_before,
    )


def _all_alike(now: np.ndarray, before: np.ndarray) -> bool:
    """Whether all examples are deferred, or none: there is no rate to compare."""
    both = np.concatenate([now, before])
    return bool(both.all() or not both.any())


def _same(first: np.ndarray, second: np.ndarray) -> float:
    return float(stats.ks_2samp(first, second, method="asymp").pvalue)


def _same_rate(now: np.ndarray, before: np.ndarray) -> float:
    table = [[int(part.sum()), int((~part).sum())] for part in (now, before)]
    return float(stats.fisher_exact(table)[1])


def _same_classes(before: Calibration, probabilities: np.ndarray) -> float:
    """The smallest p-value of all classes, times their number."""
    frequent = np.argsort(-np.bincount(before.predictions, minlength=probabilities.shape[1]), kind="stable")[:_CLASSES]
    two = len(frequent) == 2  # whose probabilities are one number
    found = [
        _same(before.probabilities[:, number], probabilities[:, number]) for number in frequent[: 1 if two else None]
    ]
    return min(1.0, len(found) * min(found))
