"""Simulated studies whose replicates are crossed, drawn from given variance components."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Components(NamedTuple):
    """Standard deviations of what networks share, of what images share, and of single cells."""

    rows: float
    columns: float
    cells: float


MIXED = Components(0.5, 1.0, 1.0)
COMPONENTS = {
    "images alone": Components(0.0, 1.0, 1.0),
    "mostly images": Components(0.3, 1.0, 1.0),
    "both": Components(1.0, 1.0, 1.0),
    "mostly networks": Components(1.0, 0.3, 1.0),
    "cells alone": Components(0.0, 0.0, 1.0),
}


def draw_cells(draw: np.random.Generator, shape: tuple[int, int], sd: Components, mean: float = 0.0) -> np.ndarray:
    """One study: `[rows, columns]`."""
    rows, columns = shape
    x = sd.rows * draw.normal(size=(rows, 1)) + sd.columns * draw.normal(size=(1, columns))
    return mean + x + sd.cells * draw.normal(size=shape)


def labels(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The row and the column of every cell of a raveled study."""
    return np.repeat(np.arange(shape[0]), shape[1]), np.tile(np.arange(shape[1]), shape[0])
