"""Evaluation of a trained network under one placement: every measure per voxel, and how well it finds errors.

Owns the values of the study's rows (one row per case and measure) and the cost of each measure. Passes and statistics
come from the engine. Voxels that are not valid count nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope import measures as m
from dropscope import scores
from dropscope.engine import Engine, Tick, choose_engine, open_session, quiet, sealed
from dropscope.injection import Audit
from dropscope.measures import Measure
from dropscope.measures.statistics import PassStatistics
from dropscope.placement import Placement
from dropscope.scores import PassLabels
from dropscope.studies.segmentation_measures.calibration import (
    AS_IT_IS,
    ErrorCurve,
    fit_curve,
    group_voxels,
    judge_curve,
)
from dropscope.studies.segmentation_measures.preparation import Prepared
from dropscope.studies.segmentation_measures.strata import divide_by_distance

FLOORS = (1e-10, 1e-3)  # beside the 1e-7 of the definition: the ranking by this measure depends on it
FOUR = m.SEGMENTATION
ROUNDS = 7  # of timing
_IGNORED = 255
_VOXELS_AT_ONCE = {"cuda": 1 << 21, "cpu": 1 << 17}
_AUDITED = 4
_PATCH = 5  # voxels a side of the worst patch; cut to the volume's where that is thinner


def floored_name(floor: float) -> str:
    """The name of Kullback-Leibler with another floor of an empty bin.

    >>> floored_name(1e-3)
    'kullback_leibler_1e-3'
    """
    return f"kullback_leibler_{floor:.0e}".replace("e-0", "e-")


def _floored(floor: float) -> Measure:
    needs = ("histogram", "sum_p")
    function = partial(m.kullback_leibler, floor=floor)
    return Measure(floored_name(floor), function, needs, "about [2 log floor, 0]", "S3 eq 6")


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

    It is the plain loop: noise starts in the second block, so a captured graph would save little and cost seconds per
    network. Masks are keyed by the names of the cases, so no case depends on another.
    """
    at_once = max(1, _VOXELS_AT_ONCE["cuda" if device.type == "cuda" else "cpu"] // prepared.labels[0].numel())
    chosen = list(cases)
    labels = torch.where(prepared.valid[chosen], prepared.labels[chosen], _IGNORED).long()
    session = open_session(
        net, (prepared.images[chosen], labels), seed=seed, device=device, batch_size=at_once, ignore_label=_IGNORED,
        ids=[prepared.names[i] for i in chosen], groups=[prepared.about["patients"][i] for i in chosen],
    )  # fmt: skip
    return choose_engine(session, session.resolve([placement]), passes, engine="loop")


def audit_noise(engine: Engine, placement: Placement | str) -> Audit:
    """Fails unless noise takes effect where the placement asks for it.

    On few cases, because every site costs passes over them; but on more than one, of whose few feature maps a low rate
    may drop none in all passes of the audit.
    """
    few = engine.session.data.rebatched(_AUDITED)
    return engine.session.with_data(few).audit(engine.placements[0], placement)


def evaluate(
    net: nn.Module,
    prepared: Prepared,
    cases: Sequence[int],
    placement: Placement | str,
    passes: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    tick: Tick = quiet,
    curves: Mapping[str, ErrorCurve] | None = None,
) -> pd.DataFrame:
    """A row per case and measure: `auprc` (NaN where the case has no errors), over all voxels and within each stratum;
    errors, voxels, Dice of each class, the uncertainty of the case as a whole, and how well `curves` fit."""
    engine = open_engine(net, prepared, cases, placement, passes, seed, torch.device(device))
    audit_noise(engine, placement)
    index_of = {name: index for index, name in enumerate(prepared.names)}
    rows: list[dict[str, Any]] = []
    for batch in _run(engine, prepared, passes, tick):
        rows += _rows(batch, prepared, [index_of[name] for name in batch.names], curves or {})
    return pd.DataFrame(rows)


def fit_curves(engine: Engine, prepared: Prepared, tick: Tick = quiet) -> dict[str, ErrorCurve]:
    """P(error) as a function of each measure, from the engine's cases: those for validation."""
    groups: dict[str, list[Tensor]] = {}
    for batch in _run(engine, prepared, engine.passes, tick):
        for name, values in batch.maps.items():
            for own, wrong, valid in zip(values, batch.wrong, batch.valid, strict=True):
                groups.setdefault(name, []).append(group_voxels(own[valid], wrong[valid]))
    return {name: fit_curve(parts) for name, parts in groups.items()}


@dataclass(frozen=True, eq=False)
class _Passed:
    """A batch of cases after its passes, on the device."""

    names: list[str]
    label: Tensor
    valid: Tensor
    prediction: Tensor
    wrong: Tensor
    votes: PassLabels
    maps: dict[str, Tensor]


def _run(engine: Engine, prepared: Prepared, passes: int, tick: Tick) -> Iterator[_Passed]:
    """The passes of every batch, and the map of every measure."""
    session = engine.session
    needs = {"sum_p"}.union(*(measure.needs for measure in MEASURES))
    for batch in session.data.batches:
        assert batch.labels is not None
        label = batch.labels.to(session.device)
        with torch.no_grad(), sealed():
            plain = session.plain(batch)
            statistics = PassStatistics(needs, plain.movedim(1, -1))
            votes = PassLabels(prepared.classes, label != _IGNORED)
            for block in engine.samples(0, batch, range(passes), tick):
                for p in block.probabilities:
                    statistics.update(p.movedim(1, -1))
                    votes.update(p.argmax(1))
            maps = {measure.name: measure(statistics) for measure in MEASURES}
            maps |= {name: function(plain) for name, function in BASELINES.items()}
            prediction, valid = statistics.mean.argmax(-1), label != _IGNORED
        wrong = (prediction != label) & valid
        yield _Passed([str(name) for name in batch.ids], label, valid, prediction, wrong, votes, maps)


def _rows(
    batch: _Passed, prepared: Prepared, cases: Sequence[int], curves: Mapping[str, ErrorCurve]
) -> list[dict[str, Any]]:
    label, valid, prediction, wrong, votes, maps = (
        batch.label, batch.valid, batch.prediction, batch.wrong, batch.votes, batch.maps
    )  # fmt: skip
    parts = divide_by_distance(label, valid)
    overlap = scores.dice(prediction, label, prepared.classes, ignore_label=_IGNORED)
    of_case = {
        "errors": wrong.flatten(1).sum(1),
        "voxels": valid.flatten(1).sum(1),
        **{f"errors_{name}": (wrong & part).flatten(1).sum(1) for name, part in parts.items()},
        **{f"voxels_{name}": part.flatten(1).sum(1) for name, part in parts.items()},
        **{f"dice_{c}": overlap[:, c] for c in range(prepared.classes)},
        "volume_variation": votes.volume_variation[:, 1:].nanmean(1),
        "pairwise_disagreement": 1 - votes.pairwise_dice[:, 1:].nanmean(1)
        if votes.passes > 1
        else torch.full((len(label),), torch.nan),
    }
    of_measure = {
        name: {
            "auprc": scores.voxel_auprc(values, wrong, valid),
            **{f"auprc_{part}": scores.voxel_auprc(values, wrong, mask) for part, mask in parts.items()},
            "foreground_mean": scores.foreground_mean(values, prediction, valid_mask=valid),
            "worst_patch": scores.worst_patch(values, _PATCH, valid_mask=valid),
        }
        for name, values in maps.items()
    }
    case_values = {column: values.tolist() for column, values in of_case.items()}
    measure_values = {
        name: {column: values.tolist() for column, values in columns.items()} for name, columns in of_measure.items()
    }
    about = prepared.about
    return [
        {
            "case": about["names"][case],
            "patient": about["patients"][case],
            "centre": about["centres"][case],
            "measure": name,
            **{column: values[i] for column, values in columns.items()},
            **{column: values[i] for column, values in case_values.items()},
            **(_judged(name, curves[name], maps[name][i], wrong[i], valid[i]) if name in curves else {}),
        }
        for i, case in enumerate(cases)
        for name, columns in measure_values.items()
    ]


def _judged(name: str, curve: ErrorCurve, values: Tensor, wrong: Tensor, valid: Tensor) -> dict[str, Any]:
    """How well the curve of a measure fits one case; beside it the one measure that is a P(error) by itself."""
    kept = judge_curve(curve(values[valid]), wrong[valid], curve.share)
    if name == AS_IT_IS:
        kept |= {f"raw_{what}": value for what, value in judge_curve(values[valid], wrong[valid], curve.share).items()}
    return kept


def compute_maps(
    net: nn.Module, prepared: Prepared, cases: Sequence[int], placement: Placement | str, passes: int, seed: int,
    device: torch.device,
) -> list[Maps]:  # fmt: skip
    """Prediction and the paper's four measures voxel by voxel, for pictures."""
    engine = open_engine(net, prepared, cases, placement, passes, seed, device)
    measures = m.resolve(list(FOUR))
    needs = {"sum_p"}.union(*(measure.needs for measure in measures))
    maps = []
    for batch in engine.session.data.batches:
        with torch.no_grad(), sealed():
            statistics = PassStatistics(needs)
            for block in engine.samples(0, batch, range(passes)):
                for p in block.probabilities:
                    statistics.update(p.movedim(1, -1))
            values = {measure.name: measure(statistics).float().cpu() for measure in measures}
        prediction = statistics.mean.argmax(-1).cpu()
        maps += [Maps(prediction[i], {name: value[i] for name, value in values.items()}) for i in range(batch.n)]
    return maps


def measure_costs(
    net: nn.Module, prepared: Prepared, case: int, placement: Placement | str, passes: int, seed: int,
    device: torch.device,
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds for one case: `forward` for all passes, and for each measure by itself, its statistics included.

    Passes are kept here, so that a measure is timed without them. Every measure is timed in each of a few rounds, after
    one that is not counted.
    """
    engine = open_engine(net, prepared, [case], placement, passes, seed, device)
    with torch.no_grad(), sealed():
        batch = engine.session.data.batches[0]
        list(engine.samples(0, batch, range(2)))  # the first forwards choose their kernels

        def run_passes() -> list[Tensor]:
            return [p.movedim(1, -1) for block in engine.samples(0, batch, range(passes)) for p in block.probabilities]

        seconds, stored = _time(run_passes, device)
        rounds: dict[str, list[float]] = {"forward": [seconds]}
        for number in range(ROUNDS + 1):
            for measure in MEASURES:
                taken = _time(lambda measure=measure: _measure_alone(measure, stored), device)[0]  # type: ignore[misc]
                if number:
                    rounds.setdefault(measure.name, []).append(taken)
    return rounds


def _measure_alone(measure: Measure, stored: Sequence[Tensor]) -> Tensor:
    statistics = PassStatistics(measure.needs)
    for p in stored:
        statistics.update(p, check=False)
    return measure(statistics)


def _time(function: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    started = time.perf_counter()
    result = function()
    wait()
    return time.perf_counter() - started, result
