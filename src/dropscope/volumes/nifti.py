"""NIfTI volumes in and out: which files make a case, their voxels, and maps written with the geometry of their image.

Owns the files and every complaint about one, by its name. What is predicted on them is `prediction.py`'s. nibabel is
imported where a file is opened.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope.atomic import atomic_write
from dropscope.errors import BadInput, MissingExtra

ENDINGS = (".nii.gz", ".nii")
PERCENTILES = (5.0, 95.0)
SCALES = ("percentiles", "none")
CHANNEL = re.compile(r"(.+)_(\d{4})")  # case_0000.nii.gz, case_0001.nii.gz: the channels of one case
_AFFINE_SLACK = 1e-3


@dataclass(frozen=True)
class VolumeCase:
    """One case: its files, each of one channel or (alone) of several, and the shape that their headers give."""

    name: str
    files: tuple[Path, ...]
    shape: tuple[int, ...]  # spatial, three axes
    channels: int

    @property
    def place(self) -> str:
        return ", ".join(map(str, self.files))


def find_cases(images: Iterable[str | Path]) -> list[VolumeCase]:
    """The cases that files and folders name, headers checked.

    A file is a case, 3-D with one channel or 4-D with the channels last. `a.nii.gz,b.nii.gz` is one case with a channel
    from each. A folder holds cases and nothing else; where all its files are called `CASE_0000.nii.gz`, the number is
    the channel.
    """
    cases: list[VolumeCase] = []
    for entry in images:
        path = Path(entry)
        if path.is_dir():
            cases += _in_folder(path)
        else:
            files = [path] if path.exists() else [Path(part) for part in str(entry).split(",")]
            cases.append(_case(_stem(files[0]), files))
    if not cases:
        raise BadInput("there is at least one volume", "--image", [], "name NIfTI files or folders of them")
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            places = [case.place for case in cases if case.name == name]
            raise BadInput("cases have names of their own", name, places, "rename one of the files")
    return cases


def read_case(case: VolumeCase, scale: str = "percentiles") -> Tensor:
    """The voxels, float32 `[channels, *shape]`; with "percentiles" each channel's 5th becomes 0 and its 95th 1."""
    if scale not in SCALES:
        raise BadInput("intensities are scaled by percentiles or not at all", "scale", scale, f"write one of {SCALES}")
    channels: list[np.ndarray] = []
    for path in case.files:
        values = _voxels(path)
        parts = [values] if values.ndim == 3 else [values[..., i] for i in range(values.shape[-1])]
        for part in parts:
            bad = int((~np.isfinite(part)).sum())
            if bad:
                remedy = "mend or remove the file"
                raise BadInput("voxels are numbers", str(path), f"{bad} NaN or infinite voxels", remedy)
        channels += [_scaled(part, path) for part in parts] if scale == "percentiles" else parts
    return torch.from_numpy(np.stack(channels))


def write_map(path: Path, values: np.ndarray, case: VolumeCase, what: str) -> None:
    """A map of the case's shape with the affine, spacing, units and codes of its image. It appears whole."""
    nibabel = _nibabel()
    image = _opened(case.files[0])
    header = image.header.copy()
    header.set_data_dtype(values.dtype)
    header.set_slope_inter(1, 0)
    header["descrip"] = f"dropscope: {what}".encode()[:79]
    header["cal_min"], header["cal_max"] = float(values.min()), float(values.max())  # what a viewer shows it between
    shape = image.shape[:3] if len(image.shape) > 2 else image.shape
    made = type(image)(values.reshape(shape), image.affine, header)
    atomic_write(path, lambda part: nibabel.save(made, part))


def voxel_volume(case: VolumeCase) -> float:
    """Millilitres of one voxel, where the file says its unit is millimetres (or says nothing)."""
    return float(abs(np.linalg.det(_opened(case.files[0]).affine[:3, :3]))) / 1000


def _in_folder(folder: Path) -> list[VolumeCase]:
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in files:
        if path.is_dir() or not _ending(path):
            remedy = f"take it out of {folder}, or name the volumes one by one"
            raise BadInput("a folder of volumes holds NIfTI files (.nii, .nii.gz) alone", str(path), path.name, remedy)
    if not files:
        raise BadInput("a folder of volumes holds NIfTI files", str(folder), "none", "name another folder")
    return [_case(name, paths) for name, paths in by_case(files).items()]


