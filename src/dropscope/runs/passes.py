"""The probabilities of passes and the uncertainty of examples under one placement: `sample`, `uncertainty`, `maps`.

Owns these three doors. Which engine runs is settled in `passes_under`: the shared one where the model can be captured,
the plain loop otherwise, the same masks in both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dropscope import measures as measures_module
from dropscope.checks import check_passes
from dropscope.device import free_bytes
from dropscope.engine import Block, CaptureFailed, Session, Shared, passes_of, precise, prepare, run_reference
from dropscope.errors import BadInput
from dropscope.injection import SiteNoise, audit_live
from dropscope.measures import Measure
from dropscope.placement import Placement, as_placement
from dropscope.progress import track
from dropscope.tracing import Point

log = logging.getLogger("dropscope")

ENGINES = ("auto", "shared", "reference")
LABELS = ("mean", "plain")


def sample(
    model: nn.Module,
    placement: Placement | str,
    inputs: Any,
    passes: int = 100,
    seed: int = 0,
    engine: str = "auto",
    **common: Any,
) -> Tensor:
    """Class probabilities of every pass, `[passes, N, C, …]`. Memory grows with passes: for measures use `uncertainty`.

    >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    >>> sample(net, "last=0.5", torch.ones(2, 4), passes=5).shape
    torch.Size([5, 2, 3])
    """
    check_passes(passes)
    show = common.pop("progress", None)
    setting = prepare(model, inputs, seed=seed, **common)
    live = _audited(setting, placement)
    shared = shared_or_none(setting, [live], passes, engine, None)
    found = []
    with torch.no_grad(), precise(), track("sampling", setting.data.n * passes, show=show) as tick:
        for batch in setting.data.batches:
            if shared is None:
                found.append(torch.stack(list(passes_of(setting, live, batch, passes))))
                tick(batch.n * passes)
            else:
                found.append(shared.samples(batch, tick))
    return torch.cat(found, 1)


def uncertainty(
    model: nn.Module,
    placement: Placement | str,
    data: Any,
    passes: int = 100,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    seed: int = 0,
    label: str = "mean",
    engine: str = "auto",
    **common: Any,
) -> pd.DataFrame:
    """A row per example: id, label, prediction, correct, and each measure (for dense outputs, means over the example).

    >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    >>> table = uncertainty(net, "last=0.5", (torch.randn(6, 4), [0, 1, 2, 0, 1, 2]), passes=20)
    >>> list(table.columns)[:5], len(table)
    (['id', 'label', 'prediction', 'correct', 'variation_predicted'], 6)
    """
    check_label(label)
    show = common.pop("progress", None)
    setting = prepare(model, data, seed=seed, **common)
    rows = []
    for block, values in _measured(setting, placement, passes, measures, engine, show):
        chosen = (block.parts[0][1].mean[0] if label == "mean" else block.plain.movedim(1, -1)).argmax(-1).cpu()
        rows.append(_table(setting, block, chosen, values))
    return pd.concat(rows, ignore_index=True)


def maps(
    model: nn.Module,
    placement: Placement | str,
    inputs: Any,
    passes: int = 50,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    seed: int = 0,
    engine: str = "auto",
    **common: Any,
) -> dict[str, Tensor]:
    """Uncertainty per voxel, pixel or label: `{measure: [N, *spatial]}` and `"prediction"`, from the mean over passes.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    >>> found = maps(net, "0=0.5", torch.randn(2, 1, 8, 8), passes=5, measures=["bald"])
    >>> {name: tuple(value.shape) for name, value in found.items()}
    {'bald': (2, 8, 8), 'prediction': (2, 8, 8)}
    """
    show = common.pop("progress", None)
    setting = prepare(model, inputs, seed=seed, **common)
    found: dict[str, list[Tensor]] = {}
    for block, values in _measured(setting, placement, passes, measures, engine, show):
        for name, value in values.items():
            found.setdefault(name, []).append(value.cpu())
        found.setdefault("prediction", []).append(block.parts[0][1].mean[0].argmax(-1).cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}


def check_label(label: str) -> None:
    if label not in LABELS:
        raise BadInput(
            "labels come from the averaged passes or the plain pass",
            "label",
            label,
            "write label='mean' or label='plain'",
        )


def _audited(setting: Session, placement: Placement | str) -> dict[Point, SiteNoise]:
    """The values of the placement, once an audit has shown that noise takes effect there."""
    (live,) = setting.resolve([placement])
    args, kwargs = setting.on_device(setting.data.batches[0])
    with precise():
        found = audit_live(setting.model, as_placement(placement), live, args, kwargs, setting.site_map, setting.seed)
    found.raise_if_failed()
    return live


def _measured(
    setting: Session,
    placement: Placement | str,
    passes: int,
    measures: Sequence[Any] | None,
    engine: str,
    show: bool | None,
) -> Iterator[tuple[Block, dict[str, Tensor]]]:
    """Blocks of examples under one placement, with each measure of each example."""
    check_passes(passes)
    rows = measures_module.resolve(measures)
    live = _audited(setting, placement)
    needs = {"sum_p"}.union(*(row.needs for row in rows))
    if any(row.of == "passes" for row in rows):
        yield from _measured_on_passes(setting, live, passes, rows, needs, engine)
        return
    shared = shared_or_none(setting, [live], passes, engine, None)
    with track("measuring", setting.data.n * passes, show=show) as tick:
        for block in blocks_of(setting, [live], shared, passes, needs, tick):
            statistics = block.parts[0][1]
            yield block, {row.name: row(statistics)[0] for row in rows}


def _measured_on_passes(
    setting: Session, live: Any, passes: int, rows: list[Measure], needs: Collection[str], engine: str
) -> Iterator[tuple[Block, dict[str, Tensor]]]:
    """For a measure that wants the passes themselves: batch by batch, all passes of a batch in memory."""
    from dropscope.statistics import PassStatistics, from_passes

    shared = shared_or_none(setting, [live], passes, engine, None)
    for batch in setting.data.batches:
        with torch.no_grad(), precise():
            plain = setting.plain(batch)
            every = (
                torch.stack(list(passes_of(setting, live, batch, passes))) if shared is None else shared.samples(batch)
            )
        statistics = from_passes(every, needs, plain)
        values = {row.name: row(every) if row.of == "passes" else row(statistics) for row in rows}
        lifted = PassStatistics({"sum_p"})
        lifted.update(every.movedim(2, -1).unsqueeze(1), passes_dim=0)  # one placement, as the engines give them
        yield Block(batch, plain, [(np.array([0]), lifted)]), values


def shared_or_none(
    setting: Session, lives: Sequence[Any], passes: int, engine: str, memory: int | None, fixed: bool = False
) -> Shared | None:
    """The shared engine, or None for the plain loop; the reason is logged."""
    if engine not in ENGINES:
        raise BadInput("an engine is auto, shared or reference", "engine", engine, "write engine='auto'")
    if engine == "reference" or not any(lives):
        return None  # without noise there is nothing to share
    try:
        return Shared(setting, lives, passes, memory or free_bytes(setting.device), fixed)
    except CaptureFailed as reason:
        if engine == "shared":
            raise BadInput(
                "the shared engine needs a model it can capture", "engine", str(reason), "write engine='auto'"
            ) from reason
        log.warning("the plain loop runs instead of the shared engine: %s", reason)
        return None


def blocks_of(
    setting: Session,
    lives: Sequence[Any],
    shared: Shared | None,
    passes: int,
    needs: Collection[str],
    tick: Callable[[int], None],
) -> Iterator[Block]:
    """Every placement on every block of examples, by whichever engine there is."""
    if shared is None:
        yield from run_reference(setting, lives, passes, needs, tick)
        return
    for unit in shared.units(len(lives) + 1):
        yield from shared.run(unit, needs, tick)


def _table(setting: Session, block: Block, chosen: Tensor, values: dict[str, Tensor]) -> pd.DataFrame:
    batch = block.batch
    table: dict[str, Any] = {"id": batch.ids}
    if batch.groups is not None:
        table["group"] = batch.groups
    right = None if batch.labels is None else (chosen == batch.labels)
    if setting.dense:
        if right is not None and batch.labels is not None:
            ignored = setting.ignore_label
            counted = torch.ones_like(right) if ignored is None else batch.labels.ne(ignored)
            shares = (right & counted).flatten(1).sum(1).double() / counted.flatten(1).sum(1)
            table["correct"] = shares.numpy()  # of the voxels, pixels or labels that have a label
        means = {name: value.flatten(1).double().mean(1).cpu().numpy() for name, value in values.items()}
        return pd.DataFrame(table | means)
    if batch.labels is not None:
        table["label"] = batch.labels.numpy()
    table["prediction"] = chosen.numpy()
    if right is not None:
        table["correct"] = right.numpy()
    return pd.DataFrame(table | {name: value.cpu().numpy() for name, value in values.items()})
