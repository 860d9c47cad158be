"""Rows of a sweep: measures of every placement, their scores, the one-pass baselines beside them.

Owns what a row holds. Scores of a ranking are of one measure; those of probabilities are of the mean over the passes,
the same in all rows of a placement. How placements run is the engine's, how rows are kept the store's.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import measures, scores
from dropscope.engine import Engine, Session, Tick, WorkUnit, quiet
from dropscope.measures import Measure
from dropscope.measures.statistics import (
    BLOCKS,
    BlockedStatistics,
    PassStatistics,
    block_shares,
    block_size,
    split_error,
    statistics_bytes,
)
from dropscope.placement import Placement
from dropscope.progress import track
from dropscope.runs.finalists import AGAINST, Finalists, values_table
from dropscope.runs.samples import measured_on_passes
from dropscope.scores import Confidences, Score

_SCORED_AT_ONCE = 1 << 26  # values sorted at once
_BLOCKS = 17  # sums that are kept: after each block of passes, and those of them all
_SUMMED = 1 << 28  # bytes of these that a sweep may take
_REMEMBERED = 1 << 26  # bytes of per-example values that are kept for the finalists, instead of running them again
# As people read them: what it is, whether it helps, the other scores, what it costs.
_COLUMNS = (
    "placement", "measure", "accuracy", "aurc", "aurc_minus_single_pass", "augrc", "error_auroc", "error_auprc",
    "isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty", "excess_aurc", "ece", "brier", "nll",
)  # fmt: skip
_LAST = ("cost", "equivalent_to")  # after scores of the user's own


def beside_single_pass(rows: pd.DataFrame, baseline: pd.DataFrame) -> pd.DataFrame:
    """Rows with their AURC less that of one plain pass (below 0 is better), columns in the order people read them."""
    if "aurc" in rows:
        plain = float(baseline.aurc[baseline.measure == AGAINST].iloc[0])
        rows = rows.assign(aurc_minus_single_pass=rows.aurc - plain)
    own = [name for name in rows if name not in (*_COLUMNS, *_LAST)]
    return rows[[name for name in (*_COLUMNS, *own, *_LAST) if name in rows]]


@dataclass(frozen=True, eq=False)
class Measured:
    """Some placements on every example."""

    numbers: list[int]
    values: dict[str, Tensor]  # measure → [placements, n]
    right: Tensor  # bool [placements, n]: is the prediction right?
    confidences: Confidences | None  # of the mean probabilities, [placements, n], where a score asks for them
    halves: tuple[Measured, ...] = ()  # of the passes, one after its other, where blocks of them are kept

    def take(self, examples: object) -> Measured:
        """Some examples, or placements and examples, as an index of each tensor."""
        confidences = None if self.confidences is None else self.confidences[examples]
        values = {name: value[examples] for name, value in self.values.items()}  # type: ignore[index]
        halves = tuple(each.take(examples) for each in self.halves)
        return Measured(self.numbers, values, self.right[examples], confidences, halves)  # type: ignore[index]

    def on(self, device: torch.device) -> Measured:
        values = {name: value.to(device) for name, value in self.values.items()}
        confidences = None if self.confidences is None else self.confidences.on(device)
        return Measured(
            self.numbers, values, self.right.to(device), confidences, tuple(half.on(device) for half in self.halves)
        )


@dataclass(frozen=True, eq=False)
class RowMaker:
    """Turns units of work into rows."""

    session: Session
    engine: Engine
    placements: list[Placement]
    measures: list[Measure]
    scores: list[Score]
    label: str  # "mean" | "plain": what decides the prediction
    memory: int  # bytes that passes may take, where a measure is of them
    seconds: dict[str, float] = field(default_factory=lambda: {"passes": 0.0, "scores": 0.0})
    _known: dict[tuple[int, ...], Measured] = field(default_factory=dict)

    @property
    def needs(self) -> set[str]:
        """The statistics that the measures and the prediction need."""
        return {"sum_p"}.union(*(row.needs for row in self.measures))

    @property
    def remembers(self) -> bool:
        """Whether a sweep of this size keeps its per-example values until the finalists are known."""
        return len(self.placements) * self.bytes_per_placement <= _REMEMBERED

    @property
    def keeps_blocks(self) -> bool:
        """Whether every unit keeps its sums after each block of passes, so that scores have Monte Carlo errors.

        Not on a GPU, where kernels sum all passes at once, nor where the sums would take much.
        """
        sums = _BLOCKS * statistics_bytes(self.needs, self.session.classes)
        fits = sums * len(self.placements) * self.session.data.n <= _SUMMED
        return fits and self.session.device.type == "cpu"

    @property
    def bytes_per_placement(self) -> int:
        """What is kept of a placement until its unit is scored."""
        return self.session.data.n * (4 * len(self.measures) + 1 + (13 if self.needs_confidences else 0))

    @property
    def needs_confidences(self) -> bool:
        """Whether a score takes probabilities."""
        return any(score.takes == "probabilities" for score in self.scores)

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
        if self.remembers:
            self._known[unit.numbers] = measured.on(torch.device("cpu"))
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

    def remember(self, unit: WorkUnit, measured: Measured) -> None:
        """Keeps the values of a unit that ran elsewhere."""
        self._known[unit.numbers] = measured

    def forgotten(self, unit: WorkUnit) -> Measured | None:
        """The values of a unit that are remembered, and from here on are not; None where there are none."""
        return self._known.pop(unit.numbers, None)

    def _equivalent(self, rows: pd.DataFrame, numbers: list[int]) -> Iterator[pd.DataFrame]:
        """Rows of placements that are equal to another one by mathematics: the same numbers under their own name."""
        for number in numbers:
            source = self.engine.equivalent(number)
            yield rows[rows.number == source].assign(
                number=number, placement=str(self.placements[number]), equivalent_to=str(self.placements[source])
            )

    def measured(self, unit: WorkUnit, tick: Tick = quiet, *, blocks: bool = False) -> Measured:
        """The placements that a unit computes, on every example in the order of the data."""
        if any(row.of == "passes" for row in self.measures):
            return self._on_passes(unit, tick)
        needs = self.needs | ({BLOCKS} if blocks or self.keeps_blocks else set())
        parts: list[Measured] = []
        open_: dict[tuple[int, ...], list[Measured]] = {}  # chunk of placements → its blocks of examples
        labels, start = self._batch_labels(), 0
        for block in self.engine.run(unit, needs, tick):
            own, start = labels[start : start + block.batch.n], start + block.batch.n
            chunks = [tuple(int(n) for n in numbers) for numbers, _ in block.chunks]
            if open_ and chunks != list(open_):  # batches of another shape come in other chunks of placements
                parts.append(_stacked(list(open_.values())))
                open_ = {}
            for numbers, (_, kept) in zip(chunks, block.chunks, strict=True):
                measured = self._block(list(numbers), kept, block.plain, own, self.values(kept))
                open_.setdefault(numbers, []).append(measured)
        parts.append(_stacked(list(open_.values())))
        return self._in_order(parts)

    def _on_passes(self, unit: WorkUnit, tick: Tick) -> Measured:
        """As `measured`, placement by placement, where a measure is of the passes themselves."""
        labels = self._batch_labels()
        parts = []
        for number in dict.fromkeys(self.engine.equivalent(number) for number in unit.numbers):
            blocks, start = [], 0
            for block, values in measured_on_passes(self.engine, number, self.measures, self.needs, self.memory, tick):
                own, start = labels[start : start + block.batch.n], start + block.batch.n
                ((_, kept),) = block.chunks
                several = {name: value.unsqueeze(0) for name, value in values.items()}
                blocks.append(self._block([number], kept, block.plain, own, several))
            parts.append(blocks)
        tick((len(unit.numbers) - len(parts)) * self.engine.passes * self.session.data.n)  # those equal to another
        return self._in_order([_stacked(parts)])

    def values(self, kept: PassStatistics) -> dict[str, Tensor]:
        """Every measure of statistics."""
        return {row.name: row(kept) for row in self.measures if row.of != "passes"}

    def _block(
        self, numbers: list[int], kept: PassStatistics, plain: Tensor, labels: Tensor, values: dict[str, Tensor],
        *, whole: bool = True,
    ) -> Measured:  # fmt: skip
        """Some placements on some examples."""
        mean = kept.mean
        chosen = mean.argmax(-1) if self.label == "mean" else plain.argmax(1).expand(len(numbers), -1)
        confidences = scores.confidences_of(mean.float(), labels) if self.needs_confidences else None
        pairs = kept.halves() if whole and isinstance(kept, BlockedStatistics) else ()
        halves = [
            self._block(numbers, half, plain, labels, self.values(half), whole=False)
            for half in itertools.chain.from_iterable(pairs)
        ]
        found = {name: value.float() for name, value in values.items()}
        return Measured(numbers, found, chosen == labels, confidences, tuple(halves))

    def _batch_labels(self) -> Tensor:
        """In the order of the engine's batches."""
        labels = self.engine.session.data.labels
        assert labels is not None
        return labels.to(self.session.device)

    def _in_order(self, parts: list[Measured]) -> Measured:
        """Examples of all parts beside each other, placements in the order of the first, examples in the data's."""
        first = parts[0]
        if len(parts) > 1:
            device = first.right.device
            places = [torch.tensor([part.numbers.index(n) for n in first.numbers], device=device) for part in parts]
            first = _joined([part.take(place) for part, place in zip(parts, places, strict=True)], first.numbers, 1)
        order = self.engine.session.data.order
        return first if order is None else first.take((slice(None), order.argsort().to(first.right.device)))

    def _scored(self, measured: Measured) -> dict[str, np.ndarray]:
        """Every score `[measures, placements]`, all measures of some placements in one go."""
        right = measured.right
        at_once = max(1, _SCORED_AT_ONCE // (len(self.measures) * right.shape[1]))
        parts: dict[str, list[np.ndarray]] = {}
        for begin in range(0, len(right), at_once):
            few = measured.take(slice(begin, begin + at_once))
            stacked = torch.stack([few.values[row.name] for row in self.measures])
            for name, value in score_all(self.scores, stacked, few.right, few.confidences).items():
                parts.setdefault(name, []).append(value.cpu().numpy())
        return {name: np.concatenate(values, 1) for name, values in parts.items()}

    def plain(self) -> Tensor:
        """Probabilities of one plain pass, in the order of the data."""
        with torch.no_grad(), self.session.sealed():
            return torch.cat([self.session.plain(batch) for batch in self.session.data.batches])

    def baseline(self, plain: Tensor) -> pd.DataFrame:
        """One plain pass, scored in the same way on the same examples."""
        right = plain.argmax(1) == self.labels
        confidences = scores.confidences_of(plain, self.labels) if self.needs_confidences else None
        rows = []
        for name, function in measures.PLAIN_TABLE.items():
            table = {k: float(v) for k, v in score_all(self.scores, function(plain), right, confidences).items()}
            accuracy = float(right.double().mean())
            rows.append({"placement": "none", "measure": name, "accuracy": accuracy, **table, "cost": 1.0})
        return pd.DataFrame(rows)

    def finalists(self, chosen: pd.DataFrame, best: pd.DataFrame, plain: Tensor, *, show: bool | None) -> Finalists:
        """Per-example values of the plain pass and of the chosen rows; run again, the same to the last mask.

        Where no blocks of passes are kept, scores of the placements of the `best` rows alone have Monte Carlo errors.
        """
        ids = np.asarray([str(value) for value in self.session.data.ids], dtype=object)
        right = plain.argmax(1) == self.labels
        frames = [values_table(ids, "none", name, f(plain), right) for name, f in measures.PLAIN_TABLE.items()]
        confidences = {"none": scores.confidences_of(plain, self.labels)} if self.needs_confidences else {}
        wanted = set(zip(chosen.placement, chosen.measure, strict=True))
        texts = set(chosen.placement)
        numbers = [n for n, placement in enumerate(self.placements) if str(placement) in texts]
        errors: dict[tuple[str, str, str], float] = {}
        for measured in self._measured_again(numbers, show=show):
            for i, text in enumerate(str(self.placements[n]) for n in measured.numbers):
                if text in texts:
                    errors |= self._errors(text, measured.take(slice(i, i + 1)))
                frames += [
                    values_table(ids, text, row.name, measured.values[row.name][i], measured.right[i])
                    for row in self.measures
                    if (text, row.name) in wanted
                ]
                if measured.confidences is not None:
                    confidences.setdefault(text, measured.confidences[i])
        groups = self.session.data.groups
        if groups is not None:
            frames = [frame.assign(group=[str(group) for group in groups]) for frame in frames]
        if not self.keeps_blocks and "passes" not in {row.of for row in self.measures}:
            errors = self._errors_of({*best.placement}, show=show)
        return Finalists(pd.concat(frames, ignore_index=True), confidences, errors)

    def _errors_of(self, texts: Collection[str], *, show: bool | None) -> dict[tuple[str, str, str], float]:
        """Monte Carlo errors of some placements, which run once more, one by one."""
        numbers = [n for n, placement in enumerate(self.placements) if str(placement) in texts]
        units = [unit for number in numbers for unit in self.engine.only([number])]
        errors: dict[tuple[str, str, str], float] = {}
        with track("Monte Carlo errors", len(numbers) * self.engine.passes * self.session.data.n, show=show) as tick:
            for unit in units:
                measured = self.measured(unit, tick, blocks=True)
                errors |= self._errors(str(self.placements[measured.numbers[0]]), measured)
        return errors

    def _errors(self, text: str, one: Measured) -> dict[tuple[str, str, str], float]:
        """(placement, measure, score) → its Monte Carlo standard error, of one placement whose blocks are kept."""
        if not one.halves:
            return {}
        every = _joined(one.halves, one.numbers, 0)
        accuracy = every.right.double().mean(1).cpu().numpy()
        scored = self._scored(every) | {"accuracy": np.broadcast_to(accuracy, (len(self.measures), len(accuracy)))}
        passes = self.engine.passes
        shares = block_shares(passes, block_size(passes, self.session.draws))
        found: dict[tuple[str, str, str], float] = {}
        for score, values in scored.items():
            halves = torch.from_numpy(np.array(values, dtype=np.float64)).T
            error = split_error(halves.unflatten(0, (-1, 2)), shares)  # of [splits, 2, measures]
            found |= {(text, row.name, score): float(e) for row, e in zip(self.measures, error, strict=True)}
        return found

    def _measured_again(self, numbers: list[int], *, show: bool | None) -> Iterator[Measured]:
        """Units that hold these placements, from memory or run again.

        A sweep that remembers takes whole units: those that a folder held already are run as they were, so that a run
        that was interrupted ends with the same bits.
        """
        units, wanted = self.engine.only(numbers), set(numbers)
        if self.remembers:
            units = [u for u in self.engine.units(self.bytes_per_placement) if wanted.intersection(u.numbers)]
        missing = sum(len(unit.numbers) for unit in units if unit.numbers not in self._known)
        with track("finalists", missing * self.engine.passes * self.session.data.n, show=show) as tick:
            for unit in units:
                yield self._known.get(unit.numbers) or self.measured(unit, tick)


def score_all(
    chosen: Sequence[Score], uncertainty: Tensor, right: Tensor, confidences: Confidences | None
) -> dict[str, Tensor]:
    """Every chosen score of uncertainties `[..., n]`, `[...]` each; those of probabilities are of all measures."""
    names = {score.name for score in chosen}
    lead = uncertainty.shape[:-1]
    found = {k: v for k, v in scores.ranking_scores(uncertainty, right).items() if k in names}
    if confidences is not None:
        of_means = scores.calibration_of(scores.calibration_means(confidences))
        found |= {k: v.expand(lead) for k, v in of_means.items() if k in names}
    for score in chosen:
        if score.own:
            found[score.name] = scores.score_rankings(
                score.function, score.name, uncertainty, right.expand(uncertainty.shape), batched=score.batched
            )
    return found


def _stacked(chunks: Sequence[Sequence[Measured]]) -> Measured:
    """Chunks of placements below each other, blocks of examples beside each other."""
    whole = [_joined(blocks, blocks[0].numbers, 1) for blocks in chunks]
    return _joined(whole, [n for part in whole for n in part.numbers], 0)


def _joined(parts: Sequence[Measured], numbers: list[int], dim: int) -> Measured:
    values = {name: torch.cat([part.values[name] for part in parts], dim) for name in parts[0].values}
    confidences = [part.confidences for part in parts if part.confidences is not None]
    right = torch.cat([part.right for part in parts], dim)
    halves = [_joined(each, numbers, dim) for each in zip(*(part.halves for part in parts), strict=True)]
    of_all = Confidences.joined(confidences, dim) if confidences else None
    return Measured(numbers, values, right, of_all, tuple(halves))
