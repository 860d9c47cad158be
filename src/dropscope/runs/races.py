"""Races: which of many rankings are seen to be worse than the best one, however often one looks.

All are scored on the same examples under the same masks, so that differences are paired. A ranking is out once the
lower end of an asymptotic confidence sequence of its difference to the leader (Waudby-Smith et al. 2024, Theorem 2.2
on one side) is above 0: that holds at all looks together and for all rankings at once. Nothing here sees a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dropscope.scores import Score, score_rankings

ALPHA = 0.05  # that the best of all is ever left behind
LEAST_ERRORS = 10  # with fewer, no difference is taken for one
_FOLDS = 40  # of the jackknife


@dataclass(frozen=True, eq=False)
class Standing:
    """Where rankings stand after a look.

    Attributes:
        values: The score of each, `[rows]`.
        losses: The same, lower for better ones whatever the score's direction.
        difference: Loss of each less that of the leader.
        lower: Lower end of the confidence sequence of that difference; −∞ where nothing can be said.
    """

    values: np.ndarray
    losses: np.ndarray
    difference: np.ndarray
    lower: np.ndarray

    @property
    def behind(self) -> np.ndarray:
        """Those that are seen to be worse than the leader, `[rows]`."""
        return self.lower > 0


def look(
    uncertainty: Tensor, right: Tensor, units: np.ndarray, score: Score, *, of: int, horizon: int
) -> Standing:  # fmt: skip
    """Scores rankings and compares each with the leader.

    Args:
        uncertainty: `[rows, n]`.
        right: Whether each prediction is right, `[n]`.
        units: What is independent: the number of each example, or of its group, `[n]`.
        score: Of a ranking.
        of: How many rankings have raced in all.
        horizon: At how many units the sequence should be tightest.
    """
    values = _scored(uncertainty, right, score)
    sign = 1 if score.direction == "lower" else -1
    losses = sign * values
    count = len(np.unique(units))
    if not np.isfinite(losses).any():
        return Standing(values, losses, np.zeros_like(losses), np.full_like(losses, -np.inf))
    leader = int(np.nanargmin(losses))
    difference = losses - losses[leader]
    lower = np.full_like(losses, -np.inf)
    if int((~right).sum()) >= LEAST_ERRORS and int(right.sum()) >= LEAST_ERRORS:
        left_out = _folds(units, count)
        drawn = np.stack([sign * _scored(uncertainty[:, kept], right[kept], score) for kept in left_out])
        apart = drawn - drawn[:, leader : leader + 1]
        folds = len(left_out)
        error = np.sqrt((folds - 1) * apart.var(0))
        lower = np.where(np.isfinite(error), difference - radius(error, count, ALPHA / max(of, 1), horizon), -np.inf)
    return Standing(values, losses, difference, lower)


def radius(error: np.ndarray, count: int, alpha: float, horizon: int) -> np.ndarray:
    """How far a mean of `count` values may be above its expectation at any count, with probability 1 − alpha.

    Args:
        error: Its standard error at this count.
        count: Values so far.
        alpha: Of all looks together.
        horizon: Where the sequence should be tightest.

    Examples:
        >>> np.round(radius(np.ones(1), 100, 0.05, 100) / radius(np.ones(1), 100, 0.05, 1000), 2)
        array([0.76])
    """
    log = -math.log(2 * min(alpha, 0.25))
    tuned = (2 * log + math.log(1 + 2 * log)) / horizon
    scaled = count * tuned
    factor = 2 * (scaled + 1) / scaled * math.log(1 + math.sqrt(scaled + 1) / (2 * alpha))
    return np.asarray(error) * math.sqrt(factor)


def _scored(uncertainty: Tensor, right: Tensor, score: Score) -> np.ndarray:
    found = score_rankings(score.function, score.name, uncertainty, right, batched=score.batched)
    return found.numpy()


def _folds(units: np.ndarray, count: int) -> list[Tensor]:
    """The examples that are left when each fold of the units is left out."""
    folds = min(_FOLDS, count)
    fold = np.random.default_rng(0).permutation(count) % folds
    number = np.unique(units, return_inverse=True)[1]
    return [torch.from_numpy(np.flatnonzero(fold[number] != one)) for one in range(folds)]
