"""Predictions of NIfTI volumes: maps, a picture and a record for each case, and a table of the cases.

Owns the order of the work and the folder that comes out. See `windows` for passes over a volume, `sizes` for what a
network takes, `records` for which cases are finished, `tables` and `overlays` for what is written beside the maps.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dropscope.atomic import atomic_write, output_folder
from dropscope.checks import check_choice
from dropscope.device import memory_bytes
from dropscope.engine import Session, Tick, sealed
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.injection import ResolvedPlacement
from dropscope.measures import Measure
from dropscope.model import Call, weights_fingerprint
from dropscope.parameters import shares
from dropscope.placement import Placement
from dropscope.progress import format_duration, track
from dropscope.volumes import gallery
from dropscope.volumes.labels import find_labels, read_label, structure_names
from dropscope.volumes.nifti import VolumeCase, find_cases, read_voxels, write_map
from dropscope.volumes.options import CONFIDENCE, LABELS, Options, streamed_measures
from dropscope.volumes.records import check_folder, examine_record, read_found, remove_case, write_record
from dropscope.volumes.sizes import fit_session, is_flat, padding_remark, windows_remark
from dropscope.volumes.tables import case_table, rankings, structure_scores, summarise
from dropscope.volumes.transforms import Transforms, read_transformed
from dropscope.volumes.windows import (
    Windows,
    bytes_per_voxel,
    count_windows,
    plan_windows,
    predict_volume,
)

_Scores = dict[str, list[float | None]]


@dataclass(frozen=True)
class PredictionPlan:
    """What `predict` would do. Prints itself.

    Attributes:
        cases: Every case, as its files have it.
        done: Names of cases that are finished in the folder.
        windows: Case → windows of one pass.
        passes: Passes over each case.
        seconds: Time of what is left, from the time of one window.
        bytes_per_voxel: Memory of the statistics.
        files: Names of the files that each case gets.
        remarks: What is worth knowing before it starts: padding, damaged cases, windows that change volumes.
    """

    cases: tuple[VolumeCase, ...]
    done: tuple[str, ...]
    windows: dict[str, int]
    passes: int
    seconds: float
    bytes_per_voxel: int
    files: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.cases)} volumes, {len(self.done)} of them already there"]
        for case in self.cases:
            state = "done" if case.name in self.done else f"{self.windows[case.name]} windows × {self.passes} passes"
            lines.append(f"  {case.name}: {case.channels} × {'×'.join(map(str, case.shape))}, {state}")
        lines.append(f"about {format_duration(self.seconds)}; statistics take {self.bytes_per_voxel} bytes a voxel")
        lines.append("each case gets " + ", ".join(self.files))
        lines += [f"remark: {remark}" for remark in self.remarks]
        return "\n".join(lines)


@shares(Options)
def predict(
    model: nn.Module,
    placement: Placement | str,
    images: Iterable[str | Path],
    out: str | Path,
    *,
    labels: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    transforms: Transforms | None = None,
    overlays: bool = True,
    rank_by: str = "uncertainty",
    overwrite: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Predicts every volume under `out/CASE/`: label map, uncertainty maps, a picture and a record.

    Args:
        model: A segmentation network, 3-D or 2-D.
        placement: Where noise goes, such as "own" or "up.1=0.3".
        images: NIfTI files and folders of them; "a.nii.gz,b.nii.gz" is one case with a channel from each.
        out: Folder of the maps. Cases that are finished there under the same options are not predicted again.
        labels: For Dice: a folder of files named like the cases, or a pattern such as "labels/{case}_seg.nii.gz".
        class_names: Names of the classes, with or without the background, for columns and pictures.
        transforms: Preprocessing of your own: a function of the array `[channels, *shape]`, or MONAI's transforms, of
            arrays or of dicts. Volumes must keep their shape and place.
        overlays: Whether to draw `overlay.png` for every case, and `overview.png`.
        rank_by: The column that ranks the cases: "uncertainty", "volume_variation", "pairwise_dice", or of a map its
            "…_foreground_mean" or "…_worst_patch".
        overwrite: Whether to predict cases again that are finished in the folder, or were predicted otherwise.
        progress: Whether to show progress and remarks; None decides by the terminal.

    Returns:
        The table that is also written to `out/cases.csv`, a row per case, most uncertain first: `rank`, `uncertainty`
        (mean predictive entropy over the predicted foreground), Dice and volume error where there are labels, and for
        each structure millilitres with the middle 95 % of the passes, uncertainty, volume variation and agreement of
        passes (`pairwise_dice`); of every measure the mean over the foreground and the worst patch. `attrs["remarks"]`
        holds what is worth knowing.

    Raises:
        BadInput: Before any pass, where an argument or a file cannot be used.
    """
    beside = _Beside(labels, class_names, transforms, overlays, rank_by, overwrite)
    opened = _open_prediction(
        model, images, output_folder(out), _options(placement, options, beside), beside, progress=progress
    )
    if progress is not False:
        for remark in opened.remarks:
            print(f"remark: {remark}", file=sys.stderr, flush=True)
    left = opened.left()
    total = sum(opened.count_windows(case) for case in left) * opened.options.passes
    with track("predicting", total, "windows", show=progress) as tick:
        for case in left:
            _predict_case(opened, case, tick)
    return _write_table(opened)


