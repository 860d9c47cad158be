"""Placements of dropout as rivals: passes by the engine, their mean and measures as an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dropscope.deploy.rivals.answers import Answer
from dropscope.deploy.rivals.forwards import PlainPass
from dropscope.deploy.rivals.repeated import ROWS
from dropscope.engine import Engine, Session, Tick, choose_engine, quiet
from dropscope.placement import Placement


class PlacementRuns:
    """Several placements on several parts of the data: an engine for each part, opened once for all placements."""

    def __init__(self, placements: Sequence[Placement], passes: int, engine: str) -> None:
        self.placements, self.passes, self.engine = list(placements), passes, engine
        self.tick: Tick = quiet
        self._engines: dict[int, Engine] = {}

    def open(self, session: Session, *, audited: bool = True) -> Engine:
        """The engine for the data of a session; its placements are audited where asked."""
        resolved = session.resolve(self.placements)
        if audited:
            session.audit_all(resolved, self.placements)
        found = self._engines[id(session.data)] = choose_engine(session, resolved, self.passes, self.engine)
        return found

    def rival(self, number: int) -> Callable[[PlainPass], Answer]:
        """One of the placements as a rival."""
        return lambda seen: self._answer(number, seen)

    def _answer(self, number: int, seen: PlainPass) -> Answer:
        engine = self._engines[id(seen.session.data)]
        needs = {"sum_p"}.union(*(row.needs for row in ROWS))
        means: list[Tensor] = []
        values: dict[str, list[Tensor]] = {row.name: [] for row in ROWS}
        for block in engine.statistics(engine.equivalent(number), needs, self.tick):
            kept = block.chunks[0][1]
            means.append(kept.mean[0].float().cpu())
            for row in ROWS:
                values[row.name].append(row(kept)[0].float().cpu())
        order = engine.session.data.order
        back = None if order is None else torch.from_numpy(np.argsort(order.numpy()))
        joined = {name: _in_order(parts, back) for name, parts in values.items()}
        return Answer(_in_order(means, back), joined, engine.cost(number))


@dataclass(frozen=True, eq=False)
class MeasuredPlacement:
    """A placement whose passes have run already, as a rival that ranks by one measure of them, chosen elsewhere.

    Attributes:
        measure: Its name.
        values: The measure on the examples that judge, `[n]` in their order.
        cost: In plain passes per example.
    """

    measure: str
    values: Tensor
    cost: float

    def __call__(self, seen: PlainPass) -> Answer:
        # Nothing is left to choose on the fitting examples, so that their values are not asked for.
        values = self.values if seen.source == "data" else torch.zeros(seen.n)
        return Answer(seen.probabilities, {self.measure: values}, self.cost)


def _in_order(parts: Sequence[Tensor], back: Tensor | None) -> Tensor:
    whole = torch.cat(list(parts))
    return whole if back is None else whole[back]
