"""The plain loop: one placement, one batch, one pass after the other. Obviously right; faster ways must equal it.

Points that lie at modules and functions are reached by taps; `traced` follows every value instead. With `fold`, several
passes of a batch run as one forward. Noise is keyed by pass and example, so that changes no mask. Owns how much runs at
once then.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dropscope.data import Batch
from dropscope.device import free_bytes
from dropscope.engine.engine import PassBlock, StatisticsBlock, Tick, WorkUnit, check_finite, quiet
from dropscope.engine.session import Session
from dropscope.engine.summary import Finish, PlanSummary, no_finish, summarise_plain
from dropscope.engine.timing import PassTiming, expected_loop, timed
from dropscope.errors import DropscopeError, first_line
from dropscope.injection import Noise, ResolvedPlacement, SiteNoise
from dropscope.measures.statistics import PassStatistics, begin_statistics
from dropscope.model import probabilities
from dropscope.tracing import Point, Taps, TapsMissed, locate

log = logging.getLogger("dropscope")

_PLACEMENTS_PER_UNIT = 10
# Tokens at once: on a CPU what its caches hold (more is slower), on a GPU what keeps it busy.
_CPU_TOKENS = 1024
_CUDA_TOKENS = 1 << 19
# Bytes of all values at once: on a CPU what a cache holds, on a GPU what makes kernels longer than their launch.
_CPU_FOLDED = 1 << 20
_CUDA_FOLDED = 1 << 31
_KEPT_BYTES = 4 << 20  # of passes that are made before anybody sees them: one look at all of them for infinity
_TAKEN_IN = 1 << 14  # values that go into the sums at once, of several passes
_TAPPED = 1e-6  # largest difference between values reached by taps and followed one by one
_LIVE_MAPS, _LIVE_STATES = 8, 24  # float32 values alive at the peak: per attention weight, per hidden unit


class LoopEngine:
    """The reference engine."""

    name = "loop"

    def __init__(
        self,
        session: Session,
        placements: Sequence[ResolvedPlacement],
        passes: int,
        *,
        fold: bool = False,
        traced: bool = False,
        may_wait: bool | None = None,
        memory: int | None = None,
        tokens: int | None = None,
        reason: str = "",
    ) -> None:
        self.session, self.placements, self.passes = session, placements, passes
        self.fold = fold
        self.traced = traced  # every value is followed, and no tap is used
        self._taps: Taps | None = None
        self._located = traced
        self._sources = list(range(len(placements))) if traced else _equal(session, placements)
        self._fitting: int | None = None  # passes in one forward, at most, since more ran out of memory
        self.memory = memory  # bytes that forwards are sized by; what is free at the first of them, if None
        self._budget: int | None = None
        self.tokens = tokens  # of a folded forward, at most; what suits the device, if None
        # Noise may wait for the sum and the norm behind it where a library's code, and nobody's own, is the model.
        known = type(session.model).__module__.startswith("transformers.")
        self.may_wait = fold and known if may_wait is None else may_wait
        self.reason = reason  # why it runs, where something faster was asked for

    def units(self, bytes_per_placement: int = 0) -> list[WorkUnit]:
        equal: dict[int, list[int]] = {}
        for number, source in enumerate(self._sources):
            equal.setdefault(source, []).append(number)
        computed, each = list(equal.values()), _PLACEMENTS_PER_UNIT
        return [WorkUnit(tuple(itertools.chain(*computed[i : i + each]))) for i in range(0, len(computed), each)]

    def only(self, numbers: Sequence[int]) -> list[WorkUnit]:
        return [WorkUnit(tuple(numbers))] if numbers else []

    def statistics(self, number: int, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        return self.run(WorkUnit((number,)), needs, tick)

    def run(self, unit: WorkUnit, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        for batch in self.session.data.batches:
            with torch.no_grad(), self.session.sealed():
                plain, on_device = self.session.plain(batch), self._on_device(batch)
                chunks = []
                computed = dict.fromkeys(map(self.equivalent, unit.numbers))
                tick((len(unit.numbers) - len(computed)) * self.passes * batch.n)  # those that are equal to another
                for number in computed:
                    kept = begin_statistics(needs, plain.movedim(1, -1), self.passes, self.session.draws)
                    with closing(self._made(number, on_device, range(self.passes), tick)) as passes:
                        _take_in(kept, passes)
                    check_finite(kept.mean)
                    chunks.append((np.array([number]), kept))
            yield StatisticsBlock(batch, plain, chunks)

    def samples(self, number: int, batch: Batch, passes: range, tick: Tick = quiet) -> Iterator[PassBlock]:
        on_device, first = self._on_device(batch), passes.start
        while first < passes.stop:
            made: list[Tensor] = []
            rest = range(first, passes.stop)
            with torch.no_grad(), self.session.sealed():
                with closing(self._made(number, on_device, rest, tick)) as forwards:
                    for p in forwards:
                        made.append(p)
                        if sum(each.nbytes for each in made) >= _KEPT_BYTES:
                            break
                block = PassBlock(slice(0, batch.n), first, made[0] if len(made) == 1 else torch.cat(made))
                check_finite(block.probabilities)
            yield block
            first += len(block.probabilities)

    def samples_of_all(self, number: int, tick: Tick = quiet) -> Iterator[tuple[Batch, PassBlock]]:
        for batch in self.session.data.batches:
            for block in self.samples(number, batch, range(self.passes), tick):
                yield batch, block

    def _made(self, number: int, batch: Batch, passes: range, tick: Tick) -> Generator[Tensor, None, None]:
        """The passes in order, forward by forward; noise is in the model until the last of them is taken."""
        first = passes.start
        self._locate()
        at_once = self._passes_at_once(batch, self.placements[number])
        while first < passes.stop:
            try:
                with self._disturbed(number) as noise:
                    while first < passes.stop:
                        p = self._forward(noise, batch, first, min(at_once, passes.stop - first))
                        tick(len(p) * batch.n)
                        first += len(p)
                        yield p
            except TapsMissed:
                log.debug("a forward went another way than the first: values are followed from here on")
                self._taps = None
            except torch.OutOfMemoryError:
                if at_once == 1:
                    raise
                torch.cuda.empty_cache()
                self._fitting = at_once = max(1, min(at_once, passes.stop - first) // 2)
                log.warning("out of memory: going on with %s passes at once", at_once)

    def _forward(self, noise: Noise, batch: Batch, first: int, count: int) -> Tensor:
        """Probabilities `[count, examples, classes, …]` of passes from `first` on, in one forward."""
        session = self.session
        if count == 1:
            noise.at(pass_=first, ids=batch.keys)
            output = batch.call.run(session.running)
        else:
            numbers = torch.arange(first, first + count, device=session.device).repeat_interleave(batch.n)
            noise.at(pass_=numbers, ids=batch.keys.repeat(count))
            folded = batch.call.repeat(count)
            output = session.running(*folded.args, **folded.kwargs)
        p = probabilities(output, session.outputs, check=False)
        return p.reshape(count, batch.n, *p.shape[1:])

    def _disturbed(self, number: int) -> AbstractContextManager[Noise]:
        return self.session.disturbed(self.placements[number], may_wait=self.may_wait, taps=self._taps)

    def _locate(self) -> None:
        """Finds the taps of all placements, and tries them: under the same noise they must give the same."""
        if self._located:
            return
        self._located = True
        session, few = self.session, self._on_device(self.session.data.batches[0].first_two())
        union = {point: spec for resolved in self.placements for point, spec in resolved.items()}
        if not union:
            return
        try:
            taps = locate(session.running, few.call, union)
            found = []
            for tried in (None, taps):
                with session.disturbed(union, taps=tried) as noise:
                    noise.at(pass_=0, ids=few.keys)
                    found.append(probabilities(few.call.run(session.running), session.outputs, check=False))
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, DropscopeError) as error:
            log.debug("values are followed one by one: %s", first_line(error))
            return
        if torch.allclose(found[0], found[1], rtol=0, atol=_TAPPED, equal_nan=True):
            self._taps = taps

    def _on_device(self, batch: Batch) -> Batch:
        """Inputs as the model takes them, and keys where the masks are made: each transfer waits for the device."""
        keys = torch.zeros_like(batch.keys) if self.session.masks == "per_pass" else batch.keys
        return replace(batch, call=self.session.fed(batch.call), keys=keys.to(self.session.device))

    def _passes_at_once(self, batch: Batch, resolved: ResolvedPlacement) -> int:
        # A value that all examples share (DeBERTa's relative positions) has one mask per pass: one forward, one pass.
        # Without noise passes are equal to the last bit, which rows of one forward are not.
        if not self.fold or not resolved or any(spec.layout.batch_dim is None for spec in resolved.values()):
            return 1
        if self._budget is None:
            self._budget = free_bytes(self.session.device) if self.memory is None else self.memory
        rows = rows_of(self.session, batch, self._budget, self.tokens)
        fitting = rows // batch.n
        return max(1, fitting if self._fitting is None else min(fitting, self._fitting))

    def equivalent(self, number: int) -> int:
        return self._sources[number]

    def cost(self, number: int) -> float:
        return float(self.passes)

    def compiles(self, *, asked: bool | None) -> bool:
        return False

    def compile(self) -> None:
        """There is nothing to compile."""

    def time_passes(self, number: int, batch: Batch, needs: Collection[str]) -> PassTiming:
        """Runs as many passes of some examples as run in one forward."""
        count = min(self._passes_at_once(batch, self.placements[number]), self.passes)
        kept = PassStatistics(needs, self.session.plain(batch).movedim(1, -1))

        def run() -> None:
            _take_in(kept, (block.probabilities for block in self.samples(number, batch, range(count))))

        return PassTiming(timed(run, self.session.device), count, batch.n, [(np.array([number]), kept)])

    def summary(
        self, needs: Collection[str] = ("sum_p",), finish: Finish = no_finish, *, compiled: bool = False
    ) -> PlanSummary:
        return summarise_plain(self, expected_loop(self, needs, finish))


def _equal(session: Session, placements: Sequence[ResolvedPlacement]) -> list[int]:
    """For each placement the first that is equal by mathematics: a factor of 0 or more passes a ReLU unchanged."""
    values, first = session.site_map.values, dict[Any, int]()

    def kind(point: Point, spec: SiteNoise) -> tuple[Any, ...]:
        around = point.position in ("before_activation", "after_activation") and values[point].about.homogeneous
        position = "activation" if around and spec.noise == "bernoulli" else point.position
        return point.name, point.call, position, spec.rate, spec.style

    kinds = (tuple(sorted(kind(*item) for item in resolved.items())) for resolved in placements)
    return [first.setdefault(one, number) for number, one in enumerate(kinds)]


def _take_in(kept: PassStatistics, passes: Iterable[Tensor]) -> None:
    """Passes `[passes, examples, classes, …]` of one placement; several of small ones at once."""
    waiting: list[Tensor] = []
    for p in passes:
        waiting.append(p)
        if len(waiting) * p.numel() >= _TAKEN_IN:
            _update(kept, waiting)
            waiting = []
    if waiting:
        _update(kept, waiting)


def _update(kept: PassStatistics, waiting: list[Tensor]) -> None:
    p = waiting[0] if len(waiting) == 1 else torch.cat(waiting)
    for some in p.split(max(1, _TAKEN_IN // p[0].numel())):
        kept.update(some.movedim(2, -1).unsqueeze(1), passes_dim=0, check=False)


def rows_at_once(
    model: nn.Module, length: int, device: torch.device, memory: int | None = None, tokens: int | None = None
) -> int:
    """How many (pass, text) pairs of so many tokens fit: within memory, and within what pays."""
    config: Any = getattr(model, "config", None)
    hidden = int(getattr(config, "hidden_size", 768))
    heads = int(getattr(config, "num_attention_heads", 12))
    row = 4 * length * (_LIVE_STATES * hidden + _LIVE_MAPS * heads * length)
    if tokens is None:
        tokens = _CUDA_TOKENS if device.type == "cuda" else _CPU_TOKENS
    budget = free_bytes(device) if memory is None else memory
    return max(1, min(tokens // length, budget // row))


def rows_of(session: Session, batch: Batch, memory: int | None, tokens: int | None = None) -> int:
    """How many (pass, example) pairs of a batch's shape run in one forward at most."""
    mask = batch.call.kwargs.get("attention_mask")
    if isinstance(mask, Tensor):
        return rows_at_once(session.model, int(mask.shape[1]), session.device, memory, tokens)
    row = 4 * sum(math.prod(value.shape) for value in session.site_map.values.values())
    budget = free_bytes(session.device) if memory is None else memory
    pays = _CUDA_FOLDED if session.device.type == "cuda" else _CPU_FOLDED
    return min(pays, budget // 4) // max(row, 1)


def folds(session: Session) -> bool:
    """Whether passes of these texts may run as one forward: a Hugging Face model on right-padded tokens."""
    known = hasattr(session.model, "config") and hasattr(session.model.config, "num_attention_heads")
    return known and all(batch.lengths is not None for batch in session.data.batches)


def folds_small(session: Session, memory: int | None) -> bool:
    """Whether it would pay to run several passes of a batch as one forward; not for texts, which `folds` is about."""
    batches = session.data.batches
    texts = any("attention_mask" in batch.call.kwargs for batch in batches)
    return not texts and any(rows_of(session, batch, memory) >= 2 * batch.n for batch in batches)
