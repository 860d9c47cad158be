"""Searches for the best placements among more than can be run: many on few examples, few on many.

Owns who runs on how much. A race begins with single sites and suffixes on the first examples; those that are seen to
be worse are out, of the others the best go on to twice the examples, and placements next to the leaders join.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope.analysis import group_numbers
from dropscope.data import Data
from dropscope.device import memory_bytes
from dropscope.engine import Session, choose_engine
from dropscope.measures import Measure
from dropscope.placement import Placement
from dropscope.progress import track
from dropscope.runs.races import LEAST_ERRORS, look
from dropscope.runs.rows import RowMaker
from dropscope.runs.spaces import Space
from dropscope.scores import Score

RACE_PASSES = 16  # of each placement in the race: one block of stratified draws
FINALISTS = 5
_FIRST = 16  # the first look is at this part of the examples
_GOES_ON = 2  # of so many placements the best one goes on, where the race has not decided
_STEPS = 2  # towards better placements at each of the first looks, and one at later ones
_EARLY = 2  # looks that are the first ones
_PARENTS, _JOINING = 3, 12  # placements that have neighbours tried, and how many of these in a step
_SEED = 1  # of the order in which examples are looked at
_COLUMNS = ("placement", "measure", "value", "behind_leader", "behind_at_least", "examples", "state")


@dataclass(frozen=True, eq=False)
class Searched:
    """What a race found.

    Attributes:
        finalists: The best placements, the best first.
        rows: A row per placement and measure that ran: `value` of the objective on the `examples` it ran on,
            `behind_leader` (how much worse than the leader there), `behind_at_least` (lower end of its confidence
            sequence) and `state`: "finalist", "worse" (seen to be), or "left out" (not among the best when work was
            cut).
        predictions: Placements × passes × examples that ran.
    """

    finalists: list[Placement]
    rows: pd.DataFrame
    predictions: int


@dataclass(frozen=True)
class Schedule:
    """On how many examples a race looks, and how many placements it runs.

    Attributes:
        looks: Examples, or groups, at each look, rising.
        opening: Placements that begin.
        examples: Of the whole search part.
        units: Examples, or groups, of the search part.
    """

    looks: tuple[int, ...]
    opening: int
    examples: int
    units: int

    @classmethod
    def of(cls, data: Data, right: Tensor, opening: int, seed: int = _SEED) -> Schedule:
        """The first look is where there are errors enough; each later one has twice as many examples."""
        units, rank = _units(data, seed)
        count = len(rank)
        wrong = np.bincount(rank[units], weights=(~right).numpy(), minlength=count).cumsum()
        enough = int(np.searchsorted(wrong, LEAST_ERRORS)) + 1
        looks = [min(max(enough, -(-count // _FIRST)), count)]
        while looks[-1] < count:
            looks.append(min(2 * looks[-1], count))
        return cls(tuple(looks), opening, data.n, count)

    @property
    def predictions(self) -> int:
        """Expected of the race: placements × passes × examples, without those that are out early."""
        each = self.examples / self.units
        alive, total, before = self.opening, 0.0, 0
        for number, count in enumerate(self.looks):
            total += alive * (count - before)
            joining = _steps(number) * _JOINING
            total += joining * count
            alive, before = kept_after(alive + joining), count
        return round(total * each * RACE_PASSES)


def _steps(look: int) -> int:
    return _STEPS if look < _EARLY else 1


def kept_after(alive: int) -> int:
    """How many placements go on at most.

    >>> kept_after(120), kept_after(9)
    (60, 5)
    """
    return max(FINALISTS, math.ceil(alive / _GOES_ON))


Runs = Callable[[Sequence[Placement], np.ndarray, str], tuple[Tensor, int]]


def race(
    session: Session, space: Space, measures: Sequence[Measure], objective: Score, right: Tensor, *,
    opening: Sequence[Placement], engine: str = "auto", show: bool | None = None,
) -> Searched:  # fmt: skip
    """Looks for the placements that rank errors best.

    Args:
        session: Model and the examples of the search.
        space: Placements to choose from.
        measures: Each ranks the examples of a placement.
        objective: Score of a ranking.
        right: Whether each prediction of the plain pass is right, `[n]`.
        opening: Placements to begin with.
        engine: As of `sweep`.
        show: None shows progress where it is read.
    """
    runs = EngineRuns(session, measures, objective, engine, show=show)
    return race_on(runs, session.data, space, [row.name for row in measures], objective, right, opening)


def race_on(
    runs: Runs, data: Data, space: Space, names: Sequence[str], objective: Score, right: Tensor,
    opening: Sequence[Placement], seed: int = _SEED,
) -> Searched:  # fmt: skip
    """A race on whatever runs placements.

    Args:
        runs: From placements, places of examples and a label for progress to the measures
            `[placements, measures, places]`, and how many predictions these took.
        data: The examples of the search.
        space: Placements to choose from.
        names: Of the measures.
        objective: Score of a ranking.
        right: Whether each prediction of the plain pass is right, `[n]`.
        opening: Placements to begin with.
        seed: Of the order in which examples are looked at.
    """
    pool = _Pool(runs, data, names, objective, right, seed)
    schedule = Schedule.of(data, right, len(opening), seed)
    alive = list(opening)
    for number, count in enumerate(schedule.looks):
        last = number == len(schedule.looks) - 1
        label = f"race {number + 1} of {len(schedule.looks)}"
        pool.run(alive, count, label)
        for _ in range(_steps(number)):
            joining = _joining(pool, pool.ranked(alive)[:_PARENTS], space)
            if not joining:
                break
            pool.run(joining, count, f"{label}, neighbours")
            alive += joining
        alive = pool.survivors(alive, FINALISTS if last else kept_after(len(alive)))
    return Searched(alive, pool.table(alive), pool.predictions)


def _joining(pool: _Pool, parents: Sequence[Placement], space: Space) -> list[Placement]:
    """Neighbours that did not run yet: of the first parent, of the second …, one of each after the other."""
    lists = [[p for p in space.neighbours(parent) if p not in pool.seen] for parent in parents]
    longest = max(map(len, lists), default=0)
    turns = (some[turn] for turn in range(longest) for some in lists if turn < len(some))
    return list(dict.fromkeys(turns))[:_JOINING]


def _units(data: Data, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The unit of each example, itself or its group, `[n]`; and the place of each unit in the order of a race."""
    units = np.arange(data.n) if data.groups is None else group_numbers(data.groups)
    return units, np.random.default_rng(seed).permutation(int(units.max()) + 1)


