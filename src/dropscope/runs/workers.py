"""Workers of a sweep: what a process elsewhere needs to compute units of a job, and units that run there.

A worker opens the session and plans the job as the process that began it did, so that its rows are the same. Where its
plan is another one, as by another version of torch, it refuses to work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
from torch import nn

from dropscope.data import Data
from dropscope.engine import Tick, WorkUnit, choose_engine, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure
from dropscope.placement import Placement, own_noise, register_noise
from dropscope.runs.cluster import Crew, Failure, Needs
from dropscope.runs.jobs import Job, versions
from dropscope.runs.rows import Measured, RowMaker
from dropscope.scores import Score

_PROCESS = 512 << 20  # bytes of a process with torch in it, before a model


@dataclass(frozen=True, eq=False)
class Order:
    """A job as it is sent to workers: plain values, the model, and the data once."""

    model: nn.Module
    data: Data
    options: dict[str, Any]  # of the session
    noises: dict[str, Callable[..., Any]]
    placements: list[Placement]
    passes: int
    measures: list[Measure]
    scores: list[Score]
    label: str
    engine: str
    planned: str  # the engine that runs where the job was planned
    memory: int
    compiled: bool
    fixed: bool
    spec: Mapping[str, Any]
    versions: Mapping[str, str]

    @classmethod
    def of(cls, job: Job) -> Order:
        maker, session = job.maker, job.maker.session
        names = dict.fromkeys(placement.noise for placement in maker.placements)
        noises = {name: function for name in names if (function := own_noise(name)) is not None}
        options = {
            "seed": session.seed, "masks": session.masks, "draws": session.draws, "outputs": session.outputs,
            "precision": session.precision, "device": session.device.type,
        }  # fmt: skip
        running = maker.engine.name
        return cls(
            session.model, session.data, options, noises, maker.placements, maker.engine.passes, maker.measures,
            maker.scores, maker.label, "shared" if running == "shared" else job.engine, running, job.memory,
            job.compiled, job.fixed, job.spec, versions(),
        )  # fmt: skip

    @cached_property
    def job(self) -> Job:
        """Planned in this process, once."""
        if versions() != self.versions:
            differing = [f"{name} {version}" for name, version in versions().items() if self.versions[name] != version]
            what, remedy = "every node must have the versions that the run began with", "install them on all nodes"
            raise BadInput(what, "cluster", Phrase(", ".join(differing)), remedy)
        for name, function in self.noises.items():
            register_noise(function, name=name)
        session = open_session(self.model, self.data, **self.options)
        resolved = session.resolve(self.placements)
        how = self.passes, self.engine, self.memory
        running = choose_engine(session, resolved, *how, fixed=self.fixed, verified=False)
        maker = RowMaker(session, running, self.placements, self.measures, self.scores, self.label, self.memory)
        if self.compiled:
            running.compile()
        return Job(maker, dict(self.spec), self.memory, self.compiled, self.engine, fixed=self.fixed)


@dataclass(frozen=True)
class Item:
    """A unit by its number in the plan, and by the name that it must have there."""

    number: int
    name: str


def compute(order: Order, item: Item, tick: Tick) -> tuple[pd.DataFrame, Measured | None]:
    """In a worker: the rows of a unit, and its per-example values where the sweep remembers them."""
    job = order.job
    unit = job.units[item.number] if item.number < len(job.units) else None
    if unit is None or job.name(unit) != item.name or job.maker.engine.name != order.planned:
        what, remedy = "a worker must plan the run as it was begun", "use nodes of one kind, or workers on one machine"
        raise BadInput(what, "cluster", Phrase(f"another plan, of the {job.maker.engine.name} engine"), remedy)
    rows = job.maker.rows(unit, tick)
    return rows, job.maker.forgotten(unit)


def run_on(
    crew: Crew,
    job: Job,
    units: Sequence[WorkUnit],
    keep: Callable[[WorkUnit, pd.DataFrame], None],
    tick: Tick,
) -> list[tuple[WorkUnit, Failure]]:
    """Runs units on a crew, those with the most work first; returns the units that failed."""
    number_of = {unit.numbers: number for number, unit in enumerate(job.units)}
    ordered = sorted(units, key=job.work, reverse=True)
    items = [Item(number_of[unit.numbers], job.name(unit)) for unit in ordered]
    failed = []
    gpu = job.maker.session.device.type == "cuda"
    with crew.connected(gpu=gpu) as cluster:
        needs = Needs(cluster.cpus, int(gpu), _bytes(job))
        for number, found in cluster.run(compute, _portable(Order.of(job)), items, needs, tick):
            unit = ordered[number]
            if isinstance(found, Failure):
                failed.append((unit, found))
                continue
            rows, measured = found
            if measured is not None:
                job.maker.remember(unit, measured)
            keep(unit, rows)
    return failed


def _portable(order: Order) -> Order:
    """With the model on the CPU, where every process can unpack it."""
    devices = {tensor.device.type for tensor in [*order.model.parameters(), *order.model.buffers()]}
    if devices <= {"cpu"}:
        return order
    return replace(order, model=copy.deepcopy(order.model).to("cpu"))


def _bytes(job: Job) -> int:
    """What a worker takes of a node's memory: torch, the model twice (with its shadow), the data, values of a unit."""
    session = job.maker.session
    weights = sum(t.numel() * t.element_size() for t in [*session.model.parameters(), *session.model.buffers()])
    data = sum(t.numel() * t.element_size() for batch in session.data.batches for t in batch.call.tensors)
    largest = max((len(unit.numbers) for unit in job.units), default=1)
    return _PROCESS + 2 * weights + data + largest * job.maker.bytes_per_placement
