"""Risks that a deferral rule keeps in bounds: errors, false negatives, costs, and their tests along rising thresholds.

Examples are in order of their uncertainty, and a *cut* is how many of them are kept. See `bounds` for the tests,
`thresholds` for which cut is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dropscope.deploy.bounds import Floats, betting_p, binomial_p, least_limit, upper_bound

Numbers = NDArray[np.int64]
_AT_ONCE = 1 << 22  # values of a table that are handled at once


@dataclass(frozen=True, eq=False)
class Risk:
    """A mean loss among the kept that must not be above a limit.

    Attributes:
        name: What it is called.
        limit: As a share of the largest loss.
        loss: From 0 to 1, per example.
        weight: How much each example counts; 0 for those that the risk is not about.
        unit: The independent unit of each example, as a number; None where each is one by itself.
        scale: The largest loss, in the units of the user.
    """

    name: str
    limit: float
    loss: Floats
    weight: Floats
    unit: Numbers | None = None
    scale: float = 1.0

    @property
    def exact(self) -> bool:
        """Whether losses are independent zeros and ones that count alike."""
        alike = np.unique(self.weight[self.weight > 0])
        return self.unit is None and len(alike) <= 1 and bool(np.isin(self.loss, (0.0, 1.0)).all())

    def take(self, which: NDArray[np.bool_] | Numbers) -> Risk:
        """The risk of chosen examples, in the order chosen."""
        unit = None if self.unit is None else np.unique(self.unit[which], return_inverse=True)[1]
        return Risk(self.name, self.limit, self.loss[which], self.weight[which], unit, self.scale)

    def at(self, limit: float) -> Risk:
        """The same under another limit."""
        return Risk(self.name, limit, self.loss, self.weight, self.unit, self.scale)

    def observed(self, cut: int) -> float:
        """The mean loss of the first examples, in the units of the user; NaN where none counts."""
        weight = self.weight[:cut]
        total = float(weight.sum())
        return self.scale * float((weight * self.loss[:cut]).sum()) / total if total else float("nan")

    def p_values(self, cuts: Numbers, delta: float, *, lossless: bool = False) -> Floats:
        """Of "the risk of the first examples is above its limit", for every cut.

        Args:
            cuts: How many examples are kept.
            delta: The level at which they will be read.
            lossless: Whether to see what could pass at best: as if there were no loss.
        """
        if self.exact:
            counted, loss = self.weight > 0, 0.0 if lossless else self.loss
            kept, errors = (np.cumsum(values)[cuts - 1] for values in (counted, counted * loss))
            return binomial_p(errors, kept, self.limit)
        units, most = self._units()
        at_once = max(1, _AT_ONCE // (int(units.max()) + 1))
        parts = (cuts[start : start + at_once] for start in range(0, len(cuts), at_once))
        return np.concatenate([betting_p(self.excess(part, lossless=lossless), most, delta) for part in parts])

    def excess(self, cuts: Numbers, *, lossless: bool = False) -> Floats:
        """What every unit is above the limit at every cut, `[units, cuts]`, units in an order of chance."""
        units, _ = self._units()
        excess = self.weight * ((0.0 if lossless else self.loss) - self.limit)
        last = int(cuts[-1])
        column = np.searchsorted(cuts, np.arange(last), side="right")  # the first cut that keeps each example
        shape = int(units.max()) + 1, len(cuts)
        places = units[:last] * shape[1] + column
        return np.bincount(places, excess[:last], shape[0] * shape[1]).reshape(shape).cumsum(1)

    def bound(self, cut: int, delta: float) -> float:
        """What the risk of the first examples is at most, in the units of the user, for a cut chosen without losses."""
        if self.exact:
            counted = self.weight[:cut] > 0
            return self.scale * upper_bound(float((counted * self.loss[:cut]).sum()), float(counted.sum()), delta)
        cuts = np.array([cut])
        return self.scale * least_limit(lambda limit: float(self.at(limit).p_values(cuts, delta)[0]), delta)

    def _units(self) -> tuple[Numbers, float]:
        """The unit of each example, numbered in an order of chance, and the largest excess that one could have."""
        units = np.arange(len(self.loss)) if self.unit is None else self.unit
        count = int(units.max()) + 1
        # Seeded: data may be sorted by uncertainty, and the same data must give the same rule.
        order = np.random.default_rng(0).permutation(count)
        return order[units], (1 - self.limit) * float(np.bincount(units, self.weight).max())


def jointly(risks: list[Risk], cuts: Numbers, delta: float, *, lossless: bool = False) -> Floats:
    """P-values of "some risk is above its limit": the largest of each cut, with no correction (intersection-union)."""
    return np.max([risk.p_values(cuts, delta, lossless=lossless) for risk in risks], 0)
