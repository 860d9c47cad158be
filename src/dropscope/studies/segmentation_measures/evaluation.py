"""One trained network under one placement on the test cases: every measure per voxel, and how well it finds errors.

Owns the rows of the study (one per case and measure) and the cost of each measure. Passes and statistics are the
engine's, measures and scores are those of everybody; voxels that are not valid count nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope import measures as m
from dropscope import scores
from dropscope.engine import Engine, choose_engine, open_session, precise
from dropscope.injection import Audit
from dropscope.measures import Measure
from dropscope.placement import Placement
from dropscope.scores import PassLabels
from dropscope.statistics import PassStatistics
from dropscope.studies.segmentation_measures.preparing import Prepared

FLOORS = (1e-10, 1e-3)  # beside the 1e-7 of the definition: the ranking by this measure depends on it
FOUR = m.SEGMENTATION
_IGNORED = 255
_VOXELS_AT_ONCE = {"cuda": 1 << 21, "cpu": 1 << 17}
_AUDITED = 4
_PATCH = 5  # voxels a side of the worst patch; cut to the volume's where that is thinner


def _floored(floor: float) -> Measure:
    name = f"kullback_leibler_{floor:.0e}".replace("e-0", "e-")
    return Measure(
        name, partial(m.kullback_leibler, floor=floor), ("histogram", "sum_p"), "about [2 log floor, 0]", "S3 eq 6"
    )


MEASURES: tuple[Measure, ...] = (
    *m.resolve(list(FOUR)),
    *m.resolve(["averaged_std"]),
    *map(_floored, FLOORS),
    *m.resolve(["predictive_entropy"]),  # of the mean: what most people would take
)
BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain_entropy": m.plain_entropy,
    "plain_max_probability": m.plain_max_probability,
}


@dataclass(frozen=True, eq=False)
class Maps:
    """One case voxel by voxel, on the CPU."""

    prediction: Tensor  # int64 [*roi]
    values: dict[str, Tensor]  # measure → float32 [*roi]


def open_engine(
    net: nn.Module,
    prepared: Prepared,
    cases: Sequence[int],
    placement: Placement | str,
    passes: int,
    seed: int,
    device: torch.device,
) -> Engine:
    """The engine for one placement on the cases.

    The plain loop: noise starts in the second block, so a captured graph would save little and cost seconds per network.
    Masks are keyed by the names of the cases, so no case depends on another.
    """
    at_once = max(1, _VOXELS_AT_ONCE["cuda" if device.type == "cuda" else "cpu"] // prepared.labels[0].numel())
    rows = list(cases)
    labels = torch.where(prepared.valid[rows], prepared.labels[rows], _IGNORED).long()
    session = open_session(
        net, (prepared.images[rows], labels), seed=seed, device=device, batch_size=at_once, ignore_label=_IGNORED,
        ids=[prepared.names[i] for i in rows], groups=[prepared.about["patients"][i] for i in rows],
    )  # fmt: skip
    return choose_engine(session, session.resolve([placement]), passes, engine="loop")


def check_noise(engine: Engine, placement: Placement | str) -> Audit:
    """Fails unless noise takes effect where the placement asks for it. Few cases, because every site costs passes of
    them; but not one, of whose few feature maps a low rate may drop none in all passes of the audit."""
    session = engine.session
    few = session.data.rebatched(_AUDITED)
    return session.with_data(few).audit(engine.placements[0], placement)


def evaluate(
    net: nn.Module,
    prepared: Prepared,
    cases: Sequence[int],
    placement: Placement | str,
    passes: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    tick: Callable[[int], None] = lambda forwards: None,
) -> pd.DataFrame:
    """A row per case and measure: `auprc` (NaN where the case has no errors), errors, voxels, Dice of each class, and
    the uncertainty of the case as a whole.

    """
    engine = open_engine(net, prepared, cases, placement, passes, seed, torch.device(device))
    check_noise(engine, placement)
    session = engine.session
    needs = {"sum_p"}.union(*(row.needs for row in MEASURES))
    place = {name: number for number, name in enumerate(prepared.names)}
    rows: list[dict[str, Any]] = []
    for batch in session.data.batches:
        assert batch.labels is not None
        label = batch.labels.to(session.device)
        with torch.no_grad(), precise():
            plain = session.plain(batch)
            kept, votes = PassStatistics(needs, plain.movedim(1, -1)), PassLabels(prepared.classes, label != _IGNORED)
            for block in engine.samples(0, batch, range(passes), tick):
                for p in block.probabilities:
                    kept.update(p.movedim(1, -1))
                    votes.update(p.argmax(1))
            rows += _rows(kept, votes, plain, label, prepared, [place[name] for name in batch.ids])
    return pd.DataFrame(rows)


def _rows(
    kept: PassStatistics, votes: PassLabels, plain: Tensor, label: Tensor, prepared: Prepared, numbers: Sequence[int]
) -> list[dict[str, Any]]:
    prediction, valid = kept.mean.argmax(-1), label != _IGNORED
    wrong = (prediction != label) & valid
    overlap = scores.dice(prediction, label, prepared.classes, ignore_label=_IGNORED)
    of_case = {
        "errors": wrong.flatten(1).sum(1),
        "voxels": valid.flatten(1).sum(1),
        **{f"dice_{c}": overlap[:, c] for c in range(prepared.classes)},
        "volume_variation": votes.volume_variation[:, 1:].nanmean(1),
        "pairwise_disagreement": 1 - votes.pairwise_dice[:, 1:].nanmean(1)
        if votes.passes > 1
        else plain.new_full((len(label),), torch.nan),
    }
    found = {row.name: row(kept) for row in MEASURES} | {name: f(plain) for name, f in BASELINES.items()}
    of_measure = {
        name: {
            "auprc": scores.voxel_auprc(values, wrong, valid),
            "foreground_mean": scores.foreground_mean(values, prediction, valid_mask=valid),
            "worst_patch": scores.worst_patch(values, _PATCH, valid_mask=valid),
        }
        for name, values in found.items()
    }
    known = {column: values.tolist() for column, values in of_case.items()}
    read = {
        name: {column: values.tolist() for column, values in columns.items()} for name, columns in of_measure.items()
    }
    about = prepared.about
    return [
        {
            **{
                "case": about["names"][number],
                "patient": about["patients"][number],
                "centre": about["centres"][number],
            },
            "measure": name,
            **{column: values[i] for column, values in columns.items()},
            **{column: values[i] for column, values in known.items()},
        }
        for i, number in enumerate(numbers)
        for name, columns in read.items()
    ]


def maps_of(
    net: nn.Module, prepared: Prepared, cases: Sequence[int], placement: Placement | str, passes: int, seed: int,
    device: torch.device,
) -> list[Maps]:  # fmt: skip
    """Prediction and the paper's four measures voxel by voxel, for pictures."""
    engine = open_engine(net, prepared, cases, placement, passes, seed, device)
    rows = m.resolve(list(FOUR))
    needs = {"sum_p"}.union(*(row.needs for row in rows))
    found = []
    for batch in engine.session.data.batches:
        with torch.no_grad(), precise():
            kept = PassStatistics(needs)
            for block in engine.samples(0, batch, range(passes)):
                for p in block.probabilities:
                    kept.update(p.movedim(1, -1))
            values = {row.name: row(kept).float().cpu() for row in rows}
        prediction = kept.mean.argmax(-1).cpu()
        found += [Maps(prediction[i], {n: v[i] for n, v in values.items()}) for i in range(batch.n)]
    return found


