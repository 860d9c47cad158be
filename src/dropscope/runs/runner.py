"""The runner of a sweep: unit by unit into rows, into the store, then a closer look at the finalists."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from dropscope import __version__, scores
from dropscope.engine import WorkUnit
from dropscope.model import code_fingerprint, digest, weights_fingerprint
from dropscope.placement import own_noise
from dropscope.progress import track
from dropscope.runs.finalists import interval_table, select_finalists
from dropscope.runs.result import Run
from dropscope.runs.rows import RowMaker, beside_single_pass
from dropscope.runs.store import Store, ordered_rows
from dropscope.scores import Score


@dataclass(frozen=True, eq=False)
class Job:
    """A sweep that is checked, audited and planned."""

    maker: RowMaker
    passes: int
    memory: int
    compiled: bool

    @property
    def spec(self) -> dict[str, Any]:
        """What identifies the run: a folder holds one."""
        maker, session = self.maker, self.maker.session
        noises = (own_noise(name) for name in dict.fromkeys(placement.noise for placement in maker.placements))
        own = [row.function for row in maker.measures] + [noise for noise in noises if noise is not None]
        own += [score.function for score in maker.scores if score.own]
        own_scores = {score.name: score.direction for score in maker.scores if score.own}
        return {
            "placements": digest([str(p) for p in maker.placements]),
            "count": len(maker.placements),
            "passes": self.passes,
            "seed": session.seed,
            "masks": session.masks,
            "outputs": session.outputs if isinstance(session.outputs, str) else code_fingerprint(session.outputs),
            "precision": session.precision,
            "engine": maker.engine.name,  # both give the same rows to 1e-4, in other parts and with other last bits
            "device": session.device.type,
            "label": maker.label,
            "measures": [row.name for row in maker.measures],
            "code": code_fingerprint(session.model, *own),
            "scores": [score.name for score in maker.scores],
            **({"own_scores": own_scores} if own_scores else {}),
            "data": session.data.fingerprint,
            "keyed_by": session.data.keyed_by,
            "examples": session.data.n,
            "weights": weights_fingerprint(session.model),
        }

    @property
    def settled(self) -> dict[str, Any]:
        """What the first start of a run settles for all later ones."""
        place = {"engine": self.maker.engine.name, "device": str(self.maker.session.device)}
        return {"versions": _versions(), **place, "memory": self.memory, "compiled": self.compiled}

    def name(self, unit: WorkUnit) -> str:
        return digest([str(self.maker.placements[n]) for n in unit.numbers])


def run_job(job: Job, store: Store | None, keep: int | None, objective: Score, *, show: bool | None) -> Run:
    """Runs what is missing, and looks at the `keep` best rows again."""
    maker, spec, started = job.maker, job.spec, time.monotonic()
    if store is not None:
        store.open(spec, job.settled)
    rows = _rows(job, store, show=show)
    ran = time.monotonic()
    baseline = maker.baseline()
    finalists = maker.finalists(select_finalists(rows, keep, objective))
    data, device = maker.session.data, maker.session.device
    scored = pd.concat([rows, baseline], ignore_index=True)
    intervals = interval_table(finalists, scored, maker.scores, data.groups, maker.session.seed, device, show=show)
    rows, baseline = (beside_single_pass(table, baseline) for table in (rows, baseline))
    if store is not None:
        store.write_table("baseline", baseline)
        store.write_table("examples", finalists.examples)
        store.write_table("intervals", intervals)
    levels = scores.reference_levels(float(baseline.accuracy.iloc[0]), data.n)
    seconds = maker.seconds | {"passes, scores and rows": ran - started, "finalists": time.monotonic() - ran}
    folder = store.folder if store else None
    return Run(rows, baseline, intervals, finalists.examples, spec, maker.engine.name, folder, levels, seconds)


def _rows(job: Job, store: Store | None, *, show: bool | None) -> pd.DataFrame:
    """Every row, those that a store holds already included."""
    maker = job.maker
    units = maker.engine.units(maker.bytes_per_placement)
    missing = [unit for unit in units if store is None or not store.has(job.name(unit))]
    tables = []
    total = sum(len(unit.numbers) for unit in missing) * job.passes * maker.session.data.n
    with track("sweep", total, show=show) as tick:
        for unit in missing:
            rows = maker.rows(unit, tick)
            if store is None:
                tables.append(rows)
            else:
                store.write_rows(job.name(unit), rows)
    return ordered_rows(tables) if store is None else store.read_rows()


def _versions() -> dict[str, str]:
    return {
        "dropscope": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
