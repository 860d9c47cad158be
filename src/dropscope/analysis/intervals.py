"""Intervals of a statistic from its replicates: each contains its estimate, and is as wide as few errors make it.

Owns what a percentile interval gets wrong. Scores of a ranking rest on few errors, so t quantiles are those of their
number; a risk is skewed, so its interval is of the logarithm; penalties and calibration errors are means of absolute
values, biased up by chance, so their lower ends are moved down by that bias. The draws are those of `resampling`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

_CLEAR = 2.0  # standard errors from 0, beyond which a mean is not taken for one that is 0


def t_factor(freedom: int, level: float = 0.95, of: int = 1) -> float:
    """Standard errors either side of a value: Student's quantile, for intervals of `of` values that all hold at once.

    >>> round(t_factor(29), 3), round(t_factor(29, of=100), 3)
    (2.045, 3.918)
    """
    return float(special.stdtrit(max(freedom, 1), 1 - (1 - level) / 2 / of))


def t_interval(
    value: float, replicates: ArrayLike, freedom: int, *, level: float = 0.95, of: int = 1, log: bool = False
) -> tuple[float, float]:
    """value ± t·s with s the std of the replicates; undefined (NaN) where fewer than two of them are.

    Args:
        value: The statistic itself.
        replicates: The statistic on every resample; those in which it is undefined are left out.
        freedom: Degrees of freedom: errors − 1, or groups − 1 where these are fewer.
        level: Of the interval.
        of: How many intervals are to hold at once (Bonferroni): as many as the value was picked from.
        log: Whether it is the logarithm that varies by so much: for risks, which are positive and skewed.

    Returns:
        Its ends.

    Examples:
        >>> [round(end, 3) for end in t_interval(1.0, [0.9, 1.0, 1.1], 1000)]
        [0.804, 1.196]
        >>> [round(end, 3) for end in t_interval(1.0, [0.9, 1.0, 1.1], 1000, log=True)]
        [0.822, 1.217]
    """
    spread = _spread(replicates)
    if math.isnan(value) or math.isnan(spread):
        return math.nan, math.nan
    half = t_factor(freedom, level, of) * spread
    if not log:
        return value - half, value + half
    if value <= 0:
        return value, value + half
    return value * math.exp(-half / value), value * math.exp(half / value)


def penalty_interval(
    value: float, halves: ArrayLike, freedom: int, *, share: float = 0.5, level: float = 0.95
) -> tuple[float, float]:
    """The interval of a statistic that is at least 0 and that chance only adds to, from random halves of the examples.

    Half the examples have more of the bias: by so much the lower end is moved down, so that it reaches 0 where chance
    alone makes the value. The spread of halves about their mean is the standard error (a delete-half jackknife; no
    example is repeated, so that none is tied with itself). The upper end is on the scale of the square root.

    Args:
        value: The statistic on all examples.
        halves: The statistic on each random half.
        freedom: Degrees of freedom.
        share: The share of the examples, or of the groups, in a half.
        level: Of the interval.

    Returns:
        Its ends, which contain the value.

    Examples:
        >>> low, high = penalty_interval(0.02, [0.02, 0.03, 0.04], 1000); low, round(high, 4)
        (0.0, 0.0444)
    """
    drawn = np.asarray(halves, float)
    drawn = drawn[np.isfinite(drawn)]
    spread = _spread(drawn) * math.sqrt(share / (1 - share))
    if math.isnan(value) or math.isnan(spread):
        return math.nan, math.nan
    half, bias = t_factor(freedom, level) * spread, max(0.0, float(drawn.mean()) - value)
    skew = min(1.0, half / (4 * value)) if value > 0 else 0.0
    return max(0.0, value - bias - half), value + half * (1 + skew)


def absolute_sum_interval(
    means: ArrayLike, replicates: ArrayLike, freedom: int, *, level: float = 0.95
) -> tuple[float, float]:
    """The interval of Σ|mean|, as the expected calibration error is one: biased up, for chance adds to every term.

    The lower end is moved down by the bias, with every mean within two standard errors of 0 taken for one that is 0
    (moment selection, Andrews and Soares 2010): it reaches 0 where all of them may be.

    Args:
        means: The terms, `[terms]`.
        replicates: The terms on every resample, `[replicates, terms]`.
        freedom: Degrees of freedom.
        level: Of the interval.

    Returns:
        Its ends, which contain Σ|mean|.

    Examples:
        >>> drawn = 0.01 * np.random.default_rng(0).normal(size=(200, 15))
        >>> absolute_sum_interval(drawn[0], drawn, 1000)[0], absolute_sum_interval([0.3], [[0.29], [0.31]], 9)[0] > 0.2
        (0.0, True)
    """
    centre, drawn = np.asarray(means, float), np.asarray(replicates, float)
    value, spread = float(np.abs(centre).sum()), _spread(np.abs(drawn).sum(1))
    if math.isnan(value) or math.isnan(spread):
        return math.nan, math.nan
    error = drawn.std(0, ddof=1)
    moving = error > 0
    error, centre = error[moving], centre[moving]
    ratio = np.where(np.abs(centre) > _CLEAR * error, np.abs(centre) / error, 0.0)
    # E|N(m, s)| − |m|, in units of s
    bias = float((error * 2 * (stats.norm.pdf(ratio) - ratio * stats.norm.sf(ratio))).sum())
    half = t_factor(freedom, level) * spread
    return max(0.0, value - bias - half), value + half


def _spread(replicates: ArrayLike) -> float:
    drawn = np.asarray(replicates, float)
    drawn = drawn[np.isfinite(drawn)]
    return float(drawn.std(ddof=1)) if len(drawn) > 1 else math.nan
