"""The executor of a plan: depth first, a block of examples and passes at a time, statistics streamed, memory bounded.

Owns the descent through the tree. See `tree` for what is shared, `segments` for how rows meet. It never looks at what
the numbers mean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from dropscope.data import Batch
from dropscope.device import runs_kernels
from dropscope.engine import chains, fusion, segments
from dropscope.engine.compilation import Compiled
from dropscope.engine.cost import Blocks
from dropscope.engine.engine import check_finite
from dropscope.engine.graph import feed_values
from dropscope.engine.segments import Segment, SegmentNoise
from dropscope.engine.tree import Plan, Step, Subtree
from dropscope.errors import BadInput, Phrase
from dropscope.measures.statistics import PassStatistics, begin_statistics
from dropscope.model import Call
from dropscope.noise import bits_of_passes, noise_kernels, site_key, start, threshold

log = logging.getLogger("dropscope")

_WORDS_KEPT = 1 << 26  # bytes of words that a block keeps for a level: to hash them again is cheap beside such work

Probabilities = Callable[[Any], Tensor]


@dataclass(frozen=True, eq=False)
class _Held:
    """A value of some level with the number of variants it holds."""

    value: Tensor
    level: int
    variants: int


@dataclass(frozen=True, eq=False)
class Sums:
    """Statistics of some passes, summed in a kernel: `[variants, examples, classes + 4]` (see `kernels.tail`)."""

    values: Tensor
    passes: int


@dataclass(frozen=True)
class _Family:
    """Consecutive earlier variants, from `first`, that have `each` children."""

    first: int
    parents: int
    each: int


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some examples × some passes: plain values that segments read, keys of the examples, pass numbers, sizes."""

    reads: dict[fx.Node, Tensor]
    keys: Tensor
    passes: range
    blocks: Blocks


@dataclass(frozen=True, eq=False)
class Work:
    """What is asked of a block of examples."""

    passes: int
    needs: Collection[str]
    blocks: Blocks
    tick: Callable[[int], None] = lambda predictions: None


