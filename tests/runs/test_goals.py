"""Goals of passes="auto": the error rate that is promised, in simulated runs, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import dropscope as ds
from dropscope.measures import TABLE
from dropscope.measures.statistics import BlockedStatistics, growing_block
from dropscope.runs.goals import Goal
from support import zoo
from support.errors import refused

RUNS, RATE = 1000, 0.1


def passes_of(runs: int, passes: int, spread: float, seed: int) -> Tensor:
    """`[passes, runs, C]`: passes that disagree more or less, skewed as those of a network are."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.tensor([2.0, 1, 0, -1, -1]) + spread * torch.randn(passes, runs, 5, generator=draw)
    return logits.softmax(-1)


def wrong_sides(name: str, spread: float, seed: int) -> tuple[float, float]:
    """How often runs settle below and above a threshold that is the very value of the measure."""
    row = TABLE[name]
    limit = BlockedStatistics(row.needs, None, block=1 << 20)
    limit.update(passes_of(1, 200_000, spread, seed + 1), passes_dim=0)
    goal = Goal(row, None, float(row(limit)[0]), None, RATE, 48)
    drawn = passes_of(RUNS, goal.at_most, spread, seed)
    kept, begin = BlockedStatistics(row.needs, None, block=1), 0
    still, below, above = torch.ones(RUNS, dtype=torch.bool), 0, 0
    for until in goal.looks:
        kept.join(growing_block(until, "independent"))
        kept.update(drawn[begin:until].unsqueeze(1), passes_dim=0)
        begin, look = until, goal.look(kept)
        threshold = goal.place_of_threshold(look.place)
        assert threshold is not None
        met = goal.settled(look, threshold, until) & still
        below, above = (
            below + int((met & (look.place < threshold)).sum()),
            above + int((met & (look.place > threshold)).sum()),
        )
        still &= ~met
    return below / RUNS, above / RUNS


@pytest.mark.parametrize("name", ["predictive_entropy", "expected_entropy", "bald", "variation_max"])
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_the_error_rate_holds_at_the_threshold_itself_where_it_is_largest(name: str, spread: float) -> None:
    assert max(wrong_sides(name, spread, seed=3)) <= RATE


def test_looks_are_further_and_further_apart_and_end_with_the_last_pass() -> None:
    looks = Goal(TABLE["bald"], 0.01, None, None, 0.1, 300).looks
    assert (looks[0], looks[-1]) == (16, 300)
    assert all(1.3 < later / earlier <= 1.5 for earlier, later in itertools.pairwise(looks[:-1]))
    assert Goal(TABLE["predictive_entropy"], None, 0.3, None, 0.1, 16).looks == [8, 12, 16]


def test_scales_are_reversible_and_keep_the_order() -> None:
    values = torch.tensor([-2.0, -0.1, 0.0, 0.2, 3.0], dtype=torch.float64)
    for name in ("bald", "predictive_entropy"):
        goal = Goal(TABLE[name], None, 0.3, None, 0.1, 48)
        scaled = goal.scaled(values)
        assert scaled.diff().gt(0).all()
        np.testing.assert_allclose([goal.unscaled(place) for place in scaled.tolist()], values, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("passes", {"passes": "atuo"}),
        ("passes", {"passes": 100, "defer": 0.1}),
        ("passes", {"passes": 100, "tolerance": 0.1}),
        ("passes", {"passes": 100, "by": "bald"}),
        ("defer", {"defer": 10}),
        ("defer", {"defer": 0.1, "threshold": 1.0}),
        ("defer", {"defer": 0.01}),
        ("threshold", {"threshold": float("nan")}),
        ("tolerance", {"tolerance": 0}),
        ("error_rate", {"defer": 0.1, "error_rate": 0.7}),
        ("at_most", {"at_most": 8}),
        ("at_most", {"at_most": 2.5}),
        ("by", {"by": "margin"}),
        ("by", {"by": "margin", "measures": ["bald", "margin"], "defer": 0.2}),
        ("by", {"by": "plain_entropy", "measures": ["bald", "plain_entropy"]}),
        ("measures", {"measures": ["plain_entropy"]}),
        ("measures", {"measures": [lambda passes: passes.std(0).amax(1)]}),
        ("placement", {"placement": "none"}),
    ],
)
def test_goals_that_cannot_be_are_refused(name: str, given: dict[str, object]) -> None:
    options = {"placement": "0=.5", "passes": "auto", **given}
    with refused(name):
        ds.uncertainty(
            zoo.seeded(lambda: torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))),
            data=zoo.vectors(9),
            **options,
        )  # type: ignore[arg-type]


def test_dense_outputs_are_refused() -> None:
    net = torch.nn.Conv2d(1, 2, 3, padding=1)
    with refused("model"):
        ds.uncertainty(
            torch.nn.Sequential(net, torch.nn.Conv2d(2, 2, 1)), "0=.5", torch.rand(2, 1, 4, 4), passes="auto"
        )
