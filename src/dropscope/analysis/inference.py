"""Means with intervals and p-values over what was really repeated: groups of examples, or separately trained networks.

Placements, passes and voxels are no replicates (a test over them describes, it does not infer), so nothing here takes
them as such. The resampling itself is in `resampling`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from dropscope.analysis.resampling import group_numbers, interval, resampled_means

ROUNDING = 1e-12  # of the largest value: a spread below is none


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, its p-value and the method that gave them.

    Attributes:
        value: The estimate, usually a mean.
        low: Lower end of the interval; NaN where there are too few replicates for one.
        high: Upper end of the interval; NaN likewise.
        p: Two-sided p-value of "it is zero", unless `method` names another null; NaN likewise.
        n: Replicates: groups or networks, never passes, voxels or placements.
        method: How interval and p-value came about, in words.

    Examples:
        >>> over_networks([1.0, 2.0, 3.0]).method
        't interval over 3 networks'
    """

    value: float
    low: float
    high: float
    p: float
    n: int
    method: str


def over_networks(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Student's t over separately trained networks; undefined (NaN) for fewer than two, and for identical ones, unless
    all are exactly 0.

    >>> e = over_networks([1.0, 2.0, 3.0]); round(e.value, 2), round(e.low, 2), round(e.high, 2), e.n
    (2.0, -0.48, 4.48, 3)
    >>> over_networks([0.1, 0.1, 0.1]).p, over_networks([0.0, 0.0, 0.0]).p
    (nan, 1.0)
    """
    x = np.asarray([v for v in values if np.isfinite(v)], float)
    method = f"t interval over {len(x)} networks"
    if len(x) < 2:
        mean = float(x.mean()) if len(x) else float("nan")
        return Estimate(mean, float("nan"), float("nan"), float("nan"), len(x), method)
    mean, error = float(x.mean()), float(x.std(ddof=1)) / len(x) ** 0.5
    if error <= ROUNDING * float(np.abs(x).max()):  # equal values say nothing about others
        ends, p = ((0.0, 0.0), 1.0) if mean == 0 else ((float("nan"), float("nan")), float("nan"))
        return Estimate(mean, *ends, p, len(x), f"{method}, which do not differ")
    half = float(special.stdtrit(len(x) - 1, (1 + level) / 2)) * error
    return Estimate(mean, mean - half, mean + half, _p_of_t(mean, error, len(x)), len(x), method)


def log_over_networks(values: Sequence[float], null: float = 1.0, level: float = 0.95) -> Estimate:
    """Geometric mean over separately trained networks with Student's t on the logarithms: for positive, skewed values
    such as penalties and ratios. p is of "it is `null`". Undefined where a value is not above 0.

    >>> e = log_over_networks([1.0, 2.0, 4.0]); round(e.value, 2), round(e.low, 2), round(e.high, 2)
    (2.0, 0.36, 11.19)
    """
    x = np.asarray([v for v in values if np.isfinite(v)], float)
    method = f"t interval of the logarithm over {len(x)} networks"
    if not len(x) or (x <= 0).any():
        mean, nan = (float(x.mean()) if len(x) else float("nan")), float("nan")
        return Estimate(mean, nan, nan, nan, len(x), f"{method}; undefined at 0")
    e = over_networks((np.log(x) - np.log(null)).tolist(), level)
    value, low, high = (float(null * np.exp(v)) for v in (e.value, e.low, e.high))
    return Estimate(value, low, high, e.p, e.n, e.method.replace("t interval", "t interval of the logarithm"))


def over_clusters(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, level: float = 0.95,
    replicates: int = 10_000, seed: int = 0,
) -> Estimate:  # fmt: skip
    """Mean of `values` with a bootstrap over clusters (over the values themselves without any).

    The p-value is that of a t test on the cluster sums about the mean: with few clusters a bootstrap p is too small.

    >>> e = over_clusters([1.0, 1.0, 3.0, 3.0], ["a", "a", "b", "b"]); e.value, e.low, e.high, e.n
    (2.0, 1.0, 3.0, 2)
    """
    x = np.asarray(values, float)
    sums, sizes = _cluster_sums(values, clusters)
    groups = len(sums)
    method = (
        f"bootstrap of {replicates:,} replicates over {groups} {'clusters' if clusters is not None else 'examples'}"
    )
    if groups < 2:
        mean = float(x.mean()) if len(x) else float("nan")
        return Estimate(mean, float("nan"), float("nan"), float("nan"), groups, method)
    mean = float(x.mean())
    nan = float("nan")
    low, high = interval(resampled_means(sums, sizes, replicates, seed), level) if np.isfinite(mean) else (nan, nan)
    residual = sums - mean * sizes  # the linearised ratio: its spread over clusters gives the error of the mean
    error = float(np.sqrt(groups / (groups - 1) * (residual**2).sum()) / sizes.sum())
    return Estimate(mean, low, high, _p_of_t(mean, error, groups), groups, method)


def _p_of_t(mean: float, error: float, n: int) -> float:
    """Two-sided; of replicates that do not differ there is none, unless all are 0."""
    if error > ROUNDING * abs(mean):
        return float(2 * special.stdtr(n - 1, -abs(mean) / error))
    return 1.0 if mean == 0 else float("nan")


def bootstrap_p(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, replicates: int = 10_000, seed: int = 0
) -> float:
    """Two-sided p-value of "the mean is zero" by the percentile bootstrap over clusters; at least 2/(replicates + 1),
    and at least the 2·½ⁿ of n clusters that all have one sign.

    Of the same replicates as `over_clusters` with this seed. With few clusters it is too small: see the t test there.

    >>> bootstrap_p([1.0, -1.0]), bootstrap_p([1.0, 1.0, 1.0]), bootstrap_p([1.0] * 20, replicates=99)
    (1.0, 0.25, 0.02)
    """
    sums, sizes = _cluster_sums(values, clusters)
    if len(sums) < 2:
        return float("nan")
    drawn = resampled_means(sums, sizes, replicates, seed)
    tails = (1 + (drawn <= 0).sum(), 1 + (drawn >= 0).sum())
    return min(1.0, max(2 * float(min(tails)) / (replicates + 1), 2 * 0.5 ** len(sums)))


def _cluster_sums(values: Sequence[float], clusters: Sequence[Hashable] | None) -> tuple[np.ndarray, np.ndarray]:
    """Sum and size of each cluster; each value is its own where there are none."""
    x = np.asarray(values, float)
    if clusters is None:
        return x, np.ones(len(x))
    member = group_numbers(clusters) if len(x) else np.zeros(0, int)
    return np.bincount(member, x).astype(float), np.bincount(member).astype(float)


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values of one named family of tests (Holm 1979); NaN stays NaN and does not count.

    >>> [round(v, 3) for v in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, float)
    known = np.flatnonzero(np.isfinite(values))
    adjusted = np.full(len(values), np.nan)
    running = 0.0
    for place, index in enumerate(known[np.argsort(values[known], kind="stable")]):
        running = max(running, min(1.0, (len(known) - place) * values[index]))
        adjusted[index] = running
    return [float(v) for v in adjusted]
