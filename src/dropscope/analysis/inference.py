"""Intervals and tests that respect what was really repeated: groups of examples, or separately trained networks.

Owns the arithmetic of inference. Placements, passes and voxels are no replicates (a test over them describes, it does
not infer), so nothing here takes them as such.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval and the p-value of "the mean is zero" (two-sided), under the named method."""

    value: float
    low: float
    high: float
    p: float
    n: int  # replicates: groups or networks
    method: str


def over_networks(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Student's t over separately trained networks; undefined (NaN) for fewer than two.

    >>> e = over_networks([1.0, 2.0, 3.0]); round(e.value, 2), round(e.low, 2), round(e.high, 2), e.n
    (2.0, -0.48, 4.48, 3)
    """
    x = np.asarray([v for v in values if np.isfinite(v)], float)
    method = f"t interval over {len(x)} networks"
    if len(x) < 2:
        mean = float(x.mean()) if len(x) else float("nan")
        return Estimate(mean, float("nan"), float("nan"), float("nan"), len(x), method)
    mean, error = float(x.mean()), float(stats.sem(x))
    half = float(stats.t.ppf((1 + level) / 2, len(x) - 1)) * error
    return Estimate(mean, mean - half, mean + half, _p_of_t(mean, error, len(x)), len(x), method)


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
    drawn = _resampled_means(sums, sizes, replicates, seed)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    residual = sums - mean * sizes  # the linearised ratio: its spread over clusters gives the error of the mean
    error = float(np.sqrt(groups / (groups - 1) * (residual**2).sum()) / sizes.sum())
    return Estimate(mean, float(low), float(high), _p_of_t(mean, error, groups), groups, method)


def _p_of_t(mean: float, error: float, n: int) -> float:
    """Two-sided. With few replicates and hardly any spread it is small: how many there were stands beside it."""
    return float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error > 0 else float(mean == 0)


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
    drawn = _resampled_means(sums, sizes, replicates, seed)
    tails = (1 + (drawn <= 0).sum(), 1 + (drawn >= 0).sum())
    return min(1.0, max(2 * float(min(tails)) / (replicates + 1), 2 * 0.5 ** len(sums)))


def simultaneous_intervals(
    values: Sequence[float], replicates: np.ndarray, level: float = 0.95
) -> list[tuple[float, float]]:
    """Intervals that all hold at once with probability `level`, from paired bootstrap replicates `[K, replicates]`.

    value ± c·s with s the std of its replicates and c the level-quantile of the largest |replicate − value|/s over the
    K: "the best of K beats the baseline" needs this (PITFALLS R29). NaN where a replicate is undefined.

    >>> simultaneous_intervals([5.0], np.array([[4.0, 5.0, 6.0]]))
    [(4.0, 6.0)]
    """
    points, drawn = np.asarray(values, float), np.asarray(replicates, float)
    spread = drawn.std(1, ddof=1) if drawn.shape[1] > 1 else np.full(len(points), np.nan)
    known = np.isfinite(spread) & np.isfinite(points)
    moving = known & (spread > 0)
    factor = 0.0
    if moving.any():
        largest = (np.abs(drawn[moving] - points[moving, None]) / spread[moving, None]).max(0)
        factor = float(np.quantile(largest, level))
    half = np.where(known, factor * spread, np.nan)
    return [(float(a), float(b)) for a, b in zip(points - half, points + half, strict=True)]


def _cluster_sums(values: Sequence[float], clusters: Sequence[Hashable] | None) -> tuple[np.ndarray, np.ndarray]:
    """Sum and size of each cluster; each value is its own where there are none."""
    x = np.asarray(values, float)
    if clusters is None:
        return x, np.ones(len(x))
    member = np.unique([str(c) for c in clusters], return_inverse=True)[1] if len(x) else np.zeros(0, int)
    return np.bincount(member, x).astype(float), np.bincount(member).astype(float)


def _resampled_means(sums: np.ndarray, sizes: np.ndarray, replicates: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    at_once = max(1, (1 << 22) // len(sums))
    parts = []
    for start in range(0, replicates, at_once):
        chosen = draw.integers(0, len(sums), (min(at_once, replicates - start), len(sums)))
        parts.append(sums[chosen].sum(1) / sizes[chosen].sum(1))
    return np.concatenate(parts)


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
