"""Races: the best is hardly ever left behind, clear losers are, and no look is one too many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dropscope import scores
from dropscope.runs.races import ALPHA, look, radius

AURC = scores.TABLE["aurc"]


def rankings(n: int, sharpness: list[float], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that see the risk of an example more or less sharply, and whether each prediction is right."""
    draw = np.random.default_rng(seed)
    risk = draw.normal(size=n)
    right = torch.tensor(draw.random(n) > 1 / (1 + np.exp(1.2 - 1.5 * risk)))
    rows = np.stack([s * risk + draw.normal(size=n) for s in sharpness])
    return torch.tensor(rows).float(), right


def test_the_best_of_all_is_hardly_ever_left_behind_at_any_look() -> None:
    sharpness = [1.0] * 12  # all equal: whichever leads, none is worse
    left = 0
    for seed in range(30):
        rows, right = rankings(400, sharpness, seed)
        looks = [look(rows[:, :n], right[:n], np.arange(n), AURC, of=12, horizon=400) for n in (50, 100, 200, 400)]
        left += any(bool(stand.behind[0]) for stand in looks)
    assert left / 30 <= ALPHA


def test_clear_losers_are_left_behind() -> None:
    rows, right = rankings(800, [2.0, 2.0, 0.0, -1.0], 0)
    stand = look(rows, right, np.arange(800), AURC, of=4, horizon=800)
    assert stand.behind.tolist() == [False, False, True, True]
    assert (stand.lower <= stand.difference).all()


def test_direction_is_that_of_the_score() -> None:
    rows, right = rankings(800, [2.0, 0.0], 0)
    stand = look(rows, right, np.arange(800), scores.TABLE["error_auroc"], of=2, horizon=800)
    assert stand.values[0] > stand.values[1]
    assert stand.behind.tolist() == [False, True]


def test_with_few_errors_nothing_is_decided() -> None:
    rows, _ = rankings(100, [2.0, -2.0], 0)
    right = torch.ones(100, dtype=torch.bool)
    right[:5] = False
    assert not look(rows, right, np.arange(100), AURC, of=2, horizon=100).behind.any()
    none = look(rows, torch.ones(100, dtype=torch.bool), np.arange(100), AURC, of=2, horizon=100)
    assert not none.behind.any()


def test_rows_of_one_group_count_once() -> None:
    rows, right = rankings(100, [2.0, 0.0], 3)
    once = look(rows, right, np.arange(100), AURC, of=2, horizon=100)
    repeated = look(
        rows.repeat_interleave(4, 1), right.repeat_interleave(4), np.arange(100).repeat(4), AURC, of=2, horizon=100
    )
    assert repeated.lower[1] == pytest.approx(once.lower[1], abs=0.02)


def test_a_mean_stays_within_the_radius_at_all_counts() -> None:
    crossed = 0
    for seed in range(300):
        draw = np.random.default_rng(seed).normal(size=500)
        counts = np.arange(10, 501)
        means = np.cumsum(draw)[9:] / counts
        bounds = [float(radius(np.array(1 / np.sqrt(n)), int(n), 0.1, 200)) for n in counts]
        crossed += bool((means > bounds).any())
    assert crossed / 300 <= 0.1