def costs(
    net: nn.Module, prepared: Prepared, case: int, placement: Placement | str, passes: int, seed: int,
    device: torch.device,
) -> dict[str, float]:  # fmt: skip
    """Seconds for one case: `forward` for all passes, and for each measure by itself, its statistics included.

    Passes are kept here, so that a measure is timed without them; the faster of two runs counts.
    """
    engine = open_engine(net, prepared, [case], placement, passes, seed, device)
    with torch.no_grad(), precise():
        batch = engine.session.data.batches[0]
        list(engine.samples(0, batch, range(2)))  # the first forwards choose their kernels

        def run() -> list[Tensor]:
            return [p.movedim(1, -1) for block in engine.samples(0, batch, range(passes)) for p in block.probabilities]

        taken, outputs = _timed(run, device)
        found = {"forward": taken}
        for row in MEASURES:
            found[row.name] = min(_timed(lambda row=row: _alone(row, outputs), device)[0] for _ in range(2))  # type: ignore[misc]
    return found


def _alone(row: Measure, outputs: Sequence[Tensor]) -> Tensor:
    kept = PassStatistics(row.needs)
    for p in outputs:
        kept.update(p, check=False)
    return row(kept)


def _timed(function: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    started = time.perf_counter()
    result = function()
    wait()
    return time.perf_counter() - started, result
