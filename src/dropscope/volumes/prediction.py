"""Predictions of NIfTI volumes: a label map and an uncertainty map per measure for each case, and a table of the cases.

Owns the folder that comes out, and which cases in it are finished: those with a `case.json`, which is written last.
See `windows` for passes over a volume, and `nifti` for the files.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dropscope.atomic import atomic_write, read_json, same_spec
from dropscope.checks import check_choice, check_count, check_passes
from dropscope.device import memory_bytes
from dropscope.engine import Session, Tick, open_session, precise
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.injection import ResolvedPlacement
from dropscope.measures import SEGMENTATION, Measure
from dropscope.measures import resolve as resolve_measures
from dropscope.model import Call, Outputs, weights_fingerprint
from dropscope.parameters import shares
from dropscope.placement import Placement, as_placement
from dropscope.progress import track
from dropscope.scores import foreground_mean, worst_patch
from dropscope.volumes.nifti import SCALES, VolumeCase, find_cases, read_case, voxel_volume, write_map
from dropscope.volumes.windows import (
    VolumePrediction,
    Windows,
    bytes_per_voxel,
    count_windows,
    cut_out,
    pad,
    plan_windows,
    predict_volume,
)

PATCH = 8  # voxels a side of the patch that `worst_patch` looks for
_AUDITED = 2  # windows: an audit runs every site by itself
_NOT_IDENTITY = ("batch_size", "device", "memory")  # options that change no prediction


@dataclass(frozen=True)
class Options:
    """How volumes are predicted. All but `batch_size`, `device` and `memory` identify a folder of predictions.

    Args:
        placement: Where noise goes.
        passes: Passes over each volume.
        measures: Names of the measures, each of which becomes a map.
        roi: Sides of a window; two sides for the slices of a 2-D network; None for the whole volume at once.
        overlap: Share of a window that the next one covers again.
        seed: Seed of the noise.
        masks: "per_example" draws for every window, "per_pass" once for all windows of a pass.
        outputs: What the model returns.
        scale: "percentiles" moves the 5th percentile of each channel to 0 and its 95th to 1; "none" does nothing.
        batch_size: Windows at once.
        device: Where the model runs; where it is, if None.
        memory: Budget of the statistics, such as "4GiB".
    """

    placement: str
    _: KW_ONLY
    passes: int = 50
    measures: Sequence[str] = SEGMENTATION
    roi: Sequence[int] | None = None
    overlap: float = 0.25
    seed: int = 0
    masks: str = "per_example"
    outputs: Outputs = "logits"
    scale: str = "percentiles"
    batch_size: int = 4
    device: str | torch.device | None = None
    memory: int | str = "auto"

    @classmethod
    def of(cls, placement: Placement | str, given: dict[str, Any]) -> Options:
        """The options as they were given, sequences as tuples."""
        options = cls(str(as_placement(placement)), **given)
        names = (options.measures,) if isinstance(options.measures, str) else tuple(options.measures)
        return replace(options, measures=names, roi=None if options.roi is None else tuple(options.roi))


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
    """

    cases: tuple[VolumeCase, ...]
    done: tuple[str, ...]
    windows: dict[str, int]
    passes: int
    seconds: float
    bytes_per_voxel: int
    files: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.cases)} volumes, {len(self.done)} of them already there"]
        for case in self.cases:
            state = "done" if case.name in self.done else f"{self.windows[case.name]} windows × {self.passes} passes"
            lines.append(f"  {case.name}: {case.channels} × {'×'.join(map(str, case.shape))}, {state}")
        lines.append(f"about {self.seconds:.0f} s; statistics take {self.bytes_per_voxel} bytes a voxel")
        lines.append("each case gets " + ", ".join(self.files))
        return "\n".join(lines)