class EngineRuns:
    """Runs placements of a race by an engine; every placement is audited before it first runs."""

    def __init__(
        self, session: Session, measures: Sequence[Measure], objective: Score, engine: str, *, show: bool | None = None
    ) -> None:
        self._session, self._measures, self._objective = session, list(measures), objective
        self._engine, self._show = engine, show
        self._audited: set[Placement] = set()

    def __call__(self, placements: Sequence[Placement], places: np.ndarray, label: str) -> tuple[Tensor, int]:
        part = self._session.with_data(self._session.data.part(places.tolist()))
        resolved = part.resolve(placements)
        fresh = [n for n, placement in enumerate(placements) if placement not in self._audited]
        if fresh:
            part.audit_all([resolved[n] for n in fresh], [placements[n] for n in fresh])
            self._audited.update(placements)
        budget = memory_bytes("auto", part.device)
        engine = choose_engine(part, resolved, RACE_PASSES, self._engine, budget, verified=bool(fresh))
        maker = RowMaker(part, engine, list(placements), self._measures, [self._objective], "plain", budget)
        found: dict[int, Tensor] = {}
        total = len(placements) * RACE_PASSES * len(places)
        with track(f"{label}: {len(placements)} placements", total, show=self._show) as tick:
            for unit in engine.units(maker.bytes_per_placement):
                measured = maker.measured(unit, tick)
                stacked = torch.stack([measured.values[row.name].cpu() for row in self._measures], 1)
                found |= dict(zip(measured.numbers, stacked, strict=True))
        computed = [engine.equivalent(number) for number in range(len(placements))]
        return torch.stack([found[number] for number in computed]), len(set(computed)) * RACE_PASSES * len(places)


