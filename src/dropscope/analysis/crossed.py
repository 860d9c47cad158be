"""Inference for crossed replicates: networks × images, models × contexts, experiments × patients.

Owns the two-way cluster t. Cells that share a row or a column are dependent, so neither rows nor columns alone are the
replicates: the variance is V_rows + V_columns − V_cells (Cameron, Gelbach and Miller 2011), never below the larger of
the first two, with as many degrees of freedom as the smaller number of groups leaves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from dropscope.analysis.inference import Estimate

LEAST, MANY = 3, 30  # groups of the rarer and of the more frequent kind, below which nothing is decided
_ROUNDING = 1e-12  # of the largest value: a spread below is none


def crossed_mean(
    values: Sequence[float] | np.ndarray,
    rows: Sequence[Hashable] | np.ndarray,
    columns: Sequence[Hashable] | np.ndarray,
    *,
    kinds: tuple[str, str] = ("networks", "images"),
    weights: Sequence[float] | np.ndarray | None = None,
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
    if _too_few(counts):
        return _without_interval(value, min(counts), method, _needs(kinds))
    residual = weight * (x - value) / total
    error = math.sqrt(_variance(residual, row, column, np.ones(counts[0], int)))
    return _estimate(value, error, min(counts), level, method, float(np.abs(x).max()))


def crossed_difference(
    values: Sequence[float] | np.ndarray,
    rows: Sequence[Hashable] | np.ndarray,
    columns: Sequence[Hashable] | np.ndarray,
    first: Sequence[Hashable],
    *,
    kinds: tuple[str, str] = ("models", "contexts"),
    level: float = 0.95,
) -> Estimate:
    """Mean over the rows named in `first` minus mean over the other rows, which share their columns.

    Both sides need three rows: the degrees of freedom are those of the smaller one. Every cell of a side counts alike.

    Args:
        values: One per cell; a NaN is a cell that is not there.
        rows: The row of each cell.
        columns: The column of each cell.
        first: Rows of the first side.
        kinds: What rows and columns are, in words.
        level: Of the interval.

    Returns:
        The difference; `n` is the smaller number of groups, sides counted apart.

    Examples:
        >>> x = np.random.default_rng(0).normal(size=(6, 40)); x[:3] += 2
        >>> e = crossed_difference(x.ravel(), np.repeat(range(6), 40), np.tile(range(40), 6), [0, 1, 2])
        >>> e.n, e.low > 0, e.method
        (3, True, 'two-way cluster t over 3 against 3 models × 40 contexts')
    """
    members = set(first)
    side = np.array([name in members for name in rows], bool)
    known = np.isfinite(np.asarray(values, float))
    side = side[known]
    x, row, column, _ = _cells(values, rows, columns, None)
    groups = _count(row)
    sided = np.zeros(groups, int)
    sided[row[side]] = 1
    counts = (int(sided.sum()), groups - int(sided.sum()))
    columns_known = _count(column)
    method = f"two-way cluster t over {counts[0]} against {counts[1]} {kinds[0]} × {columns_known} {kinds[1]}"
    smallest = min(*counts, columns_known)
    means = [float(x[part].mean()) if part.any() else math.nan for part in (side, ~side)]
    value = means[0] - means[1]
    if any(_too_few((count, columns_known)) for count in counts):
        return _without_interval(value, smallest, method, _needs((f"{kinds[0]} on each side", kinds[1])))
    residual = np.where(side, (x - means[0]) / side.sum(), -(x - means[1]) / (~side).sum())
    error = math.sqrt(_variance(residual, row, column, sided))
    return _estimate(value, error, smallest, level, method, float(np.abs(x).max()))


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


def _too_few(counts: tuple[int, int]) -> bool:
    return min(counts) < LEAST or max(counts) < MANY


def _needs(kinds: tuple[str, str]) -> str:
    return f"no interval: needs {LEAST} {kinds[0]} and {MANY} {kinds[1]}, or the reverse"


def _variance(residual: np.ndarray, row: np.ndarray, column: np.ndarray, side: np.ndarray) -> float:
    """Of the sum of the residuals. `side` says to which mean each row belongs: a mean costs a degree of freedom."""
    by_row = np.bincount(row, residual)
    of_side = np.bincount(side)[side]
    of_rows = float((by_row**2 * of_side / np.maximum(of_side - 1, 1)).sum())
    by_column = np.bincount(column, residual)
    of_columns = float((by_column**2).sum()) * len(by_column) / (len(by_column) - 1)
    cell = row * len(by_column) + column
    cells = int((np.bincount(cell) > 0).sum())
    of_cells = float((np.bincount(cell, residual) ** 2).sum()) * cells / (cells - 1)
    return max(of_rows + of_columns - of_cells, of_rows, of_columns)


def _estimate(value: float, error: float, groups: int, level: float, method: str, largest: float) -> Estimate:
    if error <= _ROUNDING * largest:  # equal cells say nothing about others, unless all are the same by identity
        if value == 0:
            return Estimate(0.0, 0.0, 0.0, 1.0, groups, f"{method}; every cell is 0")
        return _without_interval(value, groups, method, "no interval: nothing varies")
    half = float(stats.t.ppf((1 + level) / 2, groups - 1)) * error
    p = float(2 * stats.t.sf(abs(value) / error, groups - 1))
    return Estimate(value, value - half, value + half, p, groups, method)


def _without_interval(value: float, groups: int, method: str, why: str) -> Estimate:
    return Estimate(value, math.nan, math.nan, math.nan, groups, f"{method}; {why}")
