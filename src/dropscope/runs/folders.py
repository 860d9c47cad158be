"""Finished runs read from their folders again: `open_run` for one, or for several that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from dropscope import scores
from dropscope.errors import BadInput, Phrase
from dropscope.model import digest
from dropscope.runs.finalists import select_finalists
from dropscope.runs.intervals import picked_from, widened
from dropscope.runs.places import existing_place
from dropscope.runs.result import Run
from dropscope.runs.rows import beside_single_pass
from dropscope.runs.store import Store
from dropscope.scores import Score

TABLES = ("baseline", "intervals", "examples")  # of a finished run, beside its rows
_SPEC = {"count": int, "examples": int, "passes": int, "seed": int, "engine": str}  # of a specification, what is used
# What may differ between runs that are read as one: both engines and all devices give the same rows to 1e-4.
_MAY_DIFFER = ("placements", "count", "engine", "device")


def open_run(*folders: str | Path) -> Run:
    """Reads a finished run from its folder; several folders are read as one run.

    Several folders must have the same data, weights, passes, seed and settings, and may differ in their placements. A
    placement that is in two of them is read from the first.

    Args:
        folders: What `sweep` was given as `out`: folders, or addresses such as s3://bucket/run.

    Returns:
        The `Run`, as `sweep` returned it, without `seconds`. Of several folders, its `folder` is None.

    Raises:
        BadInput: For a folder that holds no finished run, or folders that do not belong together.

    Examples:
        >>> import tempfile, torch
        >>> from dropscope import sweep
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        >>> data = torch.randn(40, 4), torch.randint(0, 3, (40,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runs = [sweep(net, [text], data, passes=5, out=f"{folder}/{text}") for text in ("0=0.2", "0=0.5")]
        ...     both = open_run(f"{folder}/0=0.2", f"{folder}/0=0.5")
        >>> list(both.rows.placement.unique()), len(both.rows) == sum(len(run.rows) for run in runs)
        (['0=0.2', '0=0.5'], True)
    """
    if not folders:
        raise BadInput("folders must name at least one folder", "folders", (), "pass what sweep was given as out")
    runs = [_read(Store(existing_place(folder))) for folder in folders]
    for run in runs[1:]:
        _check_kin(runs[0], run)
    return runs[0] if len(runs) == 1 else _merged(runs)


def finished_run(store: Store, keep: int | None, objective: Score) -> Run | None:
    """The run of a folder that lacks nothing, the intervals of these finalists included; else None."""
    try:
        run = _read(store)
    except BadInput:  # not to its end yet
        return None
    wanted = select_finalists(run.rows, keep, objective)[["placement", "measure"]]
    known = set(zip(run.intervals.placement, run.intervals.measure, strict=True))
    return run if known.issuperset(wanted.itertuples(index=False, name=None)) else None


def _read(store: Store) -> Run:
    spec = store.read_spec()["spec"]
    wrong = [name for name, kind in _SPEC.items() if not isinstance(spec.get(name), kind)]
    if wrong:
        received = Phrase(f"{store.at}, whose run.json has no {wrong[0]}")
        raise BadInput("folder must hold a run", "folder", received, "restore run.json, or run it in a new folder")
    tables = store.read_tables(TABLES)
    rows = store.read_rows()
    found = rows.placement.nunique()
    if tables is None or found < spec["count"]:
        received = Phrase(f"{store.at} with {found} of {spec['count']} placements")
        if found == spec["count"]:
            received = Phrase(f"{store.at} without the intervals of its best rows")
        remedy = "run the same sweep with out= this folder again: it does only what is missing"
        raise BadInput("folder must hold a finished run", "folder", received, remedy)
    baseline, intervals, examples = (tables[name] for name in TABLES)
    levels = scores.reference_levels(float(baseline.accuracy.iloc[0]), spec["examples"])
    shown = beside_single_pass(rows, baseline)
    origin = store.read_record("origin")
    return Run(shown, baseline, intervals, examples, spec, spec["engine"], store.at, levels, origin=origin)


def _check_kin(first: Run, other: Run) -> None:
    """Refuses runs whose rows cannot be compared."""
    names = sorted({*first.spec, *other.spec} - {*_MAY_DIFFER})
    differing = [name for name in names if first.spec.get(name) != other.spec.get(name)]
    if differing:
        received = Phrase(f"other {', '.join(differing)} in {other.folder} than in {first.folder}")
        what = "folders must hold runs of the same data, weights and settings"
        raise BadInput(what, "folders", received, "open them one by one")


def _merged(runs: Sequence[Run]) -> Run:
    """One run of all placements, each as the first run has it."""
    tables = {name: _joined([getattr(run, name) for run in runs]) for name in ("rows", "intervals", "examples")}
    tables["intervals"] = widened(tables["intervals"], tables["examples"], picked_from(tables["rows"]))
    placements = [str(text) for text in tables["rows"].placement.unique()]
    spec = runs[0].spec | {"placements": digest(placements), "count": len(placements)}
    engine = " and ".join(dict.fromkeys(run.engine for run in runs))
    return replace(runs[0], **tables, spec=spec, engine=engine, folder=None)


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables below each other; what several say of one placement and measure, as the first says it."""
    every = pd.concat(tables, ignore_index=True)
    number = pd.Series(np.repeat(range(len(tables)), [len(table) for table in tables]))
    first = number.groupby([every.placement, every.measure]).transform("min")
    return every[number == first].reset_index(drop=True)
