"""Preparation of volumes, once for every network: intensities scaled, cropped or padded to one region, kept as a file.

Owns the region, the file (`prepared.safetensors`), from which workers and other machines read without NIfTI, and when
it is reused. A voxel that is padding, or whose label is ignored, is not `valid`: it counts nowhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dropscope.atomic import atomic_write
from dropscope.errors import BadInput, Phrase
from dropscope.loading import load_transforms
from dropscope.model import code_fingerprint
from dropscope.progress import track
from dropscope.studies.segmentation_measures.cases import Case, Volumes
from dropscope.studies.segmentation_measures.decathlon import read_decathlon
from dropscope.studies.segmentation_measures.options import Options
from dropscope.studies.segmentation_measures.phantom import make_phantom
from dropscope.studies.segmentation_measures.presets import Preset
from dropscope.volumes import run_transforms, scale_intensities

PREPARED = "prepared.safetensors"
_LARGEST_REGION = 1 << 21  # voxels: a larger one is for the user to choose


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
        """A hash of voxels, labels and names, to which a folder of results belongs."""
        kept = {name: value for name, value in self.about.items() if name not in ("key", "source")}  # where and when
        digest = hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16)
        for tensor in (self.images, self.labels, self.valid):
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def crop_or_pad(values: Tensor, roi: Sequence[int], fill: float = 0) -> Tensor:
    """The middle of `values[..., *spatial]` cropped to `roi`, padded with `fill` where it is smaller.

    >>> crop_or_pad(torch.tensor([1, 2, 3, 4]), [2]).tolist(), crop_or_pad(torch.tensor([1, 2]), [5]).tolist()
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


