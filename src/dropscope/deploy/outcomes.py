"""Outcomes that a deferral rule is made from, checked: which examples are wrong, of which class, and how costly."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dropscope.analysis import group_numbers
from dropscope.checks import check_share, finite_number
from dropscope.deploy.bounds import Floats
from dropscope.deploy.risks import Numbers, Risk
from dropscope.deploy.rules import as_floats, class_name
from dropscope.errors import BadInput, Phrase, nearest

Costs = Mapping[tuple[Hashable, Hashable], float] | Sequence[Sequence[float]] | NDArray[Any]
Texts = NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What is known about every example.

    Attributes:
        right: 1 for a right prediction, 0 for a wrong one, or a share between, such as a Dice score.
        weight: How much each counts.
        unit: The independent unit of each as a number; None where each is one by itself.
        labels: True classes, or None.
        predictions: Predicted classes, or None.
        positive: The class whose misses are false negatives, or None.
    """

    right: Floats
    weight: Floats
    unit: Numbers | None = None
    labels: Texts | None = None
    predictions: Texts | None = None
    positive: str | None = None

    @property
    def n(self) -> int:
        """How many examples there are."""
        return len(self.right)

    @property
    def units(self) -> int:
        """How many of them are independent."""
        return self.n if self.unit is None else int(self.unit.max()) + 1

    @property
    def loss_name(self) -> str:
        """What 1 − right is called."""
        return "error" if bool(np.isin(self.right, (0.0, 1.0)).all()) else "loss"

    def take(self, which: NDArray[np.bool_]) -> Outcomes:
        """Chosen examples."""
        unit = None if self.unit is None else np.unique(self.unit[which], return_inverse=True)[1]
        labels, predictions = (None if one is None else one[which] for one in (self.labels, self.predictions))
        return Outcomes(self.right[which], self.weight[which], unit, labels, predictions, self.positive)

    def risks(
        self, max_error: float | None, max_false_negatives: float | None, costs: Costs | None, max_cost: float | None
    ) -> list[Risk]:
        """The risks that were asked for.

        Raises:
            BadInput: If what they need is not there.
        """
        found = []
        if max_error is not None:
            found.append(
                Risk(self.loss_name, check_share(max_error, "max_error", 0.05), 1 - self.right, self.weight, self.unit)
            )
        if max_false_negatives is not None:
            limit = check_share(max_false_negatives, "max_false_negatives", 0.05)
            labels = _needed(self.labels, "labels", "max_false_negatives")
            positives = labels == _positive(labels, self.positive)
            found.append(Risk("false negatives", limit, 1 - self.right, self.weight * positives, self.unit))
        if costs is not None or max_cost is not None:
            found.append(self._cost(costs, max_cost))
        return found

    def _cost(self, costs: Costs | None, max_cost: float | None) -> Risk:
        if costs is None or max_cost is None:
            name, other = ("costs", "max_cost") if costs is None else ("max_cost", "costs")
            raise BadInput(f"{name} must be given with {other}", name, None, f"pass {name} too")
        labels = _needed(self.labels, "labels", "costs")
        predictions = _needed(self.predictions, "predictions", "costs")
        table = _cost_table(costs)
        pairs = list(zip(labels.tolist(), predictions.tolist(), strict=True))
        missing = next((pair for pair in pairs if pair not in table and pair[0] != pair[1]), None)
        if missing is not None:
            got = Phrase(f"none for true {missing[0]!r}, predicted {missing[1]!r}")
            raise BadInput("costs must hold every pair of classes that occurs", "costs", got, "add it")
        most, limit = max(table.values()), finite_number(max_cost)
        if limit is None or not 0 < limit < most:
            remedy = f"write max_cost={most / 10:g}"
            raise BadInput(
                f"max_cost must be above 0 and below the largest cost, {most:g}", "max_cost", max_cost, remedy
            )
        loss = np.array([table.get(pair, 0.0) for pair in pairs]) / most
        return Risk("cost", limit / most, loss, self.weight, self.unit, most)