@shares(predict, without=("progress",))
def plan_prediction(
    model: nn.Module, placement: Placement | str, images: Iterable[str | Path], out: str | Path, **options: Any
) -> PredictionPlan:
    """What `predict` would do with the same arguments: everything is checked, one window timed, nothing written."""
    beside = _Beside(**{field.name: options.pop(field.name, field.default) for field in fields(_Beside)})
    opened = _open_prediction(
        model, images, output_folder(out), _options(placement, options, beside), beside, progress=False
    )
    counts = {case.name: opened.count_windows(case) for case in opened.cases}
    left, passes = sum(counts[case.name] for case in opened.left()), opened.options.passes
    seconds = _seconds_per_window(opened.session) * left * passes if left else 0
    done, files = tuple(sorted(opened.done)), (*opened.files, *([gallery.OVERLAY] if beside.overlays else []))
    return PredictionPlan(opened.cases, done, counts, passes, seconds, opened.voxel_bytes, files, opened.remarks)


@dataclass(frozen=True)
class _Beside:
    """Arguments that change nothing in the maps, but for the transforms, which the voxels show."""

    labels: str | Path | None = None
    class_names: Sequence[str] | None = None
    transforms: Transforms | None = None
    overlays: bool = True
    rank_by: str = "uncertainty"
    overwrite: bool = False


@dataclass(frozen=True, eq=False)
class _Prediction:
    """A prediction with everything checked: options, volumes, the model audited on windows of the first, the folder."""

    options: Options
    beside: _Beside
    measures: tuple[Measure, ...]
    out: Path
    cases: tuple[VolumeCase, ...]
    windows: dict[str, Windows]  # by case
    voxels: dict[str, int]  # case → fingerprint of its voxels
    read: Callable[[VolumeCase], Tensor]  # the last case that was read is cached
    session: Session
    resolved: ResolvedPlacement
    weights: str
    memory: int
    structures: tuple[str, ...]  # names of the classes but the background
    labels: dict[str, Path]  # case → its label file
    done: frozenset[str]
    remarks: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return _files(self.measures)

    @property
    def voxel_bytes(self) -> int:
        return bytes_per_voxel(self.measures, self.session.classes)

    def left(self) -> list[VolumeCase]:
        return [case for case in self.cases if case.name not in self.done]

    def count_windows(self, case: VolumeCase) -> int:
        return count_windows(self.windows[case.name], self.voxel_bytes, self.memory, self.session.device)

    def spec(self, case: VolumeCase) -> dict[str, Any]:
        return self.options.spec(self.windows[case.name], self.weights, self.voxels[case.name])


