"""Calibration: what is known from labelled examples about every uncertainty, first of all P(error).

P(error) rises with the uncertainty, strictly: it says how often, and never ranks examples otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from dropscope.deploy.bounds import Floats
from dropscope.deploy.recipes import Answers, with_labels
from dropscope.errors import BadInput, Phrase

_STRICT = 1e-4  # of P(error) goes with the uncertainty itself, so that no two are equal
_PRIOR = 1.0  # examples with the mean error that each step of the curve is smoothed by
LEAST = 20  # examples that a calibration needs


@dataclass(frozen=True, eq=False)
class ErrorCurve:
    """P(error) as a function of the uncertainty, strictly rising.

    Steps of an isotonic regression, joined at their middles.

    Attributes:
        knots: Uncertainties, rising.
        errors: P(error) there, rising.
        middle: The median of the uncertainties.
        spread: Half of their interquartile range.

    Examples:
        >>> curve = ErrorCurve.fit(np.arange(100.0), np.arange(100) % 10 >= np.arange(100) / 20)
        >>> [round(float(p), 2) for p in curve([-5, 50, 200])]
        [0.03, 0.3, 0.49]
    """

    knots: Floats
    errors: Floats
    middle: float
    spread: float

    @classmethod
    def fit(cls, uncertainty: ArrayLike, right: ArrayLike) -> ErrorCurve:
        """The curve of labelled examples.

        Args:
            uncertainty: One per example.
            right: Whether each prediction is right.
        """
        u, wrong = np.asarray(uncertainty, float), 1 - np.asarray(right, float)
        values, inverse, counts = np.unique(u, return_inverse=True, return_counts=True)
        means = np.bincount(inverse, wrong) / counts
        steps = isotonic_regression(means, weights=counts)
        starts = steps.blocks[:-1]
        totals = np.add.reduceat(counts.astype(float), starts)
        smooth = np.add.reduceat(means * counts, starts) + _PRIOR * wrong.mean()
        knots = np.add.reduceat(values * counts, starts) / totals
        errors = np.maximum.accumulate(smooth / (totals + _PRIOR))
        low, middle, high = np.quantile(u, (0.25, 0.5, 0.75))
        return cls(knots, errors, float(middle), float(max(high - low, 1e-12)) / 2)

    def tensors(self) -> dict[str, np.ndarray]:
        """The curve in arrays, for a file."""
        return {"knots": self.knots, "errors": self.errors, "squash": np.array([self.middle, self.spread])}

    @classmethod
    def of(cls, tensors: dict[str, np.ndarray]) -> ErrorCurve:
        """From `tensors`, which are taken out of the others.

        Raises:
            ValueError: Where they are no curve.
        """
        knots, errors, squash = (tensors.pop(name) for name in ("knots", "errors", "squash"))
        shapes = knots.ndim, squash.shape, knots.shape == errors.shape, len(knots) > 0
        if shapes != (1, (2,), True, True) or not np.isfinite(np.concatenate([knots, errors, squash])).all():
            raise ValueError("a curve of another shape")
        return cls(knots, errors, *squash.tolist())

    def __call__(self, uncertainty: ArrayLike) -> Floats:
        """P(error) of each; NaN stays NaN."""
        u = np.asarray(uncertainty, float)
        squashed = 0.5 + np.arctan((u - self.middle) / self.spread) / np.pi
        return (1 - _STRICT) * np.interp(u, self.knots, self.errors) + _STRICT * squashed


@dataclass(frozen=True, eq=False)
class Calibration:
    """Labelled examples that a predictor knows: not their inputs, only what came of them.

    Attributes:
        ids: What the user calls each.
        uncertainty: The measure of each.
        right: Whether each prediction is right.
        labels: True classes.
        predictions: Predicted classes.
        probabilities: `[n, classes]`.
        disagreement: Share of the passes that predict another class; NaN for a plain pass.
        curve: P(error) of an uncertainty.
        unit: The group of each as a number; each its own where examples are independent.
    """

    ids: list[str]
    uncertainty: Floats
    right: NDArray[np.bool_]
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    disagreement: NDArray[np.float32]
    curve: ErrorCurve
    unit: NDArray[np.int64]

    @classmethod
    def of(cls, answers: Answers, unit: NDArray[np.int64]) -> Calibration:
        """What labelled answers teach.

        Raises:
            BadInput: If they have no labels, are too few, of one class, or all right or all wrong.
        """
        labels = with_labels(answers, "data")
        _check(answers.n >= LEAST, f"data must hold at least {LEAST} labelled examples", f"{answers.n}", "pass more")
        _check(len(np.unique(labels)) > 1, "data must hold at least two classes", f"labels that are all {labels[0]}",
               "pass examples as they will come")  # fmt: skip
        right = answers.predictions == labels
        for every, word in ((right.all(), "right"), ((~right).all(), "wrong")):
            what = "data must hold right and wrong predictions, as P(error) is learned from both"
            _check(not every, what, f"{answers.n} that are all {word}", "pass more examples, or other ones")
        if not np.isfinite(answers.uncertainty).all():
            raise BadInput("measure must be finite on every example", "measure", Phrase("NaN or infinity"),
                           "take another measure")  # fmt: skip
        curve = ErrorCurve.fit(answers.uncertainty, right)
        return cls([str(one) for one in answers.ids], answers.uncertainty, right, labels, answers.predictions,
                   answers.probabilities, answers.disagreement, curve, unit)  # fmt: skip

    def tensors(self) -> dict[str, np.ndarray]:
        """All but the ids in arrays, for a file."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
        return {**arrays, **self.curve.tensors(), "right": self.right.astype(np.uint8)}

    @classmethod
    def read(cls, ids: list[str], tensors: dict[str, Any]) -> Calibration:
        """From `tensors`.

        Raises:
            ValueError: Where they do not fit each other.
        """
        values = dict(tensors)
        curve = ErrorCurve.of(values)
        if {value.shape[:1] for value in values.values()} != {(len(ids),)} or values["probabilities"].ndim != 2:
            raise ValueError("tensors of other lengths")
        return cls(ids, curve=curve, **values | {"right": values["right"].astype(bool)})

    @property
    def n(self) -> int:
        return len(self.right)

    def nearest(self, uncertainty: float, count: int) -> Sequence[int]:
        """The examples whose uncertainty is nearest, the nearest first."""
        order = np.argsort(np.abs(self.uncertainty - uncertainty), kind="stable")
        return order[:count].tolist()


def _check(holds: bool, what: str, received: str, remedy: str) -> None:  # noqa: FBT001 - a condition
    if not holds:
        raise BadInput(what, "data", Phrase(received), remedy)
