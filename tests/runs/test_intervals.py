"""Intervals of sweeps: they contain their values, cover what they promise, and know of the choice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import dropscope as ds
from dropscope.analysis import t_factor
from dropscope.runs.intervals import LEAST_ERRORS, picked_from
from support import zoo
from support.simulated_sweeps import SETTINGS, contained, covered, false_gain, simulated_intervals

PENALTIES = ("isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty")


@pytest.mark.parametrize("setting", list(SETTINGS)[:3])
def test_every_interval_contains_its_value_and_most_cover_the_truth(setting: str) -> None:
    table = pd.concat([simulated_intervals(setting, seed) for seed in range(8)], ignore_index=True)
    assert contained(table).all()
    assert np.nanmean(covered(table, setting).astype(float)) >= 0.9


def test_the_calibration_error_of_a_calibrated_model_may_be_zero_and_that_of_another_is_not() -> None:
    calibrated, too_sure = (
        pd.concat([simulated_intervals(setting, seed) for seed in range(4)]).query("score == 'ece'")
        for setting in list(SETTINGS)[:2]
    )
    assert (calibrated.value > 0).all()
    assert (calibrated.low == 0).mean() >= 0.7
    assert (too_sure.low > 0).mean() >= 0.7


def test_a_penalty_that_chance_can_make_may_be_zero() -> None:
    table = pd.concat([simulated_intervals("85 % of 300", seed) for seed in range(4)])
    table = table[table.score.isin(PENALTIES[:2])].set_index("measure")
    assert (table.low["entropy"] == 0).all()
    assert (table.low["random"] == 0).mean() >= 0.7
    assert (table.low["inverted"] > 0).mean() >= 0.7


def test_the_best_of_many_rows_is_not_called_better_on_the_examples_that_picked_it() -> None:
    found = np.array([false_gain(seed, 45) for seed in range(40)])
    assert found[:, 0].mean() >= 0.2  # what picking does to an interval that does not know of it
    assert found[:, 1].mean() <= 0.07
    assert np.mean([false_gain(seed, 45, signal=2.5, n=600)[1] for seed in range(10)]) >= 0.8


def net() -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)))


def data(errors: int) -> tuple[Tensor, Tensor]:
    """Examples of which the network without noise gets so many wrong."""
    inputs = zoo.vectors(60)
    labels = net()(inputs).argmax(1)
    wrong = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:errors]
    labels[wrong] = (labels[wrong] + 1) % 3
    return inputs, labels


def sweep(errors: int, rates: tuple[float, ...] = (0.2, 0.5), out: Path | None = None) -> ds.Run:
    texts = [f"0={rate}" for rate in rates]
    return ds.sweep(net(), texts, data(errors), passes=4, keep="all", out=out, progress=False)


def test_few_errors_have_no_interval_and_the_table_says_why() -> None:
    run = sweep(LEAST_ERRORS - 1)
    plain = run.intervals[run.intervals.measure == "plain_entropy"]
    assert set(plain.errors) == {LEAST_ERRORS - 1}
    assert plain[["low", "high", "minus_single_pass_low"]].isna().all(axis=None)
    assert f"fewer than {LEAST_ERRORS} errors" in repr(run)
    enough = sweep(LEAST_ERRORS).intervals
    assert enough[enough.measure == "plain_entropy"].low.notna().all()


def test_runs_that_are_read_together_have_intervals_for_all_their_rows(tmp_path: Path) -> None:
    for rate in (0.2, 0.5):
        sweep(20, (rate,), tmp_path / f"{rate}")
    both, once = ds.open_run(tmp_path / "0.2", tmp_path / "0.5"), sweep(20)
    assert picked_from(both.rows) == picked_from(once.rows) == len(once.rows)
    keys = ["placement", "measure", "score"]
    pd.testing.assert_frame_equal(
        both.intervals.sort_values(keys, ignore_index=True), once.intervals.sort_values(keys, ignore_index=True)
    )


def test_the_verdict_and_the_table_have_one_interval() -> None:
    run = sweep(25)
    best = run.best("aurc", 1).iloc[0]
    verdict = run.verdict
    assert verdict is not None
    ends = (best.minus_single_pass_low, best.minus_single_pass_high)
    assert (verdict.low, verdict.high) == pytest.approx(ends, rel=1e-6)
    assert best.picked_from == len(run.rows)
    alone = (best.minus_single_pass_high - best.minus_single_pass_low) / t_factor(24, of=len(run.rows)) * t_factor(24)
    assert alone < best.minus_single_pass_high - best.minus_single_pass_low