class _Pool:
    """Placements and what they gave so far: values of the measures on a growing part of the examples."""

    def __init__(
        self, runs: Runs, data: Data, names: Sequence[str], objective: Score, right: Tensor, seed: int
    ) -> None:
        self._runs, self._n, self._names, self._objective = runs, data.n, list(names), objective
        self._right = right
        self._units, self._rank = _units(data, seed)
        self._values: dict[Placement, Tensor] = {}  # [measures, n], NaN where it did not run
        self._count: dict[Placement, int] = {}
        self._rows: dict[Placement, pd.DataFrame] = {}
        self.predictions = 0

    @property
    def seen(self) -> set[Placement]:
        return set(self._values)

    def run(self, placements: Sequence[Placement], count: int, label: str) -> None:
        """Runs placements on those of the first `count` units that they have not seen."""
        for before in sorted({self._count.get(placement, 0) for placement in placements}):
            some = [placement for placement in placements if self._count.get(placement, 0) == before]
            places = self._places(before, count)
            if not len(places):
                continue
            found, predictions = self._runs(some, places, label)
            self.predictions += predictions
            for placement, values in zip(some, found, strict=True):
                kept = self._values.setdefault(placement, torch.full((len(self._names), self._n), float("nan")))
                kept[:, torch.from_numpy(places)] = values.float()
        self._count |= dict.fromkeys(placements, count)

    def ranked(self, placements: Sequence[Placement]) -> list[Placement]:
        """The placements by their best measure, all on the examples that all of them saw."""
        self._look(placements)
        return sorted(placements, key=lambda placement: float(self._rows[placement].loss.min()))

    def survivors(self, placements: Sequence[Placement], most: int) -> list[Placement]:
        """The best of those that are not seen to be worse."""
        ranked = self.ranked(placements)
        return [p for p in ranked if not bool((self._rows[p].behind_at_least > 0).all())][:most]

    def table(self, finalists: Sequence[Placement]) -> pd.DataFrame:
        """Every row as it last stood."""
        frames = []
        for placement, rows in self._rows.items():
            out = bool((rows.behind_at_least > 0).all())
            state = "finalist" if placement in finalists else "worse" if out else "left out"
            frames.append(rows.assign(state=state))
        table = pd.concat(frames, ignore_index=True)
        order = {"finalist": 0, "left out": 1, "worse": 2}
        table = table.sort_values(["state", "loss"], key=lambda c: c.map(order) if c.name == "state" else c,
                                  kind="stable", ignore_index=True)  # fmt: skip
        return table[[*_COLUMNS]]

    def _look(self, placements: Sequence[Placement]) -> None:
        count = min(self._count[placement] for placement in placements)
        places = torch.from_numpy(self._places(0, count))
        uncertainty = torch.cat([self._values[placement][:, places] for placement in placements])
        units = self._units[places.numpy()]
        stand = look(
            uncertainty, self._right[places], units, self._objective,
            of=len(self._values) * len(self._names), horizon=len(self._rank),
        )  # fmt: skip
        names = self._names
        for n, placement in enumerate(placements):
            part = slice(n * len(names), (n + 1) * len(names))
            self._rows[placement] = pd.DataFrame({
                "placement": str(placement), "measure": names, "value": stand.values[part],
                "behind_leader": stand.difference[part], "behind_at_least": stand.lower[part],
                "examples": len(places), "loss": np.where(np.isnan(stand.losses[part]), np.inf, stand.losses[part]),
            })  # fmt: skip

    def _places(self, before: int, count: int) -> np.ndarray:
        """The examples of some of the units, in the order of the data."""
        rank = self._rank[self._units]
        return np.flatnonzero((rank >= before) & (rank < count))