class Executor:
    """A plan made ready to run: its trunk and segments as functions."""

    def __init__(
        self,
        plan: Plan,
        probabilities: Probabilities,
        seed: int,
        *,
        draws: str = "independent",
        per_pass: bool = False,
        softmax: bool = False,
        kernels: bool = False,
    ) -> None:
        self.plan = plan
        self.kernels = kernels  # Triton's run here: chains of pointwise work become one call each
        self.softmax = softmax  # the output is logits and nothing else: the fused end may stand in
        self._probabilities = probabilities
        self._seed, self.draws, self._per_pass = seed, draws, per_pass
        self._trunk = segments.trunk(plan)
        self._segments: dict[tuple[tuple[int, ...], int], Segment] = {}
        self._splits: dict[int, Tensor] = {}  # weights as a kernel takes them, for all segments
        self._conditions: Segment | None = None
        self._compiled = False
        self._middles: dict[tuple[tuple[int, ...], int], fusion.Middle | None] = {}

    def middle(self, steps: tuple[int, ...], level: int) -> fusion.Middle | None:
        if (steps, level) not in self._middles:
            self._middles[steps, level] = fusion.middle(self.plan, steps, level)
        return self._middles[steps, level]

    def segment(self, steps: tuple[int, ...], level: int) -> Segment:
        if (steps, level) not in self._segments:
            made = segments.segment(self.plan, steps, level)
            if self._compiled:
                made = replace(made, module=Compiled(made.module))
            elif self.kernels:
                chains.fuse(made.module, self._splits)
            self._segments[steps, level] = made
        return self._segments[steps, level]

    def compile(self) -> None:
        """From here on, segments are compiled at their first call."""
        self._compiled = True
        self._segments.clear()

    def plain(self, call: Call) -> tuple[Tensor, dict[fx.Node, Tensor]]:
        """The plain pass of a block: its probabilities `[examples, classes, …]`, and every value a segment reads."""
        if not self.holds(call):
            what, got = "examples must all take one way through the model's code", Phrase("a block that takes another")
            raise BadInput(what, "engine", got, "write engine='loop'")
        values = self._trunk.module(*feed_values(call))
        reads = dict(zip(self._trunk.outputs, values, strict=True))
        return self.probabilities(reads), reads

    def holds(self, call: Call) -> bool:
        """Whether the model's code reads from these examples what it read when it was captured."""
        expected = self.plan.captured.expected
        if expected and self._conditions is None:
            self._conditions = segments.at_feed_size(self.plan.captured, [node for node, _ in expected])
        if self._conditions is None:
            return True
        read = self._conditions.module(*feed_values(call))
        return all(value.tolist() == number for value, (_, number) in zip(read, expected, strict=True))

    def probabilities(self, values: dict[fx.Node, Tensor]) -> Tensor:
        """From the values of the output's nodes."""
        return self._probabilities(self._unflattened(values))

    def _unflattened(self, values: dict[fx.Node, Tensor]) -> Any:
        captured = self.plan.captured
        return captured.rebuilt([values.get(leaf) if isinstance(leaf, fx.Node) else leaf for leaf in captured.output])

    def passes(self, subtree: Subtree, chunk: Chunk) -> Iterator[tuple[slice, Tensor]]:
        """Probabilities `[variants, passes, examples, classes, …]` of the leaves `slice`, leaf by leaf in order."""
        for leaves, result in _Descent(self, subtree, chunk, None, None).descend(0, 0, 1, {}, {}):
            assert isinstance(result, Tensor)
            yield leaves, result

    def results(
        self, subtree: Subtree, chunk: Chunk, plain: Tensor, needs: Collection[str]
    ) -> Iterator[tuple[slice, Tensor | Sums]]:
        """As `passes`, but where the end of the graph is fused with the statistics, their sums."""
        fused = self.softmax and runs_kernels(chunk.keys.device)
        end = fusion.tail(self.plan, subtree.steps, needs) if fused else None
        yield from _Descent(self, subtree, chunk, plain, end).descend(0, 0, 1, {}, {})

    def uniform(self, step: Step, keys: Tensor, passes: Sequence[int]) -> Tensor:
        """The words of one site for a block, `[passes × examples, …]`: the same for every variant."""
        number = torch.as_tensor(list(passes), dtype=torch.int64, device=keys.device)
        examples = torch.zeros_like(keys) if self._per_pass else keys
        if self.plan.captured.batch(step.node) is None:  # one mask a pass, for all examples: the key of the plain path
            examples = torch.zeros_like(keys[:1])
        site, shape = site_key(step.name, step.call), segments.unit_shape(step, self.plan.captured)
        centre = step.layout.centre(step.node.meta["val"].dim(), step.mask)
        if self.kernels and centre is None and len(shape) <= noise_kernels().INNER + 1:
            rows = number.repeat_interleave(len(examples)), examples.repeat(len(number))
            begun = start(self._seed, site)
            return noise_kernels().words(begun, *rows, shape, stratified=self.draws == "stratified")
        return bits_of_passes(self._seed, site, number, examples, shape, self.draws, centre)


