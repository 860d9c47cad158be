"""`dropscope predict`: NIfTI volumes → a label map and an uncertainty map per measure, and a table of the cases.

Owns the folder that comes out of it and what may be taken up again there. A case is finished when its `case.json` is
there, which is written last. Windows and passes are `windows.py`'s, files `volumes.py`'s.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dropscope import measures
from dropscope.atomic import atomic_write
from dropscope.checks import check_passes
from dropscope.device import memory_bytes
from dropscope.engine import Session, precise, prepare
from dropscope.errors import BadInput
from dropscope.injection import audit_live
from dropscope.measures import Measure
from dropscope.model import Outputs, count_examples, example_keys, weights_fingerprint
from dropscope.placement import Placement, as_placement
from dropscope.progress import track
from dropscope.scores import foreground_mean, worst_patch
from dropscope.statistics import statistics_bytes
from dropscope.volumes.nifti import SCALES, VolumeCase, find_cases, read_case, voxel_volume, write_map
from dropscope.volumes.windows import Predicted, Windows, cut_out, forwards, pad, plan_windows, predict_volume

PATCH = 8  # voxels a side of the patch that `worst_patch` looks for
_AUDITED = 2  # windows: an audit runs every site by itself


@dataclass(frozen=True)
class Options:
    """How volumes are predicted. Part of what identifies a folder of predictions, but for the last three."""

    placement: str
    passes: int = 50
    measures: tuple[str, ...] = measures.SEGMENTATION
    roi: tuple[int, ...] | None = None
    overlap: float = 0.25
    seed: int = 0
    masks: str = "per_example"  # per window; "per_pass": one draw of the network for all windows of a pass
    outputs: Outputs = "logits"
    scale: str = "percentiles"
    batch_size: int = 4
    device: str | None = None
    memory: int | str = "auto"


@dataclass(frozen=True)
class PredictionPlan:
    """What `predict` would do. Prints itself."""

    cases: tuple[VolumeCase, ...]
    done: tuple[str, ...]  # already there
    windows: dict[str, int]  # forwards of one pass, per case
    passes: int
    seconds: float  # from the time of one window
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


def predict(
    model: nn.Module,
    placement: Placement | str,
    images: Iterable[str | Path],
    out: str | Path,
    *,
    progress: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Predicts every volume under `out/CASE/` (`prediction.nii.gz`, `MEASURE.nii.gz`, `case.json`) and writes
    `out/cases.csv`, which is also returned: a row per case with volumes, volume variation, agreement of passes
    (`pairwise_dice`), and of every measure the mean over the foreground and the worst patch.

    `images` are as `volumes.find_cases` takes them, `options` the fields of `Options`. Cases that are there already
    under the same options are not predicted again.
    """
    run = _Run(model, placement, images, out, progress, options)
    with track("predicting", run.total, "windows", progress) as tick:
        for case in run.cases:
            if case.name not in run.done:
                run.predict(case, tick)
    return run.table()


def planned(
    model: nn.Module, placement: Placement | str, images: Iterable[str | Path], out: str | Path, **options: Any
) -> PredictionPlan:
    """What `predict` would do, everything checked and one window timed; nothing is written."""
    run = _Run(model, placement, images, out, False, options)
    left = [case for case in run.cases if case.name not in run.done]
    seconds = run.seconds_per_window() * sum(run.windows_in(case) for case in left) * run.options.passes if left else 0
    return PredictionPlan(
        tuple(run.cases), tuple(sorted(run.done)), {case.name: run.windows_in(case) for case in run.cases},
        run.options.passes, seconds, run.per_voxel, run.files,
    )  # fmt: skip


