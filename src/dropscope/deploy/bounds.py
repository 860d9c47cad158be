"""Tests and bounds of a risk from independent examples or groups: exact binomial tails, and bets.

A test is of the hypothesis that the risk is above its limit; a small p-value is evidence that it is not. Zeros and ones
that are independent have the exact binomial tail. Everything else that is bounded, such as sums over the rows of a
patient, weights and costs, has a betting martingale (Waudby-Smith and Ramdas 2024), valid for any distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]
_MOST = 0.9  # share of what can be lost that is bet at most
_HALVINGS = 40


def binomial_p(errors: ArrayLike, kept: ArrayLike, limit: float) -> Floats:
    """P(at most so many errors among the kept), were the risk at its limit; 1 where nothing is kept.

    >>> binomial_p([0, 2], [45, 45], 0.05).round(4).tolist()
    [0.0994, 0.6077]
    """
    counts = np.asarray(kept, float)
    tails = special.bdtr(np.asarray(errors, float), np.maximum(counts, 1).astype(np.int64), limit)
    return np.where(counts > 0, tails, 1.0)


def least_kept(limit: float, delta: float) -> int:
    """How many examples without an error are the fewest that pass.

    >>> least_kept(0.05, 0.1)
    45
    """
    return math.ceil(math.log(delta) / math.log1p(-limit))


def upper_bound(errors: float, kept: float, delta: float) -> float:
    """What the risk is at most, with probability 1 − delta (Clopper and Pearson 1934).

    >>> round(upper_bound(0, 45, 0.1), 3)
    0.05
    """
    return 1.0 if errors >= kept else float(special.betaincinv(errors + 1, kept - errors, 1 - delta))


def lower_bound(errors: float, kept: float, delta: float) -> float:
    """What the risk is at least, with probability 1 − delta.

    >>> round(lower_bound(45, 45, 0.1), 3)
    0.95
    """
    return 0.0 if errors <= 0 else float(special.betaincinv(errors, kept - errors + 1, delta))


def betting_p(excess: ArrayLike, most: float, delta: float) -> Floats:
    """P-values of "the mean excess is not below 0", from bets that each unit is below.

    The wealth of a gambler who cannot see the next unit is a martingale at most, so 1 / (its highest value) is a
    p-value (Ville). Each stake is set by the spread so far, as is best for `delta`. Units must come in an order that
    has nothing to do with their values.

    Args:
        excess: What each unit is above its limit, summed over its examples, `[units, tests]`.
        most: The largest value that a unit could have.
        delta: The level at which the tests will be read.

    Returns:
        A p-value per test.

    Examples:
        >>> below, as_often = np.full((200, 1), -0.05), np.tile([[-0.05], [0.95]], (100, 1))
        >>> float(betting_p(below, 0.95, 0.1)[0]) < 0.01, float(betting_p(as_often, 0.95, 0.1)[0]) > 0.9
        (True, True)
    """
    values = np.asarray(excess, float)
    squares = np.cumsum(values**2, 0) - values**2
    spread = (most**2 / 4 + squares) / np.arange(1, len(values) + 1)[:, None]
    stakes = np.minimum(np.sqrt(2 * math.log(1 / delta) / (spread * len(values))), _MOST / most)
    wealth = np.cumsum(np.log1p(-stakes * values), 0)
    return np.exp(-np.maximum(wealth.max(0), 0.0))


def least_limit(p_value: Callable[[float], float], delta: float) -> float:
    """The lowest limit that passes at `delta`: an upper bound of the risk, from tests of single limits.

    >>> round(least_limit(lambda limit: float(binomial_p(0, 45, limit)), 0.1), 3)
    0.05
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(middle) <= delta else (middle, high)
    return high
