"""Sweeps: many placements over one data set. `sweep` runs them, `plan_sweep` says what it would do.

Owns the arguments; see `jobs` for their checks and the plan, `runner` for what is then done.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from typing_extensions import Unpack

from dropscope.engine import PlanSummary, Session, SessionOptions, open_session
from dropscope.errors import BadInput
from dropscope.parameters import shares
from dropscope.placement import Placement
from dropscope.progress import stage
from dropscope.runs.cluster import Crew
from dropscope.runs.estimates import expected_rest
from dropscope.runs.jobs import Asked, plan_job, start_job, sweep_session
from dropscope.runs.places import open_place
from dropscope.runs.result import Run
from dropscope.runs.runner import run_job, run_shard
from dropscope.runs.shards import Shard, ShardResult
from dropscope.runs.store import Store
from dropscope.scores import Score


@shares(open_session, without=("ignore_label",))
def sweep(
    model: nn.Module,
    placements: Sequence[Placement | str],
    data: Any,
    passes: int = 100,
    *,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    scores: Sequence[str | Callable[..., Any] | Score] | None = None,
    label: str = "mean",
    objective: str | Callable[..., Any] | Score = "aurc",
    engine: str = "auto",
    compile: bool | None = None,
    memory: int | str = "auto",
    out: str | Path | None = None,
    keep: str = "top:50",
    workers: int | None = None,
    cluster: str | None = None,
    progress: bool | None = None,
    **options: Unpack[SessionOptions],
) -> Run:
    """Runs every placement on the same examples with coupled noise, and scores each measure.

    Args:
        model: A trained classifier. It is left exactly as it was.
        placements: A `PlacementGrid`, or placements and their texts.
        data: Labelled data: `(inputs, labels)`, a Dataset, a DataLoader, an iterable of batches, or a tokenised
            `datasets.Dataset`. Inputs are a tensor, a tuple of tensors or a dict of tensors.
        passes: Passes per placement.
        measures: Names from `dropscope.measures`, or functions of your own, of the statistics or of the passes; None
            takes `measures.DEFAULT`, "all" every one of them. A measure of the passes has each placement run alone.
        scores: Scores of the rows, of the ranking by each measure or (ece, brier, nll) of the mean probabilities: names
            from `dropscope.scores`, or functions of your own (see `scores.of_ranking`). None takes all of both kinds.
        label: Whether "mean" (the averaged passes) or "plain" (the pass without noise) decides the prediction.
        objective: The score that the finalists are chosen by: a name, or one of your own.
        keep: For how many of the best rows per-example values and intervals are kept: "top:50", "all" or "none".
        out: Folder of the run, or an address that fsspec knows, such as s3://bucket/run. A run that was killed goes on
            there and ends with the same rows.
        engine: "auto", "shared" (refuses a model it cannot capture), "loop" (the plain reference) or "analytic" (no
            passes, for noise just before the last linear layer).
        compile: Whether to compile what runs; None compiles where it repays.
        memory: Budget such as "4GiB", a number of bytes, or "auto".
        workers: Processes that run the passes, which divide the cores among them; with `cluster`, how many at once at
            most. They end with the same rows. Needs the extra `cluster`, as does the next.
        cluster: A Ray cluster that runs the passes: "auto" for the one this machine is part of, or "ray://host:10001".
        progress: True or False; None shows progress where it is read.

    Returns:
        A `Run`: rows per placement and measure, the baselines of one plain pass, and examples of the finalists.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where noise of one of the placements would not take effect as asked.
        Unfinished: Where parts failed on `workers` or a `cluster`, again and again; the rest is done and kept.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> run = sweep(net, ["0=0.2", "0=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
        >>> sorted(run.rows.placement.unique()), len(run.rows), len(run.baseline)
        (['0=0.2', '0=0.5'], 10, 3)
    """
    count = _kept(keep)
    asked = Asked.checked(placements, passes, measures, scores, objective, label)
    crew = Crew.asked(cluster, workers)
    store = None if out is None else Store(open_place(out))
    session = sweep_session(model, data, show=progress, **options)
    job = start_job(session, asked, engine, memory, store, count, compile=compile, show=progress)
    return job if isinstance(job, Run) else run_job(job, store, count, asked.objective, crew, show=progress)


@shares(sweep, without=("out",))
def sweep_shard(
    model: nn.Module, placements: Sequence[Placement | str], data: Any, passes: int = 100, *, shard: str,
    out: str | Path, **options: Any,
) -> ShardResult:  # fmt: skip
    """Runs one share of a sweep, for machines that have only a folder in common.

    Each part of the run belongs to one shard, by the plan alone, so nobody need coordinate them. All write into the
    same folder, where `sweep` goes on as well. The one that finds no part missing finishes the run.

    Args:
        model: A trained classifier. It is left exactly as it was.
        placements: A `PlacementGrid`, or placements and their texts.
        data: Labelled data, as `sweep` takes it.
        passes: Passes per placement.
        shard: Which share it is, of how many: "1/4" to "4/4".
        out: Folder of the run that all shards see, or an address that fsspec knows, such as s3://bucket/run.

    Returns:
        A `ShardResult`, which prints itself. Its `run` is the finished `Run` where no part is missing.

    Raises:
        BadInput: As `sweep`.
        AuditFailed: As `sweep`.

    Examples:
        >>> import tempfile, torch
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> given = net, ["0=0.2", "2=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), 5
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first, second = (sweep_shard(*given, shard=f"{k}/2", out=folder) for k in (1, 2))
        >>> first.run is None, second.there, len(second.run.rows)
        (True, 2, 10)
    """
    which = Shard.parse(shard)
    given = _defaults() | options
    count, show = _kept(given["keep"]), given["progress"]
    asked = Asked.checked(placements, passes, given["measures"], given["scores"], given["objective"], given["label"])
    crew = Crew.asked(given["cluster"], given["workers"])
    store = Store(open_place(out))
    session = sweep_session(model, data, show=show, **_of_session(options))
    how = given["engine"], given["memory"], store, count
    job = start_job(session, asked, *how, compile=given["compile"], show=show)
    if isinstance(job, Run):
        parts = len(store.parts())
        return ShardResult(str(which), 0, parts, parts, store.at, job)
    computed, there, parts = run_shard(job, store, which, crew, show=show)
    run = run_job(job, store, count, asked.objective, crew, show=show) if there == parts else None
    return ShardResult(str(which), computed, there, parts, store.at, run)


@shares(sweep)
def plan_sweep(
    model: nn.Module, placements: Sequence[Placement | str], data: Any, passes: int = 100, **options: Any
) -> PlanSummary:
    """What `sweep` with these arguments would do, and in what time.

    Everything is checked and audited; of the passes, a few blocks are run to time them. The expected time is that of
    the whole sweep: set-up, passes, scores and finalists.

    Args:
        model: A trained classifier. It is left exactly as it was.
        placements: A `PlacementGrid`, or placements and their texts.
        data: Labelled data, as `sweep` takes it.
        passes: Passes per placement.

    Returns:
        A `PlanSummary`, which prints itself.

    Raises:
        BadInput: As `sweep`.
        AuditFailed: As `sweep`.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> plan = plan_sweep(net, ["0=0.2", "0=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
        >>> plan.engine, plan.placements, plan.computed
        ('shared', 2, 2)
    """
    started = time.monotonic()
    given = _defaults() | options
    asked = Asked.checked(placements, passes, given["measures"], given["scores"], given["objective"], given["label"])
    _kept(given["keep"])
    session = sweep_session(model, data, show=given["progress"], **_of_session(options))
    wanted = {name: given[name] for name in ("engine", "memory", "out", "compile", "keep", "progress")}
    return plan_session(session, asked, started, **wanted)


def plan_session(
    session: Session,
    asked: Asked,
    started: float,
    *,
    engine: str = "auto",
    memory: int | str = "auto",
    out: str | Path | None = None,
    compile: bool | None = None,
    keep: str = "top:50",
    progress: bool | None = None,
    audited: bool = True,
) -> PlanSummary:
    """`plan_sweep` in a session that is open; what is audited and verified when it runs need not be `audited` here.

    `started` is when the set-up began, by the monotonic clock.
    """
    store = None if out is None else Store(open_place(out))
    job = plan_job(session, asked, engine, memory, store, compile=compile, show=progress, audited=audited)
    set_up = time.monotonic() - started
    with stage("timing a few blocks", show=progress):
        maker = job.maker
        plan = maker.engine.summary(maker.needs, maker.values, compiled=job.compiled)
        rest = expected_rest(maker, _kept(keep))
    stages = {
        "set-up": set_up + plan.stages["set-up"],
        "passes": plan.stages["passes"],
        "scores": rest.scores,
        "finalists": rest.finalists(plan.stages["passes"]),
    }
    return replace(plan, stages=stages, seconds=sum(stages.values()))


def _defaults() -> dict[str, Any]:
    return {parameter.name: parameter.default for parameter in inspect.signature(sweep).parameters.values()}


def _of_session(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in SessionOptions.__annotations__ if name in options}


def _kept(keep: str) -> int | None:
    if keep == "all":
        return None
    if keep == "none":
        return 0
    kind, _, number = str(keep).partition(":")
    if kind == "top" and number.isdigit():
        return int(number)
    raise BadInput("keep must be 'all', 'none' or 'top:NUMBER'", "keep", keep, "write keep='top:50'")