class _Descent:
    """One block of examples and passes on its way down one subtree."""

    def __init__(
        self, executor: Executor, subtree: Subtree, chunk: Chunk, plain: Tensor | None, end: fusion.Tail | None
    ) -> None:
        keys, passes, blocks = chunk.keys, chunk.passes, chunk.blocks
        self.plain, self.end = plain, end
        self.fast = runs_kernels(keys.device)
        self.executor, self.subtree, self.reads, self.blocks = executor, subtree, chunk.reads, blocks
        self.rows = len(keys) * len(passes)
        self.shape = (len(passes), len(keys))
        self.device = keys.device
        self.steps = [executor.plan.steps[i] for i in subtree.steps]  # of each level
        self.fans = subtree.fans
        self._keys, self._passes = keys, passes
        self._kept_words: dict[int, Tensor] = {}
        self.full_rows = blocks.examples * blocks.passes

    def descend(
        self, level: int, start: int, count: int, held: dict[fx.Node, _Held], maps: dict[int, np.ndarray]
    ) -> Iterator[tuple[slice, Tensor | Sums]]:
        """The children at `level` of variants [start, start + count) of the one before, in chunks that fit."""
        subtree = self.subtree
        here = subtree.levels[level]
        low, high = (int(i) for i in np.searchsorted(here.parent, [start, start + count]))
        at_once = self._variants_at_once(level, _regular(here.parent[low:high] - start))
        for begin in range(low, high, at_once):
            end = min(begin + at_once, high)
            numbers = here.parent[begin:end] - start
            chosen = {i: m[numbers] for i, m in maps.items()} | {level - 1: numbers}
            each = _regular(numbers - numbers[0])
            family = None if each is None else _Family(int(numbers[0]), len(numbers) // each, each)
            choice = here.choice[begin:end]
            if level + 1 == len(self.steps):
                sums = self._fused_end(level, choice, held, family)
                if sums is not None:
                    yield slice(begin, end), sums
                    continue
                yield slice(begin, end), self._finish(self._run(level, choice, held, chosen, family), end - begin)
            else:
                made = self._fused_middle(level, choice, held, family)
                if made is None:
                    made = self._run(level, choice, held, chosen, family)
                read = self.executor.plan.read_after(subtree.steps, level)
                below = held | {node: _Held(value, level, end - begin) for node, value in made.items()}
                following = self.descend(
                    level + 1, begin, end - begin, {node: kept for node, kept in below.items() if node in read}, chosen
                )
                del made, below  # what nobody reads any more goes while the levels below run
                if end == high:
                    held = {}
                yield from following

    def words(self, level: int) -> Tensor:
        """The words of a level's step: kept while the block runs, unless they are large."""
        if level in self._kept_words:
            return self._kept_words[level]
        found = self.executor.uniform(self.steps[level], self._keys, self._passes)
        if found.nbytes <= _WORDS_KEPT:
            self._kept_words[level] = found
        return found

    def _variants_at_once(self, level: int, each: int | None) -> int:
        """How many variants fit; whole families where a kernel takes them together."""
        if level >= self.fans:  # no more variants than were taken at once before
            return len(self.subtree.leaf)
        last, index = level + 1 == len(self.steps), self.subtree.steps[level]
        fits = (
            self.end is not None if last else self.fast and self.executor.middle(self.subtree.steps, level) is not None
        )
        if fits and each is not None and self.blocks.fused_rows:
            return max(each, self.blocks.fused_rows[index] // self.full_rows // each * each)
        behind = self.subtree.steps[level:] if level + 1 == self.fans else [index]
        return max(1, min(self.blocks.rows[i] for i in behind) // self.full_rows)

    def _fused_end(
        self, level: int, choice: np.ndarray, held: dict[fx.Node, _Held], family: _Family | None
    ) -> Sums | None:
        if self.end is None or self.plain is None or family is None or family.each > 64:
            return None
        entry = self._entry(level, held, family)
        if entry is None:
            return None
        lowest, gain = _parameters(self.steps[level], choice, self.device)
        words = self.words(level).reshape(self.rows, -1)
        hidden = entry.reshape(family.parents, -1, entry.shape[-1]) if level else entry.unsqueeze(0)
        children = family.each if level else len(choice)
        return Sums(self.end.sums(hidden, words, lowest, gain, self.plain, self.shape[0], children), self.shape[0])

    def _fused_middle(
        self, level: int, choice: np.ndarray, held: dict[fx.Node, _Held], family: _Family | None
    ) -> dict[fx.Node, Tensor] | None:
        part = self.executor.middle(self.subtree.steps, level) if self.fast else None
        entry = None if part is None else self._entry(level, held, family)
        if part is None or entry is None or family is None:
            return None
        nested = fusion.nested_choices(choice, family.parents if level else 1)
        if nested is None:
            return None
        lowest, gain = _parameters(self.steps[level], nested, self.device)
        value = entry.reshape(family.parents, -1, *entry.shape[1:]) if level else entry.unsqueeze(0)
        words = self.words(level).reshape(self.rows, -1)
        return {self.steps[level + 1].node: part.run(value, words, lowest, gain, self.shape[1])}

    def _entry(self, level: int, held: dict[fx.Node, _Held], family: _Family | None) -> Tensor | None:
        """The rows that the noise of this level falls on, for whole families only."""
        node = self.steps[level].node
        kept = held.get(node)
        if kept is None:
            return None if level else self.reads[node]
        if kept.level != level - 1 or family is None:
            return None
        return kept.value.unflatten(0, (kept.variants, -1))[family.first : family.first + family.parents].flatten(0, 1)

    def _run(
        self,
        level: int,
        choice: np.ndarray,
        held: dict[fx.Node, _Held],
        chosen: dict[int, np.ndarray],
        family: _Family | None,
    ) -> dict[fx.Node, Tensor]:
        part = self.executor.segment(self.subtree.steps, level)
        step, variants = self.steps[level], len(choice)
        lowest, gain = _parameters(step, choice, self.device)
        entry = held.get(step.node)
        parent: Any = None
        if entry is not None:
            whole = family is not None and family.parents == entry.variants and entry.level == level - 1
            parent = family.each if whole and family is not None else self._index(chosen[entry.level])
        value = self.reads[step.node] if entry is None else entry.value
        noise = SegmentNoise(variants * self.rows, variants * self.shape[0], self.words(level), lowest, gain, parent)
        given: list[Any] = []
        for read in part.reads:
            if read.level is None:
                given.append(self.reads[read.node])
                continue
            kept = held[read.node]
            which = chosen[kept.level]
            same = len(which) == kept.variants and bool((which == np.arange(kept.variants)).all())
            given += [kept.value, kept.variants, None if same else self._index(which)]
        return dict(zip(part.outputs, part.module(*noise, value, *given), strict=True))

    def _index(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, device=self.device)

    def _finish(self, outputs: dict[fx.Node, Tensor], variants: int) -> Tensor:
        p = self.executor.probabilities(outputs)
        return p.reshape(variants, *self.shape, *p.shape[1:])


def _regular(parent: np.ndarray) -> int | None:
    """How many children each earlier variant has, where all have the same number: then nothing needs gathering."""
    parents = int(parent[-1]) + 1
    each = len(parent) // parents
    return (
        each if len(parent) == each * parents and bool((parent == np.repeat(np.arange(parents), each)).all()) else None
    )


def _parameters(step: Step, choice: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Per variant: the word below which a unit drops and the factor of a kept one; for Gaussian noise the amplitude.

    Noise of a user's own takes the rates themselves.
    """
    rates = np.asarray(step.rates, dtype=np.float64)
    if step.own is not None:
        return torch.zeros(len(choice), dtype=torch.int32, device=device), torch.as_tensor(rates[choice], device=device)
    level = np.array([-(2**31) if rate == 0 else threshold(rate) for rate in rates], dtype=np.int32)
    gain = 1 / (1 - rates) if step.noise == "bernoulli" else np.sqrt(rates / (1 - rates))
    return torch.as_tensor(level[choice], device=device), torch.as_tensor(
        gain[choice].astype(np.float32), device=device
    )


def statistics_of(
    executor: Executor, subtrees: Sequence[Subtree], batch: Batch, work: Work
) -> tuple[Tensor, list[tuple[np.ndarray, PassStatistics]]]:
    """A block of examples, on the device: plain probabilities, and the statistics of every chunk of placements."""
    plain, reads = executor.plain(batch.call)
    return plain, pass_statistics(executor, subtrees, batch.keys, (plain, reads), work)


def pass_statistics(
    executor: Executor,
    subtrees: Sequence[Subtree],
    keys: Tensor,
    begun: tuple[Tensor, dict[fx.Node, Tensor]],
    work: Work,
) -> list[tuple[np.ndarray, PassStatistics]]:
    """The statistics of every chunk of placements, from what `Executor.plain` gave for a block of examples."""
    plain, reads = begun
    shown, blocks = plain.movedim(1, -1), work.blocks
    found: dict[tuple[int, int], tuple[np.ndarray, PassStatistics]] = {}
    for begin in range(0, work.passes, blocks.passes):
        numbers = range(begin, min(begin + blocks.passes, work.passes))
        chunk = Chunk(reads, keys, numbers, blocks)
        for tree, subtree in enumerate(subtrees):
            for leaves, result in executor.results(subtree, chunk, plain, work.needs):
                where = (tree, leaves.start)
                if where not in found:
                    kept = begin_statistics(work.needs, shown, work.passes, executor.draws)
                    found[where] = subtree.leaf[leaves], kept
                if isinstance(result, Sums):
                    found[where][1].add_sums(result.values, result.passes)
                else:
                    found[where][1].update(result.movedim(3, -1), passes_dim=1, check=False)
                work.tick((leaves.stop - leaves.start) * len(numbers) * len(keys))
    for _, kept in found.values():
        check_finite(kept.mean)
    return list(found.values())
