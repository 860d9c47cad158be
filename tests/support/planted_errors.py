"""Examples with a known risk at every threshold, and how often a rule breaks its promise over repeated draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Draw = tuple[np.ndarray, np.ndarray]


def draw(rng: np.random.Generator, n: int) -> Draw:
    """Uncertainties on [0, 1] and outcomes: wrong with probability u², so that the risk below t is t²/3."""
    u = rng.random(n)
    return u, rng.random(n) >= u**2


def draw_patients(rng: np.random.Generator, patients: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of one patient are as uncertain as each other and right or wrong together; the risk below t is t²/3."""
    u, right = draw(rng, patients)
    spread = np.repeat(u, rows) + rng.uniform(-1e-9, 1e-9, patients * rows)
    return spread, np.repeat(right, rows), np.repeat(np.arange(patients), rows)


def true_error(threshold: float | None) -> float:
    """The error among the kept; 0 where nothing is."""
    return 0.0 if threshold is None else min(max(threshold, 0.0), 1.0) ** 2 / 3


def naive_threshold(u: np.ndarray, right: np.ndarray, max_error: float) -> float | None:
    """What one would write at first: the most that can be kept with an observed error within the limit."""
    order = np.argsort(u)
    observed = np.cumsum(~right[order]) / np.arange(1, len(u) + 1)
    passes = np.flatnonzero(observed <= max_error)
    return float(u[order][passes[-1]]) if len(passes) else None


def broken(threshold: Callable[[np.random.Generator], float | None], limit: float, draws: int = 200) -> float:
    """Share of draws in which the error among the kept is above the limit."""
    return float(np.mean([true_error(threshold(np.random.default_rng(seed))) > limit for seed in range(draws)]))
