"""Many placements over one data set: `sweep`, and `planned`, which says what it will do.

Owns the arguments: what is asked for is checked here, before `job.py` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dropscope import measures
from dropscope.checks import check_passes
from dropscope.device import memory_bytes
from dropscope.engine import Explanation, explain, explain_loop, prepare
from dropscope.errors import BadInput
from dropscope.measures import Measure
from dropscope.placement import Placement, as_placement
from dropscope.runs.passes import check_label
from dropscope.runs.result import RANKING, Run, check_score
from dropscope.runs.runner import Job
from dropscope.runs.store import Store


def sweep(
    model: nn.Module,
    placements: Sequence[Placement | str],
    data: Any,
    passes: int = 100,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    scores: Sequence[str] | None = None,
    seed: int = 0,
    label: str = "mean",
    device: str | torch.device | None = None,
    memory: int | str = "auto",
    out: str | Path | None = None,
    *,
    engine: str = "auto",
    compile: bool | None = None,
    keep: str = "top:50",
    objective: str = "aurc",
    progress: bool | None = None,
    **common: Any,
) -> Run:
    """Runs every placement on the same examples with coupled noise, scores each measure, and keeps what it found.

    With `out`, the run is a folder that a killed run takes up again. `keep` says for how many of the best rows
    per-example values and intervals are kept: "top:50", "all" or "none". `compile` None compiles where it repays.

    >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    >>> run = sweep(net, ["0=0.2", "0=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
    >>> sorted(run.rows.placement.unique()), len(run.rows), len(run.baseline)
    (['0=0.2', '0=0.5'], 10, 3)
    """
    count = _kept(keep)
    store = None if out is None else Store(out)
    options: dict[str, Any] = {"measures": measures, "scores": scores, "label": label, "memory": memory}
    options |= {"engine": engine, "objective": objective, "compile": compile}
    job = _job(model, placements, data, passes, seed=seed, device=device, store=store, **options, **common)
    return job.run(store, count, objective, progress)


def planned(
    model: nn.Module, placements: Sequence[Placement | str], data: Any, passes: int = 100, **options: Any
) -> Explanation:
    """What `sweep` with these arguments will do, and in what time; everything is checked, hardly anything run."""
    out = options.pop("out", None)
    for name in ("keep", "progress"):
        options.pop(name, None)
    job = _job(model, placements, data, passes, store=None if out is None else Store(out), **options)
    if job.shared is not None:
        return explain(job.shared)
    return explain_loop(job.setting, job.lives, passes)


def _job(
    model: nn.Module,
    placements: Sequence[Placement | str],
    data: Any,
    passes: int,
    *,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    scores: Sequence[str] | None = None,
    seed: int = 0,
    label: str = "mean",
    device: str | torch.device | None = None,
    memory: int | str = "auto",
    engine: str = "auto",
    objective: str = "aurc",
    compile: bool | None = None,
    store: Store | None = None,
    **common: Any,
) -> Job:
    """Everything checked and planned."""
    check_passes(passes)
    check_label(label)
    check_score(objective)
    chosen = _chosen_scores(scores, objective)
    if placements is None:
        raise BadInput("a sweep has placements", "placements", None, "pass a PlacementGrid or a list of texts")
    several = [placements] if isinstance(placements, str | Placement) else placements
    placed = list(dict.fromkeys(as_placement(placement) for placement in several))
    if not placed:
        raise BadInput(
            "a sweep has at least one placement", "placements", [], "pass a PlacementGrid or a list of texts"
        )
    if common.get("ignore_label") is not None:
        remedy = "leave out the examples without a label"
        raise BadInput("a sweep scores every example", "ignore_label", common["ignore_label"], remedy)
    setting = prepare(model, data, seed=seed, device=device, **common)
    if setting.dense:
        got = "one prediction per voxel, pixel or label"
        raise BadInput("a sweep ranks whole examples", "the output", got, "use maps, or uncertainty")
    if setting.data.labels is None:
        raise BadInput("scores compare with labels", "data", "no labels", "pass (inputs, labels), or use uncertainty")
    budget, compiled = memory_bytes(memory, setting.device), compile
    if store is not None:
        # A run taken up again keeps the memory it was planned with: block sizes follow from it, last bits from those.
        budget = store.fixed("memory", budget)
        compiled = store.fixed("compiled", compiled)
    return Job(setting, placed, passes, _rows_of(measures), chosen, label, budget, engine, store is not None, compiled)


def _rows_of(chosen: Sequence[str | Callable[..., Tensor]] | None) -> list[Measure]:
    rows = measures.resolve(chosen)
    if any(row.of == "passes" for row in rows):
        name = next(row.name for row in rows if row.of == "passes")
        raise BadInput(
            "a sweep keeps statistics, not passes",
            "measure",
            name,
            "write it as a function of the statistics, or use uncertainty",
        )
    return rows


def _chosen_scores(chosen: Sequence[str] | None, objective: str) -> tuple[str, ...]:
    """The scores of the rows; the objective, by which finalists are picked, is always one of them."""
    for name in chosen or ():
        check_score(name)
    return RANKING if chosen is None else tuple(dict.fromkeys((*chosen, objective)))


def _kept(keep: str) -> int | None:
    if keep == "all":
        return None
    if keep == "none":
        return 0
    kind, _, number = str(keep).partition(":")
    if kind == "top" and number.isdigit():
        return int(number)
    raise BadInput("keep is 'all', 'none' or 'top:NUMBER'", "keep", keep, "write keep='top:50'")
