"""Resampling: which examples a replicate draws, statistics of the replicates, percentile intervals.

Owns every draw of the analyses. What is drawn are examples or whole groups of them (patients, contexts, volumes), never
passes, voxels or placements. Differences are paired where both sides use the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dropscope import scores
from dropscope.analysis.intervals import t_factor
from dropscope.scores import Confidences

REPLICATES, HALVES = 500, 200  # resamples for a spread, and random halves for a bias
_AT_ONCE = 1 << 22  # resampled values handled at once
_CACHED = 1 << 18  # as many as the caches of a CPU hold
_MANY = 1_000_000  # degrees of freedom, at which Student's distribution is the normal one


def group_numbers(groups: Sequence[Hashable]) -> np.ndarray:
    """The group of each example as a number 0, 1, …, in the order of the groups' names.

    >>> group_numbers(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    return np.unique(np.asarray([str(group) for group in groups]), return_inverse=True)[1]


def draws(count: int, replicates: int, seed: int) -> Iterator[np.ndarray]:
    """Which of `count` examples (or groups) each replicate draws, in blocks `[some replicates, count]`."""
    generator = np.random.default_rng(seed & 0xFFFFFFFFFFFFFFFF)  # NumPy takes no negative seed
    at_once = max(1, _AT_ONCE // count)
    for start in range(0, replicates, at_once):
        yield generator.integers(0, count, (min(at_once, replicates - start), count))


def draw_counts(count: int, replicates: int, seed: int) -> np.ndarray:
    """How often each of `count` groups is drawn, `[replicates, count]`: for statistics that are weighted sums."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), replicates).astype(float)


def resamples(n: int, groups: Sequence[Hashable] | None, replicates: int, seed: int) -> list[Tensor]:
    """Indices of the examples in each replicate. With groups, whole groups are drawn, so replicates differ in size.

    >>> resamples(4, None, replicates=2, seed=0)
    [tensor([3, 2, 2, 1]), tensor([1, 0, 0, 0])]
    """
    if groups is None:
        return [row for block in draws(n, replicates, seed) for row in torch.from_numpy(block)]
    member = group_numbers(groups)
    members = [np.flatnonzero(member == number) for number in range(int(member.max()) + 1)]
    return [
        torch.from_numpy(np.concatenate([members[number] for number in row]))
        for block in draws(len(members), replicates, seed)
        for row in block
    ]


def half_samples(n: int, groups: Sequence[Hashable] | None, replicates: int, seed: int) -> tuple[list[Tensor], float]:
    """Indices of a random half of the examples, or of the groups, in each replicate, and the share that a half is.

    >>> halves, share = half_samples(4, None, replicates=2, seed=0); [len(set(half.tolist())) for half in halves], share
    ([2, 2], 0.5)
    """
    generator = np.random.default_rng(seed & 0xFFFFFFFFFFFFFFFF)
    member = np.arange(n) if groups is None else group_numbers(groups)
    count = int(member.max()) + 1
    size = max(1, count // 2)
    chosen = (np.isin(member, generator.permutation(count)[:size]) for _ in range(replicates))
    return [torch.from_numpy(np.flatnonzero(part)) for part in chosen], size / count


def resampled_means(sums: np.ndarray, sizes: np.ndarray, replicates: int, seed: int) -> np.ndarray:
    """The mean of each replicate, `[replicates]`, of groups whose sums and sizes are known."""
    blocks = draws(len(sums), replicates, seed)
    return np.concatenate([sums[drawn].sum(1) / sizes[drawn].sum(1) for drawn in blocks])


def bootstrap(
    statistics: Callable[[Tensor], Mapping[str, Tensor]], indices: Sequence[Tensor], at_once: int = _AT_ONCE
) -> dict[str, Tensor]:
    """Statistics of every replicate, `[replicates]` each.

    Args:
        statistics: Takes indices `[some replicates, size]` and returns a value per replicate under each name.
        indices: What `resamples` returns.
        at_once: Resampled values handled at once.

    Examples:
        >>> x = torch.tensor([0.0, 1.0, 2.0])
        >>> bootstrap(lambda chosen: {"mean": x[chosen].mean(-1)}, [torch.tensor([0, 0, 0]), torch.tensor([1, 2])])
        {'mean': tensor([0.0000, 1.5000])}
    """
    order = sorted(range(len(indices)), key=lambda i: len(indices[i]))  # replicates of one size are handled together
    parts: dict[str, list[Tensor]] = {}
    start = 0
    while start < len(order):
        size = len(indices[order[start]])
        stop = start
        while stop < len(order) and stop - start < max(1, at_once // size) and len(indices[order[stop]]) == size:
            stop += 1
        for name, value in statistics(torch.stack([indices[i] for i in order[start:stop]])).items():
            parts.setdefault(name, []).append(value)
        start = stop
    back = torch.tensor(order).argsort()
    return {name: torch.cat(values)[back.to(values[0].device)] for name, values in parts.items()}


def bootstrap_scores(uncertainty: Tensor, correct: Tensor, indices: Sequence[Tensor]) -> dict[str, Tensor]:
    """Ranking scores and accuracy of every replicate, `[replicates]`, for one measure `[n]` and its outcome `[n]`."""

    n = len(uncertainty)
    at_once = max(1, (_CACHED if uncertainty.device.type == "cpu" else _AT_ONCE) // n)
    parts = []
    for start in range(0, len(indices), at_once):
        counts = torch.stack([torch.bincount(chosen, minlength=n) for chosen in indices[start : start + at_once]])
        parts.append(scores.weighted_ranking_scores(uncertainty, correct, counts.to(uncertainty.device)))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def bootstrap_calibration(read: Confidences, indices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The means that `scores.calibration_of` takes, `[terms]`, and those of every replicate, `[replicates, terms]`."""
    terms = scores.calibration_terms(read).cpu()
    counts = (torch.bincount(chosen, minlength=len(terms)).double() / len(chosen) for chosen in indices)
    return terms.mean(0), torch.stack([weights @ terms for weights in counts])


def interval(replicates: Tensor | np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval; replicates in which a statistic is undefined are left out.

    >>> interval(torch.tensor([1.0, 2.0, 3.0, float("nan")]), level=0.5)
    (1.5, 2.5)
    """
    values = replicates.double().cpu().numpy() if isinstance(replicates, Tensor) else np.asarray(replicates, float)
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_interval(
    first: Tensor, second: Tensor, *, difference: float | None = None, level: float = 0.95
) -> tuple[float, float]:
    """The interval of first − second, both `[replicates]` on the same resamples.

    A resample repeats examples, which biases statistics that depend on ties or on smoothness. With `difference`, the
    one on the examples themselves, the replicates are moved by that bias: their mean is the difference itself.

    >>> first, second = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0])
    >>> paired_interval(first, second), paired_interval(first, second, difference=5.0)
    ((1.0, 1.0), (5.0, 5.0))
    """
    gaps = first - second
    return interval(gaps if difference is None else gaps - gaps.mean() + difference, level)


def simultaneous_intervals(
    values: Sequence[float], replicates: np.ndarray, level: float = 0.95, *, freedom: int | None = None
) -> list[tuple[float, float]]:
    """Intervals that all hold at once with probability `level`, from paired replicates `[K, replicates]`.

    value ± c·s with s the std of its replicates and c the level-quantile of the largest |replicate − value|/s over the
    K: "the best of K beats the baseline" needs this. With degrees of freedom, such as errors − 1, c is wider by what
    Student's quantile is wider than the normal one. NaN where a replicate is undefined.

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
    if freedom is not None:
        factor *= t_factor(freedom, level) / t_factor(_MANY, level)
    half = np.where(known, factor * spread, np.nan)
    return [(float(a), float(b)) for a, b in zip(points - half, points + half, strict=True)]