def by_case(files: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of each case, in order: one each, or one per channel where all are called `CASE_0000`."""
    matches = [CHANNEL.fullmatch(_stem(path)) for path in files]
    if not all(matches):
        return {_stem(path): [path] for path in files}
    grouped: dict[str, list[Path]] = {}
    for path, match in zip(files, matches, strict=True):
        assert match is not None
        grouped.setdefault(match[1], []).append(path)
    most = max(len(paths) for paths in grouped.values())
    for name, paths in grouped.items():
        numbers = [_stem(path)[-4:] for path in paths]
        if len(paths) != most or numbers != [f"{i:04d}" for i in range(most)]:
            wanted = f"{name}_0000 to {name}_{most - 1:04d}"
            raise BadInput(f"every case of a folder has the same {most} channels", name, numbers, f"add {wanted}")
    return grouped


def _case(name: str, files: Sequence[Path]) -> VolumeCase:
    shapes: list[tuple[int, ...]] = []
    first: Any = None
    for path in files:
        image = _opened(path)
        shape = tuple(int(side) for side in image.shape)
        if len(shape) == 2:
            shape = (*shape, 1)
        if len(shape) not in (3, 4) or 0 in shape:
            remedy = "save it with three axes, or four with the channels last"
            raise BadInput("a volume has three axes, or four with the channels last", str(path), image.shape, remedy)
        if image.header.get_data_dtype().kind not in "iuf":
            raise BadInput("voxels are real numbers", str(path), str(image.header.get_data_dtype()), "convert the file")
        if len(files) > 1 and len(shape) == 4:
            raise BadInput("one of several files holds one channel", str(path), shape, "name the 4-D file alone")
        first = image if first is None else first
        if shapes and shape[:3] != shapes[0][:3]:
            raise BadInput("channels of a case have one shape", str(path), shape, f"resample it to {files[0]}")
        if not np.allclose(image.affine, first.affine, atol=_AFFINE_SLACK):
            remedy = f"resample it to {files[0]}: they do not lie in the same place"
            raise BadInput("channels of a case have one affine", str(path), image.affine.tolist(), remedy)
        shapes.append(shape)
    channels = shapes[0][3] if len(shapes[0]) == 4 else len(shapes)
    return VolumeCase(name, tuple(files), shapes[0][:3], channels)


def _scaled(values: np.ndarray, path: Path) -> np.ndarray:
    low, high = np.percentile(values, PERCENTILES)
    if not high > low:
        remedy = "leave the case out, or write --scale none"
        raise BadInput("the 5th and 95th percentile of an image differ", str(path), float(low), remedy)
    return ((values - np.float32(low)) / (np.float32(high) - np.float32(low))).astype(np.float32)


def _voxels(path: Path) -> np.ndarray:
    image = _opened(path)
    try:
        values = np.asarray(image.dataobj, dtype=np.float32)
    except (OSError, EOFError, ValueError, MemoryError, zlib.error) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise BadInput("a NIfTI file can be read to its end", str(path), reason, "copy or save it again") from error
    return values[..., None] if values.ndim == 2 else values


def _opened(path: Path) -> Any:
    nibabel = _nibabel()
    if not path.exists():
        raise BadInput("a volume that is named exists", "--image", str(path), "check the path")
    rule = "a volume is a NIfTI file (.nii or .nii.gz)"
    if not _ending(path):
        raise BadInput(rule, "--image", str(path), "convert it to NIfTI first")
    try:
        image = nibabel.load(path)
    except (nibabel.filebasedimages.ImageFileError, OSError, EOFError, ValueError, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise BadInput(rule, str(path), reason, "convert it to NIfTI, or take it out") from error
    if not isinstance(image, nibabel.Nifti1Image):
        raise BadInput(rule, str(path), type(image).__name__, "convert it to NIfTI first")
    return image


def _ending(path: Path) -> str:
    return next((ending for ending in ENDINGS if path.name.endswith(ending)), "")


def _stem(path: Path) -> str:
    return path.name.removesuffix(_ending(path))


def _nibabel() -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise MissingExtra("reading NIfTI", "nibabel", "medical") from error
    return nibabel
