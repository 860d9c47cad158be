"""Searches for the cut that keeps most with a guarantee: fixed sequence, several starts, Holm, SGR, and on average.

Each takes tests along the cuts, from the most certain examples on, and gives the place of the cut to take or None. What
may decide where a search starts are uncertainties, never losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dropscope.deploy.bounds import Floats
from dropscope.deploy.risks import Numbers, Risk, jointly

METHODS = ("fixed_sequence", "starts", "sgr", "holm", "average")
_CUTS = 100
_ROOM = 3  # times the fewest examples that could pass, so that a few errors do not end the search at its start
_STARTS = 5


def cuts_of(scores: Floats) -> Numbers:
    """How many examples are kept at about every hundredth of them; equal scores are never divided, NaN never kept.

    >>> cuts_of(np.array([0.1, 0.2, 0.2, 0.3, np.nan])).tolist()
    [1, 3, 4]
    """
    scores = scores[~np.isnan(scores)]
    count = len(scores)
    if not count:
        return np.empty(0, np.int64)
    ends = np.append(np.flatnonzero(np.diff(scores) > 0) + 1, count)  # behind the last of equal scores
    wanted = np.unique(np.ceil(np.linspace(0, count, _CUTS + 1)[1:]).astype(np.int64))
    return np.unique(ends[np.searchsorted(ends, wanted)])


@dataclass(frozen=True, eq=False)
class Search:
    """Cuts to choose from by tests at one level.

    Attributes:
        risks: All must hold.
        cuts: How many examples each cut keeps, rising.
        delta: What the probability of a broken limit is at most.
    """

    risks: list[Risk]
    cuts: Numbers
    delta: float

    @cached_property
    def first(self) -> int | None:
        """The place of the first cut that would pass without any loss; None where none would."""
        passes = np.flatnonzero(self._tests(self.delta, lossless=True) <= self.delta)
        return int(passes[0]) if len(passes) else None

    def by(self, method: str) -> int | None:
        """The place of the cut that a method takes, or None where it takes none."""
        if not len(self.cuts):
            return None
        if method == "average":
            return _on_average(self.risks, self.cuts)
        if self.first is None:
            return None
        # Half of the way to the last cut at most: few examples leave little room.
        fewest, most = self.cuts[self.first], self.cuts[-1]
        start = int(np.searchsorted(self.cuts, min(_ROOM * fewest, (fewest + most) // 2)))
        if method == "fixed_sequence":
            return _while_passing(self._tests(self.delta), start, self.delta)
        if method == "starts":
            return self._several_starts(start)
        return self._holm() if method == "holm" else self._sgr()

    def _tests(self, level: float, *, lossless: bool = False) -> Floats:
        return jointly(self.risks, self.cuts, level, lossless=lossless)

    def _several_starts(self, start: int) -> int | None:
        level = self.delta / _STARTS
        values = self._tests(level)
        places = np.unique(np.linspace(start, len(self.cuts) - 1, _STARTS + 1).astype(int)[:_STARTS])
        found = [_while_passing(values, int(place), level) for place in places]
        return max((place for place in found if place is not None), default=None)

    def _holm(self) -> int | None:
        """The last place among those that Holm's procedure passes."""
        values = self._tests(self.delta / len(self.cuts))
        order = np.argsort(values, kind="stable")
        passes = values[order] <= self.delta / np.arange(len(values), 0, -1)
        count = len(values) if passes.all() else int(np.argmin(passes))
        return int(order[:count].max()) if count else None

    def _sgr(self) -> int | None:
        """Selection with guaranteed risk (Geifman and El-Yaniv 2017): bisection, its tests at equal shares."""
        level = self.delta / max(1, math.ceil(math.log2(self.cuts[-1])))
        low, high, found = 0, len(self.cuts) - 1, None
        while low <= high:
            middle = (low + high + 1) // 2
            if jointly(self.risks, self.cuts[middle : middle + 1], level)[0] <= level:
                found, low = middle, middle + 1
            else:
                high = middle - 1
        return found


def _while_passing(values: Floats, start: int, delta: float) -> int | None:
    """The last place before the first test that fails, from `start` on: no correction, as the order is fixed."""
    failed = np.flatnonzero(values[start:] > delta)
    last = start + (int(failed[0]) if len(failed) else len(values) - start) - 1
    return last if last >= start else None


def _on_average(risks: list[Risk], cuts: Numbers) -> int | None:
    """Conformal risk control for losses that do not fall with the threshold (Angelopoulos 2026).

    The cut is the last at which no mean excess is above 0. It would hold on average were it chosen with the new example
    among the others; how much it loses without is seen by leaving out one unit after another, and made up for.
    """
    holds = np.ones(len(cuts), bool)
    for risk in risks:
        table = risk.excess(cuts)
        total, units = table.sum(0), np.arange(len(table))
        chosen, left_out = _last(total[None] <= 0), _last(total - table <= 0)
        padded = np.column_stack([np.zeros(len(table)), table])  # nothing kept, no excess
        loses = float((padded[units, left_out + 1] - padded[units, chosen + 1]).mean())
        holds &= total / len(table) <= -max(0.0, loses)
    place = int(_last(holds[None])[0])
    return place if place >= 0 else None


def _last(passes: np.ndarray) -> Numbers:
    """The last place of each row at which it is true; −1 where it is nowhere."""
    found = passes.shape[1] - 1 - np.argmax(passes[:, ::-1], axis=1)
    return np.where(passes.any(1), found, -1)
