"""Evaluation of a predictor on labelled examples: kept and deferred, per class and subgroup, with intervals.

Intervals of shares are exact binomial ones; where examples come in groups, of as many examples as they are worth (Korn
and Graubard 1998). Those of losses between 0 and 1 are betting bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dropscope.deploy.bounds import Floats, lower_bound, upper_bound
from dropscope.deploy.risks import Risk
from dropscope.display import Table
from dropscope.errors import BadInput, Phrase

Marks = NDArray[np.bool_]
By = Sequence[Any] | Mapping[str, Sequence[Any]] | None
_TAIL = 0.025


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How a predictor does on labelled examples. Prints itself.

    Attributes:
        table: A row per subset (all examples, every subgroup of `by`): `subset`, `n`, `coverage`, `error` of all,
            `error_kept` and `error_deferred`, each with `_low` and `_high` of a 95 % interval.
        classes: A row per class and part (all, kept, deferred): `sensitivity` and `specificity`, with intervals.
        max_error: What was promised for the kept; None without a rule.
        outcome: "error", or "loss" for shares between right and wrong, such as 1 − Dice: there are no classes then.
    """

    table: pd.DataFrame
    classes: pd.DataFrame
    max_error: float | None
    outcome: str = "error"

    @property
    def refuted(self) -> bool:
        """Whether the error of all that are kept is clearly above the promise: the whole interval is."""
        return self.max_error is not None and bool(self.table.error_kept_low[0] > self.max_error)

    def facts(self) -> dict[str, Any]:
        """The tables in values that JSON can hold."""
        tables = {"table": self.table, "classes": self.classes}
        rows = {name: table.astype(object).where(table.notna(), None) for name, table in tables.items()}
        records = {name: table.to_dict(orient="records") for name, table in rows.items()}
        return {**records, "max_error": self.max_error, "refuted": self.refuted}

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        shown = ("coverage", "error", "error_kept", "error_deferred")
        rows = [
            [row.subset, f"{row.n:,}", *(_interval(row, name) for name in shown)] for row in self.table.itertuples()
        ]
        titles = ["subset", "n", "kept", self.outcome, "of the kept", "of the deferred"]
        notes = []
        if self.max_error is not None:
            word = ", REFUTED here" if self.refuted else ""
            notes = [f"promised: {self.outcome} of the kept at most {100 * self.max_error:g} %{word}"]
        of_classes = [
            [
                str(row["class"]),
                row["part"],
                str(row["n"]),
                _interval(row, "sensitivity"),
                _interval(row, "specificity"),
            ]
            for row in self.classes.to_dict(orient="records")
        ]
        first = Table(titles, rows, "in %, with 95 % intervals", notes, ranks=[0, 1, 0, 2, 0, 0]).text()
        if self.classes.empty:
            return first
        heads = ["class", "part", "n", "sensitivity", "specificity"]
        return f"{first}\n\n{Table(heads, of_classes, names=2).text()}"


def evaluate_answers(
    labels: NDArray[np.int64],
    predictions: NDArray[np.int64],
    deferred: Marks,
    *,
    unit: NDArray[np.int64] | None,
    by: By,
    class_names: Sequence[str] | None,
    max_error: float | None,
) -> Evaluation:
    """The tables of labelled predictions.

    Args:
        labels: True classes.
        predictions: Predicted classes.
        deferred: Which are deferred.
        unit: The group of each as a number, or None.
        by: Subgroups: one name per example, or {what: one name per example}.
        class_names: In the order of the classes.
        max_error: What was promised.

    Raises:
        BadInput: If `by` is not one per example.
    """
    rows = _rows(predictions != labels, deferred, unit, by, rate)
    return Evaluation(rows, _of_classes(labels, predictions, deferred, unit, class_names), max_error)


def evaluate_losses(
    losses: Floats, deferred: Marks, *, unit: NDArray[np.int64] | None, by: By, max_error: float | None
) -> Evaluation:
    """The table of cases with losses between 0 and 1.

    Args:
        losses: One per case.
        deferred: Which are deferred.
        unit: The group of each as a number, or None.
        by: Subgroups, as `evaluate_answers` takes them.
        max_error: What was promised.

    Raises:
        BadInput: If `by` is not one per case.
    """
    return Evaluation(_rows(losses, deferred, unit, by, mean_loss), pd.DataFrame(), max_error, "loss")


