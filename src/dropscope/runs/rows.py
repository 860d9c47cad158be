"""Rows of a sweep: measures of every placement, their scores, the one-pass baselines beside them.

Owns what a row holds. How placements run is the engine's, how rows are kept the store's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import measures, scores
from dropscope.engine import Engine, Session, Tick, WorkUnit, precise, quiet
from dropscope.measures import Measure
from dropscope.placement import Placement
from dropscope.runs.finalists import AGAINST, values_table

_SCORED_AT_ONCE = 1 << 26  # values sorted at once
_BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain_max_probability": measures.plain_max_probability,
    "plain_entropy": measures.plain_entropy,
    "plain_margin": measures.plain_margin,
}
# As people read them: what it is, whether it helps, the other scores, what it costs.
_COLUMNS = (
    "placement", "measure", "accuracy", "aurc", "aurc_minus_single_pass", "augrc", "error_auroc", "error_auprc",
    "isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty", "excess_aurc", "cost", "equivalent_to",
)  # fmt: skip


def beside_single_pass(rows: pd.DataFrame, baseline: pd.DataFrame) -> pd.DataFrame:
    """Rows with their AURC less that of one plain pass (below 0 is better), columns in the order people read them."""
    if "aurc" in rows:
        plain = float(baseline.aurc[baseline.measure == AGAINST].iloc[0])
        rows = rows.assign(aurc_minus_single_pass=rows.aurc - plain)
    return rows[[name for name in _COLUMNS if name in rows]]


@dataclass(frozen=True, eq=False)
class Measured:
    """Some placements on every example."""

    numbers: list[int]
    values: dict[str, Tensor]  # measure → [placements, n]
    right: Tensor  # bool [placements, n]: is the prediction right?


@dataclass(frozen=True, eq=False)
class RowMaker:
    """Turns units of work into rows."""

    session: Session
    engine: Engine
    placements: list[Placement]
    measures: list[Measure]
    scores: tuple[str, ...]
    label: str  # "mean" | "plain": what decides the prediction
    seconds: dict[str, float] = field(default_factory=lambda: {"passes": 0.0, "scores": 0.0})

    @property
    def bytes_per_placement(self) -> int:
        """What is kept of a placement until its unit is scored."""
        return self.session.data.n * (4 * len(self.measures) + 1)

    @property
    def labels(self) -> Tensor:
        """In the order of the data."""
        labels = self.session.data.labels
        assert labels is not None
        return labels.to(self.session.device)

    def rows(self, unit: WorkUnit, tick: Tick) -> pd.DataFrame:
        """A row per placement of the unit and measure."""
        started = time.monotonic()
        measured = self.measured(unit, tick)
        accuracy = measured.right.double().mean(1).cpu().numpy()  # waits for the device
        passed = time.monotonic()
        scored = self._scored(measured)
        self.seconds["passes"] += passed - started
        self.seconds["scores"] += time.monotonic() - passed
        texts = [str(self.placements[n]) for n in measured.numbers]
        costs = [self.engine.cost(n) for n in measured.numbers]
        frames = [
            pd.DataFrame(
                {
                    "number": measured.numbers,
                    "order": order,
                    "placement": texts,
                    "measure": row.name,
                    "accuracy": accuracy,
                    **{name: table[order] for name, table in scored.items()},
                    "cost": costs,
                    "equivalent_to": None,
                }
            )
            for order, row in enumerate(self.measures)
        ]
        rows = pd.concat(frames, ignore_index=True)
        computed = set(measured.numbers)
        others = [n for n in unit.numbers if n not in computed]
        return pd.concat([rows, *self._equivalent(rows, others)], ignore_index=True) if others else rows

    def _equivalent(self, rows: pd.DataFrame, numbers: list[int]) -> Iterator[pd.DataFrame]:
        """Rows of placements that are equal to another one by mathematics: the same numbers under their own name."""
        for number in numbers:
            source = self.engine.equivalent(number)
            yield rows[rows.number == source].assign(
                number=number, placement=str(self.placements[number]), equivalent_to=str(self.placements[source])
            )

    def measured(self, unit: WorkUnit, tick: Tick = quiet) -> Measured:
        """The placements that a unit computes, on every example in the order of the data."""
        parts: list[Measured] = []
        open_: dict[tuple[int, ...], list[Measured]] = {}  # chunk of placements → its blocks of examples
        labels, start = self._batch_labels(), 0
        needs = {"sum_p"}.union(*(row.needs for row in self.measures))
        for block in self.engine.run(unit, needs, tick):
            own, start = labels[start : start + block.batch.n], start + block.batch.n
            chunks = [tuple(int(n) for n in numbers) for numbers, _ in block.chunks]
            if open_ and chunks != list(open_):  # batches of another shape come in other chunks of placements
                parts.append(self._joined(open_))
                open_ = {}
            for numbers, (_, kept) in zip(chunks, block.chunks, strict=True):
                mean = kept.mean.argmax(-1)
                chosen = mean if self.label == "mean" else block.plain.argmax(1).expand(len(numbers), -1)
                values = {row.name: row(kept).float() for row in self.measures}
                open_.setdefault(numbers, []).append(Measured(list(numbers), values, chosen == own))
        parts.append(self._joined(open_))
        return self._in_order(parts)

    def _batch_labels(self) -> Tensor:
        """In the order of the engine's batches."""
        labels = self.engine.session.data.labels
        assert labels is not None
        return labels.to(self.session.device)

    def _joined(self, chunks: dict[tuple[int, ...], list[Measured]]) -> Measured:
        """Chunks of placements below each other, blocks of examples beside each other."""
        values = {
            row.name: torch.cat(
                [torch.cat([block.values[row.name] for block in blocks], 1) for blocks in chunks.values()]
            )
            for row in self.measures
        }
        right = torch.cat([torch.cat([block.right for block in blocks], 1) for blocks in chunks.values()])
        return Measured([n for numbers in chunks for n in numbers], values, right)

    def _in_order(self, parts: list[Measured]) -> Measured:
        """Examples of all parts beside each other, placements in the order of the first, examples in the data's."""
        first = parts[0]
        if len(parts) > 1:
            device = first.right.device
            places = [torch.tensor([part.numbers.index(n) for n in first.numbers], device=device) for part in parts]
            pairs = list(zip(parts, places, strict=True))
            values = {
                row.name: torch.cat([part.values[row.name][place] for part, place in pairs], 1) for row in self.measures
            }
            first = Measured(first.numbers, values, torch.cat([part.right[place] for part, place in pairs], 1))
        order = self.engine.session.data.order
        if order is None:
            return first
        back = order.argsort().to(first.right.device)
        return Measured(first.numbers, {name: v[:, back] for name, v in first.values.items()}, first.right[:, back])

    def _scored(self, measured: Measured) -> dict[str, np.ndarray]:
        """Every score `[measures, placements]`, all measures of some placements in one go."""
        right = measured.right
        at_once = max(1, _SCORED_AT_ONCE // (len(self.measures) * right.shape[1]))
        parts: dict[str, list[np.ndarray]] = {}
        for begin in range(0, len(right), at_once):
            few = slice(begin, begin + at_once)
            stacked = torch.stack([measured.values[row.name][few] for row in self.measures])
            for name, value in scores.ranking_scores(stacked, right[few]).items():
                if name in self.scores:
                    parts.setdefault(name, []).append(value.cpu().numpy())
        return {name: np.concatenate(values, 1) for name, values in parts.items()}

    def plain(self) -> Tensor:
        """Probabilities of one plain pass, in the order of the data."""
        with torch.no_grad(), precise():
            return torch.cat([self.session.plain(batch) for batch in self.session.data.batches])

    def baseline(self) -> pd.DataFrame:
        """One plain pass, scored in the same way on the same examples."""
        plain = self.plain()
        right = plain.argmax(1) == self.labels
        rows = []
        for name, function in _BASELINES.items():
            table = {k: float(v) for k, v in scores.ranking_scores(function(plain), right).items() if k in self.scores}
            accuracy = float(right.double().mean())
            rows.append({"placement": "none", "measure": name, "accuracy": accuracy, **table, "cost": 1.0})
        return pd.DataFrame(rows)

    def examples(self, chosen: pd.DataFrame) -> pd.DataFrame:
        """Per-example values of the plain pass and of the chosen rows; run again, the same to the last mask."""
        ids = np.asarray([str(value) for value in self.session.data.ids], dtype=object)
        plain = self.plain()
        right = plain.argmax(1) == self.labels
        frames = [values_table(ids, "none", name, f(plain), right) for name, f in _BASELINES.items()]
        wanted = set(zip(chosen.placement, chosen.measure, strict=True))
        texts = set(chosen.placement)
        for unit in self.engine.only([n for n, placement in enumerate(self.placements) if str(placement) in texts]):
            measured = self.measured(unit)
            frames += [
                values_table(ids, text, row.name, measured.values[row.name][i], measured.right[i])
                for i, text in enumerate(str(self.placements[n]) for n in measured.numbers)
                for row in self.measures
                if (text, row.name) in wanted
            ]
        groups = self.session.data.groups
        if groups is not None:
            frames = [frame.assign(group=[str(group) for group in groups]) for frame in frames]
        return pd.concat(frames, ignore_index=True)
