"""The analytic engine: noise before the last linear layer, without passes.

One plain pass of an example gives what goes into the last layer, and with it the distribution of its logits under
noise. Statistics are those of a few hundred points of that distribution in place of passes. Owns the measured error, by
which the engine is used or not. See `readout` for what it takes, `cubature` for the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dropscope.data import Batch, Data
from dropscope.device import free_bytes
from dropscope.engine.analytic.cubature import UnitNoise, contributions, points, probabilities_at, size, spread, sums_at
from dropscope.engine.analytic.readout import Reading, Readout, find_readout, unit_factors, unit_noises
from dropscope.engine.engine import PassBlock, StatisticsBlock, Tick, WorkUnit, check_finite, check_runs_passes, quiet
from dropscope.engine.prices import counted
from dropscope.engine.session import Session, sealed
from dropscope.engine.summary import Expected, Finish, PlanSummary, no_finish, summarise_plain
from dropscope.engine.timing import timed
from dropscope.injection import ResolvedPlacement
from dropscope.measures.statistics import BLOCKS, SUMMED, BlockedStatistics, PassStatistics
from dropscope.noise import BLOCK

_PLACEMENTS_PER_UNIT = 10
_CUDA_EXAMPLES, _CUDA_EXAMPLES_OF_SMALL_MODELS = 1024, 16_384
_MEASURED_EXAMPLES, _MEASURED_BLOCKS = 32, 32
_VALUES = 1 << 24  # contributions of units to logits at once


def _mean(statistics: PassStatistics) -> Tensor:
    return statistics.mean


@dataclass(frozen=True)
class Tolerance:
    """The root mean square error that is accepted in place of passes, of a measure; of mean probabilities, if not said.

    Attributes:
        error: The largest error.
        measure: A function of statistics.
        needs: The statistics that it reads.
        name: What is measured, in words.
    """

    error: float
    measure: Callable[[PassStatistics], Tensor] = _mean
    needs: tuple[str, ...] = ("sum_p",)
    name: str = "mean probabilities"


def _at_once(session: Session) -> int:
    """Examples of a batch on a GPU: as many as leave most of its memory free, were all values of a forward kept."""
    each = 4 * sum(math.prod(value.shape) for value in session.site_map.values.values())
    fitting = free_bytes(session.device) // 4 // max(each, 1)
    return max(_CUDA_EXAMPLES, min(fitting, _CUDA_EXAMPLES_OF_SMALL_MODELS))


class AnalyticEngine:
    """Statistics without passes. Made by `build`, which raises `ReadoutFailed` where it cannot run."""

    name = "analytic"
    reason = ""

    def __init__(
        self,
        session: Session,
        placements: Sequence[ResolvedPlacement],
        passes: int,
        readout: Readout,
        noises: Sequence[UnitNoise | None],
    ) -> None:
        self.session, self.placements, self.passes = session, placements, passes
        self._readout, self._noises = readout, noises
        self._work: float | None = None

    @classmethod
    def build(cls, session: Session, placements: Sequence[ResolvedPlacement], passes: int) -> AnalyticEngine:
        """Finds the last layer, and verifies on two examples × two passes that noise only scales what goes into it."""
        readout = find_readout(session)
        noises = unit_noises(readout, placements)
        if session.device.type == "cuda":
            session = session.with_data(session.data.rebatched(_at_once(session)))  # few, large kernels
        return cls(session, placements, passes, readout, noises)

    def on(self, data: Data) -> AnalyticEngine:
        """The same over other data of the same kind: nothing is looked for or verified again."""
        return AnalyticEngine(self.session.with_data(data), self.placements, self.passes, self._readout, self._noises)

    def error(self, of: Tolerance) -> float:
        """The error of what a tolerance is about, under the worst placement, measured on some examples.

        Passes of the last layer are what it is measured against. These have an error of their own, which is estimated
        by the jackknife and taken off; what that leaves in doubt is added, so that no error counts as smaller than
        could be shown.
        """
        with torch.no_grad(), sealed():
            keys, reading = self._some()
            noisy = [number for number, noise in enumerate(self._noises) if noise is not None]
            return max((self._error(number, keys, reading, of) for number in noisy), default=0.0)

    def _some(self) -> tuple[Tensor, Reading]:
        """Those with the smallest keys: the same in any order of the data."""
        batches = self.session.data.batches
        last = self.session.data.keys.sort().values[:_MEASURED_EXAMPLES][-1]
        chosen = [(batch, (batch.keys <= last).nonzero().flatten()[:_MEASURED_EXAMPLES].tolist()) for batch in batches]
        few = [batch.take(numbers) for batch, numbers in chosen if numbers]
        read = [self._readout.read(batch) for batch in few]
        keys = torch.cat([batch.keys for batch in few]).to(self.session.device)
        return keys, Reading(*(torch.cat([getattr(r, name) for r in read]) for name in ("plain", "features", "logits")))

    def _error(self, number: int, keys: Tensor, reading: Reading, of: Tolerance) -> float:
        kept, passes = PassStatistics(of.needs, reading.plain), BlockedStatistics(of.needs, reading.plain, block=BLOCK)
        self._take_in(kept, number, reading)
        noise = self._noises[number]
        assert noise is not None
        moved = contributions(reading.features, self._readout.weight, noise.units)
        for block in range(_MEASURED_BLOCKS):
            numbers = torch.arange(block * BLOCK, (block + 1) * BLOCK, device=keys.device)
            factors = unit_factors(self.session, self.placements[number], numbers, keys, "stratified")
            logits = reading.logits + torch.einsum("tnu,ncu->tnc", factors - 1, moved)
            passes.update(logits.softmax(2).unsqueeze(1), passes_dim=0, check=False)
        apart = (of.measure(kept).double() - of.measure(passes).double()).square()
        own = passes.jackknife(of.measure).square()
        doubt = float(own.mean()) * math.sqrt(2 / len(keys))  # a squared normal error has twice its squared variance
        return math.sqrt(max(0.0, float((apart - own).mean())) + doubt)

    def units(self, bytes_per_placement: int = 0) -> list[WorkUnit]:
        return self.only(range(len(self.placements)))

    def only(self, numbers: Sequence[int]) -> list[WorkUnit]:
        each = _PLACEMENTS_PER_UNIT
        return [WorkUnit(tuple(numbers[i : i + each])) for i in range(0, len(numbers), each)]

    def statistics(self, number: int, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        return self.run(WorkUnit((number,)), needs, tick)

    def run(self, unit: WorkUnit, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        kinds = {*needs} - {BLOCKS}  # there is no Monte Carlo error to tell from blocks
        for batch in self.session.data.batches:
            chunks = []
            with torch.no_grad(), self.session.sealed():
                reading = self._readout.read(batch)
                with sealed():  # in fp32, whatever the precision of passes: a covariance must stay one
                    for number in unit.numbers:
                        kept = PassStatistics(kinds, reading.plain)
                        self._take_in(kept, number, reading)
                        check_finite(kept.mean)
                        chunks.append((np.array([number]), kept))
                        tick(self.passes * batch.n)
            yield StatisticsBlock(batch, reading.plain, chunks)

    def _take_in(self, kept: PassStatistics, number: int, reading: Reading) -> None:
        noise = self._noises[number]
        if noise is None:  # every pass is the plain pass; a second one tells measures of spread that there is none
            kept.update(reading.plain.expand(2, 1, *reading.plain.shape), passes_dim=0, check=False)
            return
        each = max(1, _VALUES // (noise.units * self.session.classes))
        weight = self._readout.weight
        parts = (contributions(some, weight, noise.units) for some in reading.features.split(each))
        spreads = torch.cat([spread(part, noise) for part in parts])
        at = points(noise, self.session.classes, self.session.device)
        if kept.needs <= SUMMED:
            kept.add_sums(sums_at(reading.logits, spreads, at, reading.plain).unsqueeze(0), len(at))
            return
        for p in probabilities_at(reading.logits, spreads, at):
            kept.update(p.unsqueeze(1), passes_dim=0, check=False)

    def samples(self, number: int, batch: Batch, passes: range, tick: Tick = quiet) -> Iterator[PassBlock]:
        """Refused: there are none.

        Raises:
            BadInput: Always.
        """
        check_runs_passes(self.name)
        return iter(())

    def samples_of_all(self, number: int, tick: Tick = quiet) -> Iterator[tuple[Batch, PassBlock]]:
        """Refused, as `samples`."""
        for batch in self.session.data.batches:
            for block in self.samples(number, batch, range(self.passes), tick):
                yield batch, block

    def equivalent(self, number: int) -> int:
        return number

    def cost(self, number: int) -> float:
        noise, classes = self._noises[number], self.session.classes
        if noise is None:
            return 1.0
        if self._work is None:
            work, _, examples = counted(self.session, ())
            self._work = work.flops / 2 / examples
        rows = noise.drawn + classes - 1
        own = noise.units * classes**2 + classes**3 / 3 + size(noise, classes) * rows * classes
        return 1.0 + own / max(self._work, 1.0)

    def compiles(self, *, asked: bool | None) -> bool:
        return False

    def compile(self) -> None:
        """There is nothing to compile."""

    def summary(
        self, needs: Collection[str] = ("sum_p",), finish: Finish = no_finish, *, compiled: bool = False
    ) -> PlanSummary:
        first, units = self.session.data.batches[0], self.units()

        def run() -> None:
            block = next(iter(self.run(units[0], needs)))
            for _, kept in block.chunks:
                finish(kept)

        once = timed(run, self.session.device, 2)
        each = once / first.n / len(units[0].numbers)
        return summarise_plain(self, Expected(0.0, each * self.session.data.n * len(self.placements)))
