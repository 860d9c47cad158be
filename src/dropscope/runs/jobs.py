"""Jobs: what a sweep is asked for, checked, opened as a session, planned, and begun in its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from typing_extensions import Unpack

from dropscope import measures as measures_module
from dropscope import scores as scores_module
from dropscope.checks import check_choice, check_passes
from dropscope.device import memory_bytes
from dropscope.engine import Session, SessionOptions, check_runs_passes, choose_engine, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.injection import Finding
from dropscope.measures import Measure
from dropscope.placement import Placement, as_placement
from dropscope.progress import stage
from dropscope.runs.folders import finished_run
from dropscope.runs.passes import LABELS
from dropscope.runs.result import Run
from dropscope.runs.rows import RowMaker
from dropscope.runs.runner import Job, specification
from dropscope.runs.samples import check_memory
from dropscope.runs.store import Store
from dropscope.scores import Score

_ENGINE_NAMES = {"reference": "loop"}


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


def sweep_session(model: nn.Module, data: Any, *, show: bool | None, **options: Unpack[SessionOptions]) -> Session:
    """The session of a sweep. Refuses what has no rows: dense predictions, and data without labels."""
    with stage("reading the data, tracing the model", show=show):
        session = open_session(model, data, **options)
    if session.dense:
        received = Phrase("one prediction per voxel, pixel or label")
        raise BadInput("model must predict whole examples in a sweep", "model", received, "use maps, or uncertainty")
    if session.data.labels is None:
        remedy = "pass (inputs, labels), a label column, a folder with a sub-folder per class, or use uncertainty"
        raise BadInput("data must have labels to compare with", "data", Phrase("inputs without labels"), remedy)
    return session


def start_job(
    session: Session,
    asked: Asked,
    engine: str,
    memory: int | str,
    store: Store | None,
    keep: int | None,
    *,
    compile: bool | None,
    show: bool | None,
) -> Job | Run:
    """The sweep planned, and begun in its store; or the finished run that the store holds."""
    spec = asked.specification(session) | ({} if engine == "auto" else {"engine": _ENGINE_NAMES.get(engine, engine)})
    if store is not None and store.check(spec) and (done := finished_run(store, keep, asked.objective)) is not None:
        return done
    job = plan_job(session, asked, engine, memory, store, compile=compile, show=show)
    if store is not None:
        settled = store.begin(job.spec, job.settled)
        if any(settled.get(name) != job.settled[name] for name in ("memory", "compiled", "engine")):
            # Another process began the run while this one planned it.
            job = plan_job(session, asked, engine, memory, store, compile=compile, show=show)
        store.open(job.spec, job.settled)
    if job.compiled:
        job.maker.engine.compile()
    return job


def plan_job(
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
    findings: list[Finding] = []
    if audited:
        with stage(f"auditing {len(resolved)} placements", show=show):
            findings = session.audit_all(resolved, asked.placements)
    with stage("planning: one graph for all placements", show=show):
        fixed = store is not None
        running = choose_engine(session, resolved, asked.passes, engine, budget, fixed=fixed, verified=audited)
        compiled = running.compiles(asked=compile)
    maker = RowMaker(session, running, asked.placements, asked.measures, asked.scores, asked.label, budget)
    return Job(maker, asked.specification(session) | {"engine": running.name}, budget, compiled, findings)


def _of_passes(rows: list[Measure]) -> list[Measure]:
    for row in rows:
        if row.of == "plain":
            remedy = "leave it out: run.baseline has the measures of one plain pass"
            raise BadInput("measures of a sweep must be of several passes", "measures", row.name, remedy)
    return rows
