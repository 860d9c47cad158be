"""The shared engine: placements planned as one tree, checked against the plain loop before it runs.

Owns styles, input signatures, the units a long run is cut into, and the reason where it cannot run. See `tree` for the
plan, `executor` for its execution, `loop` for what it must equal.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from dropscope.data import Batch
from dropscope.device import runs_kernels
from dropscope.engine.compilation import can_compile
from dropscope.engine.cost import block_sizes, multiply_adds
from dropscope.engine.engine import PassBlock, StatisticsBlock, Tick, WorkUnit, quiet
from dropscope.engine.executor import Chunk, Executor, Work, statistics_of
from dropscope.engine.graph import Captured, CaptureFailed, capture
from dropscope.engine.session import Session
from dropscope.engine.summary import Finish, PlanSummary, no_finish, summarise_shared, work_of
from dropscope.engine.timing import expected_shared
from dropscope.engine.tree import cut, grow, leading_to, pick, pieces
from dropscope.engine.verification import Forest, check_alone, check_conditions, check_passes
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.injection import ResolvedPlacement
from dropscope.measures.statistics import begin_statistics
from dropscope.model import probabilities
from dropscope.tracing import Point

log = logging.getLogger("dropscope")

_SIGNATURES = 8
_CUDA_EXAMPLES = 1024
_PLACEMENTS_PER_UNIT = 100
_PLACEMENTS_PER_UNIT_CUDA = 10_000  # a larger subtree repeats less of its prefix and fills the GPU; memory permitting
# Multiply-adds and bytes per segment of a run of minutes on two cores: a segment compiles in seconds, which halves the
# rest. Not seconds by the clock: the same run would be compiled one day and not the next, with other last bits.
_COMPILING_REPAYS = 5e11


class _Ticks:
    """Counts a prediction once: what a block made before memory ran out is made again, and not told again."""

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self._made = self._lost = 0

    def __call__(self, predictions: int) -> None:
        told = min(predictions, self._lost)
        self._lost -= told
        self._made += predictions
        self._tick(predictions - told)

    def keep(self) -> None:
        self._made = 0

    def lose(self) -> None:
        self._lost += self._made
        self._made = 0


class SharedEngine:
    """Placements planned as a tree. Made by `build`, which raises `CaptureFailed` where it cannot run."""

    name = "shared"
    reason = ""

    def __init__(
        self, session: Session, placements: Sequence[ResolvedPlacement], passes: int, memory: int, *, fixed: bool
    ) -> None:
        self.session, self.placements, self.passes = session, placements, passes
        self._memory, self._fixed = memory, fixed
        self._styles = _styles(placements)
        self._forest_of = {int(n): i for i, numbers in enumerate(self._styles) for n in numbers}
        self._forests: dict[str, list[Forest]] = {}
        self._tails: dict[tuple[int, tuple[int, ...]], float] = {}

    @classmethod
    def build(
        cls,
        session: Session,
        placements: Sequence[ResolvedPlacement],
        passes: int,
        memory: int,
        *,
        fixed: bool = False,
        verified: bool = True,
    ) -> SharedEngine:
        """Captures the model for every shape of batch, plans the placements, and verifies both against the loop.

        What is only planned need not be `verified` at every site.
        """
        if session.device.type == "cuda":
            session = session.with_data(session.data.rebatched(_CUDA_EXAMPLES))  # few, large kernels
        engine = cls(session, placements, passes, memory, fixed=fixed)
        signatures = {batch.signature: batch for batch in session.data.batches}
        if len(signatures) > _SIGNATURES:
            count = len(signatures)
            raise CaptureFailed(f"the batches have {count} different shapes: pad them to at most {_SIGNATURES}")
        for batch in session.data.batches:
            for forest in engine.forests(batch):
                check_conditions(session, forest, batch)
        for batch in signatures.values():
            check_alone(session, batch)
            for forest in engine.forests(batch):
                check_passes(session, forest, batch, placements, every_site=verified)
        return engine

    def compiles(self, *, asked: bool | None) -> bool:
        """Whether it compiles: where asked, or for a run of minutes that no kernels speed up."""
        device = self.session.device
        if asked is not None:
            return asked
        if device.type == "cuda" or not can_compile(device):
            return False
        forests = self.forests(self.session.data.batches[0])
        segments = sum(len(tree.levels) for forest in forests for tree in forest.plan.subtrees)
        return work_of(self) > _COMPILING_REPAYS * segments

    def compile(self) -> None:
        """From here on every segment is compiled at its first call."""
        log.info("segments are compiled first")
        for forests in self._forests.values():
            for forest in forests:
                forest.executor.compile()

    def forests(self, batch: Batch) -> list[Forest]:
        """One plan per style for batches of this shape."""
        signature = batch.signature
        if signature not in self._forests:
            points = {point for resolved in self.placements for point in resolved}
            with torch.no_grad():
                captured = capture(self.session.model, batch.call.to(self.session.device), points)
                captured = captured.returning(self.session.outputs)
            self._forests[signature] = [self._forest(captured, numbers) for numbers in self._styles]
        return self._forests[signature]

    def _forest(self, captured: Captured, numbers: np.ndarray) -> Forest:
        plan = grow(captured, [self.placements[i] for i in numbers])
        session = self.session
        executor = Executor(
            plan,
            lambda output: probabilities(output, session.outputs, check=False),
            session.seed,
            draws=session.draws,
            per_pass=session.masks == "per_pass",
            softmax=session.outputs == "logits",
            kernels=runs_kernels(session.device),
        )
        sizes = max(batch.n for batch in session.data.batches)
        named: dict[int, list[int]] = {}
        for i, leaf in enumerate(plan.leaf_of):
            named.setdefault(int(leaf), []).append(int(numbers[i]))
        blocks = block_sizes(plan, sizes, self.passes, self._memory, session.device)
        return Forest(numbers, plan, executor, blocks, named)

    def units(self, bytes_per_placement: int = 0) -> list[WorkUnit]:
        """The whole run in contiguous pieces of its subtrees."""
        return self.units_of(self._placements_per_unit(bytes_per_placement))

    def units_of(self, at_most: int) -> list[WorkUnit]:
        """As `units`, each of at most so many computed placements."""
        units = []
        for number, forest in enumerate(self.forests(self.session.data.batches[0])):
            if -1 in forest.named:
                units.append(WorkUnit(tuple(forest.named[-1]), number))
            for subtree in forest.plan.subtrees:
                for low, high in pieces(subtree, at_most):
                    piece = cut(subtree, low, high)
                    numbers = tuple(n for leaf in piece.leaf for n in forest.named[int(leaf)])
                    units.append(WorkUnit(numbers, number, (piece,)))
        return units

    def _placements_per_unit(self, bytes_per_placement: int) -> int:
        if self.session.device.type != "cuda":
            return _PLACEMENTS_PER_UNIT
        fitting = self._memory // 16 // max(bytes_per_placement, 1)
        return max(_PLACEMENTS_PER_UNIT, min(_PLACEMENTS_PER_UNIT_CUDA, fitting))

    def only(self, numbers: Sequence[int]) -> list[WorkUnit]:
        units, wanted = [], set(numbers)
        for forest_number, forest in enumerate(self.forests(self.session.data.batches[0])):
            leaves = {int(forest.plan.leaf_of[i]): int(n) for i, n in enumerate(forest.numbers) if int(n) in wanted}
            if -1 in leaves:
                units.append(WorkUnit((leaves[-1],), forest_number))
            for subtree in forest.plan.subtrees:
                where = np.flatnonzero(np.isin(subtree.leaf, [leaf for leaf in leaves if leaf >= 0]))
                if len(where):
                    piece = pick(subtree, where)
                    units.append(WorkUnit(tuple(leaves[int(leaf)] for leaf in piece.leaf), forest_number, (piece,)))
        return units

    def statistics(self, number: int, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        (unit,) = self.only([number])
        return self.run(unit, needs, tick)

    def equivalent(self, number: int) -> int:
        forest, leaf = self._leaf(self.session.data.batches[0], number)
        return int(forest.numbers[np.flatnonzero(forest.plan.leaf_of == leaf)[0]])

    def _leaf(self, batch: Batch, number: int) -> tuple[Forest, int]:
        forest = self.forests(batch)[self._forest_of[number]]
        (where,) = np.flatnonzero(forest.numbers == number)
        return forest, int(forest.plan.leaf_of[where])

    def cost(self, number: int) -> float:
        """Multiply-adds of all passes relative to a plain pass; what comes before the noise counts once."""
        resolved = self.placements[number]
        if not resolved:
            return 1.0
        forest = self.forests(self.session.data.batches[0])[self._forest_of[number]]
        steps = enumerate(forest.plan.steps)
        live = tuple(i for i, step in steps if any(point in resolved for point in step.points))
        return 1.0 + self.passes * self._tail_cost(forest, live)

    def _tail_cost(self, forest: Forest, steps: tuple[int, ...]) -> float:
        key = id(forest), steps
        if key not in self._tails:
            captured = forest.plan.captured
            tail = [node for node in captured.nodes if node in forest.plan.stochastic(steps)]
            self._tails[key] = multiply_adds(captured, tail) / max(multiply_adds(captured, captured.nodes), 1)
        return self._tails[key]

    def run(self, unit: WorkUnit, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        ticks = _Ticks(tick)
        for batch in self.session.data.batches:
            forest, begin = self.forests(batch)[unit.forest], 0
            while begin < batch.n:
                examples = _examples(batch, begin, begin + forest.blocks.examples)
                try:
                    block = self._block(unit, forest, examples, needs, ticks)
                except torch.OutOfMemoryError as error:
                    ticks.lose()
                    forest = self._halved(batch, unit.forest, error)
                    continue
                ticks.keep()
                yield block
                begin += examples.n

    def _halved(self, batch: Batch, number: int, error: Exception) -> Forest:
        """The same forest in blocks of half the size; a run whose sizes are fixed says what to do instead."""
        forests = self.forests(batch)
        smaller = forests[number].blocks.halved()
        if self._fixed or smaller is None:
            remedy = "start again in another folder with memory= set to less than is free"
            raise BadInput("memory must be enough for the run", "memory", Phrase(first_line(error)), remedy) from error
        torch.cuda.empty_cache()
        log.warning("out of memory: going on with blocks of %s examples × %s passes", smaller.examples, smaller.passes)
        forests[number] = replace(forests[number], blocks=smaller)
        return forests[number]

    def first_block(self, forest: Forest) -> Batch:
        """The examples that run first, on the device."""
        return _on_device(_examples(self.session.data.batches[0], 0, forest.blocks.examples), self.session.device)

    def samples(self, number: int, batch: Batch, passes: range, tick: Tick = quiet) -> Iterator[PassBlock]:
        forest, leaf = self._leaf(batch, number)
        blocks = forest.blocks
        subtree = None if leaf < 0 else leading_to(forest.plan, leaf)
        for begin in range(0, batch.n, blocks.examples):
            examples = _on_device(_examples(batch, begin, begin + blocks.examples), self.session.device)
            with torch.no_grad(), self.session.sealed():
                plain, reads = forest.executor.plain(examples.call)
            rows = slice(begin, begin + examples.n)
            for first in range(passes.start, passes.stop, blocks.passes):
                numbers = range(first, min(first + blocks.passes, passes.stop))
                with torch.no_grad(), self.session.sealed():
                    if subtree is None:  # the plain placement: every pass is the plain pass
                        p = plain.expand(len(numbers), *plain.shape)
                    else:
                        made = forest.executor.passes(subtree, Chunk(reads, examples.keys, numbers, blocks))
                        p = torch.cat([leaves[0] for _, leaves in made])
                yield PassBlock(rows, first, p)
                tick(examples.n * len(numbers))

    def samples_of_all(self, number: int, tick: Tick = quiet) -> Iterator[tuple[Batch, PassBlock]]:
        for batch in self.session.data.batches:
            for block in self.samples(number, batch, range(self.passes), tick):
                yield batch, block

    def _block(
        self, unit: WorkUnit, forest: Forest, batch: Batch, needs: Collection[str], tick: Tick
    ) -> StatisticsBlock:
        work = Work(self.passes, needs, forest.blocks, tick)
        with torch.no_grad(), self.session.sealed():
            plain, chunks = statistics_of(forest.executor, unit.subtrees, _on_device(batch, self.session.device), work)
            if not unit.subtrees:  # the plain placement: every pass is the plain pass
                kept = begin_statistics(needs, plain.movedim(1, -1), min(self.passes, 2), "independent")
                for _ in range(min(self.passes, 2)):  # a second one tells measures of spread that there is none
                    kept.update(plain.movedim(1, -1).unsqueeze(0))
                chunks = [(np.array([-1]), kept)]
        computed = sum(len(subtree.leaf) for subtree in unit.subtrees)
        tick((len(unit.numbers) - computed) * self.passes * batch.n)  # those that are plain, or equal to another
        numbered = [(np.array([forest.named[int(leaf)][0] for leaf in leaves]), kept) for leaves, kept in chunks]
        return StatisticsBlock(batch, plain, numbered)

    def summary(
        self, needs: Collection[str] = ("sum_p",), finish: Finish = no_finish, *, compiled: bool = False
    ) -> PlanSummary:
        return summarise_shared(self, expected_shared(self, needs, finish, compiled=compiled))


def _styles(placements: Sequence[ResolvedPlacement]) -> list[np.ndarray]:
    """Placement numbers, grouped so that within a group each site has one noise and one mask kind."""
    groups: list[tuple[dict[Point, tuple[str, str]], list[int]]] = []
    for number, resolved in enumerate(placements):
        style = {point: spec.style for point, spec in resolved.items()}
        for known, members in groups:
            if all(known.get(point, kind) == kind for point, kind in style.items()):
                known.update(style)
                members.append(number)
                break
        else:
            groups.append((dict(style), [number]))
    return [np.array(members) for _, members in groups]


def _examples(batch: Batch, begin: int, end: int) -> Batch:
    return batch.take(range(begin, min(end, batch.n)))


def _on_device(batch: Batch, device: torch.device) -> Batch:
    return replace(batch, call=batch.call.to(device), keys=batch.keys.to(device))
