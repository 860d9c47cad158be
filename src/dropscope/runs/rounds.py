"""Rounds of passes: more and more of them, on the examples that a goal still leaves open.

Noise is keyed by example and pass, so what an example gets depends on no other: neither on those it is batched with,
nor on those that are done before it. Where a share is deferred, all examples go through their rounds together, because
the threshold is found among them; else batch by batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from dropscope.data import Batch
from dropscope.device import free_bytes
from dropscope.engine import Engine, Tick, check_finite
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure
from dropscope.measures.statistics import BlockedStatistics, growing_block, statistics_bytes
from dropscope.runs.goals import Goal
from dropscope.runs.samples import joined

_KEPT = 17  # sums: of all passes, and after each block


class OpenBatch:
    """A batch whose examples finish one after the other.

    Attributes:
        batch: All of it.
        plain: Probabilities of the plain pass.
        mean: Probabilities over the passes that each example got, `[n, C]`.
        values: Each measure, and each error that is known.
        passes: How many each example got.
        settled: Whether the goal was met.
        places: Where each was last seen, on the scale of the goal's test.
    """

    def __init__(
        self, engine: Engine, batch: Batch, plain: Tensor, rows: Sequence[Measure], needs: Collection[str]
    ) -> None:
        self.batch, self.plain = batch, plain
        self._engine, self._rows = engine, rows
        self.mean = torch.zeros_like(plain, dtype=torch.float64, device="cpu")
        self.values: dict[str, Tensor] = {}
        self.passes = torch.zeros(batch.n, dtype=torch.int64)
        self.settled = torch.zeros(batch.n, dtype=torch.bool)
        self.places = torch.zeros(batch.n, dtype=torch.float64)
        self._kept = BlockedStatistics(needs, plain, block=1)
        self._open, self._few = torch.arange(batch.n), batch

    @classmethod
    def begin(cls, engine: Engine, batch: Batch, rows: Sequence[Measure], needs: Collection[str]) -> OpenBatch:
        """Runs the plain pass of a batch, all of whose examples are open."""
        with torch.no_grad(), engine.session.sealed():
            return cls(engine, batch, engine.session.plain(batch), rows, needs)

    @property
    def open(self) -> int:
        """How many examples are not done."""
        return len(self._open)

    def advance(self, goal: Goal, until: int, tick: Tick) -> None:
        """Runs the passes of the open examples up to a look, and looks."""
        if not self.open:
            return
        kept = self._kept
        drawn = joined(self._engine.samples(0, self._few, range(kept.passes, until), tick))
        check_finite(drawn)
        kept.join(growing_block(until, self._engine.session.draws))
        kept.update(drawn.unsqueeze(1), passes_dim=0, check=False)
        self._seen = goal.look(kept)
        self.places[self._open] = self._seen.place.cpu()

    def settle(self, goal: Goal, threshold: float | None) -> int:
        """Lets go of the examples that have had enough. Returns how many these are."""
        if not self.open:
            return 0
        kept = self._kept
        met = goal.settled(self._seen, threshold, kept.passes)
        done = met | (kept.passes >= goal.at_most)
        where = self._open[done.cpu()]
        chosen = kept.take(done.nonzero().flatten())
        self.settled[where] = met[done].cpu()
        self.passes[where] = kept.passes
        self.mean[where] = chosen.mean[0].cpu()
        for row in self._rows:
            if row.of == "statistics":
                self._write(row.name, row(chosen)[0], where)
                self._write(f"{row.name}_error", chosen.jackknife(row)[0], where)
        left = (~done).nonzero().flatten()
        if len(left):
            self._kept, self._few = kept.take(left), self._few.take(left.tolist())
        self._open = self._open[~done.cpu()]
        return len(where)

    def _write(self, name: str, found: Tensor, where: Tensor) -> None:
        if name not in self.values:
            self.values[name] = torch.full((self.batch.n,), float("nan"))
        self.values[name][where] = found.float().cpu()


def stopped_batches(
    engine: Engine, rows: Sequence[Measure], needs: Collection[str], goal: Goal, tick: Tick
) -> Iterator[tuple[OpenBatch, float | None]]:
    """Every batch, all its examples done, with the threshold on the scale of the goal's test."""
    batches = engine.session.data.batches
    if goal.defer is not None:
        _check_room(engine, needs, goal.defer)
    for group in [batches] if goal.defer is not None else [(batch,) for batch in batches]:
        opened = [OpenBatch.begin(engine, batch, rows, needs) for batch in group]
        threshold = None
        for look in goal.looks:
            for each in opened:
                each.advance(goal, look, tick)
            threshold = goal.place_of_threshold(torch.cat([each.places for each in opened]))
            for each in opened:
                tick(each.settle(goal, threshold) * (goal.at_most - look))
        for each in opened:
            yield each, threshold


def _check_room(engine: Engine, needs: Collection[str], share: float) -> None:
    """Refuses a share of more examples than memory holds the sums of, or of too few."""
    session, n = engine.session, engine.session.data.n
    if n < 2 or not 0.5 <= share * n <= n - 0.5:
        received = Phrase(f"{share:g} of {n} examples, which is {round(share * n)} of them")
        raise BadInput("defer must leave some examples and take some", "defer", received, "give a threshold instead")
    asked, free = n * _KEPT * statistics_bytes(needs, session.classes), free_bytes(session.device)
    if asked > free // 2:
        received = Phrase(f"{asked / 2**30:.1f} GiB for the sums of {n:,} examples, {free / 2**30:.1f} free")
        remedy = "give a threshold, which one batch after the other is compared with"
        raise BadInput("defer must have room for all examples at once", "defer", received, remedy)
