"""Passes under one placement: `sample` for the passes themselves, `uncertainty` per example, `maps` per voxel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from dropscope import measures as measures_module
from dropscope.checks import check_choice, check_passes
from dropscope.device import free_bytes
from dropscope.engine import (
    Engine,
    Session,
    SessionOptions,
    StatisticsBlock,
    Tolerance,
    check_runs_passes,
    choose_engine,
    open_session,
)
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure
from dropscope.measures.statistics import BLOCKS, BlockedStatistics, PassStatistics
from dropscope.parameters import shares
from dropscope.placement import Placement
from dropscope.progress import track
from dropscope.runs.dense import dense_table
from dropscope.runs.goals import Goal, goal_of
from dropscope.runs.rounds import stopped_batches
from dropscope.runs.samples import joined, measured_on_passes

LABELS = ("mean", "plain")
_NAMED = {"label": "true_class", "prediction": "predicted_class"}  # columns of class numbers, and of their names
Chosen = Sequence[str | Callable[..., Tensor]] | None


@shares(open_session, without=("groups", "ignore_label"))
def sample(
    model: nn.Module,
    placement: Placement | str,
    data: Any,
    passes: int = 100,
    *,
    engine: str = "auto",
    progress: bool | None = None,
    **options: Unpack[SessionOptions],
) -> Tensor:
    """Class probabilities of every pass.

    Memory grows with the number of passes; for measures use `uncertainty`, which keeps statistics only.

    Args:
        model: A trained model. It is left exactly as it was.
        placement: Which sites get which noise at which rate, such as "last=0.5", "conv2=0.3,fc1=0.5" or "own".
        data: Inputs, or anything `uncertainty` takes.
        passes: How many stochastic forwards.
        engine: "auto", "shared" (refuses a model it cannot capture) or "loop" (the plain reference).
        progress: True or False; None shows progress where it is read.

    Returns:
        Probabilities `[passes, N, C, …]`, in float32, in the order of the data.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where the noise would not take effect as asked.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> sample(net, "last=0.5", torch.ones(2, 4), passes=5).shape
        torch.Size([5, 2, 3])
    """
    check_passes(passes)
    check_runs_passes(engine)
    session = open_session(model, data, **options)
    running = _engine(session, placement, passes, engine)
    batches, run = running.session.data.batches, range(running.passes)
    with track("sampling", session.data.n * len(run), show=progress) as tick:
        drawn = [joined(running.samples(0, batch, run, tick)) for batch in batches]
    return _in_order(torch.cat(drawn, 1).repeat_interleave(passes // len(run), 0), running.session, 1)


@shares(open_session)
def uncertainty(
    model: nn.Module,
    placement: Placement | str,
    data: Any,
    passes: int | Literal["auto"] = 100,
    *,
    measures: Chosen = None,
    label: str = "mean",
    errors: bool = True,
    tolerance: float | None = None,
    threshold: float | None = None,
    defer: float | None = None,
    by: str | None = None,
    error_rate: float = 0.1,
    at_most: int | None = None,
    engine: str = "auto",
    progress: bool | None = None,
    **options: Unpack[SessionOptions],
) -> pd.DataFrame:
    """A row per example: its prediction, and each measure of its uncertainty.

    Args:
        model: A trained model. It is left exactly as it was.
        placement: Which sites get which noise at which rate, such as "last=0.5", "conv2=0.3,fc1=0.5" or "own".
        data: `(inputs, labels)`, inputs alone, a Dataset, a DataLoader, an iterable of batches, or a tokenised
            `datasets.Dataset`. Inputs are a tensor, a tuple of tensors or a dict of tensors.
        passes: How many stochastic forwards; or "auto", which gives each example as many as its goal takes: the
            tolerance is met, or the comparison with a threshold is settled.
        measures: Names from `dropscope.measures`, or functions of your own; None takes `measures.DEFAULT`,
            "all" every one of them.
        label: Whether "mean" (the averaged passes) or "plain" (the pass without noise) decides the prediction.
        errors: Whether each measure of the statistics comes with its Monte Carlo standard error, `bald_error`: how far
            it would be from itself under another seed. Dense outputs have none, nor has engine="analytic".
        tolerance: For "auto": the largest Monte Carlo standard error of the measure; 0.01 where no goal is given. None
            are run where noise enters just before the last linear layer and engine="analytic" is that exact.
        threshold: For "auto": an example is deferred where the measure lies above it.
        defer: For "auto": the share of the examples to defer, the most uncertain ones of these data.
        by: For "auto": the measure of the goal; None takes predictive_entropy, or the first where that is not measured.
        error_rate: For "auto": the largest probability that a settled example is on the wrong side of the threshold.
        at_most: For "auto": passes of an example; None means 48 where examples are deferred, else 512.
        engine: "auto", "shared" (refuses a model it cannot capture), "loop" (the plain reference) or "analytic" (no
            passes, for noise just before the last linear layer; it samples where its error would be above .005).
        progress: True or False; None shows progress where it is read.

    Returns:
        A table in the order of the data: `id`, `group`, `label`, `prediction`, `true_class` and `predicted_class`
        (their names), `correct` (those that are known), `probability` of the prediction, a column per measure, and
        those of their errors (NaN where all passes are one block: one pass, or 16 and fewer of stratified draws).
        With passes="auto", before the measures: `passes` that each example took, `settled` (whether its goal was met
        before `at_most`) and, with a threshold or a share, `deferred`; `table.attrs["threshold"]` is the one found.
        Dense outputs have, in place of these predictions, `dice` and `dice_1`, `dice_2`, … (or names) of all classes
        but the background, the first; and each measure as its mean over the predicted foreground (`bald`) and each
        structure (`bald_1`, …). With outputs="multilabel_logits", means over the labels. `table.attrs["engine"]` names
        the engine that ran.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where the noise would not take effect as asked.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> table = uncertainty(net, "last=0.5", (torch.randn(6, 4), [0, 1, 2, 0, 1, 2]), passes=20)
        >>> list(table.columns)[:6], len(table)
        (['id', 'label', 'prediction', 'probability', 'correct', 'variation_predicted'], 6)
        >>> table = uncertainty(net, "last=0.5", torch.randn(50, 4), passes="auto", defer=0.1)
        >>> int(table.deferred.sum()), bool(table.passes.between(8, 48).all())
        (5, True)
    """
    check_choice(label, "label", LABELS)
    rows = measures_module.resolve(measures)
    goal = goal_of(
        passes, rows, tolerance=tolerance, threshold=threshold, defer=defer, by=by, error_rate=error_rate,
        at_most=at_most,
    )  # fmt: skip
    session = open_session(model, data, **options)
    if goal is not None:
        return _until(goal, session, placement, rows, engine, label=label, errors=errors, show=progress)
    assert isinstance(passes, int)
    frames = []
    running, blocks = _measured(
        session, placement, passes, rows, engine, show=progress, errors=errors and not session.dense
    )
    for block, values in blocks:
        mean = block.chunks[0][1].mean[0] if label == "mean" else block.plain.movedim(1, -1)
        frames.append(_table(session, block, mean.cpu(), values))
    return _rows_in_order(frames, running)


def _until(
    goal: Goal, session: Session, placement: Placement | str, rows: list[Measure], engine: str, *, label: str,
    errors: bool, show: bool | None,
) -> pd.DataFrame:  # fmt: skip
    """As many passes of each example as the goal takes."""
    if session.dense:
        received = Phrase("one prediction per voxel, pixel or label")
        raise BadInput("model must predict whole examples for passes='auto'", "model", received, "give a number")
    tolerance = _tolerance(goal, rows)
    if tolerance is None:
        check_runs_passes(engine)
    running = _engine(session, placement, goal.at_most, engine, tolerance)
    if not running.placements[0]:
        raise BadInput("placement must have noise for passes='auto'", "placement", str(placement), "write passes=1")
    needs = {"sum_p"}.union(*(row.needs for row in rows))
    frames, threshold = [], None
    if running.name == "analytic":
        for block, values in _on_statistics(running, rows, needs, show=show):
            mean = block.chunks[0][1].mean[0].cpu() if label == "mean" else block.plain.cpu()
            none = torch.zeros(block.batch.n, dtype=torch.int64)
            frames.append(_table(session, block, mean, {"passes": none, "settled": none == 0, **values}))
        return _rows_in_order(frames, running)
    with track("measuring", session.data.n * goal.at_most, show=show) as tick:
        for done, threshold in stopped_batches(running, rows, needs, goal, tick):
            found: dict[str, Tensor] = {"passes": done.passes, "settled": done.settled}
            if threshold is not None:
                found["deferred"] = done.places > threshold
            found |= {row.name: row(done.plain) if row.of == "plain" else done.values[row.name] for row in rows}
            if errors:
                found |= {name: value for name, value in done.values.items() if name not in found}
            mean = done.mean if label == "mean" else done.plain.cpu()
            frames.append(_table(session, StatisticsBlock(done.batch, done.plain, []), mean, found))
    table = _rows_in_order(frames, running)
    if threshold is not None:
        table.attrs["threshold"] = goal.unscaled(threshold)
    return table


def _rows_in_order(frames: list[pd.DataFrame], engine: Engine) -> pd.DataFrame:
    """One table in the order of the data, however they were batched."""
    table, order = pd.concat(frames, ignore_index=True), engine.session.data.order
    table = table if order is None else table.iloc[np.argsort(order.numpy())].reset_index(drop=True)
    table.attrs["engine"] = engine.name
    return table


@shares(open_session, without=("groups", "ignore_label"))
def maps(
    model: nn.Module, placement: Placement | str, data: Any, passes: int = 50, *, measures: Chosen = None,
    errors: bool = False, engine: str = "auto", progress: bool | None = None, **options: Unpack[SessionOptions],
) -> dict[str, Tensor]:  # fmt: skip
    """Uncertainty per voxel, pixel or label.

    Args:
        model: A trained model with dense outputs `[N, C, *spatial]`. It is left exactly as it was.
        placement: Which sites get which noise at which rate, such as "all=0.2" or "own".
        data: Inputs, or anything `uncertainty` takes; examples of one shape.
        passes: How many stochastic forwards.
        measures: Names from `dropscope.measures`, or functions of your own; None takes `measures.DEFAULT`,
            "all" every one of them.
        errors: Whether each measure of the statistics comes with a map of its Monte Carlo standard error,
            "bald_error", as in `uncertainty`. It takes up to 17 times the memory.
        engine: "auto", "shared" (refuses a model it cannot capture) or "loop" (the plain reference).
        progress: True or False; None shows progress where it is read.

    Returns:
        `{measure: [N, *spatial]}`, and under "prediction" the class of the mean over passes, on the CPU; with `errors`,
        those of the measures too.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where the noise would not take effect as asked.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
        >>> result = maps(net, "0=0.5", torch.randn(2, 1, 8, 8), passes=5, measures=["bald"])
        >>> {name: tuple(value.shape) for name, value in result.items()}
        {'bald': (2, 8, 8), 'prediction': (2, 8, 8)}
    """
    session = open_session(model, data, **options)
    parts: dict[str, list[Tensor]] = {}
    running, blocks = _measured(session, placement, passes, measures, engine, show=progress, errors=errors)
    for block, values in blocks:
        for name, value in values.items():
            parts.setdefault(name, []).append(value.cpu())
        parts.setdefault("prediction", []).append(block.chunks[0][1].mean[0].argmax(-1).cpu())
    return {name: _in_order(torch.cat(values), running.session, 0) for name, values in parts.items()}


def _tolerance(goal: Goal, rows: list[Measure]) -> Tolerance | None:
    """The error that is accepted in place of passes, where a tolerance alone is the goal."""
    if goal.decides or goal.tolerance is None or any(row.of == "passes" for row in rows):
        return None
    return Tolerance(goal.tolerance, goal.measure, tuple(goal.measure.needs), f"values of {goal.measure.name}")


def _engine(
    session: Session, placement: Placement | str, passes: int, engine: str, tolerance: Tolerance | None = None
) -> Engine:
    """The engine for one placement, which is audited first. Passes that would all be the same are run once."""
    (resolved,) = session.resolve([placement])
    session.audit(resolved, placement)
    return choose_engine(session, [resolved], passes if resolved else 1, engine, tolerance=tolerance)


def _measured(
    session: Session,
    placement: Placement | str,
    passes: int,
    chosen: Chosen,
    engine: str,
    *,
    show: bool | None,
    errors: bool = False,
) -> tuple[Engine, Iterator[tuple[StatisticsBlock, dict[str, Tensor]]]]:
    """The engine, and every block of examples with each measure `[n, …]`, those of their errors behind them."""
    check_passes(passes)
    rows = measures_module.resolve(chosen)
    needs = {"sum_p"}.union(*(row.needs for row in rows)) | ({BLOCKS} if errors else set())
    of_passes = any(row.of == "passes" for row in rows)
    if of_passes:
        check_runs_passes(engine)
    running = _engine(session, placement, passes, engine)
    if of_passes:
        return running, _on_passes(running, rows, needs, show=show)
    return running, _on_statistics(running, rows, needs, show=show)


def _on_statistics(
    engine: Engine, rows: list[Measure], needs: Collection[str], *, show: bool | None
) -> Iterator[tuple[StatisticsBlock, dict[str, Tensor]]]:
    with track("measuring", engine.session.data.n * engine.passes, show=show) as tick:
        for block in engine.statistics(0, needs, tick):
            statistics = block.chunks[0][1]
            values = {row.name: row(block.plain) if row.of == "plain" else row(statistics)[0] for row in rows}
            yield block, values | _errors(rows, statistics)


def _on_passes(
    engine: Engine, rows: list[Measure], needs: Collection[str], *, show: bool | None
) -> Iterator[tuple[StatisticsBlock, dict[str, Tensor]]]:
    with track("measuring", engine.session.data.n * engine.passes, show=show) as tick:
        for block, values in measured_on_passes(engine, 0, rows, needs, free_bytes(engine.session.device), tick):
            yield block, values | _errors(rows, block.chunks[0][1])


def _errors(rows: list[Measure], statistics: PassStatistics) -> dict[str, Tensor]:
    """The Monte Carlo standard error of each measure of the statistics, where these keep their blocks."""
    if not isinstance(statistics, BlockedStatistics):
        return {}
    return {f"{row.name}_error": statistics.jackknife(row)[0].float() for row in rows if row.of == "statistics"}


def _in_order(values: Tensor, session: Session, dim: int) -> Tensor:
    """Examples in the order of the data, however they were batched."""
    order = session.data.order
    return values if order is None else values.index_select(dim, order.argsort().to(values.device))


def _table(session: Session, block: StatisticsBlock, mean: Tensor, values: dict[str, Tensor]) -> pd.DataFrame:
    batch, prediction = block.batch, mean.argmax(-1)
    if session.dense:
        return dense_table(session, block, prediction, values)
    table: dict[str, Any] = {"id": batch.ids}
    if batch.groups is not None:
        table["group"] = batch.groups
    right = None if batch.labels is None else (prediction == batch.labels)
    numbers = {"prediction": prediction} if batch.labels is None else {"label": batch.labels, "prediction": prediction}
    for name, number in numbers.items():
        table[name] = number.numpy()
        if session.class_names is not None:
            table[_NAMED[name]] = [session.class_names[one] for one in number.tolist()]
    table["probability"] = mean.amax(-1).numpy()
    if right is not None:
        table["correct"] = right.numpy()
    return pd.DataFrame(table | {name: value.cpu().numpy() for name, value in values.items()})