class _Run:
    """Everything checked: options, every volume, the model on windows of the first, the folder."""

    def __init__(
        self,
        model: nn.Module,
        placement: Placement | str,
        images: Iterable[str | Path],
        out: str | Path,
        show: bool | None,
        given: dict[str, Any],
    ) -> None:
        known = {name for name in Options.__dataclass_fields__ if name != "placement"}
        for name in given:
            if name not in known:
                raise BadInput("options of a prediction are known", "options", name, f"use one of {sorted(known)}")
        self.options = options = Options(str(as_placement(placement)), **given)
        check_passes(options.passes)
        self.rows = _streamed(measures.resolve(list(options.measures)))
        if options.scale not in SCALES:
            raise BadInput("intensities are scaled in a known way", "scale", options.scale, f"write one of {SCALES}")
        if not isinstance(options.batch_size, int) or options.batch_size < 1:
            raise BadInput("a batch has at least one window", "batch_size", options.batch_size, "write batch_size=4")
        self.out = Path(out)
        self.cases = find_cases(images)
        self.windows = {case.name: _windows(case, options) for case in self.cases}
        self.files = ("prediction.nii.gz", *(f"{row.name}.nii.gz" for row in self.rows))
        self._image: tuple[str, Tensor] | None = None
        self.voxels = self._fingerprints(show)
        self.setting = self._opened(model)
        self.weights = weights_fingerprint(self.setting.model)
        self.memory = memory_bytes(options.memory, self.setting.device)
        (self.live,) = self.setting.resolve([options.placement])
        self._audit()
        self.done = {case.name for case in self.cases if self._is_done(case)}

    def _fingerprints(self, show: bool | None) -> dict[str, int]:
        """Every volume read once, so that a bad one is found before the work and not in the middle of it."""
        first, found = self.cases[0], {}
        for case in self.cases:
            if case.channels != first.channels:
                remedy = f"{first.place} has {first.channels}: predict the others by themselves"
                received = f"{case.channels} channels"
                raise BadInput("volumes of a run have the same channels", case.place, received, remedy)
        with track("reading volumes", len(self.cases), "volumes", show) as tick:
            for case in reversed(self.cases):  # the first is then at hand
                found[case.name] = int(example_keys((self._read(case)[None],), {})[0])
                tick(1)
        return found

    def _opened(self, model: nn.Module) -> Session:
        """The model on its device, called on the first windows of the first volume."""
        options, case = self.options, self.cases[0]
        windows = self.windows[case.name]
        padded = pad(self._read(case), windows)
        some = torch.stack([cut_out(padded, windows, origin) for origin in windows.origins()[:_AUDITED]])
        try:
            setting = prepare(
                model, some, seed=options.seed, masks=options.masks, outputs=options.outputs, device=options.device,
                batch_size=_AUDITED,
            )  # fmt: skip
            with torch.no_grad():
                shown = setting.plain(setting.data.batches[0])
        except BadInput as error:
            if not isinstance(error.__cause__, RuntimeError):
                raise
            raise _unfit(model, case, windows, error.__cause__) from error
        if shown.shape[2:] != some.shape[2:]:
            remedy = "pass a segmentation network; for windows it cannot take, write another --roi"
            received = f"{tuple(shown.shape[2:])} for windows of {tuple(some.shape[2:])}"
            raise BadInput("a network predicts every voxel of its window", case.place, received, remedy)
        return setting

    def _audit(self) -> None:
        setting, placement = self.setting, as_placement(self.options.placement)
        args, kwargs = setting.on_device(setting.data.batches[0])
        with precise():
            found = audit_live(setting.model, placement, self.live, args, kwargs, setting.site_map, setting.seed)
        found.raise_if_failed()

    @property
    def per_voxel(self) -> int:
        needs = {"sum_p"}.union(*(row.needs for row in self.rows))
        return statistics_bytes(needs, self.setting.classes) + 12 * self.setting.classes

    @property
    def total(self) -> int:
        left = [case for case in self.cases if case.name not in self.done]
        return sum(self.windows_in(case) for case in left) * self.options.passes

    def windows_in(self, case: VolumeCase) -> int:
        return forwards(self.windows[case.name], self.per_voxel, self.memory, self.setting.device)

    def seconds_per_window(self) -> float:
        args, kwargs = self.setting.on_device(self.setting.data.batches[0])
        started = time.perf_counter()
        with torch.no_grad(), precise():
            self.setting.plain(self.setting.data.batches[0])
        return (time.perf_counter() - started) / count_examples(args, kwargs)

    def predict(self, case: VolumeCase, tick: Callable[[int], None]) -> None:
        started = time.monotonic()
        found = predict_volume(
            self.setting, self.live, self._read(case), self.windows[case.name], self.rows, self.options.passes,
            self.options.batch_size, self.memory, tick,
        )  # fmt: skip
        folder = self.out / case.name
        kind = np.uint8 if self.setting.classes <= 256 else np.int16
        write_map(folder / "prediction.nii.gz", found.prediction.numpy().astype(kind), case, "prediction")
        for row in self.rows:
            write_map(folder / f"{row.name}.nii.gz", found.maps[row.name].numpy(), case, row.name)
        record = {
            "spec": self._spec(case),
            "found": self._found(case, found),
            "seconds": round(time.monotonic() - started, 2),
        }
        atomic_write(folder / "case.json", lambda part: part.write_text(json.dumps(record, indent=2) + "\n"))

    def table(self) -> pd.DataFrame:
        records = [json.loads((self.out / case.name / "case.json").read_text()) for case in self.cases]
        table = pd.DataFrame([record["found"] for record in records])
        atomic_write(self.out / "cases.csv", lambda part: table.to_csv(part, index=False))
        return table

    def _found(self, case: VolumeCase, found: Predicted) -> dict[str, Any]:
        """What is said of a case as a whole. Numbers that do not exist (a class nowhere, one pass) are None."""
        prediction, millilitres = found.prediction[None], voxel_volume(case)
        values: dict[str, Any] = {"case": case.name, "image": case.place}
        for c in range(1, self.setting.classes):
            values[f"millilitres_{c}"] = float((prediction == c).sum() * millilitres)
        for c in range(1, self.setting.classes):
            values[f"volume_variation_{c}"] = float(found.labels.volume_variation[0, c])
            if self.options.passes > 1:
                values[f"pairwise_dice_{c}"] = float(found.labels.pairwise_dice[0, c])
        for name, value in found.maps.items():
            values[f"{name}_foreground_mean"] = float(foreground_mean(value[None], prediction))
            values[f"{name}_worst_patch"] = float(worst_patch(value[None], PATCH))
        return {name: None if isinstance(value, float) and value != value else value for name, value in values.items()}

    def _spec(self, case: VolumeCase) -> dict[str, Any]:
        options = self.options
        spec = {name: getattr(options, name) for name in Options.__dataclass_fields__}
        for name in ("batch_size", "device", "memory"):
            del spec[name]
        spec["outputs"] = options.outputs if isinstance(options.outputs, str) else "a function"
        spec["roi"] = list(self.windows[case.name].size)
        spec |= {"weights": self.weights, "voxels": self.voxels[case.name]}
        return json.loads(json.dumps(spec))

    def _is_done(self, case: VolumeCase) -> bool:
        record = self.out / case.name / "case.json"
        if not record.exists():
            return False
        known, wanted = json.loads(record.read_text())["spec"], self._spec(case)
        differing = sorted(key for key in {*known, *wanted} if known.get(key) != wanted.get(key))
        if differing:
            remedy = "choose another folder with --out, or take the case out of this one"
            raise BadInput(
                "a case is predicted in one way in a folder", f"what differs from {record}", differing, remedy
            )
        return all((record.parent / name).exists() for name in self.files)

    def _read(self, case: VolumeCase) -> Tensor:
        """The voxels of a case; the last one read is at hand."""
        if self._image is None or self._image[0] != case.name:
            self._image = (case.name, read_case(case, self.options.scale))
        return self._image[1]