def _options(placement: Placement | str, given: dict[str, Any], beside: _Beside) -> Options:
    return Options.of(placement, given, transformed=beside.transforms is not None)


def _open_prediction(
    model: nn.Module,
    images: Iterable[str | Path],
    out: Path,
    options: Options,
    beside: _Beside,
    *,
    progress: bool | None,
) -> _Prediction:
    """Checks everything, reads every volume once, and audits the placement on windows of the first."""
    measures = streamed_measures(options.measures)
    check_choice(beside.rank_by, "rank_by", rankings([measure.name for measure in measures]))
    cases = tuple(find_cases([images] if isinstance(images, str | Path) else images))
    labels = find_labels(beside.labels, cases)
    check_folder(out, [case.name for case in cases], _files(measures))
    asked = {case.name: _plan_case_windows(case, options, model) for case in cases}
    read = functools.lru_cache(maxsize=1)(
        lambda case: read_transformed(case, str(options.scale), beside.transforms),
    )
    voxels = _fingerprint_volumes(cases, read, progress=progress)
    first, image = cases[0], read(cases[0])
    session, multiples = fit_session(model, first, image, asked, options)
    windows = {case.name: _plan_case_windows(case, options, model, multiples) for case in cases}
    structures = structure_names(beside.class_names, session.classes)
    for case in cases:
        if case.name in labels:
            read_label(labels[case.name], case, session.classes)  # refused now, or never
    weights = weights_fingerprint(session.model)
    (resolved,) = session.resolve([options.placement])
    session.audit(resolved, options.placement)
    remarks: list[str | None] = []
    if labels and len(labels) < len(cases):
        remarks.append(f"{len(cases) - len(labels)} of {len(cases)} cases have no label, and so no Dice")
    done = set()
    for case in () if beside.overwrite else cases:
        spec = options.spec(windows[case.name], weights, voxels[case.name])
        state = examine_record(out / case.name, spec, _files(measures), len(structures))
        done |= {case.name} if state.done else set()
        if state.damage:
            remarks.append(f"{case.name} is predicted again: {state.damage}")
    if len(done) < len(cases):
        remarks.insert(0, padding_remark(windows, options.roi, multiples))
    if first.name not in done:
        remarks.append(windows_remark(session, first, image, windows[first.name], structures))
    return _Prediction(
        options, beside, measures, out, cases, windows, voxels, read, session, resolved, weights,
        memory_bytes(options.memory, session.device), structures, labels, frozenset(done),
        tuple(remark for remark in remarks if remark),
    )  # fmt: skip


def _fingerprint_volumes(
    cases: Sequence[VolumeCase], read: Callable[[VolumeCase], Tensor], *, progress: bool | None
) -> dict[str, int]:
    """Every volume read once, so that a bad one is refused before the work and not in the middle of it."""
    first, voxels, channels = cases[0], {}, {}
    for case in cases:
        if case.channels != first.channels:
            raise _other_channels(case, case.channels, first, first.channels)
    with track("reading volumes", len(cases), "volumes", show=progress) as tick:
        for case in reversed(cases):  # the first is then cached
            image = read(case)
            voxels[case.name], channels[case.name] = int(Call((image[None],)).keys()[0]), len(image)
            tick(1)
    for case in cases:
        if channels[case.name] != channels[first.name]:  # by the transforms
            raise _other_channels(case, channels[case.name], first, channels[first.name])
    return voxels


def _other_channels(case: VolumeCase, channels: int, first: VolumeCase, wanted: int) -> BadInput:
    what = f"{case.place} must have the {wanted} channels of {first.place}"
    return BadInput(what, case.place, Phrase(f"{channels} channels"), "predict it by itself")


def _seconds_per_window(session: Session) -> float:
    batch = session.data.batches[0]
    started = time.perf_counter()
    with torch.no_grad(), sealed():
        session.plain(batch)
    return (time.perf_counter() - started) / batch.n


