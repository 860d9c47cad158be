"""Judgements: the words follow the interval, and the rule keeps its size and its power in simulated comparisons."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.runs import deferral_table, judge
from dropscope.runs.verdicts import LEAST_ERRORS, Judgement
from support import zoo

NAMES = ("last=0.5", "bald", "plain_entropy")


def ranking(uncertainty: np.ndarray, right: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"uncertainty": uncertainty, "correct": right})


def rankings(seed: int, signal: float, n: int = 300, accuracy: float = 0.85) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two rankings of the same examples that share half of their noise; the plain one has a signal of 1.5."""
    draw = np.random.default_rng(seed)
    right = draw.random(n) < accuracy
    shared = draw.normal(size=n)
    mc, plain = (strength * ~right + 0.7 * shared + 0.7 * draw.normal(size=n) for strength in (signal, 1.5))
    return ranking(mc, right), ranking(plain, right)


def words(signal: float, draws: int, **more: int) -> list[str]:
    return [judge(NAMES, *rankings(seed, signal), **more).word for seed in range(draws)]


def test_no_difference_is_decided_in_at_most_seven_per_cent() -> None:
    assert sum(word != "undecided" for word in words(1.5, 100)) <= 7


def test_a_clear_difference_is_found_in_its_direction() -> None:
    assert words(2.5, 25).count("better") >= 20
    assert words(0.5, 25).count("worse") >= 20


def test_every_interval_contains_its_difference() -> None:
    for seed in range(20):
        verdict = judge(NAMES, *rankings(seed, 1.8))
        assert verdict.low <= verdict.difference <= verdict.high


def test_few_errors_decide_nothing() -> None:
    right = np.arange(400) >= LEAST_ERRORS - 1
    verdict = judge(NAMES, ranking(~right + 0.0, right), ranking(np.random.default_rng(0).random(400), right))
    assert verdict.high < 0
    assert verdict.word == "undecided"
    assert f"{LEAST_ERRORS - 1} of 400" in str(verdict)


def test_groups_are_resampled_whole() -> None:
    mc, plain = rankings(0, 2.0, n=30, accuracy=0.6)
    tenfold = [pd.concat([table] * 10, ignore_index=True) for table in (mc, plain)]
    alone = judge(NAMES, *tenfold)
    grouped = judge(NAMES, *tenfold, groups=[i % 30 for i in range(300)])
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)


@pytest.mark.parametrize(("low", "high", "word"), [(-3, -1, "better"), (1, 3, "worse"), (-1, 1, "undecided")])
def test_the_word_follows_the_interval(low: float, high: float, word: str) -> None:
    assert Judgement(*NAMES, (low + high) / 2, low, high, 400, 100).word == word


def test_what_deferring_does_is_counted() -> None:
    right = np.array([True] * 8 + [False] * 2)
    knows, blind = ranking(np.arange(10.0), right), ranking(-np.arange(10.0), right)
    table = deferral_table({"knows": knows, "blind": blind}, [0.0, 0.2])
    assert table.accuracy.tolist() == [0.8, 0.8, 1.0, 0.75]
    assert table.errors_caught.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert table.errors_kept.tolist() == [2, 2, 0, 2]


def test_the_verdict_of_a_run_knows_how_many_rows_it_was_picked_from() -> None:
    inputs = torch.randn(90, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(90) % 3
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)))
    run = ds.sweep(net, ds.PlacementGrid(["0"], rates=(0.2, 0.5)), (inputs, labels), passes=4, progress=False)
    verdict = run.verdict
    assert verdict is not None
    assert verdict.picked_from == len(run.rows)
    best = run.best("aurc", 1).iloc[0]
    assert (verdict.placement, verdict.measure) == (best.placement, best.measure)
    assert verdict.difference == pytest.approx(best.aurc_minus_single_pass, abs=1e-6)
    alone = judge(NAMES, *run.rankings().values())
    assert verdict.high - verdict.low > alone.high - alone.low
    grouped = ds.sweep(
        net, ["0=0.2"], (inputs, labels), passes=4, groups=[i // 9 for i in range(90)], progress=False
    ).verdict
    assert grouped is not None
    assert ds.sweep(net, ["0=0.2"], (inputs, labels), passes=4, keep="none", progress=False).verdict is None


def test_the_error_by_passes_is_told_and_where_a_difference_is_no_larger() -> None:
    draw = np.random.default_rng(0)
    correct = draw.random(400) < 0.8
    plain = pd.DataFrame({"uncertainty": draw.random(400) - 0.3 * correct, "correct": correct})
    names = ("last=0.5", "bald", "plain_entropy")
    assert judge(names, plain, plain).monte_carlo is None
    noisy = plain.assign(error=0.2)
    found = judge(names, noisy.assign(uncertainty=plain.uncertainty + 1e-9 * draw.random(400)), plain)
    moved = [judge(names, plain.assign(uncertainty=plain.uncertainty + 0.2 * draw.normal(size=400)), plain).difference
             for _ in range(60)]  # fmt: skip
    assert found.monte_carlo == pytest.approx(np.std(moved), rel=0.35)
    assert "take more passes" in str(found)
    steady = judge(names, noisy.assign(uncertainty=draw.random(400), error=1e-4), plain)
    assert "take more passes" not in str(steady)
    assert judge(names, plain.assign(error=np.nan), plain).monte_carlo is None