def _streamed(rows: list[Measure]) -> list[Measure]:
    for row in rows:
        if row.of == "passes":
            remedy = "write it on the statistics of passes, or use dropscope.maps on a window"
            raise BadInput("volumes are measured while passes come", "measures", row.name, remedy)
    return rows


def _windows(case: VolumeCase, options: Options) -> Windows:
    windows = plan_windows(case.shape, options.roi, options.overlap)
    if min(case.shape) == 1 and not windows.flat:
        received = "×".join(map(str, case.shape))
        remedy = "for a 2-D network write --roi HEIGHTxWIDTH; for a 3-D network it is no volume"
        raise BadInput("a volume has more than one slice", case.place, received, remedy)
    return windows


def _unfit(model: nn.Module, case: VolumeCase, windows: Windows, error: RuntimeError) -> BadInput:
    """What to say where a network does not take a window: its channels, or the sides of the window."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
    if first is not None and first.in_channels != case.channels:
        remedy = f"name {first.in_channels} files of one channel as a.nii.gz,b.nii.gz, or a 4-D file"
        rule = f"the network takes {first.in_channels} channels"
        return BadInput(rule, case.place, f"{case.channels} channels", remedy)
    reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
    shown = "×".join(map(str, windows.size))
    remedy = "choose a window that the network's poolings divide with --roi, such as 128x128x16 (128x128 if it is 2-D)"
    return BadInput(f"the network takes windows of {shown} voxels", case.place, reason, remedy)
