"""Inference for crossed replicates: networks × images, models × contexts, experiments × patients.

Owns the two-way cluster t. Cells that share a row or a column are dependent, so neither rows nor columns alone are the
replicates: the variance is V_rows + V_columns − V_cells (Cameron, Gelbach and Miller 2011), never below the larger of
the first two, with as many degrees of freedom as the smaller number of groups leaves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import special

from dropscope.analysis.inference import ROUNDING, Estimate

LEAST = (3, 30)  # groups of the rarer and of the more frequent kind, below which nothing is decided


def crossed_mean(
    values: Sequence[float] | np.ndarray,
    rows: Sequence[Hashable] | np.ndarray,
    columns: Sequence[Hashable] | np.ndarray,
    *,
    kinds: tuple[str, str] = ("networks", "images"),
    weights: Sequence[float] | np.ndarray | None = None,
    least: tuple[int, int] = LEAST,
    level: float = 0.95,
) -> Estimate:
    """Mean over cells that are crossed two ways, with the two-way cluster t.

    Give differences for a paired comparison. Without at least three groups one way and thirty the other, or where
    nothing varies, interval and p are NaN and `method` says why.

    Args:
        values: One per cell, in any order; a NaN is a cell that is not there.
        rows: The row of each cell. A row and a column may share several cells (two scans of a patient).
        columns: The column of each cell.
        kinds: What rows and columns are, in words.
        weights: Of each cell in the mean; equal without any.
        least: Groups that are needed of the rarer and of the more frequent kind.
        level: Of the interval.

    Returns:
        The mean; `n` is the smaller number of groups, `method` has both.

    Examples:
        >>> x = np.random.default_rng(0).normal(1.0, 1.0, (5, 40))
        >>> e = crossed_mean(x.ravel(), np.repeat(range(5), 40), np.tile(range(40), 5)); e.n, e.method
        (5, 'two-way cluster t over 5 networks × 40 images')
    """
    x, row, column, weight = _cells(values, rows, columns, weights)
    counts = (_count(row), _count(column))
    total = float(weight.sum())
    value = float((weight * x).sum() / total) if total > 0 else math.nan
    method = f"two-way cluster t over {counts[0]} {kinds[0]} × {counts[1]} {kinds[1]}"
    if _too_few(counts, least):
        return _without_interval(value, min(counts), method, _needs(kinds, least))
    residual = weight * (x - value) / total
    error = math.sqrt(_variance(residual, row, column, np.zeros(counts[0], int), np.zeros(counts[1], int)))
    return _estimate(value, error, min(counts), level, method, float(np.abs(x).max()))


def crossed_difference(
    values: Sequence[float] | np.ndarray,
    rows: Sequence[Hashable] | np.ndarray,
    columns: Sequence[Hashable] | np.ndarray,
    sides: Sequence[Hashable] | np.ndarray,
    signs: Mapping[Hashable, float],
    *,
    kinds: tuple[str, str] = ("models", "contexts"),
    least: tuple[int, int] = LEAST,
    level: float = 0.95,
) -> Estimate:
    """Sum of signed means over sides of a crossed table: a difference of two sides, or a difference of differences.

    Sides may divide the rows (decoders against encoders), the columns (two tasks), or both. Every part of rows and
    columns needs as many groups as a mean does; the degrees of freedom are those of the smallest. Every cell of a side
    counts alike.

    Args:
        values: One per cell; a NaN is a cell that is not there.
        rows: The row of each cell.
        columns: The column of each cell.
        sides: The side of each cell.
        signs: How the mean of each side enters: 1 or −1.
        kinds: What rows and columns are, in words.
        least: Groups that are needed of the rarer and of the more frequent kind.
        level: Of the interval.

    Returns:
        The difference; `n` is the smallest number of groups, parts of rows and columns counted apart.

    Examples:
        >>> x = np.random.default_rng(0).normal(size=(6, 40)); x[:3] += 2
        >>> rows = np.repeat(range(6), 40)
        >>> e = crossed_difference(x.ravel(), rows, np.tile(range(40), 6), rows < 3, {True: 1, False: -1})
        >>> e.n, e.low > 0, e.method
        (3, True, 'two-way cluster t over 3 and 3 models × 40 contexts')
    """
    x, row, column, _ = _cells(values, rows, columns, None)
    named = [side for side, value in zip(sides, np.asarray(values, float), strict=True) if np.isfinite(value)]
    order = list(signs)
    side = np.array([order.index(name) for name in named], int)
    sizes = np.bincount(side, minlength=len(order))
    means = np.bincount(side, x, minlength=len(order)) / np.maximum(sizes, 1)
    sign = np.array(list(signs.values()), float)
    value = float((sign * means).sum()) if (sizes > 0).all() else math.nan
    parts = _parts(row, side), _parts(column, side)
    counts = [np.bincount(part).tolist() if len(part) else [0] for part in parts]
    listed = (" and ".join(map(str, count)) for count in counts)
    method = " × ".join(f"{words} {kind}" for words, kind in zip(listed, kinds, strict=True))
    method, fewest = f"two-way cluster t over {method}", (min(counts[0]), min(counts[1]))
    if math.isnan(value) or _too_few(fewest, least):
        return _without_interval(value, min(fewest), method, _needs(kinds, least))
    residual = sign[side] * (x - means[side]) / sizes[side]
    error = math.sqrt(_variance(residual, row, column, *parts))
    return _estimate(value, error, min(fewest), level, method, float(np.abs(x).max()))


def _parts(group: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Which part each group (a row, or a column) belongs to: groups that have cells of the same sides are alike."""
    present = np.zeros((_count(group), int(side.max()) + 1 if len(side) else 0), bool)
    present[group, side] = True
    return np.unique(present, axis=0, return_inverse=True)[1].reshape(-1) if len(present) else np.zeros(0, int)


