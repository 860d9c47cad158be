"""One sweep on its way: audited, run unit by unit, scored, its finalists looked at again.

Owns what a row holds and the one-pass baselines beside it. How placements run is `shared.py`'s or `reference.py`'s, how
rows are kept `store.py`'s, intervals are `finalists.py`'s.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import __version__, measures, scores
from dropscope.engine import Block, Session, Unit, possible, precise, run_reference, work_of
from dropscope.injection import SiteNoise, audit_live
from dropscope.measures import Measure
from dropscope.model import code_fingerprint, digest, weights_fingerprint
from dropscope.placement import Placement, as_placement
from dropscope.progress import track
from dropscope.runs import finalists
from dropscope.runs.passes import shared_or_none
from dropscope.runs.result import Run
from dropscope.runs.store import Store
from dropscope.tracing import Point

log = logging.getLogger("dropscope")

_PLACEMENTS_PER_UNIT = 100
_PLACEMENTS_PER_UNIT_CUDA = 10_000  # a larger subtree repeats less of its prefix and fills the GPU; memory permitting
_SCORED_AT_ONCE = 1 << 26  # values sorted at once
_REFERENCE_PER_UNIT = 10
# Multiply-adds and bytes of a run of minutes on two cores: compiling costs tens of seconds and halves the rest. Not
# seconds by the clock, which would have the same run compiled one day and not the next, with other last bits.
_COMPILING_REPAYS = 2e12
_BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain_max_probability": measures.plain_max_probability,
    "plain_entropy": measures.plain_entropy,
    "plain_margin": measures.plain_margin,
}


class Job:
    """One sweep on its way."""

    def __init__(
        self,
        setting: Session,
        placements: list[Placement],
        passes: int,
        rows: list[Measure],
        chosen: tuple[str, ...],
        label: str,
        memory: int,
        engine: str,
        fixed: bool,
        compiled: bool | None,
    ) -> None:
        self.setting, self.placements, self.passes, self.rows = setting, placements, passes, rows
        self.chosen, self.label, self.memory = chosen, label, memory
        self.lives = setting.resolve(placements)
        self._audit()
        self.shared = shared_or_none(setting, self.lives, passes, engine, memory, fixed)
        self.compiled = False
        if self.shared is not None and (compiled if compiled is not None else self._repays(setting.device)):
            log.info("segments are compiled first")
            self.shared.compile()
            self.compiled = True
        self.needs = {"sum_p"}.union(*(row.needs for row in rows))
        labels = setting.data.labels
        assert labels is not None
        self.labels = labels.to(setting.device)
        self.seconds = {"passes": 0.0, "scores": 0.0}

    def _repays(self, device: torch.device) -> bool:
        """Whether compiling is worth its time: only for a run of minutes, and not where kernels stand in anyway."""
        if self.shared is None or device.type == "cuda" or not possible(device):
            return False
        return work_of(self.shared) > _COMPILING_REPAYS

    def _audit(self) -> None:
        """The union of the sweep's sites, each noise and mask once, before anything is run."""
        unions: list[dict[Point, SiteNoise]] = []
        sites: list[
            dict[tuple[str, int], Point]
        ] = []  # two positions of one site share their mask, so each is tried alone
        for live in self.lives:
            for point, spec in live.items():
                for union, site in zip(unions, sites, strict=True):
                    if site.get(point[:2], point) == point and _style(union.get(point, spec)) == _style(spec):
                        break
                else:
                    union, site = {}, {}
                    unions.append(union)
                    sites.append(site)
                kept = union.get(point)
                if kept is None or abs(spec.rate - 0.5) < abs(kept.rate - 0.5):
                    union[point] = spec  # where few examples tell most, whatever the order of the placements
                site[point[:2]] = point
        args, kwargs = self.setting.on_device(self.setting.data.batches[0])
        for union in unions:
            with precise():
                found = audit_live(
                    self.setting.model,
                    as_placement("all=0.5"),
                    union,
                    args,
                    kwargs,
                    self.setting.site_map,
                    self.setting.seed,
                )
            found.raise_if_failed()

    # --- the whole ----------------------------------------------------------------------------------------------------

    def run(self, store: Store | None, keep: int | None, objective: str, show: bool | None) -> Run:
        spec = self.spec()
        units = self.units()
        if store is not None:
            fixed = {"versions": _versions(), "engine": self.engine, "device": str(self.setting.device)}
            store.open(spec, fixed | {"memory": self.memory, "compiled": self.compiled})
        started = time.monotonic()
        found = []
        total = sum(len(unit.numbers) for unit in units if store is None or not store.has(self.name(unit)))
        with track("sweep", total * self.passes * self.setting.data.n, show=show) as tick:
            for unit in units:
                name = self.name(unit)
                if store is not None and store.has(name):
                    continue
                rows = self.score(unit, tick)
                if store is None:
                    found.append(rows)
                else:
                    store.write_rows(name, rows)
        rows = _ordered(found) if store is None else store.read_rows()
        ran = time.monotonic()
        baseline = self.baseline()
        examples = self.examples(finalists.finalists(rows, keep, objective))
        groups, seed = self.setting.data.groups, self.setting.seed
        wide = finalists.interval_table(examples, self.chosen, groups, seed, self.setting.device, show)
        rows = rows.assign(
            computed=rows.equivalent_to.fillna(rows.placement)
        )  # a twin has the intervals of its numbers
        of_rows = wide.rename(columns={"placement": "computed"})
        rows = rows.merge(of_rows, on=["computed", "measure"], how="left", validate="m:1").drop(columns="computed")
        baseline = baseline.merge(wide, on=["placement", "measure"], how="left", validate="1:1")
        if store is not None:
            store.write_table("baseline", baseline)
            store.write_table("examples", examples)
        levels = scores.reference_levels(float(baseline.accuracy.iloc[0]), self.setting.data.n)
        seconds = self.seconds | {"passes, scores and rows": ran - started, "finalists": time.monotonic() - ran}
        folder = None if store is None else store.folder
        return Run(rows, baseline, examples, spec, self.engine, folder, levels, seconds)

    @property
    def engine(self) -> str:
        return "reference" if self.shared is None else "shared"

    def spec(self) -> dict[str, Any]:
        setting = self.setting
        return {
            "placements": digest([str(p) for p in self.placements]),
            "count": len(self.placements),
            "passes": self.passes,
            "seed": setting.seed,
            "masks": setting.masks,
            "outputs": setting.outputs if isinstance(setting.outputs, str) else code_fingerprint(setting.outputs),
            "engine": self.engine,  # both give the same rows to 1e-4, in other parts and with other last bits
            "device": setting.device.type,
            "label": self.label,
            "measures": [row.name for row in self.rows],
            "code": code_fingerprint(setting.model, *(row.function for row in self.rows)),
            "scores": list(self.chosen),
            "data": setting.data.fingerprint,
            "keyed_by": setting.data.keyed_by,
            "examples": setting.data.n,
            "weights": weights_fingerprint(setting.model),
        }

    def units(self) -> list[Unit]:
        if self.shared is not None:
            return self.shared.units(self._placements_per_unit())
        numbers = range(len(self.placements))
        return [
            Unit(0, (), tuple(numbers[i : i + _REFERENCE_PER_UNIT]))
            for i in range(0, len(numbers), _REFERENCE_PER_UNIT)
        ]

    def _placements_per_unit(self) -> int:
        if self.setting.device.type != "cuda":
            return _PLACEMENTS_PER_UNIT
        bytes_each = self.setting.data.n * (4 * len(self.rows) + 1)
        return max(_PLACEMENTS_PER_UNIT, min(_PLACEMENTS_PER_UNIT_CUDA, self.memory // 16 // bytes_each))

    def name(self, unit: Unit) -> str:
        return digest([str(self.placements[n]) for n in unit.numbers])

    # --- rows ---------------------------------------------------------------------------------------------------------

    def blocks(self, unit: Unit, tick: Callable[[int], None]) -> Iterator[Block]:
        if self.shared is not None:
            yield from self.shared.run(unit, self.needs, tick)
            return
        for block in run_reference(self.setting, [self.lives[n] for n in unit.numbers], self.passes, self.needs, tick):
            yield Block(
                block.batch,
                block.plain,
                [(np.array([unit.numbers[int(i)] for i in part]), kept) for part, kept in block.parts],
            )

    def measured(self, unit: Unit, tick: Callable[[int], None]) -> tuple[list[int], dict[str, Tensor], Tensor]:
        """The computed placements of a unit, each measure `[placements, n]`, and whether each prediction is right."""
        values: dict[tuple[int, ...], dict[str, list[Tensor]]] = {}
        right: dict[tuple[int, ...], list[Tensor]] = {}
        done: list[tuple[list[int], dict[str, Tensor], Tensor]] = []
        start = 0
        for block in self.blocks(unit, tick):
            labels = self.labels[start : start + block.batch.n]
            chunks = [tuple(int(n) for n in numbers) for numbers, _ in block.parts]
            if values and chunks != list(values):  # batches of another shape come in other chunks of placements
                done.append(self._joined(values, right))
                values, right = {}, {}
            for where, (numbers, kept) in zip(chunks, block.parts, strict=True):
                chosen = (
                    kept.mean.argmax(-1) if self.label == "mean" else block.plain.argmax(1).expand(len(numbers), -1)
                )
                right.setdefault(where, []).append(chosen == labels)
                for row in self.rows:
                    values.setdefault(where, {}).setdefault(row.name, []).append(row(kept).float())
            start += block.batch.n
        done.append(self._joined(values, right))
        order = done[0][0]
        if len(done) == 1:
            return done[0]
        places = [torch.tensor([found.index(n) for n in order], device=self.labels.device) for found, _, _ in done]
        joined = {
            row.name: torch.cat([part[row.name][place] for (_, part, _), place in zip(done, places, strict=True)], 1)
            for row in self.rows
        }
        return order, joined, torch.cat([part[place] for (_, _, part), place in zip(done, places, strict=True)], 1)

    def _joined(
        self, values: dict[tuple[int, ...], dict[str, list[Tensor]]], right: dict[tuple[int, ...], list[Tensor]]
    ) -> tuple[list[int], dict[str, Tensor], Tensor]:
        """Chunks of placements below each other, blocks of examples beside each other."""
        order = list(values)
        joined = {row.name: torch.cat([torch.cat(values[where][row.name], 1) for where in order]) for row in self.rows}
        return [n for where in order for n in where], joined, torch.cat([torch.cat(right[where], 1) for where in order])

    def score(self, unit: Unit, tick: Callable[[int], None]) -> pd.DataFrame:
        started = time.monotonic()
        numbers, values, right = self.measured(unit, tick)
        accuracy = right.double().mean(1).cpu().numpy()  # waits for the device
        passed = time.monotonic()
        scored = self._scored(values, right)
        self.seconds["passes"] += passed - started
        self.seconds["scores"] += time.monotonic() - passed
        computed = set(numbers)
        texts, costs = [str(self.placements[n]) for n in numbers], [self.cost(n) for n in numbers]
        frames = []
        for order, row in enumerate(self.rows):
            frames.append(
                pd.DataFrame(
                    {
                        "number": numbers,
                        "order": order,
                        "placement": texts,
                        "measure": row.name,
                        "accuracy": accuracy,
                        **{name: table[order] for name, table in scored.items()},
                        "cost": costs,
                        "equivalent_to": None,
                    }
                )
            )
        rows = pd.concat(frames, ignore_index=True)
        twins = [n for n in unit.numbers if n not in computed]
        return pd.concat([rows, *self._twins(rows, twins)], ignore_index=True) if twins else rows

    def _scored(self, values: dict[str, Tensor], right: Tensor) -> dict[str, np.ndarray]:
        """Every score `[measures, placements]`, all measures of some placements in one go."""
        at_once = max(1, _SCORED_AT_ONCE // (len(self.rows) * right.shape[1]))
        parts: dict[str, list[np.ndarray]] = {}
        for begin in range(0, len(right), at_once):
            some = slice(begin, begin + at_once)
            stacked = torch.stack([values[row.name][some] for row in self.rows])
            for name, value in scores.ranking_scores(stacked, right[some]).items():
                if name in self.chosen:
                    parts.setdefault(name, []).append(value.cpu().numpy())
        return {name: np.concatenate(found, 1) for name, found in parts.items()}

    def _twins(self, rows: pd.DataFrame, twins: list[int]) -> Iterator[pd.DataFrame]:
        """Rows of placements that are another one by mathematics: the same numbers under their own name."""
        assert self.shared is not None
        for number in twins:
            source = self.shared.computed_as(number)
            yield rows[rows.number == source].assign(
                number=number, placement=str(self.placements[number]), equivalent_to=str(self.placements[source])
            )

    def cost(self, number: int) -> float:
        """Multiply-adds per example of this placement alone, relative to one plain pass."""
        return float(self.passes) if self.shared is None else self.shared.cost(number)

    def baseline(self) -> pd.DataFrame:
        """One plain pass, scored in the same way on the same examples."""
        plain = self.plain()
        right = plain.argmax(1) == self.labels
        rows = []
        for name, function in _BASELINES.items():
            table = {k: float(v) for k, v in scores.ranking_scores(function(plain), right).items() if k in self.chosen}
            rows.append(
                {"placement": "none", "measure": name, "accuracy": float(right.double().mean()), **table, "cost": 1.0}
            )
        return pd.DataFrame(rows)

    def plain(self) -> Tensor:
        with torch.no_grad(), precise():
            return torch.cat([self.setting.plain(batch) for batch in self.setting.data.batches])

    # --- finalists ----------------------------------------------------------------------------------------------------

    def examples(self, chosen: pd.DataFrame) -> pd.DataFrame:
        """Per-example values of the plain pass and of the chosen rows; run again, the same to the last mask."""
        ids = np.asarray([str(value) for value in self.setting.data.ids], dtype=object)
        plain = self.plain()
        right = plain.argmax(1) == self.labels
        frames = [finalists.values_table(ids, "none", name, f(plain), right) for name, f in _BASELINES.items()]
        wanted = set(zip(chosen.placement, chosen.measure, strict=True))
        texts = set(chosen.placement)
        for unit in self._units_of([n for n, placement in enumerate(self.placements) if str(placement) in texts]):
            numbers, values, correct = self.measured(unit, lambda predictions: None)
            frames += [
                finalists.values_table(ids, text, row.name, values[row.name][i], correct[i])
                for i, text in enumerate(str(self.placements[n]) for n in numbers)
                for row in self.rows
                if (text, row.name) in wanted
            ]
        return pd.concat(frames, ignore_index=True)

    def _units_of(self, numbers: list[int]) -> list[Unit]:
        if not numbers:
            return []
        if self.shared is None:
            return [Unit(0, (), tuple(numbers))]
        return self.shared.only(numbers)


def _style(live: SiteNoise) -> tuple[str, str]:
    return live.noise, live.mask


def _ordered(parts: list[pd.DataFrame]) -> pd.DataFrame:
    rows = pd.concat(parts, ignore_index=True).sort_values(["number", "order"], kind="stable")
    return rows.drop(columns=["number", "order"]).reset_index(drop=True)


def _versions() -> dict[str, str]:
    return {
        "dropscope": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
