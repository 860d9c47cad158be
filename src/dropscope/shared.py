"""The shared engine behind one door: placements in, statistics out, the plan chosen, checked against the plain loop and stated.

Owns block sizes, the units a long run is cut into, and the fall-back to the plain path with its reason. The tree is
`plan.py`'s, its execution `execute.py`'s, the loop it must equal `reference.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope import fused, inputs
from dropscope.capture import Captured, CaptureFailed, capture
from dropscope.data import Batch
from dropscope.execute import Blocks, Engine, statistics_of
from dropscope.outputs import probabilities
from dropscope.plan import Level, Plan, Subtree, bytes_of, cost, grow, peak_bytes
from dropscope.reference import Block, passes_of
from dropscope.resolve import Live
from dropscope.setting import Setting, precise
from dropscope.statistics import PassStatistics
from dropscope.walk import Point

_CACHE_BYTES = (
    8 << 20
)  # working set of a segment on a CPU: beyond the caches, folding is slower than looping (PITFALLS R25)
_TOLERANCE = 1e-5
_SIGNATURES = 8
_CPU_EXAMPLES = 128
_CUDA_EXAMPLES = 1024
_CUDA_EXAMPLES_AT_LEAST = 64


@dataclass(frozen=True, eq=False)
class Forest:
    """Placements of one style (the same noise and mask kind at each site), planned for one input signature."""

    numbers: np.ndarray  # placement numbers of the run, in the order of the plan
    plan: Plan
    engine: Engine
    blocks: Blocks


@dataclass(frozen=True)
class Unit:
    """A part of the work with a name of its own: some placements, over all examples and passes."""

    forest: int
    subtrees: tuple[Subtree, ...]
    numbers: tuple[int, ...]  # placements whose rows it gives, twins included


class Shared:
    """Placements planned as a tree. Raises `CaptureFailed` where the model or a placement cannot be run so."""

    def __init__(self, setting: Setting, lives: Sequence[dict[Point, Live]], passes: int, memory: int) -> None:
        if setting.device.type == "cuda":
            setting = setting.with_data(setting.data.rebatched(_CUDA_EXAMPLES))  # few, large kernels
        self.setting, self.lives, self.passes = setting, lives, passes
        self._memory = memory
        self._styles = _styles(lives)
        self._forests: dict[Any, list[Forest]] = {}
        self._tails: dict[tuple[int, int], float] = {}
        signatures = {_signature(batch): batch for batch in setting.data.batches}
        if len(signatures) > _SIGNATURES:
            raise CaptureFailed(
                f"the batches have {len(signatures)} different shapes: pad them to at most {_SIGNATURES}"
            )
        for batch in signatures.values():
            self._verify(batch)

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
        return Forest(numbers, plan, engine, block_sizes(plan, sizes, self.passes, self._memory, setting.device))

    def _verify(self, batch: Batch) -> None:
        """Two examples × two passes of a few placements, against the plain loop: a mismatch means the plain path."""
        setting = self.setting
        few = _first_examples(batch, 2)
        for forest in self.forests(batch):
            shown = [
                int(i)
                for i in np.unique(np.linspace(0, len(forest.numbers) - 1, 3).astype(int))
                if forest.plan.twin[i] >= 0
            ]
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
            named: dict[int, list[int]] = {}
            for i, leaf in enumerate(forest.plan.twin):
                named.setdefault(int(leaf), []).append(int(forest.numbers[i]))
            if -1 in named:
                found.append(Unit(number, (), tuple(named[-1])))
            for subtree in forest.plan.subtrees:
                for low, high in pieces(subtree, at_most):
                    part = cut(subtree, low, high)
                    found.append(Unit(number, (part,), tuple(n for leaf in part.leaf for n in named[int(leaf)])))
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
        for forest in self.forests(self.setting.data.batches[0]):
            where = np.flatnonzero(forest.numbers == number)
            if len(where):
                return int(forest.numbers[np.flatnonzero(forest.plan.twin == forest.plan.twin[where[0]])[0]])
        raise KeyError(number)

    def cost(self, number: int) -> float:
        """Multiply-adds of all passes of one placement on one example, relative to a plain pass: the prefix counts once."""
        live = self.lives[number]
        if not live:
            return 1.0
        for forest in self.forests(self.setting.data.batches[0]):
            if number in forest.numbers:
                first = next(
                    i for i, step in enumerate(forest.plan.steps) if any(point in live for point in step.points)
                )
                return 1.0 + self.passes * self._tail_cost(forest, first)
        raise KeyError(number)

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
            forest = self.forests(batch)[unit.forest]
            named: dict[int, list[int]] = {}
            for i, leaf in enumerate(forest.plan.twin):
                named.setdefault(int(leaf), []).append(int(forest.numbers[i]))
            for begin in range(0, batch.n, forest.blocks.examples):
                yield self._block(unit, forest, named, _some(batch, begin, begin + forest.blocks.examples), needs, tick)

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
        named: dict[int, list[int]],
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
                kept.update(plain.movedim(1, -1).unsqueeze(0))
                parts = [(np.array([-1]), kept)]
        return Block(
            batch, plain, [(np.array([named[int(leaf)][0] for leaf in leaves]), kept) for leaves, kept in parts]
        )


def _styles(lives: Sequence[dict[Point, Live]]) -> list[np.ndarray]:
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
    args, kwargs = inputs.mapped(lambda t: (tuple(t.shape[1:]), t.dtype), batch.args, batch.kwargs)
    return repr((args, sorted(kwargs.items())))


def _some(batch: Batch, begin: int, end: int) -> Batch:
    end = min(end, batch.n)
    args, kwargs = inputs.take(batch.args, batch.kwargs, range(begin, end))
    labels = None if batch.labels is None else batch.labels[begin:end]
    groups = None if batch.groups is None else batch.groups[begin:end]
    return Batch(args, kwargs, labels, batch.keys[begin:end], batch.ids[begin:end], groups)


def _first_examples(batch: Batch, count: int) -> Batch:
    return _some(batch, 0, count)


def cut(subtree: Subtree, low: int, high: int) -> Subtree:
    """The part of a subtree that leads to the leaves [low, high)."""
    levels = []
    leaf = subtree.leaf[low:high]
    for level in reversed(subtree.levels):
        parent, choice = level.parent[low:high], level.choice[low:high]
        low, high = int(parent[0]), int(parent[-1]) + 1
        levels.append(Level(parent - low, choice))
    return Subtree(subtree.first, tuple(reversed(levels)), leaf)


def pick(subtree: Subtree, leaves: np.ndarray) -> Subtree:
    """The part of a subtree that leads to these leaves (sorted), and to no other."""
    levels, kept = [], leaves
    for level in reversed(subtree.levels):
        parents, local = np.unique(level.parent[kept], return_inverse=True)
        levels.append(Level(local.reshape(-1), level.choice[kept]))
        kept = parents
    return Subtree(subtree.first, tuple(reversed(levels)), subtree.leaf[leaves])


def pieces(subtree: Subtree, at_most: int) -> list[tuple[int, int]]:
    """Leaf ranges of at most `at_most`, cut as high up the tree as that allows, so that little is computed twice."""
    for cuts in _bounds(subtree):
        if int(np.diff(cuts).max()) <= at_most:
            break
    else:
        cuts = np.arange(len(subtree.leaf) + 1)
    found, low = [], 0
    for i in range(1, len(cuts)):
        if int(cuts[i]) - low > at_most:
            found.append((low, int(cuts[i - 1])))
            low = int(cuts[i - 1])
    found.append((low, int(cuts[-1])))
    return found


def _bounds(subtree: Subtree) -> list[np.ndarray]:
    """For each level, where the leaves of its variants begin, and the end."""
    leaves = len(subtree.leaf)
    owner = np.arange(leaves)
    found = [np.append(np.arange(leaves), leaves)]
    for level in reversed(subtree.levels):
        owner = level.parent[owner]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        found.append(np.append(first, leaves))
    return found[::-1][1:]


def block_sizes(plan: Plan, examples: int, passes: int, memory: int, device: torch.device) -> Blocks:
    """How many examples, passes and rows at once: within `memory`, and on a CPU within its caches."""
    captured = plan.captured
    steps = range(len(plan.steps))
    if not plan.steps:
        return Blocks(min(examples, 256), 1, ())
    heaviest = [
        max(peak_bytes(captured, plan.segment(0, i), frozenset()), 2 * bytes_of(captured, plan.steps[i].node), 1)
        for i in steps
    ]
    share = memory // (2 * len(plan.steps) + 2)
    working = min(share, _CACHE_BYTES) if device.type == "cpu" else share
    rows = tuple(max(1, working // size) for size in heaviest)
    plain_bytes = max(sum(bytes_of(captured, node) for node in captured.nodes) // 4, 1)
    if not fused.available(device):
        at_once = max(
            1, min(examples, _CPU_EXAMPLES if device.type == "cpu" else examples, share // plain_bytes, min(rows))
        )
        return Blocks(at_once, max(1, min(passes, min(rows) // at_once)), rows)
    kept = tuple(_kept_bytes(plan, i, heaviest[i]) for i in steps)
    family = [len(step.rates) * size for step, size in zip(plan.steps, kept, strict=True)]
    pairs = max(1, share // max(family))  # (pass, example) pairs at once: a family of every site must fit
    fitting = max(pairs // passes, min(_CUDA_EXAMPLES_AT_LEAST, pairs))
    at_once = max(1, min(examples, share // plain_bytes, max(fitting // 64 * 64, min(fitting, 64))))
    return Blocks(at_once, max(1, min(passes, pairs // at_once)), rows, tuple(max(1, share // size) for size in kept))


def _kept_bytes(plan: Plan, index: int, heaviest: int) -> int:
    """Bytes per row of what a segment keeps where a kernel runs it; all it needs where none does."""
    if index + 1 == len(plan.steps):
        return 64
    part = fused.middle(plan, 0, index)
    return heaviest if part is None else bytes_of(plan.captured, plan.steps[index + 1].node)


def describe(plan: Plan, passes: int, examples: int) -> dict[str, Any]:
    """What a plan shares: multiply-adds against one plain loop per placement."""
    whole = cost(plan.captured, plan.captured.nodes)
    shared = whole
    for subtree in plan.subtrees:
        for i, level in enumerate(subtree.levels):
            shared += passes * len(level.parent) * cost(plan.captured, plan.segment(subtree.first, subtree.first + i))
    naive = plan.distinct * passes * whole
    return {
        "multiply_adds": shared * examples,
        "naive": naive * examples,
        "fewer": naive / max(shared, 1) if math.isfinite(naive) else 0.0,
    }
