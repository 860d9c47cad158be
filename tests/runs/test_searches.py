"""Races over placements whose values are made up: the best is found for little work, and the work is counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from dropscope import scores
from dropscope.data import Data, read_data
from dropscope.placement import Placement
from dropscope.runs.searches import FINALISTS, RACE_PASSES, Schedule, kept_after, race_on
from dropscope.runs.spaces import Space

N, SITES, RATES = 600, tuple("abcdefgh"), (0.1, 0.2, 0.3, 0.5)


class MadeUp:
    """Uncertainties that are sharper the nearer a placement is to the best one."""

    def __init__(self, best: str, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.best = Placement.parse(best)
        self.risk = torch.from_numpy(draw.normal(size=N))
        self.right = torch.from_numpy(draw.random(N) > 1 / (1 + np.exp(1.5 - 1.5 * self.risk.numpy())))
        self.noise = torch.from_numpy(draw.normal(size=(2, N)))
        self.work = 0

    def far(self, placement: Placement) -> float:
        rates = [{term.address: term.rate for term in p.terms} for p in (self.best, placement)]
        return sum(abs(rates[0].get(site, 0.0) - rates[1].get(site, 0.0)) for site in SITES)

    def __call__(self, placements: Sequence[Placement], places: np.ndarray, label: str) -> tuple[Tensor, int]:
        self.work += len(placements) * RACE_PASSES * len(places)
        where = torch.from_numpy(places)
        rows = [self.risk + (0.3 + 3 * self.far(p) + torch.tensor([[0.0], [1.0]])) * self.noise for p in placements]
        return torch.stack(rows)[:, :, where], len(placements) * RACE_PASSES * len(places)


def examples() -> Data:
    return read_data((torch.zeros(N, 1), torch.zeros(N, dtype=torch.long)), ids="index")


@pytest.mark.parametrize(("best", "seed"), [("d=0.2", 0), ("g=0.3,h=0.3", 1), ("f=0.1,h=0.2", 2)])
def test_the_best_placement_is_found_for_little_work(best: str, seed: int) -> None:
    runs, space = MadeUp(best, seed), Space(SITES, RATES, (), ())
    found = race_on(runs, examples(), space, ["sharp", "dull"], scores.TABLE["aurc"], runs.right, space.opening())
    assert runs.best in found.finalists
    assert len(found.finalists) <= FINALISTS
    assert found.predictions == runs.work < 0.001 * space.size * RACE_PASSES * N
    top = found.rows.iloc[0]
    assert (top.state, top.examples) == ("finalist", N)
    assert set(found.rows.state) <= {"finalist", "worse", "left out"}
    worse = found.rows[found.rows.state == "worse"]
    assert (worse.behind_at_least > 0).all()


def test_every_placement_runs_on_an_example_once() -> None:
    seen: set[tuple[str, int]] = set()
    made_up, space = MadeUp("d=0.2", 0), Space(SITES, RATES, (), ())

    def runs(placements: Sequence[Placement], places: np.ndarray, label: str) -> tuple[Tensor, int]:
        pairs = {(str(placement), int(place)) for placement in placements for place in places}
        assert not pairs & seen
        seen.update(pairs)
        return made_up(placements, places, label)

    found = race_on(runs, examples(), space, ["sharp", "dull"], scores.TABLE["aurc"], made_up.right, space.opening())
    assert found.predictions == RACE_PASSES * len(seen)


def test_looks_double_from_where_errors_are_enough() -> None:
    right = torch.ones(N, dtype=torch.bool)
    right[: N // 20] = False
    schedule = Schedule.of(examples(), right, 100)
    assert schedule.looks[-1] == N
    assert all(after == min(2 * before, N) for before, after in zip(schedule.looks, schedule.looks[1:], strict=False))
    few = Schedule.of(examples(), torch.arange(N) >= 3, 100)
    assert few.looks == (N,)
    assert kept_after(3) == FINALISTS
