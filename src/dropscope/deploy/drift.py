"""Drift without labels: have uncertainties, deferrals or class probabilities left the range of the calibration?

Three looks share the level: a two-sample Kolmogorov-Smirnov test of the uncertainties, Fisher's exact test of the
deferrals, and Kolmogorov-Smirnov tests of every class's probability (Lipton et al. 2018, Rabanser et al. 2019), or of
the volumes of structures. Where examples come in groups, one of each is looked at. The accuracy is estimated as the
mean of 1 − P(error).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from dropscope.checks import check_share
from dropscope.deploy.bounds import Floats
from dropscope.deploy.calibration import ErrorCurve
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
        groups: How many of the examples are independent; None where all are.
        outcome: What `accuracy` is: "Dice", for instance, of volumes.
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
    groups: int | None = None
    outcome: str = "accuracy"

    def facts(self) -> dict[str, Any]:
        """The check in values that JSON can hold."""
        return asdict(self)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        loud = [name for name, p in self.p_values.items() if p <= self.alpha]
        said = f"alarm: {' and '.join(loud)} left the calibration's range" if loud else "no alarm"
        counted = f"{self.n:,} examples" + ("" if self.groups is None else f" of {self.groups:,} groups")
        lines = headed("drift", f"{said} ({counted}, false alarms at most {100 * self.alpha:g} %)")
        lines += headed("p", ", ".join(f"{name} {p:.3g}" for name, p in self.p_values.items()))
        if self.deferred is not None and self.deferred_before is not None:
            lines += headed("deferred", f"{100 * self.deferred:.1f} %, {100 * self.deferred_before:.1f} % before")
        ends = f"{100 * self.accuracy_low:.1f} to {100 * self.accuracy_high:.1f} %"
        estimate = f"{100 * self.accuracy:.1f} % estimated ({ends}), {100 * self.accuracy_before:.1f} % before"
        lines += headed(self.outcome, estimate)
        if self.disagreement is not None and self.disagreement_before is not None:
            apart = f"{100 * self.disagreement:.1f} % of passes, {100 * self.disagreement_before:.1f} % before"
            lines += headed("disagree", apart)
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Seen:
    """Examples as a check sees them, without labels.

    Attributes:
        uncertainty: Of each; where there is none, as of a volume in which nothing is found, infinity.
        values: What else may move, `[n, looks]`: class probabilities, or volumes.
        disagreement: Of the passes; NaN for a plain pass.
        deferred: Which are deferred; None without a rule.
        unit: The group of each as a number; None where each is independent of the others.
    """

    uncertainty: Floats
    values: np.ndarray
    disagreement: np.ndarray
    deferred: np.ndarray | None = None
    unit: np.ndarray | None = None

    def one_each(self) -> Seen:
        """One example of every group, chosen by chance, the same every time: tests count independent examples."""
        if self.unit is None:
            return self
        order = np.random.default_rng(0).permutation(len(self.unit))
        which = order[np.unique(self.unit[order], return_index=True)[1]]
        away = None if self.deferred is None else self.deferred[which]
        return Seen(self.uncertainty[which], self.values[which], self.disagreement[which], away)


def check_drift(
    before: Seen,
    now: Seen,
    alpha: float,
    *,
    curve: ErrorCurve,
    accuracy: float,
    named: str = "class probabilities",
    outcome: str = "accuracy",
) -> DriftCheck:
    """Compares recent examples with those of the calibration.

    Args:
        before: Those of the calibration.
        now: The recent ones.
        alpha: How often there may be a false alarm.
        curve: P(error), or the expected loss, of an uncertainty.
        accuracy: Mean outcome of the calibration.
        named: What `values` are.
        outcome: What 1 − error is called.

    Raises:
        BadInput: For a level that is none, or too few examples.
    """
    number = check_share(alpha, "alpha", 0.05)
    first, second = before.one_each(), now.one_each()
    if len(second.uncertainty) < LEAST:
        got, unit = Phrase(f"{len(second.uncertainty)}"), "examples" if now.unit is None else "groups"
        raise BadInput(f"inputs must hold at least {LEAST} {unit} to be compared", "inputs", got, "collect more")
    looks = {"uncertainty": _same(first.uncertainty, second.uncertainty)}
    if first.deferred is not None and second.deferred is not None and not _all_alike(second.deferred, first.deferred):
        looks["deferral rate"] = _same_rate(second.deferred, first.deferred)
    looks[named] = _same_values(first.values, second.values)
    corrected = {name: min(1.0, len(looks) * p) for name, p in looks.items()}
    right = 1 - curve(now.uncertainty)
    estimate, wide = float(right.mean()), _WIDTH * _deviation(right, now.unit)
    rates = [None if one.deferred is None else float(one.deferred.mean()) for one in (now, before)]
    apart = [None if np.isnan(one.disagreement).all() else float(np.nanmean(one.disagreement)) for one in (now, before)]
    return DriftCheck(
        drifted=any(p <= number for p in corrected.values()),
        p_values=corrected,
        alpha=number,
        n=len(now.uncertainty),
        deferred=rates[0],
        deferred_before=rates[1],
        accuracy=estimate,
        accuracy_low=max(0.0, estimate - wide),
        accuracy_high=min(1.0, estimate + wide),
        accuracy_before=accuracy,
        disagreement=apart[0],
        disagreement_before=apart[1],
        groups=None if now.unit is None else len(second.uncertainty),
        outcome=outcome,
    )


def frequent_classes(predictions: np.ndarray, probabilities: np.ndarray) -> list[int]:
    """The classes whose probabilities are looked at: one of two, as they are one number."""
    order = np.argsort(-np.bincount(predictions, minlength=probabilities.shape[1]), kind="stable")[:_CLASSES]
    return order[: 1 if len(order) == 2 else None].tolist()


def _deviation(values: Floats, unit: np.ndarray | None) -> float:
    """The standard error of a mean; groups are what varies."""
    apart = values - values.mean()
    if unit is not None:
        apart = np.bincount(unit, apart)
    count = len(apart)
    return float(np.sqrt((apart**2).sum() * count / max(count - 1, 1))) / len(values)


def _all_alike(now: np.ndarray, before: np.ndarray) -> bool:
    """Whether all examples are deferred, or none: there is no rate to compare."""
    both = np.concatenate([now, before])
    return bool(both.all() or not both.any())


def _same(first: np.ndarray, second: np.ndarray) -> float:
    return float(stats.ks_2samp(first, second, method="asymp").pvalue)


def _same_rate(now: np.ndarray, before: np.ndarray) -> float:
    table = [[int(part.sum()), int((~part).sum())] for part in (now, before)]
    return float(stats.fisher_exact(table)[1])


def _same_values(before: np.ndarray, now: np.ndarray) -> float:
    """The smallest p-value of all looks, times their number."""
    found = [_same(before[:, number], now[:, number]) for number in range(now.shape[1])]
    return min(1.0, len(found) * min(found))