def choose_region(volumes: Volumes, roi: Sequence[int] | None, multiple: Sequence[int]) -> tuple[int, ...]:
    """The region asked for, or the smallest that holds every volume; sides are multiples of the network's pooling."""
    if roi is None:
        largest = [max(case.shape[axis] for case in volumes.cases) for axis in range(volumes.dims)]
        sides = tuple(-(-side // m) * m for side, m in zip(largest, multiple, strict=True))
        if int(np.prod(sides)) > _LARGEST_REGION:
            what = f"roi must be given where whole volumes have more than {_LARGEST_REGION} voxels"
            received = Phrase(f"volumes of up to {'×'.join(map(str, largest))}")
            raise BadInput(what, "roi", received, f"write roi={tuple(min(128, side) for side in sides)}")
        return sides
    sides = tuple(int(side) for side in roi)
    if len(sides) != volumes.dims or any(s < 1 or s % m for s, m in zip(sides, multiple, strict=True)):
        what = f"roi must have {volumes.dims} sides, multiples of {tuple(multiple)}"
        nearest = tuple(max(m, round(s / m) * m) for s, m in zip(sides, multiple, strict=False))
        remedy = f"write roi={nearest}" if len(sides) == volumes.dims else "write one side per axis"
        raise BadInput(what, "roi", sides, remedy)
    return sides


def prepare_volumes(
    volumes: Volumes,
    roi: Sequence[int],
    ignore_label: int | None = None,
    *,
    scale: str = "percentiles",
    transforms: Callable[[Any], Any] | None = None,
    show: bool | None = None,
) -> Prepared:
    """Loads, checks, scales and crops every case; raises `BadInput` that names the file."""
    images, labels, valid, lost = [], [], [], {}
    with track("reading volumes", len(volumes.cases), "volumes", show=show) as tick:
        for case in volumes.cases:
            image, label = case.load()
            counted = torch.ones_like(label, dtype=torch.bool) if ignore_label is None else label != ignore_label
            _check_case(case, image, label, counted, len(volumes.classes), len(volumes.channels))
            marks = torch.where(counted, label, 0)
            scaled = image.float()
            if scale == "percentiles":
                scaled = scale_intensities(scaled, [f"{name} of {case.where}" for name in volumes.channels])
            images.append(crop_or_pad(scaled if transforms is None else _transformed(case, scaled, transforms), roi))
            labels.append(crop_or_pad(marks, roi).to(torch.uint8))
            valid.append(crop_or_pad(counted, roi))
            outside = int((marks > 0).sum() - (labels[-1] > 0).sum())
            if outside and not bool((labels[-1] > 0).any()):
                what = f"roi must hold foreground of {case.where}"
                raise BadInput(what, "roi", tuple(roi), "choose a larger one")
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


def _transformed(case: Case, image: Tensor, transforms: Callable[[Any], Any]) -> Tensor:
    """The image after the user's own preprocessing, which must leave its voxels where they are."""

    def run(given: Any) -> Tensor:
        return torch.as_tensor(np.asarray(transforms(given)), dtype=torch.float32)

    made = run_transforms(run, image.numpy(), case.where)
    if made.shape != image.shape or not bool(made.isfinite().all()):
        received = Phrase(f"{tuple(made.shape)}" if made.shape != image.shape else "NaN or infinite voxels")
        what = f"transforms must return finite voxels of {tuple(image.shape)} for {case.where}"
        raise BadInput(what, "transforms", received, "leave out what crops, resizes or resamples")
    return made


def _check_case(case: Case, image: Tensor, label: Tensor, counted: Tensor, classes: int, channels: int) -> None:
    if tuple(label.shape) != case.shape or tuple(image.shape) != (channels, *case.shape):
        what = f"{case.where} must have {channels} channels of {case.shape}"
        received = Phrase(f"an image of {tuple(image.shape)} and a label of {tuple(label.shape)}")
        raise BadInput(what, case.where, received, "fix the file")
    if not bool(image.isfinite().all()):
        received = Phrase(f"{int((~image.isfinite()).sum())} NaN or infinite voxels")
        raise BadInput(f"voxels of {case.where} must be finite", case.where, received, "fix or remove the file")
    outside = counted & ((label < 0) | (label >= classes))
    if bool(outside.any()):
        value = int(label[outside][0])
        remedy = f"name the classes in dataset.json, or write ignore_label={value} for voxels without a label"
        raise BadInput(f"labels of {case.where} must be from 0 to {classes - 1}", case.where, value, remedy)


def check_classes(prepared: Prepared, train: Sequence[int]) -> None:
    """Refuses a class that is in none of the training cases: there is nothing to learn it from."""
    counts = torch.bincount(
        prepared.labels[list(train)][prepared.valid[list(train)]].long(), minlength=prepared.classes
    )
    for number in torch.nonzero(counts == 0).flatten().tolist():
        names = [prepared.names[i] for i in train]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        remedy = "raise the smallest n_train, take another seed, or take the class out of the labels"
        name = f"class {number} ({prepared.about['classes'][number]})"
        what = f"{name} of {prepared.about['source']} must be in the training set"
        raise BadInput(what, name, Phrase(f"no voxel in {shown}"), remedy)


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
        remedy = "name a prepared.safetensors that this study wrote, a Decathlon folder, or data='phantom'"
        raise BadInput("data must be a file that this study wrote", "data", str(path), remedy) from error


def load_data(options: Options, preset: Preset, *, show: bool | None = None) -> Prepared:
    """The prepared volumes of a study: from a prepared file, from the study's folder, or prepared now."""
    if options.patients is not None and (options.data == "phantom" or options.data.endswith(".safetensors")):
        what = "patients must go with a folder, for the patients of these data are known"
        raise BadInput(what, "patients", options.patients, "leave it out")
    if options.data.endswith(".safetensors"):
        prepared = read_prepared(Path(options.data))
        if options.roi is not None and tuple(options.roi) != prepared.roi:
            what = f"roi must be {prepared.roi}, as {options.data} was prepared"
            raise BadInput(what, "roi", tuple(options.roi), "leave it out")
        return prepared
    volumes = _read_volumes(options, preset)
    pooling = 2 ** (len(preset.features) - 1) if options.model is None else 1
    region = choose_region(volumes, options.roi, [pooling if axis < 2 else 1 for axis in range(volumes.dims)])
    key = _data_key(options, preset, region)
    cached = Path(options.out) / PREPARED
    if cached.exists():
        prepared = read_prepared(cached)
        if prepared.about.get("key") == key:
            return prepared
        raise BadInput("out must hold one study", "out", Phrase(f"other volumes in {cached}"), "choose another folder")
    transforms = None if options.transforms is None else load_transforms(options.transforms)
    ways: dict[str, Any] = {"scale": options.scale, "transforms": transforms}
    prepared = prepare_volumes(volumes, region, options.ignore_label, **ways, show=show)
    return replace(prepared, about={**prepared.about, "key": key})


def _read_volumes(options: Options, preset: Preset) -> Volumes:
    if options.data == "phantom":
        phantoms = preset.phantoms
        return make_phantom(phantoms.sizes, options.seed, phantoms.shape, phantoms.spacing)
    return read_decathlon(options.data, options.ignore_label, options.patients)


def _data_key(options: Options, preset: Preset, region: Sequence[int]) -> str:
    """What the prepared volumes were made from: files by name, size and time, so that they are read once."""
    facts: list[Any] = [list(region), options.ignore_label, *([options.patients] if options.patients else [])]
    if options.scale != "percentiles" or options.transforms is not None:
        transforms = None if options.transforms is None else load_transforms(options.transforms)
        facts += [options.scale, transforms and code_fingerprint(transforms)]
    if options.data == "phantom":
        facts += [asdict(preset.phantoms), options.seed]
    else:
        root = Path(options.data)
        files = sorted(root.glob("*Tr/*")) + sorted(root.glob("*.[cj]s*"))
        facts += [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
