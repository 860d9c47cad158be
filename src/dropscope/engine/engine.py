"""The engine protocol: what everything that runs passes can do, and the records that go in and come out.

Two implementations run passes: `loop.LoopEngine`, the reference, and `shared.SharedEngine`, which plans placements as a
tree. Both give the same masks, and pass one contract suite. `analytic.AnalyticEngine` gives statistics without passes.
See `choice` for which one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dropscope.data import Batch
from dropscope.engine.session import Session
from dropscope.engine.summary import Finish, PlanSummary, no_finish
from dropscope.engine.tree import Subtree
from dropscope.errors import BadInput, Phrase
from dropscope.injection import ResolvedPlacement
from dropscope.measures.statistics import PassStatistics

Tick = Callable[[int], None]  # called with the number of predictions just made


def quiet(predictions: int) -> None:
    """A tick that nobody looks at."""


def check_finite(values: Tensor) -> None:
    """Refuses the NaN and infinity that noise brings about; waits for the device."""
    if not bool(torch.isfinite(values).all()):
        remedy = "lower the rates, or look at the layers after the noise: they overflow or divide by zero"
        raise BadInput("outputs must be finite under noise", "placement", Phrase("NaN or infinity"), remedy)


def check_runs_passes(engine: str) -> None:
    """Refuses an engine that has no passes to give."""
    if engine == "analytic":
        what = "engine must be one that runs passes, where the passes themselves are asked for"
        raise BadInput(what, "engine", engine, "write engine='auto', or take measures of the statistics")


@dataclass(frozen=True)
class WorkUnit:
    """Placements that are run and stored together, over all examples and passes."""

    numbers: tuple[int, ...]  # placements whose rows it gives, those that are equivalent to another included
    forest: int = 0
    subtrees: tuple[Subtree, ...] = ()


@dataclass(frozen=True, eq=False)
class StatisticsBlock:
    """Some examples under some placements: `chunks` pairs placement numbers `[v]` with statistics `[v, n, …]`."""

    batch: Batch
    plain: Tensor  # [n, classes, …]
    chunks: list[tuple[np.ndarray, PassStatistics]]


@dataclass(frozen=True, eq=False)
class PassBlock:
    """Some consecutive passes of one placement on some examples of a batch."""

    rows: slice  # of the batch
    first: int  # number of the first pass
    probabilities: Tensor  # [passes, examples, classes, …]


class Engine(Protocol):
    """Runs `passes` passes of `placements` over the data of a session."""

    name: str
    reason: str  # why it runs, where that is not what was asked for
    session: Session  # its data may be batched otherwise than the caller's
    placements: Sequence[ResolvedPlacement]
    passes: int

    def units(self, bytes_per_placement: int = 0) -> list[WorkUnit]:
        """The whole run in parts; `bytes_per_placement` is what the caller keeps of each until its unit is done."""
        ...

    def only(self, numbers: Sequence[int]) -> list[WorkUnit]:
        """Units that compute just these placements, none of which is equivalent to an earlier one."""
        ...

    def run(self, unit: WorkUnit, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        """Statistics of a unit's placements, block of examples by block."""
        ...

    def statistics(self, number: int, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        """Statistics of one placement, block of examples by block."""
        ...

    def samples(self, number: int, batch: Batch, passes: range, tick: Tick = quiet) -> Iterator[PassBlock]:
        """The passes themselves, of one placement on one batch; each example's come in order."""
        ...

    def samples_of_all(self, number: int, tick: Tick = quiet) -> Iterator[tuple[Batch, PassBlock]]:
        """Every pass on every batch, as `samples` gives them."""
        ...

    def equivalent(self, number: int) -> int:
        """The placement under whose number this one is computed: itself, or one that is equal by mathematics."""
        ...

    def cost(self, number: int) -> float:
        """Multiply-adds per example of this placement alone, relative to one plain pass."""
        ...

    def compiles(self, *, asked: bool | None) -> bool:
        """Whether what runs should be compiled: if asked to or (None) where it repays."""
        ...

    def compile(self) -> None:
        """Compiles what runs, from here on."""
        ...

    def summary(
        self, needs: Collection[str] = ("sum_p",), finish: Finish = no_finish, *, compiled: bool = False
    ) -> PlanSummary:
        """What will run, and in what time, with these statistics kept and `finish` computed from them."""
        ...