@shares(Options)
def predict(
    model: nn.Module,
    placement: Placement | str,
    images: Iterable[str | Path],
    out: str | Path,
    *,
    progress: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Predicts every volume under `out/CASE/`: `prediction.nii.gz`, `MEASURE.nii.gz`, `case.json`.

    Args:
        model: A segmentation network, 3-D or 2-D.
        placement: Where noise goes, such as "own" or "up.1=0.3".
        images: NIfTI files and folders of them; "a.nii.gz,b.nii.gz" is one case with a channel from each.
        out: Folder of the maps. Cases that are finished there under the same options are not predicted again.
        progress: Whether to show progress; None decides by the terminal.

    Returns:
        The table that is also written to `out/cases.csv`: a row per case with volumes, volume variation, agreement of
        passes (`pairwise_dice`), and of every measure the mean over the foreground and the worst patch.

    Raises:
        BadInput: Before any pass, where an argument or a file cannot be used.
    """
    opened = _open_prediction(model, images, Path(out), Options.of(placement, options), progress=progress)
    left = opened.left()
    total = sum(opened.count_windows(case) for case in left) * opened.options.passes
    with track("predicting", total, "windows", show=progress) as tick:
        for case in left:
            _predict_case(opened, case, tick)
    return _write_table(opened)


@shares(Options)
def plan_prediction(
    model: nn.Module, placement: Placement | str, images: Iterable[str | Path], out: str | Path, **options: Any
) -> PredictionPlan:
    """What `predict` would do with the same arguments: everything is checked, one window timed, nothing written."""
    opened = _open_prediction(model, images, Path(out), Options.of(placement, options), progress=False)
    counts = {case.name: opened.count_windows(case) for case in opened.cases}
    left, passes = sum(counts[case.name] for case in opened.left()), opened.options.passes
    seconds = _seconds_per_window(opened.session) * left * passes if left else 0
    done = tuple(sorted(opened.done))
    return PredictionPlan(opened.cases, done, counts, passes, seconds, opened.voxel_bytes, opened.files)


@dataclass(frozen=True, eq=False)
class _Prediction:
    """A prediction with everything checked: options, volumes, the model audited on windows of the first, the folder."""

    options: Options
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
    done: frozenset[str]

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
        return _spec(self.options, self.windows[case.name], self.weights, self.voxels[case.name])


def _open_prediction(
    model: nn.Module, images: Iterable[str | Path], out: Path, options: Options, *, progress: bool | None
) -> _Prediction:
    """Checks everything, reads every volume once, and audits the placement on windows of the first."""
    check_passes(options.passes)
    measures = _streamed_measures(options.measures)
    check_choice(options.scale, "scale", SCALES)
    check_count(options.batch_size, "batch_size", 4)
    cases = tuple(find_cases(images))
    windows = {case.name: _plan_case_windows(case, options) for case in cases}
    read = functools.lru_cache(maxsize=1)(lambda case: read_case(case, options.scale))
    voxels = _fingerprint_volumes(cases, read, progress=progress)
    session = _open_session(model, cases[0], read(cases[0]), windows[cases[0].name], options)
    weights = weights_fingerprint(session.model)
    memory = memory_bytes(options.memory, session.device)
    (resolved,) = session.resolve([options.placement])
    session.audit(resolved, options.placement)
    files = _files(measures)
    done = {
        case.name
        for case in cases
        if _is_done(out / case.name, _spec(options, windows[case.name], weights, voxels[case.name]), files)
    }
    return _Prediction(
        options, measures, out, cases, windows, voxels, read, session, resolved, weights, memory, frozenset(done)
    )


def _fingerprint_volumes(
    cases: Sequence[VolumeCase], read: Callable[[VolumeCase], Tensor], *, progress: bool | None
) -> dict[str, int]:
    """Every volume read once, so that a bad one is refused before the work and not in the middle of it."""
    first, voxels = cases[0], {}
    for case in cases:
        if case.channels != first.channels:
            what = f"{case.place} must have the {first.channels} channels of {first.place}"
            received = Phrase(f"{case.channels} channels")
            raise BadInput(what, case.place, received, "predict it by itself")
    with track("reading volumes", len(cases), "volumes", show=progress) as tick:
        for case in reversed(cases):  # the first is then cached
            voxels[case.name] = int(Call((read(case)[None],)).keys()[0])
            tick(1)
    return voxels


def _open_session(model: nn.Module, case: VolumeCase, image: Tensor, windows: Windows, options: Options) -> Session:
    """The model on its device, called on the first windows of the first volume."""
    padded = pad(image, windows)
    first = torch.stack([cut_out(padded, windows, origin) for origin in windows.origins()[:_AUDITED]])
    try:
        session = open_session(
            model, first, seed=options.seed, masks=options.masks, outputs=options.outputs, device=options.device,
            batch_size=_AUDITED,
        )  # fmt: skip
        with torch.no_grad():
            probabilities = session.plain(session.data.batches[0])
    except BadInput as error:
        if not isinstance(error.__cause__, RuntimeError):
            raise
        raise _unfit_window(model, case, windows, error.__cause__) from error
    if probabilities.shape[2:] != first.shape[2:]:
        received = Phrase(f"{tuple(probabilities.shape[2:])} for windows of {tuple(first.shape[2:])}")
        remedy = "pass a segmentation network, or choose sides that it takes with roi=(128, 128, 16)"
        raise BadInput("model must predict every voxel of its window", "model", received, remedy)
    return session


def _seconds_per_window(session: Session) -> float:
    batch = session.data.batches[0]
    started = time.perf_counter()
    with torch.no_grad(), precise():
        session.plain(batch)
    return (time.perf_counter() - started) / batch.n


def _predict_case(opened: _Prediction, case: VolumeCase, tick: Tick) -> None:
    """Predicts one case and writes its maps, then its `case.json`."""
    started, options = time.monotonic(), opened.options
    prediction = predict_volume(
        opened.session, opened.resolved, opened.read(case), opened.windows[case.name], opened.measures, options.passes,
        options.batch_size, opened.memory, tick,
    )  # fmt: skip
    folder = opened.out / case.name
    kind = np.uint8 if opened.session.classes <= 256 else np.int16
    write_map(folder / "prediction.nii.gz", prediction.labels.numpy().astype(kind), case, "prediction")
    for measure in opened.measures:
        write_map(folder / f"{measure.name}.nii.gz", prediction.maps[measure.name].numpy(), case, measure.name)
    record = {
        "spec": opened.spec(case),
        "found": _summarise(case, prediction, opened.session.classes, options.passes),
        "seconds": round(time.monotonic() - started, 2),
    }
    atomic_write(folder / "case.json", lambda part: part.write_text(json.dumps(record, indent=2) + "\n"))


def _summarise(case: VolumeCase, prediction: VolumePrediction, classes: int, passes: int) -> dict[str, Any]:
    """The numbers of a case as a whole. Those that do not exist (a class nowhere, one pass) are None."""
    labels, millilitres = prediction.labels[None], voxel_volume(case)
    values: dict[str, Any] = {"case": case.name, "image": case.place}
    for c in range(1, classes):
        values[f"millilitres_{c}"] = float((labels == c).sum() * millilitres)
    for c in range(1, classes):
        values[f"volume_variation_{c}"] = float(prediction.pass_labels.volume_variation[0, c])
        if passes > 1:
            values[f"pairwise_dice_{c}"] = float(prediction.pass_labels.pairwise_dice[0, c])
    for name, value in prediction.maps.items():
        values[f"{name}_foreground_mean"] = float(foreground_mean(value[None], labels))
        values[f"{name}_worst_patch"] = float(worst_patch(value[None], PATCH))
    return {name: None if isinstance(value, float) and value != value else value for name, value in values.items()}


def _write_table(opened: _Prediction) -> pd.DataFrame:
    records = [read_json(opened.out / case.name / "case.json") for case in opened.cases]
    table = pd.DataFrame([record["found"] for record in records])
    atomic_write(opened.out / "cases.csv", lambda part: table.to_csv(part, index=False))
    return table


def _files(measures: Sequence[Measure]) -> tuple[str, ...]:
    return ("prediction.nii.gz", *(f"{measure.name}.nii.gz" for measure in measures))


def _spec(options: Options, windows: Windows, weights: str, voxels: int) -> dict[str, Any]:
    """What identifies the prediction of one case."""
    spec = {name: value for name, value in asdict(options).items() if name not in _NOT_IDENTITY}
    spec["outputs"] = options.outputs if isinstance(options.outputs, str) else "a function"
    return spec | {"roi": list(windows.size), "weights": weights, "voxels": voxels}


def _is_done(folder: Path, spec: dict[str, Any], files: Sequence[str]) -> bool:
    record = folder / "case.json"
    if not record.exists():
        return False
    same_spec(read_json(record)["spec"], spec, record, "choose another folder, or take the case out of this one")
    return all((folder / name).exists() for name in files)


def _streamed_measures(names: Sequence[str]) -> tuple[Measure, ...]:
    """The measures, none of which needs all passes at once: those of a volume do not fit into memory."""
    measures = tuple(resolve_measures(list(names)))
    for measure in measures:
        if measure.of == "passes":
            remedy = "write it on the statistics of passes, or use dropscope.maps on a window"
            raise BadInput("measures of volumes must be computed from statistics", "measures", measure.name, remedy)
    return measures


def _plan_case_windows(case: VolumeCase, options: Options) -> Windows:
    windows = plan_windows(case.shape, options.roi, options.overlap)
    if min(case.shape) == 1 and not windows.flat:
        remedy = "write roi=(128, 128) for a 2-D network; a 3-D network needs volumes"
        raise BadInput(f"{case.place} must have more than one slice along every axis", case.place, case.shape, remedy)
    return windows


def _unfit_window(model: nn.Module, case: VolumeCase, windows: Windows, error: RuntimeError) -> BadInput:
    """The error of a network that does not take a window: because of its channels, or of the window's sides."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
    if first is not None and first.in_channels != case.channels:
        what = f"{case.place} must have the {first.in_channels} channels that the network takes"
        remedy = f"name {first.in_channels} files of one channel as a.nii.gz,b.nii.gz, or a 4-D file"
        return BadInput(what, case.place, Phrase(f"{case.channels} channels"), remedy)
    what = f"model must take windows of {'×'.join(map(str, windows.size))} voxels of {case.place}"
    remedy = "choose sides that its poolings divide: write roi=(128, 128, 16), or roi=(128, 128) if it is 2-D"
    return BadInput(what, "roi", Phrase(first_line(error)), remedy)