def _cells(
    values: Sequence[float] | np.ndarray, rows: Sequence[Hashable] | np.ndarray,
    columns: Sequence[Hashable] | np.ndarray, weights: Sequence[float] | np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Values, numbers of rows and columns, and weights of the cells that are there."""
    x = np.asarray(values, float)
    weight = np.ones(len(x)) if weights is None else np.asarray(weights, float)
    if not len(x) == len(rows) == len(columns) == len(weight):
        raise ValueError(f"{len(x)} values, {len(rows)} rows, {len(columns)} columns, {len(weight)} weights")
    known = np.isfinite(x) & (weight > 0)
    row, column = (pd.factorize(pd.Series(labels)[known])[0] for labels in (rows, columns))
    return x[known], row, column, weight[known]


def _count(numbers: np.ndarray) -> int:
    return int(numbers.max()) + 1 if len(numbers) else 0


def _too_few(counts: tuple[int, int], least: tuple[int, int]) -> bool:
    return min(counts) < least[0] or max(counts) < least[1]


def _needs(kinds: tuple[str, str], least: tuple[int, int]) -> str:
    return f"no interval: needs {least[0]} {kinds[0]} and {least[1]} {kinds[1]}, or the reverse"


def _variance(
    residual: np.ndarray, row: np.ndarray, column: np.ndarray, row_part: np.ndarray, column_part: np.ndarray
) -> float:
    """Of the sum of the residuals. Rows and columns of one part share a mean, which costs a degree of freedom."""
    of_rows, of_columns = (
        float((np.bincount(group, residual) ** 2 * _correction(part)).sum())
        for group, part in ((row, row_part), (column, column_part))
    )
    cell = row * len(column_part) + column
    cells = int((np.bincount(cell) > 0).sum())
    of_cells = float((np.bincount(cell, residual) ** 2).sum()) * cells / (cells - 1)
    return max(of_rows + of_columns - of_cells, of_rows, of_columns)


def _correction(part: np.ndarray) -> np.ndarray:
    groups = np.bincount(part)[part]
    return groups / np.maximum(groups - 1, 1)


def _estimate(value: float, error: float, groups: int, level: float, method: str, largest: float) -> Estimate:
    if error <= ROUNDING * largest:  # equal cells say nothing about others, unless all are the same by identity
        if value == 0:
            return Estimate(0.0, 0.0, 0.0, 1.0, groups, f"{method}; every cell is 0")
        return _without_interval(value, groups, method, "no interval: nothing varies")
    half = float(special.stdtrit(groups - 1, (1 + level) / 2)) * error
    p = float(2 * special.stdtr(groups - 1, -abs(value) / error))
    return Estimate(value, value - half, value + half, p, groups, method)


def _without_interval(value: float, groups: int, method: str, why: str) -> Estimate:
    return Estimate(value, math.nan, math.nan, math.nan, groups, f"{method}; {why}")
