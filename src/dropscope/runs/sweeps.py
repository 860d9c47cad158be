"""Sweeps: many placements over one data set. `sweep` runs them, `plan_sweep` says what it would do.

Owns the arguments: everything that is asked for is checked here, before the runner does it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dropscope import measures as measures_module
from dropscope.checks import check_choice, check_passes
from dropscope.data import Keys
from dropscope.device import memory_bytes
from dropscope.engine import PlanSummary, Session, choose_engine, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure
from dropscope.model import Outputs
from dropscope.placement import Placement, as_placement
from dropscope.runs.passes import LABELS
from dropscope.runs.result import RANKING, Run
from dropscope.runs.rows import RowMaker
from dropscope.runs.runner import Job, run_job
from dropscope.runs.store import Store


def sweep(
    model: nn.Module,
    placements: Sequence[Placement | str],
    data: Any,
    passes: int = 100,
    *,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    scores: Sequence[str] | None = None,
    seed: int = 0,
    label: str = "mean",
    objective: str = "aurc",
    keep: str = "top:50",
    out: str | Path | None = None,
    engine: str = "auto",
    compile: bool | None = None,
    memory: int | str = "auto",
    masks: str = "per_example",
    outputs: Outputs = "logits",
    ids: Sequence[Any] | str | None = None,
    groups: Sequence[Hashable] | str | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    keys: Keys | None = None,
    progress: bool | None = None,
) -> Run:
    """Runs every placement on the same examples with coupled noise, and scores each measure.

    Args:
        model: A trained classifier. It is left exactly as it was.
        placements: A `PlacementGrid`, or placements and their texts.
        data: Labelled data: `(inputs, labels)`, a Dataset, a DataLoader, an iterable of batches, or a tokenised
            `datasets.Dataset`. Inputs are a tensor, a tuple of tensors or a dict of tensors.
        passes: Passes per placement.
        measures: Names from `dropscope.measures`, or functions of the statistics; None takes `measures.DEFAULT`.
        scores: Ranking scores of the rows; None takes all of them.
        seed: Seed of the noise. The same seed, placement and example give the same masks everywhere.
        label: Whether "mean" (the averaged passes) or "plain" (the pass without noise) decides the prediction.
        objective: The score that the finalists are chosen by.
        keep: For how many of the best rows per-example values and intervals are kept: "top:50", "all" or "none".
        out: Folder of the run. A run that was killed goes on there and ends with the same rows.
        engine: "auto", "shared" (refuses a model it cannot capture) or "loop" (the plain reference).
        compile: Whether to compile what runs; None compiles where it repays.
        memory: Budget such as "4GiB", a number of bytes, or "auto".
        masks: "per_example" draws a mask for every example, as nn.Dropout does; "per_pass" one for all of a pass.
        outputs: What the model returns: "logits", "probabilities", "binary_logit", or a function from its output to
            probabilities.
        ids: What keys an example's noise: its own inputs (None), one id per example, "index", or a field of dicts.
        groups: One per example (patient, volume), or a field of dicts: the unit that intervals resample.
        batch_size: Examples per batch, for data that is not in batches yet.
        device: Where to run; where the model is, if None.
        precision: "fp32", or "bf16" for a copy of the model in half precision.
        keys: For dicts: the names of input and label, such as ("image", "label").
        progress: True or False; None shows progress where it is read.

    Returns:
        A `Run`: rows per placement and measure, the baselines of one plain pass, and examples of the finalists.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where noise of one of the placements would not take effect as asked.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> run = sweep(net, ["0=0.2", "0=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
        >>> sorted(run.rows.placement.unique()), len(run.rows), len(run.baseline)
        (['0=0.2', '0=0.5'], 10, 3)
    """
    count = _kept(keep)
    check_choice(objective, "objective", RANKING)
    store = None if out is None else Store(out)
    asked = _asked(placements, passes, measures, scores, objective, label)
    session = open_session(
        model, data, seed=seed, masks=masks, outputs=outputs, ids=ids, groups=groups, batch_size=batch_size,
        device=device, precision=precision, keys=keys,
    )  # fmt: skip
    job = _job(session, asked, engine, memory, compile, store)
    return run_job(job, store, count, objective, progress)


def plan_sweep(
    model: nn.Module,
    placements: Sequence[Placement | str],
    data: Any,
    passes: int = 100,
    *,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    scores: Sequence[str] | None = None,
    seed: int = 0,
    label: str = "mean",
    objective: str = "aurc",
    out: str | Path | None = None,
    engine: str = "auto",
    compile: bool | None = None,
    memory: int | str = "auto",
    masks: str = "per_example",
    outputs: Outputs = "logits",
    ids: Sequence[Any] | str | None = None,
    groups: Sequence[Hashable] | str | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    keys: Keys | None = None,
) -> PlanSummary:
    """What `sweep` with these arguments would do, and in what time.

    Everything is checked and audited; of the passes, one small block is run to time it.

    Args:
        model: As for `sweep`, and so are all others.
        placements: A `PlacementGrid`, or placements and their texts.
        data: Labelled data.
        passes: Passes per placement.
        measures: Names, or functions of the statistics.
        scores: Ranking scores of the rows.
        seed: Seed of the noise.
        label: "mean" or "plain".
        objective: The score that the finalists are chosen by.
        out: Folder of the run; its settings hold if it was started before.
        engine: "auto", "shared" or "loop".
        compile: Whether to compile what runs.
        memory: Budget such as "4GiB", a number of bytes, or "auto".
        masks: "per_example" or "per_pass".
        outputs: What the model returns.
        ids: What keys an example's noise.
        groups: One per example, or a field of dicts.
        batch_size: Examples per batch.
        device: Where to run.
        precision: "fp32" or "bf16".
        keys: For dicts: the names of input and label.

    Returns:
        A `PlanSummary`, which prints itself.

    Raises:
        BadInput: As `sweep`.
        AuditFailed: As `sweep`.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> plan = plan_sweep(net, ["0=0.2", "0=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
        >>> plan.engine, plan.placements, plan.computed
        ('shared', 2, 2)
    """
    check_choice(objective, "objective", RANKING)
    asked = _asked(placements, passes, measures, scores, objective, label)
    session = open_session(
        model, data, seed=seed, masks=masks, outputs=outputs, ids=ids, groups=groups, batch_size=batch_size,
        device=device, precision=precision, keys=keys,
    )  # fmt: skip
    return _job(session, asked, engine, memory, compile, None if out is None else Store(out)).maker.engine.summary()


_Asked = tuple[list[Placement], int, list[Measure], tuple[str, ...], str]


def _asked(
    placements: Sequence[Placement | str] | None,
    passes: int,
    measures: Sequence[str | Callable[..., Tensor]] | None,
    scores: Sequence[str] | None,
    objective: str,
    label: str,
) -> _Asked:
    """What is to be computed, checked as far as that needs neither model nor data."""
    check_passes(passes)
    check_choice(label, "label", LABELS)
    for name in scores or ():
        check_choice(name, "scores", RANKING)
    if placements is None:
        remedy = "pass a PlacementGrid or a list of texts"
        raise BadInput("placements must be given", "placements", None, remedy)
    several = [placements] if isinstance(placements, str | Placement) else placements
    distinct = list(dict.fromkeys(as_placement(placement) for placement in several))
    if not distinct:
        remedy = "pass a PlacementGrid or a list of texts"
        raise BadInput("placements must hold at least one placement", "placements", [], remedy)
    # The objective, by which finalists are picked, is always one of the scores.
    chosen = RANKING if scores is None else tuple(dict.fromkeys((*scores, objective)))
    return distinct, passes, _on_statistics(measures_module.resolve(measures)), chosen, label


def _job(
    session: Session, asked: _Asked, engine: str, memory: int | str, compile: bool | None, store: Store | None
) -> Job:
    """Everything audited and planned."""
    placements, passes, rows, scores, label = asked
    if session.dense:
        received = Phrase("one prediction per voxel, pixel or label")
        raise BadInput("model must predict whole examples in a sweep", "model", received, "use maps, or uncertainty")
    if session.data.labels is None:
        remedy = "pass (inputs, labels), or use uncertainty"
        raise BadInput("data must have labels to compare with", "data", Phrase("inputs without labels"), remedy)
    budget = memory_bytes(memory, session.device)
    if store is not None:
        # A run taken up again keeps the memory it was planned with: block sizes follow from it, last bits from those.
        budget = store.settled("memory", budget)
        compile = store.settled("compiled", compile)
    resolved = session.resolve(placements)
    session.audit_all(resolved, placements)
    running = choose_engine(session, resolved, passes, engine, budget, fixed=store is not None)
    compiled = running.compile(compile)
    return Job(RowMaker(session, running, placements, rows, scores, label), passes, budget, compiled)


def _on_statistics(rows: list[Measure]) -> list[Measure]:
    for row in rows:
        if row.of == "passes":
            remedy = "write it as a function of the statistics, or use uncertainty"
            raise BadInput("measures of a sweep must take statistics, not passes", "measures", row.name, remedy)
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
