"""The runner of a sweep: unit by unit into rows, into the store, then a closer look at the finalists."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dropscope import __version__, scores
from dropscope.engine import Session, WorkUnit
from dropscope.injection import Finding
from dropscope.measures import Measure
from dropscope.model import code_fingerprint, digest, weights_fingerprint
from dropscope.placement import Placement, own_noise
from dropscope.progress import stage, track
from dropscope.runs.estimates import expected_rest
from dropscope.runs.finalists import select_finalists
from dropscope.runs.intervals import interval_table
from dropscope.runs.result import Run
from dropscope.runs.rows import RowMaker, beside_single_pass
from dropscope.runs.shards import Shard
from dropscope.runs.store import Store, ordered_rows
from dropscope.scores import Score

_RUN_FOR_ERRORS = (
    10  # best rows whose placements run once more for their errors, where a sweep is too large to keep them
)


def specification(
    session: Session,
    placements: Sequence[Placement],
    passes: int,
    measures: Sequence[Measure],
    scores: Sequence[Score],
    label: str,
) -> dict[str, Any]:
    """What identifies a run, as far as it is known before an engine is chosen."""
    data = session.data
    noises = (own_noise(name) for name in dict.fromkeys(placement.noise for placement in placements))
    own = [row.function for row in measures] + [noise for noise in noises if noise is not None]
    own += [score.function for score in scores if score.own]
    own_scores = {score.name: score.direction for score in scores if score.own}
    return {
        "placements": digest([str(p) for p in placements]),
        "count": len(placements),
        "passes": passes,
        "seed": session.seed,
        "masks": session.masks,
        **({} if session.draws == "independent" else {"draws": session.draws}),
        "outputs": session.outputs if isinstance(session.outputs, str) else code_fingerprint(session.outputs),
        "precision": session.precision,
        "device": session.device.type,
        "label": label,
        "measures": [row.name for row in measures],
        "code": code_fingerprint(session.model, *own),
        "scores": [score.name for score in scores],
        **({"own_scores": own_scores} if own_scores else {}),
        "data": data.fingerprint,
        **({} if data.groups is None else {"groups": digest([str(group) for group in data.groups])}),
        "keyed_by": data.keyed_by,
        "examples": data.n,
        "weights": weights_fingerprint(session.model),
    }


@dataclass(frozen=True, eq=False)
class Job:
    """A sweep that is checked, audited and planned."""

    maker: RowMaker
    spec: dict[str, Any]  # what identifies the run: a folder holds one
    memory: int
    compiled: bool
    findings: Sequence[Finding] = ()

    @property
    def settled(self) -> dict[str, Any]:
        """What the first start of a run settles for all later ones."""
        place = {"engine": self.maker.engine.name, "device": str(self.maker.session.device)}
        return {"versions": _versions(), **place, "memory": self.memory, "compiled": self.compiled}

    @property
    def origin(self) -> dict[str, Any]:
        """Where the rows come from, in values that JSON can hold."""
        sites = [
            {"name": site.name, "kind": site.kind, "shape": list(site.shape)}
            for site in self.maker.session.site_map.sites
        ]
        found = [asdict(finding) for finding in self.findings]
        return {"sites": sites, "findings": found, "versions": _versions(), "command": started_by()}

    @cached_property
    def units(self) -> list[WorkUnit]:
        return self.maker.engine.units(self.maker.bytes_per_placement)

    def name(self, unit: WorkUnit) -> str:
        return digest([str(self.maker.placements[n]) for n in unit.numbers])

    def predictions(self, unit: WorkUnit) -> int:
        return len(unit.numbers) * self.maker.engine.passes * self.maker.session.data.n

    def work(self, unit: WorkUnit) -> float:
        """How much there is to do, compared with other units."""
        return sum(self.maker.engine.cost(number) for number in unit.numbers)


def run_shard(job: Job, store: Store, shard: Shard, *, show: bool | None) -> tuple[int, int, int]:
    """Runs what is missing of a shard; how many parts that was, how many are there now, and how many the run has."""
    own = shard.share(job.units, job.work)
    there = store.parts()
    missing = [unit for unit in own if job.name(unit) not in there]
    _run_units(job, missing, lambda unit, rows: store.write_rows(job.name(unit), rows), lambda whole: 0.0, show=show)
    there = store.parts()
    return len(missing), sum(job.name(unit) in there for unit in job.units), len(job.units)


def run_job(job: Job, store: Store | None, keep: int | None, objective: Score, *, show: bool | None) -> Run:
    """Runs what is missing, and looks at the `keep` best rows again."""
    maker, spec, started = job.maker, job.spec, time.monotonic()
    rows = _rows(job, store, keep, show=show)
    ran = time.monotonic()
    with stage("one plain pass", show=show):
        plain = maker.plain()
    baseline = maker.baseline(plain)
    chosen, best = (select_finalists(rows, count, objective) for count in (keep, _best(keep)))
    finalists = maker.finalists(chosen, best, plain, show=show)
    data, device = maker.session.data, maker.session.device
    scored = pd.concat([rows, baseline], ignore_index=True)
    intervals = interval_table(finalists, scored, maker.scores, data.groups, maker.session.seed, device, show=show)
    rows, baseline = (beside_single_pass(table, baseline) for table in (rows, baseline))
    if store is not None:
        store.write_record("origin", job.origin)
        store.write_tables({"baseline": baseline, "examples": finalists.examples, "intervals": intervals})
    levels = scores.reference_levels(float(baseline.accuracy.iloc[0]), data.n)
    seconds = maker.seconds | {"passes, scores and rows": ran - started, "finalists": time.monotonic() - ran}
    folder = store.at if store else None
    about = maker.engine.name, folder, levels, seconds, maker.engine.reason
    return Run(rows, baseline, intervals, finalists.examples, spec, *about, origin=job.origin)


def _best(keep: int | None) -> int:
    return _RUN_FOR_ERRORS if keep is None else min(keep, _RUN_FOR_ERRORS)


def _rows(job: Job, store: Store | None, keep: int | None, *, show: bool | None) -> pd.DataFrame:
    """Every row, those that a store holds already included."""
    there = {} if store is None else store.parts()
    missing = [unit for unit in job.units if job.name(unit) not in there]
    then = expected_rest(job.maker, keep).finalists if missing and show is not False else lambda whole: 0.0
    tables: list[pd.DataFrame] = []
    if store is None:
        _run_units(job, missing, lambda unit, rows: tables.append(rows), then, show=show)
        return ordered_rows(tables)
    _run_units(job, missing, lambda unit, rows: store.write_rows(job.name(unit), rows), then, show=show)
    return store.read_rows()


def _run_units(
    job: Job,
    units: Sequence[WorkUnit],
    keep: Callable[[WorkUnit, pd.DataFrame], None],
    then: Callable[[float], float],
    *,
    show: bool | None,
) -> None:
    """Runs units one by one; `keep` gets the rows of each, and `then` says how long what follows takes."""
    what = "compiling, then passes" if job.compiled else "passes"
    with track(what, sum(map(job.predictions, units)), show=show, then=then) as tick:
        for unit in units:
            keep(unit, job.maker.rows(unit, tick))


def started_by() -> str | None:
    """What started this process, as one would type it again; None in a notebook, a shell or a test."""
    program = Path(sys.argv[0] or ".")
    if program.name == "dropscope" or program.parts[-2:] in (("dropscope", "__main__.py"), ("cli", "__init__.py")):
        return shlex.join(["dropscope", *sys.argv[1:]])
    if program.suffix == ".py" and program.is_file() and program.stem not in ("__main__", "ipykernel_launcher"):
        return shlex.join(["python", *sys.argv])
    return None


def _versions() -> dict[str, str]:
    return {
        "dropscope": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
