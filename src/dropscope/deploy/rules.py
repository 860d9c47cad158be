"""Deferral rules: a threshold with what it guarantees, what it assumes, and what other methods would have kept."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dropscope.atomic import atomic_write, read_json
from dropscope.checks import as_record
from dropscope.display import headed
from dropscope.errors import BadInput, Phrase, first_line

_FORMAT = "dropscope deferral rule"
_VERSION = 1


@dataclass(frozen=True)
class _Risk:
    """What a rule says of each risk."""

    name: str
    limit: float | None
    observed: float | None


@dataclass(frozen=True)
class DeferralRule:
    """When to hand an example to a person, and what can be promised for the rest. Prints itself.

    Call it with uncertainties to get True for every example to defer. Uncertainties that are NaN are deferred.

    Attributes:
        threshold: Examples above it are deferred; None where none can promise what was asked: all are deferred.
        coverage: Share of the examples that is kept.
        error: Share of errors among the kept, as observed; NaN where nothing is kept.
        bound: What the error among the kept is at most, with probability `confidence` ("average": on average).
        n: Examples that decided.
        kept: How many of them are kept.
        max_error: What was asked for; None where only a budget or other risks were.
        confidence: Probability with which the promise holds; None for "average".
        method: How the threshold was found.
        measure: The uncertainty that was picked, where several were given.
        thresholds: With `per_class`, the threshold of every predicted class (None: all deferred).
        risks: Every risk: `name`, `limit`, `observed` among the kept.
        alternatives: Coverage that each method would give, 0 where it finds no threshold.
        reach: Where nothing was found: (error, coverage) that could be promised instead, each by itself.
        reason: Why nothing was found.
        remarks: What else there is to know.
        assumptions: What must hold for the promise to hold.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> u = rng.random(2000)
        >>> from dropscope.deploy import defer
        >>> rule = defer(u, rng.random(2000) > u**2, max_error=0.05)
        >>> rule.bound, 0.3 < rule.coverage < 0.39, rule([0.1, 0.9]).tolist()
        (0.05, True, [False, True])
    """

    threshold: float | None
    coverage: float
    error: float
    bound: float
    n: int
    kept: int
    max_error: float | None
    confidence: float | None
    method: str
    measure: str | None = None
    thresholds: Mapping[str, float | None] | None = None
    risks: tuple[Mapping[str, Any], ...] = ()
    alternatives: Mapping[str, float] = field(default_factory=dict)
    reach: tuple[tuple[float, float], ...] = ()
    reason: str = ""
    remarks: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether anything is kept."""
        return self.threshold is not None or any(t is not None for t in (self.thresholds or {}).values())

    def __call__(self, uncertainty: ArrayLike, predictions: Sequence[Hashable] | None = None) -> NDArray[np.bool_]:
        """Which examples to defer.

        Args:
            uncertainty: One per example, of the same measure.
            predictions: The predicted class of each, for a rule per class.

        Returns:
            True where an example must be deferred.
        """
        values = as_floats(uncertainty, "uncertainty")
        if self.thresholds is None:
            limit: Any = -math.inf if self.threshold is None else self.threshold
        else:
            if predictions is None or len(predictions) != len(values):
                got = None if predictions is None else Phrase(f"{len(predictions)} for {len(values)} examples")
                raise BadInput("predictions must be one per example, as the rule is per class", "predictions", got,
                               "pass the predicted class of each example")  # fmt: skip
            known = {name: -math.inf if t is None else t for name, t in self.thresholds.items()}
            limit = np.array([known.get(class_name(one), -math.inf) for one in predictions])
        return ~(values <= limit)  # NaN is deferred

    def facts(self) -> dict[str, Any]:
        """The rule in values that JSON can hold."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def save(self, path: str | Path) -> Path:
        """Writes the rule as JSON.

        Args:
            path: The file.

        Returns:
            Its path.
        """
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **self.facts()}, indent=2, allow_nan=False)
        return atomic_write(Path(path), lambda part: part.write_text(text + "\n", encoding="utf-8"))

    @classmethod
    def load(cls, path: str | Path) -> DeferralRule:
        """Reads a rule.

        Args:
            path: A file that `save` wrote.

        Returns:
            The rule.

        Raises:
            BadInput: If it is no such file.
        """
        return cls.of(read_json(Path(path)), str(path))

    @classmethod
    def of(cls, content: Any, where: str) -> DeferralRule:
        """The rule from what `save` wrote; `where` is how errors call it."""
        known = isinstance(content, dict) and content.get("format") == _FORMAT and content.get("version") == _VERSION
        if not known:
            raise BadInput(f"{where} must be a deferral rule", where, Phrase("something else"),
                           "pass a file that rule.save(...) wrote")  # fmt: skip
        try:
            rule = as_record(cls, {name: value for name, value in content.items() if name not in ("format", "version")})
            for risk in rule.risks:
                as_record(_Risk, risk)
        except ValueError as error:
            raise BadInput(f"{where} must be a deferral rule as it was saved", where, Phrase(first_line(error)),
                           "restore the file")  from error  # fmt: skip
        return rule

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = self._found() if self.found else self._not_found()
        shown = [f"{name} {_percent(share)}" for name, share in self.alternatives.items()]
        lines += headed("methods", f"would keep: {', '.join(shown)} (on average only)") if shown else []
        lines += [line for remark in self.remarks for line in headed("remark", remark)]
        return "\n".join([*lines, *(headed("assumes", "; ".join(self.assumptions)) if self.assumptions else [])])

    def _found(self) -> list[str]:
        of = f" ({self.measure})" if self.measure else ""
        if self.thresholds is None:
            lines = headed("defer", f"what is more uncertain than {self.threshold:.6g}{of}")
        else:
            lines = headed("defer", f"by the predicted class, what is more uncertain than{of}")
            every = [f"{name}: {'-' if t is None else f'{t:.6g}'}" for name, t in self.thresholds.items()]
            lines += headed("", ", ".join(every) + (" (-: always)" if None in self.thresholds.values() else ""))
        kept = f"{_percent(self.coverage)} of {self.n:,} examples ({self.kept:,})"
        lines += headed("keeps", f"{kept}, with {self._loss} {_percent(self.error)} here")
        sure = "on average" if self.confidence is None else f"with probability {self.confidence:g}"
        more = len(self.risks) > 1
        holds = [f"{one['name']} at most {_limit(one)}" + more * f" (here {_limit(one, 'observed')})"
                 for one in self.risks]  # fmt: skip
        return lines + headed("promises", f"{'; '.join(holds)}, {sure}")

    @property
    def _loss(self) -> str:
        return "loss" if any(one["name"] == "loss" for one in self.risks) else "error"

    def _not_found(self) -> list[str]:
        lines = headed("defer", "everything: no threshold keeps the promise")
        lines += headed("because", self.reason)
        could = [f"{self._loss} at most {_percent(error)} keeping {_percent(share)}" for error, share in self.reach]
        return lines + (headed("could", f"promise instead, each by itself: {'; '.join(could)}") if could else [])


def as_floats(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Numbers, one per example: a sequence, an array, a column or a tensor on any device."""
    held: Any = values
    if hasattr(held, "detach"):
        held = held.detach().cpu().numpy()
    try:
        array = np.asarray(held, dtype=np.float64)
    except (TypeError, ValueError) as error:
        got = Phrase(type(values).__name__)
        raise BadInput(f"{name} must hold numbers", name, got, "pass one number per example") from error
    if array.ndim != 1:
        got = Phrase(f"shape {array.shape}")
        raise BadInput(f"{name} must be one number per example", name, got, "pass an array of one dimension")
    return array


def class_name(value: Hashable) -> str:
    """A class as rules name it: 1, 1.0 and "1" are one class."""
    number = value.item() if hasattr(value, "item") else value
    return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def _limit(risk: Mapping[str, Any], which: str = "limit") -> str:
    value = risk[which]
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.4g}" if risk["name"] == "cost" else f"{100 * value:.3g} %"
