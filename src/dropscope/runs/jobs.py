"""Jobs: what a sweep is asked for, checked, opened as a session, planned, and begun in its store."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dropscope import __version__
from dropscope import measures as measures_module
from dropscope import scores as scores_module
from dropscope.checks import check_choice, check_passes
from dropscope.device import memory_bytes
from dropscope.engine import Session, SessionOptions, WorkUnit, check_runs_passes, choose_engine, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.injection import Finding
from dropscope.measures import Measure
from dropscope.model import code_fingerprint, digest, weights_fingerprint
from dropscope.placement import Placement, as_placement, own_noise
from dropscope.progress import stage
from dropscope.runs.folders import finished_run
from dropscope.runs.passes import LABELS
from dropscope.runs.result import Run
from dropscope.runs.rows import RowMaker
from dropscope.runs.samples import check_memory
from dropscope.runs.store import Store
from dropscope.scores import Score

_ENGINE_NAMES = {"reference": "loop"}


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
    engine: str = "auto"  # as it was asked for
    fixed: bool = False  # whether block sizes must stay as planned
    findings: Sequence[Finding] = ()

    @property
    def settled(self) -> dict[str, Any]:
        """What the first start of a run settles for all later ones."""
        place = {"engine": self.maker.engine.name, "device": str(self.maker.session.device)}
        return {"versions": versions(), **place, "memory": self.memory, "compiled": self.compiled}

    @property
    def origin(self) -> dict[str, Any]:
        """Where the rows come from, in values that JSON can hold."""
        sites = [
            {"name": site.name, "kind": site.kind, "shape": list(site.shape)}
            for site in self.maker.session.site_map.sites
        ]
        found = [asdict(finding) for finding in self.findings]
        return {"sites": sites, "findings": found, "versions": versions(), "command": started_by()}

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
    spec = asked.specification(session) | {"engine": running.name}
    return Job(maker, spec, budget, compiled, engine, fixed=fixed, findings=findings)


def _of_passes(rows: list[Measure]) -> list[Measure]:
    for row in rows:
        if row.of == "plain":
            remedy = "leave it out: run.baseline has the measures of one plain pass"
            raise BadInput("measures of a sweep must be of several passes", "measures", row.name, remedy)
    return rows


def started_by() -> str | None:
    """What started this process, as one would type it again; None in a notebook, a shell or a test."""
    program = Path(sys.argv[0] or ".")
    if program.name == "dropscope" or program.parts[-2:] in (("dropscope", "__main__.py"), ("cli", "__init__.py")):
        return shlex.join(["dropscope", *sys.argv[1:]])
    if program.suffix == ".py" and program.is_file() and program.stem not in ("__main__", "ipykernel_launcher"):
        return shlex.join(["python", *sys.argv])
    return None


def versions() -> dict[str, str]:
    return {
        "dropscope": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
