"""The runner of a sweep: unit by unit into rows, into the store, then a closer look at the finalists."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pandas as pd

from dropscope import scores
from dropscope.engine import WorkUnit
from dropscope.errors import Unfinished
from dropscope.progress import stage, track
from dropscope.runs.cluster import Crew, Failure
from dropscope.runs.estimates import expected_rest
from dropscope.runs.finalists import select_finalists
from dropscope.runs.intervals import interval_table
from dropscope.runs.jobs import Job
from dropscope.runs.result import Run
from dropscope.runs.rows import beside_single_pass
from dropscope.runs.shards import Shard
from dropscope.runs.store import Store, ordered_rows
from dropscope.runs.workers import run_on
from dropscope.scores import Score

# Best rows whose placements run once more for their errors, where a sweep is too large to keep them.
_RUN_FOR_ERRORS = 10


def run_shard(
    job: Job, store: Store, shard: Shard, crew: Crew | None = None, *, show: bool | None
) -> tuple[int, int, int]:
    """Runs what is missing of a shard; how many parts that was, how many are there now, and how many the run has."""
    own = shard.share(job.units, job.work)
    there = store.parts()
    missing = [unit for unit in own if job.name(unit) not in there]
    _run_units(job, missing, store, crew, lambda whole: 0.0, show=show)
    there = store.parts()
    return len(missing), sum(job.name(unit) in there for unit in job.units), len(job.units)


def run_job(
    job: Job, store: Store | None, keep: int | None, objective: Score, crew: Crew | None = None, *, show: bool | None
) -> Run:
    """Runs what is missing, here or on a crew, and looks at the `keep` best rows again."""
    maker, spec, started = job.maker, job.spec, time.monotonic()
    rows = _rows(job, store, keep, crew, show=show)
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


def _rows(job: Job, store: Store | None, keep: int | None, crew: Crew | None, *, show: bool | None) -> pd.DataFrame:
    """Every row, those that a store holds already included."""
    there = {} if store is None else store.parts()
    missing = [unit for unit in job.units if job.name(unit) not in there]
    then = expected_rest(job.maker, keep).finalists if missing and show is not False else lambda whole: 0.0
    tables = _run_units(job, missing, store, crew, then, show=show)
    return ordered_rows(tables) if store is None else store.read_rows()


def _run_units(
    job: Job,
    units: Sequence[WorkUnit],
    store: Store | None,
    crew: Crew | None,
    then: Callable[[float], float],
    *,
    show: bool | None,
) -> list[pd.DataFrame]:
    """Runs units, and puts the rows of each into the store or returns them; `then` says how long what follows takes."""
    tables: list[pd.DataFrame] = []

    def keep(unit: WorkUnit, rows: pd.DataFrame) -> None:
        if store is None:
            tables.append(rows)
        else:
            store.write_rows(job.name(unit), rows)

    what = "compiling, then passes" if job.compiled else "passes"
    with track(what, sum(map(job.predictions, units)), show=show, then=then) as tick:
        if crew is not None and units:
            failed = run_on(crew, job, units, keep, tick)
            if failed:
                raise _unfinished(job, store, failed, len(units))
            return tables
        for unit in units:
            keep(unit, job.maker.rows(unit, tick))
    return tables


def _unfinished(job: Job, store: Store | None, failed: Sequence[tuple[WorkUnit, Failure]], parts: int) -> Unfinished:
    """The error of a run that lacks parts; what each lacks and why is written beside the others."""
    for unit, failure in failed:
        if store is not None:
            texts = [str(job.maker.placements[number]) for number in unit.numbers]
            store.write_failure(job.name(unit), {"error": failure.error, "attempts": failure.attempts, "lacks": texts})
    lacking = sum(len(unit.numbers) for unit, _ in failed)
    return Unfinished(len(failed), parts, lacking, failed[0][1].error, None if store is None else str(store.at))