def _predict_case(opened: _Prediction, case: VolumeCase, tick: Tick) -> None:
    """Predicts one case and writes its maps, then its record, then its picture."""
    options, windows = opened.options, opened.windows[case.name]
    try:
        prediction = predict_volume(
            opened.session, opened.resolved, opened.read(case), windows, opened.measures, options.passes,
            options.batch_size, opened.memory, tick,
        )  # fmt: skip
    except torch.OutOfMemoryError as error:
        what = f"{opened.session.device} must hold {options.batch_size} windows of {case.place}"
        remedy = "write roi=(96, 96, 96) for smaller windows, or batch_size=1"
        raise BadInput(what, "roi", Phrase(first_line(error)), remedy) from error
    folder = opened.out / case.name
    remove_case(folder)
    kind = np.uint8 if opened.session.classes <= 256 else np.int16
    write_map(folder / f"{LABELS}.nii.gz", prediction.labels.numpy().astype(kind), case, LABELS)
    write_map(folder / f"{CONFIDENCE}.nii.gz", prediction.confidence.numpy(), case, CONFIDENCE)
    for measure in opened.measures:
        write_map(folder / f"{measure.name}.nii.gz", prediction.maps[measure.name].numpy(), case, measure.name)
    found = summarise(case, prediction, opened.session.classes)
    write_record(folder, opened.spec(case), found, opened.files)
    if opened.beside.overlays:
        _draw(opened, case, found, _scores_of(opened, case))


def _write_table(opened: _Prediction) -> pd.DataFrame:
    """The table of all cases, with Dice and pictures for those that have none yet."""
    found = {case.name: read_found(opened.out / case.name) for case in opened.cases}
    scores = {case.name: each for case in opened.cases if (each := _scores_of(opened, case)) is not None}
    places = {}
    for case in opened.cases:
        places[case.name] = {"maps": case.name}
        if opened.beside.overlays:
            _draw(opened, case, found[case.name], scores.get(case.name))
            places[case.name] |= {"overlay": f"{case.name}/{gallery.OVERLAY}"}
    table = case_table(list(found.values()), opened.structures, scores, places, opened.beside.rank_by)
    atomic_write(opened.out / "cases.csv", lambda part: table.to_csv(part, index=False))
    if opened.beside.overlays:
        by_name = {case.name: case for case in opened.cases}
        ranked = [by_name[name] for name in table.case]
        measures = [measure.name for measure in opened.measures]
        gallery.draw_cases(opened.out, ranked, table, opened.labels, measures, opened.session.classes)
    table.attrs["remarks"] = opened.remarks
    return table


def _draw(opened: _Prediction, case: VolumeCase, found: dict[str, Any], scores: _Scores | None) -> None:
    measures, label = [measure.name for measure in opened.measures], opened.labels.get(case.name)
    dice = None if scores is None else scores["dice"]
    gallery.draw_overlay(opened.out / case.name, case, found, opened.structures, dice, label, measures)


def _scores_of(opened: _Prediction, case: VolumeCase) -> _Scores | None:
    path = opened.labels.get(case.name)
    if path is None:
        return None
    classes = opened.session.classes
    predicted = torch.from_numpy(read_voxels(opened.out / case.name / f"{LABELS}.nii.gz")).reshape(case.shape).long()
    return structure_scores(predicted, read_label(path, case, classes), classes)


def _files(measures: Sequence[Measure]) -> tuple[str, ...]:
    return tuple(f"{name}.nii.gz" for name in (LABELS, CONFIDENCE, *(measure.name for measure in measures)))


def _plan_case_windows(
    case: VolumeCase, options: Options, model: nn.Module, multiples: Sequence[int] = (1, 1, 1)
) -> Windows:
    roi = case.shape[:2] if options.roi is None and is_flat(model) else options.roi
    windows = plan_windows(case.shape, roi, options.overlap, multiples)
    if min(case.shape) == 1 and not windows.flat:
        remedy = "write roi=(128, 128) for a 2-D network; a 3-D network needs volumes"
        raise BadInput(f"{case.place} must have more than one slice along every axis", case.place, case.shape, remedy)
    return windows
