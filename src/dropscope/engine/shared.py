"""The shared engine behind one door: placements in, statistics out, checked against the plain loop before it runs.

Owns styles, input signatures, the units a long run is cut into, and the reason where it cannot run. The tree is
`plan.py`'s, its execution `execute.py`'s, the loop it must equal `reference.py`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope.data import Batch
from dropscope.engine.cost import Blocks, block_sizes, cost
from dropscope.engine.executor import Engine, statistics_of
from dropscope.engine.graph import Captured, CaptureFailed, capture
from dropscope.engine.loop import Block, passes_of
from dropscope.engine.session import Session, precise
from dropscope.engine.tree import Plan, Subtree, cut, grow, pick, pieces
from dropscope.errors import BadInput
from dropscope.injection import SiteNoise
from dropscope.model import flat, mapped, probabilities, take
from dropscope.statistics import PassStatistics
from dropscope.tracing import Point

log = logging.getLogger("dropscope")

_TOLERANCE = 1e-5
_COUPLED, _COUPLED_HALF = 1e-4, 2e-2  # batches of other sizes round otherwise, by far less
_SIGNATURES = 8
_CUDA_EXAMPLES = 1024


@dataclass(frozen=True, eq=False)
class Forest:
    """Placements of one style (the same noise and mask kind at each site), planned for one input signature."""

    numbers: np.ndarray  # placement numbers of the run, in the order of the plan
    plan: Plan
    engine: Engine
    blocks: Blocks
    named: Mapping[int, list[int]]  # leaf → the placements computed there, twins included; −1 for the plain ones


@dataclass(frozen=True)
class Unit:
    """A part of the work with a name of its own: some placements, over all examples and passes."""

    forest: int
    subtrees: tuple[Subtree, ...]
    numbers: tuple[int, ...]  # placements whose rows it gives, twins included


class Shared:
    """Placements planned as a tree. Raises `CaptureFailed` where the model or a placement cannot be run so."""

    def __init__(
        self, setting: Session, lives: Sequence[dict[Point, SiteNoise]], passes: int, memory: int, fixed: bool = False
    ) -> None:
        if setting.device.type == "cuda":
            setting = setting.with_data(setting.data.rebatched(_CUDA_EXAMPLES))  # few, large kernels
        self.setting, self.lives, self.passes = setting, lives, passes
        self._memory, self._fixed = memory, fixed
        self._styles = _styles(lives)
        self._forest_of = {int(n): i for i, numbers in enumerate(self._styles) for n in numbers}
        self._forests: dict[Any, list[Forest]] = {}
        self._tails: dict[tuple[int, int], float] = {}
        signatures = {_signature(batch): batch for batch in setting.data.batches}
        if len(signatures) > _SIGNATURES:
            raise CaptureFailed(
                f"the batches have {len(signatures)} different shapes: pad them to at most {_SIGNATURES}"
            )
        for batch in signatures.values():
            self._verify(batch)

    def compile(self) -> None:
        """Compiles every segment at its first call. Worth it for long runs alone: a segment takes some ten seconds."""
        for forests in self._forests.values():
            for forest in forests:
                forest.engine.compile()

    def forests(self, batch: Batch) -> list[Forest]:
        """One plan per style for batches of this shape."""
        signature = _signature(batch)
        if signature not in self._forests:
            args, kwargs = self.setting.on_device(batch)
            points = {point for live in self.lives for point in live}
            with torch.no_grad():
                captured = capture(self.setting.model, args, kwargs, points)
            self._forests[signature] = [self._forest(captured, numbers) for numbers in self._styles]
        return self._forests[signature]

    def _forest(self, captured: Captured, numbers: np.ndarray) -> Forest:
        plan = grow(captured, [self.lives[i] for i in numbers])
        setting = self.setting
        engine = Engine(
            plan,
            lambda output: probabilities(output, setting.outputs, check=False),
            setting.seed,
            setting.masks == "per_pass",
            softmax=setting.outputs == "logits",
        )
        sizes = max(batch.n for batch in setting.data.batches)
        named: dict[int, list[int]] = {}
        for i, leaf in enumerate(plan.twin):
            named.setdefault(int(leaf), []).append(int(numbers[i]))
        blocks = block_sizes(plan, sizes, self.passes, self._memory, setting.device)
        return Forest(numbers, plan, engine, blocks, named)

    def _verify(self, batch: Batch) -> None:
        """Two examples × two passes of some placements, every site among them, against the plain loop, and each example
        by itself: a mismatch means the plain path."""
        setting = self.setting
        few = _two_examples(batch)
        self._check_alone(few)
        for forest in self.forests(batch):
            shown = self._shown(forest)
            with torch.no_grad(), precise():
                args, kwargs = setting.on_device(few)
                try:
                    plain, reads = forest.engine.plain(args, kwargs)
                    worst = float((plain - setting.plain(few)).abs().max())
                    for i in shown:
                        slow = torch.stack(list(passes_of(setting, self.lives[int(forest.numbers[i])], few, 2)))
                        fast = self._passes_of_one(forest, int(forest.plan.twin[i]), reads, few)
                        worst = max(worst, float((slow - fast).abs().max()))
                except (RuntimeError, TypeError, IndexError) as error:
                    raise CaptureFailed(
                        f"the captured graph does not run on folded passes: {str(error).splitlines()[0][:160]}"
                    ) from error
            if not worst <= _TOLERANCE:
                raise CaptureFailed(f"the captured graph differs from the plain loop by {worst:.1e}")

    def _check_alone(self, few: Batch) -> None:
        """Passes are folded into the batch, and examples run in blocks: neither may change what an example gets."""
        if few.n < 2:
            return
        with torch.no_grad(), precise():
            together = self.setting.plain(few)
            try:
                alone = torch.cat([self.setting.plain(_some(few, i, i + 1)) for i in range(few.n)])
            except (RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0][:160]
                raise CaptureFailed(f"the model does not take an example by itself: {reason}") from error
        apart = float((together - alone).abs().max())
        half = any(weight.dtype.itemsize < 4 for weight in self.setting.model.parameters())
        if not apart <= (_COUPLED_HALF if half else _COUPLED):
            raise CaptureFailed(f"what an example gets depends on the others of its batch (by {apart:.1e})")

    def _shown(self, forest: Forest) -> list[int]:
        """Placements to compare: the first, the middle, the last, and the first that has each site."""
        found = {int(i) for i in np.linspace(0, len(forest.numbers) - 1, 3)}
        seen: set[Point] = set()
        for i, number in enumerate(forest.numbers):
            new = set(self.lives[int(number)]) - seen
            if new:
                seen |= new
                found.add(i)
        return sorted(i for i in found if forest.plan.twin[i] >= 0)

    def _passes_of_one(self, forest: Forest, leaf: int, reads: dict[Any, Tensor], few: Batch) -> Tensor:
        blocks = Blocks(few.n, 2, (1,) * len(forest.plan.steps))
        keys = few.keys.to(self.setting.device)
        for subtree in forest.plan.subtrees:
            where = np.flatnonzero(subtree.leaf == leaf)
            if len(where):
                part = cut(subtree, int(where[0]), int(where[0]) + 1)
                return next(p for _, p in forest.engine.passes(part, reads, keys, range(2), blocks))[0]
        raise CaptureFailed("a placement is missing from its own plan")

    def units(self, at_most: int) -> list[Unit]:
        """The whole run in parts of at most so many computed placements, each a contiguous piece of a subtree."""
        found = []
        for number, forest in enumerate(self.forests(self.setting.data.batches[0])):
            if -1 in forest.named:
                found.append(Unit(number, (), tuple(forest.named[-1])))
            for subtree in forest.plan.subtrees:
                for low, high in pieces(subtree, at_most):
                    part = cut(subtree, low, high)
                    found.append(Unit(number, (part,), tuple(n for leaf in part.leaf for n in forest.named[int(leaf)])))
        return found

    def only(self, numbers: Sequence[int]) -> list[Unit]:
        """Units that compute just these placements (each one that is computed, not a twin's name)."""
        found = []
        for forest_number, forest in enumerate(self.forests(self.setting.data.batches[0])):
            leaves = {int(forest.plan.twin[i]): int(n) for i, n in enumerate(forest.numbers) if int(n) in set(numbers)}
            if -1 in leaves:
                found.append(Unit(forest_number, (), (leaves[-1],)))
            for subtree in forest.plan.subtrees:
                where = np.flatnonzero(np.isin(subtree.leaf, [leaf for leaf in leaves if leaf >= 0]))
                if len(where):
                    part = pick(subtree, where)
                    found.append(Unit(forest_number, (part,), tuple(leaves[int(leaf)] for leaf in part.leaf)))
        return found

    def computed_as(self, number: int) -> int:
        """The placement under whose number this one is computed: itself, or its twin by mathematics."""
        forest = self.forests(self.setting.data.batches[0])[self._forest_of[number]]
        (where,) = np.flatnonzero(forest.numbers == number)
        return int(forest.numbers[np.flatnonzero(forest.plan.twin == forest.plan.twin[where])[0]])

    def cost(self, number: int) -> float:
        """Multiply-adds of all passes relative to a plain pass; what comes before the noise counts once."""
        live = self.lives[number]
        if not live:
            return 1.0
        forest = self.forests(self.setting.data.batches[0])[self._forest_of[number]]
        first = next(i for i, step in enumerate(forest.plan.steps) if any(point in live for point in step.points))
        return 1.0 + self.passes * self._tail_cost(forest, first)

    def _tail_cost(self, forest: Forest, first: int) -> float:
        key = id(forest), first
        if key not in self._tails:
            captured = forest.plan.captured
            tail = [node for node in captured.nodes if node in forest.plan.stochastic(first)]
            self._tails[key] = cost(captured, tail) / max(cost(captured, captured.nodes), 1)
        return self._tails[key]

    def run(
        self, unit: Unit, needs: Collection[str], tick: Callable[[int], None] = lambda predictions: None
    ) -> Iterator[Block]:
        """Statistics of a unit's placements, block of examples by block; placement numbers are the run's."""
        for batch in self.setting.data.batches:
            forest, begin = self.forests(batch)[unit.forest], 0
            while begin < batch.n:
                some = _some(batch, begin, begin + forest.blocks.examples)
                try:
                    block = self._block(unit, forest, some, needs, tick)
                except torch.OutOfMemoryError as error:
                    forest = self._halved(batch, unit.forest, error)
                    continue
                yield block
                begin += some.n

    def _halved(self, batch: Batch, number: int, error: Exception) -> Forest:
        """The same forest in blocks of half the size; a run whose sizes are fixed says what to do instead."""
        forests = self.forests(batch)
        smaller = forests[number].blocks.halved()
        if self._fixed or smaller is None:
            remedy = "start it anew in another folder with memory= set to less than is free"
            raise BadInput("a run fits into memory", "memory", str(error).splitlines()[0], remedy) from error
        torch.cuda.empty_cache()
        log.warning("out of memory: going on with blocks of %s examples × %s passes", smaller.examples, smaller.passes)
        forests[number] = replace(forests[number], blocks=smaller)
        return forests[number]

    def one_block(self, unit: Unit, passes: int) -> int:
        """Runs a few passes of one block of a unit, for timing; how many (pass, example) pairs that was."""
        batch = self.setting.data.batches[0]
        forest = self.forests(batch)[unit.forest]
        some = _some(batch, 0, forest.blocks.examples)
        args, kwargs = self.setting.on_device(some)
        keys = some.keys.to(self.setting.device)
        statistics_of(forest.engine, unit.subtrees, args, kwargs, keys, passes, {"sum_p"}, forest.blocks)
        return passes * some.n

    def samples(self, batch: Batch, tick: Callable[[int], None] = lambda predictions: None) -> Tensor:
        """Every pass of the one placement there is, `[passes, n, classes, …]`."""
        (forest,) = self.forests(batch)
        blocks, parts = forest.blocks, []
        for begin in range(0, batch.n, blocks.examples):
            some = _some(batch, begin, begin + blocks.examples)
            keys = some.keys.to(self.setting.device)
            _, reads = forest.engine.plain(*self.setting.on_device(some))
            found = []
            for first in range(0, self.passes, blocks.passes):
                numbers = range(first, min(first + blocks.passes, self.passes))
                found += [p[0] for _, p in forest.engine.passes(forest.plan.subtrees[0], reads, keys, numbers, blocks)]
                tick(some.n * len(numbers))
            parts.append(torch.cat(found))
        return torch.cat(parts, 1)

    def _block(
        self,
        unit: Unit,
        forest: Forest,
        batch: Batch,
        needs: Collection[str],
        tick: Callable[[int], None],
    ) -> Block:
        args, kwargs = self.setting.on_device(batch)
        keys = batch.keys.to(self.setting.device)
        with torch.no_grad(), precise():
            plain, parts = statistics_of(
                forest.engine, unit.subtrees, args, kwargs, keys, self.passes, needs, forest.blocks, tick
            )
            if not unit.subtrees:  # the plain placement: every pass is the plain pass
                kept = PassStatistics(needs, plain.movedim(1, -1))
                for _ in range(min(self.passes, 2)):  # a second one tells measures of spread that there is none
                    kept.update(plain.movedim(1, -1).unsqueeze(0))
                parts = [(np.array([-1]), kept)]
        shown = [(np.array([forest.named[int(leaf)][0] for leaf in leaves]), kept) for leaves, kept in parts]
        return Block(batch, plain, shown)


def _styles(lives: Sequence[dict[Point, SiteNoise]]) -> list[np.ndarray]:
    """Placement numbers, grouped so that within a group each site has one noise and one mask kind."""
    groups: list[tuple[dict[Point, tuple[str, str]], list[int]]] = []
    for number, live in enumerate(lives):
        style = {point: (spec.noise, spec.mask) for point, spec in live.items()}
        for known, members in groups:
            if all(known.get(point, kind) == kind for point, kind in style.items()):
                known.update(style)
                members.append(number)
                break
        else:
            groups.append((dict(style), [number]))
    return [np.array(members) for _, members in groups]


def _signature(batch: Batch) -> Any:
    args, kwargs = mapped(lambda t: (tuple(t.shape[1:]), t.dtype), batch.args, batch.kwargs)
    return repr((args, sorted(kwargs.items())))


def _some(batch: Batch, begin: int, end: int) -> Batch:
    return _chosen(batch, range(begin, min(end, batch.n)))


def _chosen(batch: Batch, numbers: Sequence[int]) -> Batch:
    where = torch.tensor(list(numbers))
    args, kwargs = take(batch.args, batch.kwargs, numbers)
    labels = None if batch.labels is None else batch.labels[where.to(batch.labels.device)]
    groups = None if batch.groups is None else [batch.groups[i] for i in numbers]
    keys = batch.keys[where.to(batch.keys.device)]
    return Batch(args, kwargs, labels, keys, [batch.ids[i] for i in numbers], groups)


def _two_examples(batch: Batch) -> Batch:
    """The first example and the first that differs from it: equal ones would hide what one does to the other."""
    other = torch.zeros(batch.n, dtype=torch.bool)
    for tensor in flat([batch.args, batch.kwargs]):
        if tensor.dim() > 0 and len(tensor) == batch.n:
            other |= (tensor != tensor[:1]).flatten(1).any(1).cpu() if tensor.dim() > 1 else (tensor != tensor[0]).cpu()
    differs = other.nonzero().flatten().tolist()
    return _chosen(batch, [0, *(differs[:1] or range(1, batch.n)[:1])])
