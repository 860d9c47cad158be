"""The plain loop: one placement, one batch, one pass after the other. Obviously right; faster ways must equal it.

With `fold`, several passes of a text batch run as one forward. Noise is keyed by pass and example, so that changes no
mask. Owns how much runs at once then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dropscope.data import Batch
from dropscope.device import free_bytes
from dropscope.engine.engine import PassBlock, StatisticsBlock, Tick, WorkUnit, check_finite, quiet
from dropscope.engine.session import Session, sealed
from dropscope.engine.summary import Finish, PlanSummary, no_finish, summarise_loop
from dropscope.engine.timing import PassTiming, expected_loop, timed
from dropscope.injection import Noise, ResolvedPlacement
from dropscope.model import probabilities
from dropscope.statistics import PassStatistics

log = logging.getLogger("dropscope")

_PLACEMENTS_PER_UNIT = 10
# Tokens at once: on a CPU what its caches hold (more is slower), on a GPU what keeps it busy.
_CPU_TOKENS = 1024
_CUDA_TOKENS = 1 << 19
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
        may_wait: bool | None = None,
        memory: int | None = None,
        tokens: int | None = None,
        reason: str = "",
    ) -> None:
        self.session, self.placements, self.passes = session, placements, passes
        self.fold = fold
        self.memory = memory  # bytes that forwards are sized by; what is free, if None
        self.tokens = tokens  # of a folded forward, at most; what suits the device, if None
        # Noise may wait for the sum and the norm behind it where a library's code, and nobody's own, is the model.
        known = type(session.model).__module__.startswith("transformers.")
        self.may_wait = fold and known if may_wait is None else may_wait
        self.reason = reason  # why it runs, where something faster was asked for

    def units(self, bytes_per_placement: int = 0) -> list[WorkUnit]:
        numbers = range(len(self.placements))
        each = _PLACEMENTS_PER_UNIT
        return [WorkUnit(tuple(numbers[i : i + each])) for i in range(0, len(numbers), each)]

    def only(self, numbers: Sequence[int]) -> list[WorkUnit]:
        return [WorkUnit(tuple(numbers))] if numbers else []

    def statistics(self, number: int, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        return self.run(WorkUnit((number,)), needs, tick)

    def run(self, unit: WorkUnit, needs: Collection[str], tick: Tick = quiet) -> Iterator[StatisticsBlock]:
        for batch in self.session.data.batches:
            with torch.no_grad(), sealed():
                plain = self.session.plain(batch)
                chunks = []
                for number in unit.numbers:
                    kept = PassStatistics(needs, plain.movedim(1, -1))
                    for block in self.samples(number, batch, range(self.passes), tick):
                        for p in block.probabilities:
                            kept.update(p.movedim(1, -1).unsqueeze(0), check=False)
                    check_finite(kept.mean)
                    chunks.append((np.array([number]), kept))
            yield StatisticsBlock(batch, plain, chunks)

    def samples(self, number: int, batch: Batch, passes: range, tick: Tick = quiet) -> Iterator[PassBlock]:
        with self.session.disturbed(self.placements[number], may_wait=self.may_wait) as noise:
            yield from self._samples(noise, number, batch, passes, tick)

    def samples_of_all(self, number: int, tick: Tick = quiet) -> Iterator[tuple[Batch, PassBlock]]:
        with self.session.disturbed(self.placements[number], may_wait=self.may_wait) as noise:
            for batch in self.session.data.batches:
                for block in self._samples(noise, number, batch, range(self.passes), tick):
                    yield batch, block

    def _samples(self, noise: Noise, number: int, batch: Batch, passes: range, tick: Tick) -> Iterator[PassBlock]:
        at_once = self._passes_at_once(batch, self.placements[number])
        keyed = self._with_device_keys(batch) if self.fold else batch
        first = passes.start
        while first < passes.stop:
            count = min(at_once, passes.stop - first)
            try:
                with torch.no_grad(), sealed():
                    p = self._forward(noise, keyed, first, count)
            except torch.OutOfMemoryError:
                if count == 1:
                    raise
                torch.cuda.empty_cache()
                at_once = max(1, count // 2)
                log.warning("out of memory: going on with %s passes at once", at_once)
                continue
            yield PassBlock(slice(0, batch.n), first, p)
            tick(count * batch.n)
            first += count

    def _forward(self, noise: Noise, batch: Batch, first: int, count: int) -> Tensor:
        session, call = self.session, self.session.fed(batch.call)
        if not self.fold:
            noise.at(pass_=first, ids=batch.keys)
            p = probabilities(call.run(session.running), session.outputs, check=False)
            check_finite(p)
            return p.unsqueeze(0)
        numbers = torch.arange(first, first + count, device=session.device).repeat_interleave(batch.n)
        noise.at(pass_=numbers, ids=batch.keys.repeat(count))
        folded = call.repeat(count)
        p = probabilities(session.running(*folded.args, **folded.kwargs), session.outputs, check=False)
        return p.reshape(count, batch.n, *p.shape[1:])

    def _with_device_keys(self, batch: Batch) -> Batch:
        """Keys where the masks are made: to move them there for every site would wait for the device every time."""
        keys = torch.zeros_like(batch.keys) if self.session.masks == "per_pass" else batch.keys
        return replace(batch, keys=keys.to(self.session.device))

    def _passes_at_once(self, batch: Batch, resolved: ResolvedPlacement) -> int:
        # A value that all examples share (DeBERTa's relative positions) has one mask per pass: one forward, one pass.
        # Without noise passes are equal to the last bit, which rows of one forward are not.
        if not self.fold or not resolved or any(spec.layout.batch_dim is None for spec in resolved.values()):
            return 1
        width = int(batch.call.kwargs["attention_mask"].shape[1])
        return max(1, rows_at_once(self.session.model, width, self.session.device, self.memory, self.tokens) // batch.n)

    def equivalent(self, number: int) -> int:
        return number

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
            for block in self.samples(number, batch, range(count)):
                for p in block.probabilities:
                    kept.update(p.movedim(1, -1).unsqueeze(0), check=False)

        return PassTiming(timed(run, self.session.device), count, batch.n, [(np.array([number]), kept)])

    def summary(
        self, needs: Collection[str] = ("sum_p",), finish: Finish = no_finish, *, compiled: bool = False
    ) -> PlanSummary:
        return summarise_loop(self, self.reason, expected_loop(self, needs, finish))


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


def folds(session: Session) -> bool:
    """Whether passes of these texts may run as one forward: a Hugging Face model on right-padded tokens."""
    known = hasattr(session.model, "config") and hasattr(session.model.config, "num_attention_heads")
    return known and all(batch.lengths is not None for batch in session.data.batches)