def _rows(
    wrong: NDArray[Any],
    deferred: Marks,
    unit: NDArray[np.int64] | None,
    by: By,
    summary: Callable[[str, Any, Marks, NDArray[np.int64] | None], dict[str, float]],
) -> pd.DataFrame:
    rows = []
    for name, chosen in {"all": np.ones(len(wrong), bool), **_subsets(by, len(wrong))}.items():
        row: dict[str, Any] = {"subset": name, "n": int(chosen.sum())} | rate("coverage", ~deferred, chosen, unit)
        for column, of in (
            ("error", chosen),
            ("error_kept", chosen & ~deferred),
            ("error_deferred", chosen & deferred),
        ):
            row |= summary(column, wrong, of, unit)
        rows.append(row)
    return pd.DataFrame(rows)


def mean_loss(name: str, losses: Floats, of: Marks, unit: NDArray[np.int64] | None) -> dict[str, float]:
    """The mean of losses between 0 and 1, with the ends of its interval, which are betting bounds.

    >>> found = mean_loss("loss", np.full(200, 0.1), np.ones(200, bool), None)
    >>> found["loss_low"] < 0.1 < found["loss_high"] < 0.2
    True
    """
    if not of.any():
        return {name: float("nan"), f"{name}_low": float("nan"), f"{name}_high": float("nan")}
    own = None if unit is None else np.unique(unit[of], return_inverse=True)[1]
    chosen, weight = losses[of], np.ones(int(of.sum()))
    high, room = (Risk(name, 0.5, some, weight, own).bound(len(some), _TAIL) for some in (chosen, 1 - chosen))
    return {name: float(chosen.mean()), f"{name}_low": 1 - room, f"{name}_high": high}


def rate(name: str, hits: Marks, of: Marks, unit: NDArray[np.int64] | None) -> dict[str, float]:
    """The share of hits, with the ends of its interval.

    >>> rate("error", np.arange(100) < 7, np.ones(100, bool), None)["error"]
    0.07
    """
    n, count = int(of.sum()), int((hits & of).sum())
    if not n:
        return {name: float("nan"), f"{name}_low": float("nan"), f"{name}_high": float("nan")}
    share, worth = count / n, float(n)
    if unit is not None:
        worth = _worth(hits, of, unit, share)
    low, high = (bound(share * worth, worth, _TAIL) for bound in (lower_bound, upper_bound))
    return {name: share, f"{name}_low": low, f"{name}_high": high}


def _worth(hits: Marks, of: Marks, unit: NDArray[np.int64], share: float) -> float:
    """How many independent examples would vary as much."""
    members = np.bincount(unit, of)
    sums = np.bincount(unit, hits & of)[members > 0]
    members = members[members > 0]
    groups, n = len(members), float(members.sum())
    if groups < 2 or share in (0.0, 1.0):
        return float(groups)
    variance = groups / (groups - 1) * float(((sums - share * members) ** 2).sum()) / n**2
    return float(min(n, max(1.0, share * (1 - share) / max(variance, 1e-12))))


def _subsets(by: By, n: int) -> dict[str, Marks]:
    given = by if isinstance(by, Mapping) else {} if by is None else {"": by}
    found = {}
    for what, names in given.items():
        listed = [str(name) for name in (names.tolist() if hasattr(names, "tolist") else names)]
        if len(listed) != n:
            got = Phrase(f"{len(listed)} for {n} examples")
            raise BadInput("by must be one subgroup per example", "by", got, "pass as many as examples")
        every = np.array(listed)
        for name in sorted(set(listed)):
            found[f"{what}={name}" if what else name] = every == name
    return found


def _of_classes(
    labels: NDArray[np.int64],
    predictions: NDArray[np.int64],
    deferred: Marks,
    unit: NDArray[np.int64] | None,
    class_names: Sequence[str] | None,
) -> pd.DataFrame:
    rows = []
    for number in np.unique(labels).tolist():
        is_class, called = labels == number, predictions == number
        for part, chosen in (("all", np.ones(len(labels), bool)), ("kept", ~deferred), ("deferred", deferred)):
            name = number if class_names is None else class_names[number]
            row: dict[str, Any] = {"class": name, "part": part, "n": int((is_class & chosen).sum())}
            row |= rate("sensitivity", called, is_class & chosen, unit)
            rows.append(row | rate("specificity", ~called, ~is_class & chosen, unit))
    return pd.DataFrame(rows)


def _interval(row: Any, name: str) -> str:
    values = [row[key] if isinstance(row, dict) else getattr(row, key) for key in (name, f"{name}_low", f"{name}_high")]
    if any(np.isnan(values)):
        return "-"
    return f"{100 * values[0]:.1f} ({100 * values[1]:.0f}-{100 * values[2]:.0f})"