def read_outcomes(
    correct: ArrayLike,
    *,
    groups: Sequence[Hashable] | None,
    labels: Sequence[Hashable] | None,
    predictions: Sequence[Hashable] | None,
    positive: Hashable | None,
    prevalence: Mapping[Hashable, float] | float | None,
) -> Outcomes:
    """Checks outcomes. Arguments are those of `defer`.

    Raises:
        BadInput: If any cannot be used.
    """
    right = as_floats(correct, "correct")
    if not len(right):
        raise BadInput("correct must hold at least one example", "correct", Phrase("none"), "pass labelled examples")
    if not ((right >= 0) & (right <= 1)).all():  # NaN too
        at = int(np.flatnonzero(~((right >= 0) & (right <= 1)))[0])
        what = "correct must be true or false for every example, or a share in [0, 1]"
        raise BadInput(what, "correct", Phrase(f"{right[at]} for example {at + 1}"),
                       "leave out examples without a label")  # fmt: skip
    n = len(right)
    unit = None
    if groups is not None:
        unit = group_numbers(_one_each(groups, "groups", n))
        unit = None if int(unit.max()) + 1 == n else unit
    known = None if labels is None else _classes(labels, "labels", n)
    predicted = None if predictions is None else _classes(predictions, "predictions", n)
    chosen = None if positive is None else class_name(positive)
    weight = np.ones(n) if prevalence is None else _weights(_needed(known, "labels", "prevalence"), prevalence, chosen)
    return Outcomes(right, weight, unit, known, predicted, chosen)


def _one_each(values: Sequence[Hashable], name: str, n: int) -> list[Any]:
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(listed) != n:
        got = Phrase(f"{len(listed)} for {n} examples")
        raise BadInput(f"{name} must be one per example", name, got, f"pass as many {name} as examples")
    return listed


def _classes(values: Sequence[Hashable], name: str, n: int) -> Texts:
    return np.array([class_name(one) for one in _one_each(values, name, n)])


def _needed(values: Texts | None, name: str, by: str) -> Texts:
    if values is None:
        noun = "the true class" if name == "labels" else "the predicted class"
        raise BadInput(f"{name} must be given with {by}", name, None, f"pass {noun} of every example")
    return values


def _positive(labels: Texts, positive: str | None) -> str:
    """The class whose misses count: as given, or "1" where there are two classes and it is one of them."""
    every = sorted(set(labels.tolist()))
    if positive is None and len(every) == 2 and "1" in every:
        return "1"
    if positive is None or positive not in every:
        remedy = f"write positive={every[-1]!r}" if positive is None else nearest(positive, every)
        raise BadInput("positive must be one of the labels", "positive", positive, remedy)
    return positive


def _weights(labels: Texts, prevalence: Mapping[Hashable, float] | float, positive: str | None) -> Floats:
    """How much each example counts where classes are as frequent as `prevalence` says."""
    every, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if not isinstance(prevalence, Mapping):
        share = finite_number(prevalence)
        if share is None or len(every) != 2 or not 0 < share < 1:
            what = "prevalence must be the share of the positive one of two classes, or of every class by name"
            raise BadInput(what, "prevalence", prevalence, "write prevalence={0: 0.99, 1: 0.01}")
        chosen = _positive(labels, positive)
        prevalence = {name: share if name == chosen else 1 - share for name in every.tolist()}
    shares = {class_name(name): finite_number(share) for name, share in prevalence.items()}
    missing = [name for name in every.tolist() if name not in shares]
    if missing:
        raise BadInput("prevalence must have every class", "prevalence", Phrase(f"none for {missing[0]!r}"), "add it")
    wanted = [shares[name] for name in every.tolist()]
    total = sum(share for share in shares.values() if share is not None)
    if any(share is None or share <= 0 for share in wanted) or abs(total - 1) > 1e-3:
        got = Phrase(f"shares that sum to {total:g}")
        raise BadInput(
            "prevalence must be shares above 0 that sum to 1", "prevalence", got, "give every class its share"
        )
    return (np.array(wanted, float) * len(labels) / counts)[index]


def _cost_table(costs: Costs) -> dict[tuple[str, str], float]:
    """(true, predicted) → cost."""
    if isinstance(costs, Mapping):
        table = {(class_name(true), class_name(predicted)): cost for (true, predicted), cost in costs.items()}
    else:
        matrix = np.asarray(costs, float)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            got = Phrase(f"shape {matrix.shape}")
            raise BadInput(
                "costs must be a square matrix: true × predicted", "costs", got, "write costs=[[0, 1], [5, 0]]"
            )
        table = {(str(i), str(j)): float(matrix[i, j]) for i in range(len(matrix)) for j in range(len(matrix))}
    wrong = next((cost for cost in table.values() if finite_number(cost) is None or cost < 0), None)
    if wrong is not None or not any(table.values()):
        raise BadInput("costs must be numbers of at least 0, not all 0", "costs", wrong, "write costs=[[0, 1], [5, 0]]")
    return {pair: float(cost) for pair, cost in table.items()}
