"""Volumes made ready once for every network: intensities scaled, cropped or padded to one region, kept as one file.

Owns the scaling, the region and the file (`prepared.safetensors`), from which workers and other machines read without
NIfTI. A voxel that padding made up, or whose label is to be ignored, is not `valid`: it counts nowhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dropscope.atomic import atomic_write
from dropscope.errors import BadInput
from dropscope.progress import track
from dropscope.studies.segmentation_measures.volumes import Case, Volumes

PERCENTILES = (5.0, 95.0)
_LARGEST_AUTO = 1 << 21  # voxels: a region above this is for the user to choose


@dataclass(frozen=True, eq=False)
class Prepared:
    """Every case at one size, on the CPU."""

    images: Tensor  # float32 [cases, channels, *roi]
    labels: Tensor  # uint8 [cases, *roi]; 0 where not valid
    valid: Tensor  # bool [cases, *roi]
    about: dict[str, Any]  # source, names, patients, centres, roles, channels, classes, spacing, lost, remarks

    @property
    def names(self) -> list[str]:
        return self.about["names"]

    @property
    def classes(self) -> int:
        return len(self.about["classes"])

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def roi(self) -> tuple[int, ...]:
        return tuple(self.images.shape[2:])

    def fingerprint(self) -> str:
        """A hash of voxels, labels and names: a folder of results belongs to one."""
        kept = {name: value for name, value in self.about.items() if name not in ("key", "source")}  # where and when
        digest = hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16)
        for tensor in (self.images, self.labels, self.valid):
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def scaled(image: Tensor, place: str, channels: Sequence[str] = ()) -> Tensor:
    """Each channel moved so that its 5th percentile is 0 and its 95th 1; nothing is clipped.

    >>> scaled(torch.arange(101.0)[None], "a file")[0, [5, 95]].tolist()
    [0.0, 1.0]
    """
    flat = image.flatten(1).numpy()
    low, high = np.percentile(flat, PERCENTILES, axis=1)
    for number in np.flatnonzero(~(high > low)).tolist():
        name = channels[number] if number < len(channels) else f"channel {number}"
        remedy = "leave the case out, or mend that channel"
        raise BadInput(
            "the 5th and 95th percentile of an image differ", f"{name} of {place}", float(low[number]), remedy
        )
    shape = (-1, *[1] * (image.dim() - 1))
    a, b = (torch.from_numpy(v.astype(np.float32)).reshape(shape) for v in (low, high))
    return (image - a) / (b - a)


def fitted(values: Tensor, roi: Sequence[int], fill: float = 0) -> Tensor:
    """The middle of `values[..., *spatial]` cropped to `roi`, padded with `fill` where it is smaller.

    >>> fitted(torch.tensor([1, 2, 3, 4]), [2]).tolist(), fitted(torch.tensor([1, 2]), [5]).tolist()
    ([2, 3], [0, 1, 2, 0, 0])
    """
    dims = len(roi)
    made = torch.full((*values.shape[: values.dim() - dims], *roi), fill, dtype=values.dtype)
    source: list[slice] = []
    target: list[slice] = []
    for have, want in zip(values.shape[values.dim() - dims :], roi, strict=True):
        size = min(have, want)
        # As MONAI's ResizeWithPadOrCrop: the odd voxel is cut at the end and padded at the end.
        begin_source, begin_target = (
            have // 2 - want // 2 if have > want else 0,
            (want - have) // 2 if want > have else 0,
        )
        source.append(slice(begin_source, begin_source + size))
        target.append(slice(begin_target, begin_target + size))
    where: tuple[Any, ...] = (..., *target)
    made[where] = values[(..., *source)]  # type: ignore[index]
    return made


def region(volumes: Volumes, roi: Sequence[int] | None, multiple: Sequence[int]) -> tuple[int, ...]:
    """The region asked for, or the smallest that holds every volume; sides are multiples of the network's pooling."""
    if roi is None:
        largest = [max(case.shape[axis] for case in volumes.cases) for axis in range(volumes.dims)]
        found = tuple(-(-side // m) * m for side, m in zip(largest, multiple, strict=True))
        if int(np.prod(found)) > _LARGEST_AUTO:
            remedy = "choose a part with --roi, for example --roi " + ",".join(str(min(128, s)) for s in found)
            raise BadInput("a region of whole volumes fits into memory", "volumes", tuple(largest), remedy)
        return found
    found = tuple(int(side) for side in roi)
    if len(found) != volumes.dims or any(s < 1 or s % m for s, m in zip(found, multiple, strict=True)):
        remedy = "write --roi " + ",".join(str(max(m, round(s / m) * m)) for s, m in zip(found, multiple, strict=False))
        rule = f"a region has {volumes.dims} sides, multiples of {tuple(multiple)}"
        raise BadInput(rule, "--roi", found, remedy if len(found) == volumes.dims else "write one side per axis")
    return found


def prepare_volumes(
    volumes: Volumes, roi: Sequence[int], ignore_label: int | None = None, show: bool | None = None
) -> Prepared:
    """Loads, checks, scales and crops every case; raises `BadInput` that names the file."""
    images, labels, valid, lost = [], [], [], {}
    with track("reading volumes", len(volumes.cases), "volumes", show) as tick:
        for case in volumes.cases:
            image, label = case.load()
            counted = torch.ones_like(label, dtype=torch.bool) if ignore_label is None else label != ignore_label
            _check_case(case, image, label, counted, len(volumes.classes), len(volumes.channels))
            marks = torch.where(counted, label, 0)
            images.append(fitted(scaled(image.float(), case.where, volumes.channels), roi))
            labels.append(fitted(marks, roi).to(torch.uint8))
            valid.append(fitted(counted, roi))
            outside = int((marks > 0).sum() - (labels[-1] > 0).sum())
            if outside and not bool((labels[-1] > 0).any()):
                remedy = "choose a larger --roi"
                raise BadInput("a region holds some foreground of every case", case.where, "none of it", remedy)
            if outside:
                lost[case.name] = outside
            tick(1)
    cases = volumes.cases
    about = {
        "source": volumes.source,
        "names": [c.name for c in cases],
        "patients": [c.patient for c in cases],
        "centres": [c.centre for c in cases],
        "roles": [c.role for c in cases],
        "channels": list(volumes.channels),
        "classes": list(volumes.classes),
        "spacing": list(volumes.spacing),
        "lost": lost,  # foreground voxels outside the region, per case
        "remarks": list(volumes.remarks),
    }
    return Prepared(torch.stack(images), torch.stack(labels), torch.stack(valid), about)


def _check_case(case: Case, image: Tensor, label: Tensor, counted: Tensor, classes: int, channels: int) -> None:
    if tuple(label.shape) != case.shape or tuple(image.shape) != (channels, *case.shape):
        received = f"image {tuple(image.shape)}, label {tuple(label.shape)}"
        raise BadInput(f"a case has {channels} channels of {case.shape}", case.where, received, "mend the file")
    if not bool(image.isfinite().all()):
        bad = int((~image.isfinite()).sum())
        raise BadInput("voxels are numbers", case.where, f"{bad} NaN or infinite voxels", "mend or remove the file")
    outside = counted & ((label < 0) | (label >= classes))
    if bool(outside.any()):
        remedy = "name the classes in dataset.json, or mark voxels without a label with --ignore-label"
        raise BadInput(f"labels are 0 to {classes - 1}", f"the label of {case.where}", int(label[outside][0]), remedy)


def check_classes(prepared: Prepared, train: Sequence[int]) -> None:
    """Every class lies somewhere in the training cases, or there is nothing to learn it from."""
    there = torch.bincount(prepared.labels[list(train)][prepared.valid[list(train)]].long(), minlength=prepared.classes)
    for number in torch.nonzero(there == 0).flatten().tolist():
        names = [prepared.names[i] for i in train]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        remedy = "raise the smallest --n-train, take another --seed, or take the class out of the labels"
        name = f"class {number} ({prepared.about['classes'][number]}) in {prepared.about['source']}"
        raise BadInput("every class is in the training set", name, f"no voxel in {shown}", remedy)


def write_prepared(prepared: Prepared, path: Path) -> Path:
    tensors = {"images": prepared.images, "labels": prepared.labels, "valid": prepared.valid}
    return atomic_write(path, lambda part: save_file(tensors, part, {"about": json.dumps(prepared.about)}))


def read_prepared(path: Path) -> Prepared:
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            images, labels, valid = (file.get_tensor(name) for name in ("images", "labels", "valid"))
            return Prepared(images, labels, valid, about)
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        remedy = "name a prepared.safetensors that this study wrote, a Decathlon folder, or phantom"
        raise BadInput("prepared volumes are a file of this study", "--data", str(path), remedy) from error
