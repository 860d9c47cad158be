"""Questions to a set of outcomes: which risks to bound by which method, and the thresholds that answer them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dropscope.deploy.bounds import Floats
from dropscope.deploy.outcomes import Outcomes, Texts
from dropscope.deploy.risks import Risk
from dropscope.deploy.thresholds import Search, cuts_of

Thresholds = dict[str, float | None]


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of some examples: all but the uncertainties and the level."""

    outcomes: Outcomes
    risks: list[Risk]
    method: str
    classes: Texts  # what each example is divided by

    def take(self, which: NDArray[np.bool_]) -> Question:
        risks = [risk.take(which) for risk in self.risks]
        return replace(self, outcomes=self.outcomes.take(which), risks=risks, classes=self.classes[which])

    def searches(self, scores: Floats, delta: float) -> dict[str, tuple[Search, Floats]]:
        """A search for every class with its scores in order, the level divided among them."""
        every = np.unique(self.classes).tolist()
        found = {}
        for name in every:
            part = self.classes == name
            ordered, risks = ordered_by(scores[part], [risk.take(part) for risk in self.risks])
            found[name] = Search(risks, cuts_of(ordered), delta / len(every)), ordered
        return found

    def answer(self, scores: Floats, delta: float) -> Thresholds:
        """The threshold of every class."""
        return taken(self.searches(scores, delta), self.method)

    def coverage(self, scores: Floats, thresholds: Thresholds) -> float:
        weight = self.outcomes.weight
        return float(weight[self.kept(scores, thresholds)].sum() / weight.sum())

    def kept(self, scores: Floats, thresholds: Thresholds) -> NDArray[np.bool_]:
        known = {name: -math.inf if value is None else value for name, value in thresholds.items()}
        return scores <= np.array([known[name] for name in self.classes.tolist()])


def taken(searches: dict[str, tuple[Search, Floats]], method: str) -> Thresholds:
    """The threshold that a method takes for every class."""
    found: Thresholds = {}
    for name, (search, ordered) in searches.items():
        place = search.by(method)
        found[name] = None if place is None else behind(ordered, int(search.cuts[place]))
    return found


def ordered_by(scores: Floats, risks: list[Risk]) -> tuple[Floats, list[Risk]]:
    """Scores from the most certain on, and the risks in their order."""
    order = np.argsort(scores, kind="stable")
    return scores[order], [risk.take(order) for risk in risks]


def behind(ordered: Floats, cut: int) -> float:
    """A threshold halfway to the next score, so that the last digit of a score decides nothing."""
    last = float(ordered[cut - 1])
    if cut == len(ordered) or np.isnan(ordered[cut]):
        return last
    middle = last / 2 + float(ordered[cut]) / 2
    return middle if last <= middle < float(ordered[cut]) else last
