"""Sweeps: many placements over one data set. `sweep` runs them, `plan_sweep` says what it would do.

Owns the arguments: everything that is asked for is checked here, before the runner does it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from typing_extensions import Unpack

from dropscope import measures as measures_module
from dropscope import scores as scores_module
from dropscope.atomic import output_folder
from dropscope.checks import check_choice, check_passes
from dropscope.device import memory_bytes
from dropscope.engine import PlanSummary, Session, SessionOptions, check_runs_passes, choose_engine, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure
from dropscope.parameters import shares
from dropscope.placement import Placement, as_placement
from dropscope.progress import stage
from dropscope.runs.estimates import expected_rest
from dropscope.runs.folders import finished_run
from dropscope.runs.passes import LABELS
from dropscope.runs.result import Run
from dropscope.runs.rows import RowMaker
from dropscope.runs.runner import Job, run_job, specification
from dropscope.runs.samples import check_memory
from dropscope.runs.store import Store
from dropscope.scores import Score

_ENGINE_NAMES = {"reference": "loop"}


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
        out: Folder of the run. A run that was killed goes on there and ends with the same rows.
        engine: "auto", "shared" (refuses a model it cannot capture), "loop" (the plain reference) or "analytic" (no
            passes, for noise just before the last linear layer).
        compile: Whether to compile what runs; None compiles where it repays.
        memory: Budget such as "4GiB", a number of bytes, or "auto".
        progress: True or False; None shows progress where it is read.

    Returns:
        A `Run`: rows per placement and measure, the baselines of one plain pass, and examples of the finalists.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where noise of one of the placements would not take effect as asked.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> run = sweep(net, ["0=0.2", "0=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
        >>> sorted(run.rows.placement.unique()), len(run.rows), len(run.baseline)
        (['0=0.2', '0=0.5'], 10, 3)
    """
    count = _kept(keep)
    asked = Asked.checked(placements, passes, measures, scores, objective, label)
    store = None if out is None else Store(output_folder(out))
    with stage("reading the data, tracing the model", show=progress):
        session = open_session(model, data, **options)
    _check_task(session)
    spec = asked.specification(session) | ({} if engine == "auto" else {"engine": _ENGINE_NAMES.get(engine, engine)})
    if store is not None and store.check(spec) and (done := finished_run(store, count, asked.objective)) is not None:
        return done
    job = _job(session, asked, engine, memory, store, compile=compile, show=progress)
    if job.compiled:
        job.maker.engine.compile()
    return run_job(job, store, count, asked.objective, show=progress)


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
    given = {parameter.name: parameter.default for parameter in inspect.signature(sweep).parameters.values()} | options
    asked = Asked.checked(placements, passes, given["measures"], given["scores"], given["objective"], given["label"])
    _kept(given["keep"])
    with stage("reading the data, tracing the model", show=given["progress"]):
        session = open_session(
            model, data, **{name: options[name] for name in SessionOptions.__annotations__ if name in options}
        )
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
    _check_task(session)
    store = None if out is None else Store(output_folder(out))
    job = _job(session, asked, engine, memory, store, compile=compile, show=progress, audited=audited)
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


@dataclass(frozen=True, eq=False)
class Asked:
    """What a sweep is to compute, checked as far as that needs neither model nor data."""

    placements: list[Placement]
    passes: int
    measures: list[Measure]
    scores: list[Score]
    objective: Score
    label: str

    @classmethod
    def checked(
        cls,
        placements: Sequence[Placement | str] | None,
        passes: int,
        measures: Sequence[str | Callable[..., Tensor]] | None,
        scores: Any,
        objective: Any,
        label: str,
    ) -> Asked:
        """Refuses what cannot be asked for."""
        check_passes(passes)
        check_choice(label, "label", LABELS)
        (best_by,) = scores_module.resolve([objective], "objective")
        chosen = scores_module.resolve(scores)
        if placements is None:
            remedy = "pass a PlacementGrid or a list of texts"
            raise BadInput("placements must be given", "placements", None, remedy)
        several = [placements] if isinstance(placements, str | Placement) else placements
        distinct = list(dict.fromkeys(as_placement(placement) for placement in several))
        if not distinct:
            remedy = "pass a PlacementGrid or a list of texts"
            raise BadInput("placements must hold at least one placement", "placements", [], remedy)
        # The objective, by which finalists are picked, is always one of the scores.
        chosen = scores_module.resolve([*chosen, best_by])
        return cls(distinct, passes, _of_passes(measures_module.resolve(measures)), chosen, best_by, label)

    def specification(self, session: Session) -> dict[str, Any]:
        """What identifies the run, as far as it is known before an engine is chosen."""
        return specification(session, self.placements, self.passes, self.measures, self.scores, self.label)


def _check_task(session: Session) -> None:
    """Refuses what has no rows: dense predictions, and data without labels."""
    if session.dense:
        received = Phrase("one prediction per voxel, pixel or label")
        raise BadInput("model must predict whole examples in a sweep", "model", received, "use maps, or uncertainty")
    if session.data.labels is None:
        remedy = "pass (inputs, labels), a label column, a folder with a sub-folder per class, or use uncertainty"
        raise BadInput("data must have labels to compare with", "data", Phrase("inputs without labels"), remedy)


def _job(
    session: Session,
    asked: Asked,
    engine: str,
    memory: int | str,
    store: Store | None,
    *,
    compile: bool | None,
    show: bool | None,
    audited: bool = True,
) -> Job:
    """Everything planned, and audited before that."""
    budget = memory_bytes(memory, session.device)
    if store is not None:
        # A run taken up again keeps the memory it was planned with: block sizes follow from it, last bits from those.
        budget = store.settled("memory", budget)
        compile = store.settled("compiled", compile)
        if engine == "auto" and store.settled("engine", None) == "shared":
            engine = "shared"  # whatever this process would choose
    if any(row.of == "passes" for row in asked.measures):
        check_runs_passes(engine)
        check_memory(asked.measures, asked.passes, session.classes, budget)
    resolved = session.resolve(asked.placements)
    if audited:
        with stage(f"auditing {len(resolved)} placements", show=show):
            session.audit_all(resolved, asked.placements)
    with stage("planning: one graph for all placements", show=show):
        fixed = store is not None
        running = choose_engine(session, resolved, asked.passes, engine, budget, fixed=fixed, verified=audited)
        compiled = running.compiles(asked=compile)
    maker = RowMaker(session, running, asked.placements, asked.measures, asked.scores, asked.label, budget)
    return Job(maker, asked.specification(session) | {"engine": running.name}, budget, compiled)


def _of_passes(rows: list[Measure]) -> list[Measure]:
    for row in rows:
        if row.of == "plain":
            remedy = "leave it out: run.baseline has the measures of one plain pass"
            raise BadInput("measures of a sweep must be of several passes", "measures", row.name, remedy)
    return rows


def _kept(keep: str) -> int | None:
    if keep == "all":
        return None
    if keep == "none":
        return 0
    kind, _, number = str(keep).partition(":")
    if kind == "top" and number.isdigit():
        return int(number)
    raise BadInput("keep must be 'all', 'none' or 'top:NUMBER'", "keep", keep, "write keep='top:50'")
