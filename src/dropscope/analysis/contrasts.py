"""Contrasts between networks: sign test, difference of two groups, rank correlation, effect sizes.

Owns tests whose replicates are separately trained networks. Tests over groups of examples are in `inference`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dropscope.analysis.inference import Estimate


def sign_test(wins: int, losses: int, level: float = 0.95) -> Estimate:
    """Share of wins among wins and losses (ties count for neither), Clopper-Pearson interval, exact binomial p for ½.

    >>> sign_test(10, 9).p, round(sign_test(16, 3).p, 3)
    (1.0, 0.004)
    """
    n = wins + losses
    if n == 0:
        return _undefined(0, "exact sign test over 0 pairs")
    test = stats.binomtest(wins, n)
    ends = test.proportion_ci(level)
    return Estimate(
        wins / n, float(ends.low), float(ends.high), float(test.pvalue), n, f"exact sign test over {n} pairs"
    )


def difference_of_means(
    first: Sequence[float], second: Sequence[float], level: float = 0.95, permutations: int = 20_000, seed: int = 0
) -> Estimate:
    """Mean of `first` minus mean of `second` over separately trained networks: Welch's t interval, permutation p.

    The permutation test is exact where there are at most `permutations` divisions, else of that many random ones.

    >>> e = difference_of_means([1.0, 2.0, 3.0], [11.0, 12.0, 13.0]); e.value, e.p, e.method
    (-10.0, 0.1, 'exact permutation test of means, 3 against 3 networks, Welch interval')
    """
    a, b = (np.asarray([v for v in side if np.isfinite(v)], float) for side in (first, second))
    named = f"permutation test of means, {len(a)} against {len(b)} networks, Welch interval"
    if min(len(a), len(b)) < 1:
        return _undefined(len(a) + len(b), named)
    value, pooled, size = float(a.mean() - b.mean()), np.concatenate([a, b]), len(a)
    exact = math.comb(len(pooled), size) <= permutations
    if exact:
        chosen = np.array(list(itertools.combinations(range(len(pooled)), size)))
    else:
        draw = np.random.default_rng(seed)
        chosen = draw.permuted(np.tile(np.arange(len(pooled)), (permutations, 1)), axis=1)[:, :size]
    inside = pooled[chosen].sum(1)
    shuffled = inside / size - (pooled.sum() - inside) / len(b)
    beyond = int((np.abs(shuffled) >= abs(value) - 1e-12).sum())
    p = beyond / len(chosen) if exact else (beyond + 1) / (permutations + 1)
    low = high = float("nan")
    if min(len(a), len(b)) > 1:
        parts = (a.var(ddof=1) / len(a), b.var(ddof=1) / len(b))
        error = math.sqrt(sum(parts))
        freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1)) if error else 1.0
        half = float(stats.t.ppf((1 + level) / 2, freedom)) * error
        low, high = value - half, value + half
    return Estimate(value, low, high, p, len(pooled), ("exact " if exact else "random ") + named)


def spearman(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Spearman's correlation, and its p-value as if the pairs were replicates: descriptive where they are placements.

    Pairs with a NaN are left out; NaN for fewer than three, or where one side does not vary.

    >>> spearman([1, 2, 3, 4], [1.0, 4.0, 9.0, 16.0])
    (1.0, 0.0)
    """
    a, b = finite_pairs(x, y)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan"), float("nan")
    test = stats.spearmanr(a, b)
    rho = float(test.statistic)
    if abs(rho) > 1 - 1e-12:
        return float(round(rho)), 0.0
    return rho, float(test.pvalue)


def rank_correlation(
    x: Sequence[float], y: Sequence[float], level: float = 0.95, permutations: int = 20_000, seed: int = 0
) -> Estimate:
    """Spearman's rank correlation (ties averaged), permutation p, interval by Fisher's z with the error of Bonett and
    Wright (2000). Pairs with a NaN are left out; undefined for fewer than three, or where one side is constant.

    >>> e = rank_correlation([1, 2, 3, 4], [1, 2, 3, 9]); e.value, round(e.p, 4), e.n
    (1.0, 0.0833, 4)
    """
    pairs = finite_pairs(x, y)
    n = len(pairs[0])
    exact = n <= 7
    method = f"Spearman over {n} networks, {'exact' if exact else 'random'} permutation test"
    value, _ = spearman(*pairs)
    if math.isnan(value):
        return _undefined(n, method)
    a, b = (stats.zscore(stats.rankdata(side)) for side in pairs)
    if exact:
        orders = np.array(list(itertools.permutations(range(n))))
    else:
        orders = np.random.default_rng(seed).permuted(np.tile(np.arange(n), (permutations, 1)), axis=1)
    beyond = int((np.abs(b[orders] @ a / n) >= abs(value) - 1e-12).sum())
    p = beyond / len(orders) if exact else (beyond + 1) / (permutations + 1)
    if n < 5:
        return Estimate(value, float("nan"), float("nan"), p, n, method)
    if abs(value) == 1:
        return Estimate(value, value, value, p, n, method)
    half = float(stats.norm.ppf((1 + level) / 2)) * math.sqrt((1 + value**2 / 2) / (n - 3))
    low, high = np.tanh(np.arctanh(value) + np.array([-half, half]))
    return Estimate(value, float(low), float(high), p, n, method)


def cohens_d(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """(mean of `first` − mean of `second`) / pooled std. Of whatever is repeated: say of what beside the number.

    0 where both means are equal, NaN where only the stds vanish (no scale to measure with).

    >>> round(cohens_d([2.0, 4.0], [1.0, 3.0]), 4)
    0.7071
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    difference = float(a.mean() - b.mean()) if len(a) and len(b) else float("nan")
    freedom = len(a) + len(b) - 2
    if freedom < 1 or difference == 0:
        return 0.0 if difference == 0 else float("nan")
    spread = math.sqrt((((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()) / freedom)
    return difference / spread if spread > 0 else float("nan")


def paired_d(differences: Sequence[float] | np.ndarray) -> float:
    """Cohen's d_z = mean of paired differences / their std (ddof 1); 0 where the mean is, NaN where only the std is 0.

    >>> paired_d([1.0, 2.0, 3.0])
    2.0
    """
    x = np.asarray(differences, float)
    if len(x) < 2:
        return float("nan")
    mean, spread = float(x.mean()), float(x.std(ddof=1))
    return 0.0 if mean == 0 else mean / spread if spread > 0 else float("nan")


def finite_pairs(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Both sides as arrays, without the pairs in which either is no finite number."""
    a, b = np.asarray(x, float), np.asarray(y, float)
    known = np.isfinite(a) & np.isfinite(b)
    return a[known], b[known]


def _undefined(n: int, method: str) -> Estimate:
    nan = float("nan")
    return Estimate(nan, nan, nan, nan, n, method)
