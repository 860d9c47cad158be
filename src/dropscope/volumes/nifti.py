"""NIfTI files: which of them make a case, their headers and voxels, and maps with the geometry of their image.

The one reader and writer of the package, and the one place that says what is wrong with a file, by its name. See
`prediction` for what is predicted on cases. nibabel is imported where a file is opened.
"""

from __future__ import annotations

import logging
import math
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope.atomic import atomic_write
from dropscope.checks import check_choice
from dropscope.device import free_bytes
from dropscope.errors import BadInput, MissingExtra, Phrase, first_line
from dropscope.progress import format_count

ENDINGS = (".nii.gz", ".nii")
SCALES = ("percentiles", "none")
_PERCENTILES = (5.0, 95.0)
_CHANNEL = re.compile(r"(.+)_(\d{4})")  # case_0000.nii.gz, case_0001.nii.gz: the channels of one case
_AFFINE_TOLERANCE = 1e-3
_LEAST_VOXEL = 1e-9  # mm³
_BYTES_PER_VOXEL = 8  # as stored, and as float32
_GZIP_RATIO = 1100  # gzip cannot make anything smaller than by a factor of 1032
_UNREADABLE = (OSError, EOFError, ValueError, MemoryError, zlib.error)  # what nibabel raises on a damaged file


@dataclass(frozen=True, eq=False)
class Header:
    """What a file says of its voxels before any is read."""

    path: Path
    shape: tuple[int, ...]  # as stored
    affine: np.ndarray  # [4, 4], voxel → mm
    spacing: tuple[float, ...]  # mm, one number per stored axis


@dataclass(frozen=True)
class VolumeCase:
    """One case: its files, each of one channel or (alone) of several, and the shape in their headers."""

    name: str
    files: tuple[Path, ...]
    shape: tuple[int, ...]  # spatial, three axes
    channels: int

    @property
    def place(self) -> str:
        return ", ".join(map(str, self.files))


def find_cases(images: Iterable[str | Path]) -> list[VolumeCase]:
    """The cases in files and folders, headers checked.

    A file is a case, 3-D with one channel or 4-D with the channels last. `a.nii.gz,b.nii.gz` is one case with a channel
    from each. A folder holds cases and nothing else; where all its files are called `CASE_0000.nii.gz`, the number is
    the channel.
    """
    cases: list[VolumeCase] = []
    for entry in images:
        path = Path(entry)
        if os.path.isdir(path):  # the names of many channels are no name of a file, however long
            cases += [_read_case_headers(name, files) for name, files in group_by_case(list_volumes(path)).items()]
        else:
            files = [path] if os.path.exists(path) else [Path(part) for part in str(entry).split(",")]
            cases.append(_read_case_headers(volume_name(files[0]), files))
    if not cases:
        raise BadInput("images must name at least one volume", "images", [], "name NIfTI files or folders of them")
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            places = [case.place for case in cases if case.name == name]
            raise BadInput(f"case {name!r} must have a name of its own", name, places, "rename one of the files")
    return cases


def list_volumes(folder: Path) -> list[Path]:
    """The NIfTI files of a folder by name; hidden files are passed over, anything else is refused."""
    volumes: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):  # macOS puts .DS_Store and ._case.nii.gz beside the files of a data set
            continue
        if path.is_dir() or not _ending(path):
            remedy = f"take it out of {folder}, or name the volumes one by one"
            raise BadInput("a folder of volumes must hold .nii and .nii.gz files only", str(path), path.name, remedy)
        other = volumes.setdefault(volume_name(path), path)
        if other is not path:
            what = f"case {volume_name(path)!r} must be one file"
            raise BadInput(what, str(path), [other.name, path.name], "remove one of them")
    if not volumes:
        received = Phrase(f"no such file in {folder}")
        raise BadInput("a folder of volumes must hold .nii or .nii.gz files", str(folder), received, "name another one")
    return list(volumes.values())


def group_by_case(files: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of each case, in order: one each, or one per channel where all are called `CASE_0000`."""
    owners = [channel_owner(path) for path in files]
    if None in owners:
        return {volume_name(path): [path] for path in files}
    cases: dict[str, list[Path]] = {}
    for path, owner in zip(files, owners, strict=True):
        assert owner is not None
        cases.setdefault(owner, []).append(path)
    most = max(map(len, cases.values()))
    for name, paths in cases.items():
        numbers = [volume_name(path)[-4:] for path in paths]
        if len(paths) != most or numbers != [f"{i:04d}" for i in range(most)]:
            remedy = f"add {name}_0000 to {name}_{most - 1:04d}"
            raise BadInput(f"case {name!r} must have the {most} channels of the others", name, numbers, remedy)
    return cases


def channel_owner(path: Path) -> str | None:
    """The case whose channel a file holds by its name; None for a name without a channel's number.

    >>> channel_owner(Path("brain_0001.nii.gz")), channel_owner(Path("brain.nii.gz"))
    ('brain', None)
    """
    match = _CHANNEL.fullmatch(volume_name(path))
    return None if match is None else match[1]


def volume_name(path: Path) -> str:
    """The name of a file without .nii or .nii.gz."""
    return path.name.removesuffix(_ending(path))


def read_header(path: Path) -> Header:
    """The header of a NIfTI file of real numbers."""
    image = _open_image(path)
    dtype = image.header.get_data_dtype()
    if dtype.kind not in "iuf":
        remedy = "convert it to integers or floats"
        raise BadInput(f"voxels of {path} must be real numbers", str(path), Phrase(f"voxels of type {dtype}"), remedy)
    shape = tuple(int(side) for side in image.shape)
    if min(shape) < 1:
        raise BadInput(f"sides of {path} must be at least 1", str(path), shape, "save or export the volume again")
    _check_length(path, math.prod(shape) * dtype.itemsize, math.prod(shape) * _BYTES_PER_VOXEL)
    if not _LEAST_VOXEL <= _voxel(image.affine) < math.inf:
        what, remedy = f"affine of {path} must place every voxel", "export the volume again"
        raise BadInput(what, str(path), Phrase("one with NaN, or flat"), remedy)
    return Header(path, shape, image.affine, tuple(float(step) for step in image.header.get_zooms()))


def _voxel(affine: np.ndarray) -> float:
    """mm³ of a voxel; NaN or infinite where the affine is wrong."""
    with np.errstate(all="ignore"):
        return float(abs(np.linalg.det(affine[:3, :3]))) if np.isfinite(affine).all() else math.nan


def _check_length(path: Path, expected: int, needed: int) -> None:
    """Refuses a header that promises more than the file, or this machine, can hold, before memory is taken for it."""
    length = path.stat().st_size
    most = length * _GZIP_RATIO if path.name.endswith(".gz") else length
    if expected > most:
        received = Phrase(f"a file of {format_count(length)}B for {format_count(expected)}B of voxels")
        raise BadInput(f"{path} must hold the voxels that its header names", str(path), received, "copy it again")
    free = free_bytes(torch.device("cpu"))
    if needed > free:  # zeros take a thousandth of their length
        received = Phrase(f"{format_count(needed)}B of voxels, and {format_count(free)}B are free")
        raise BadInput(f"{path} must fit into memory", str(path), received, "cut it, or use a larger machine")


def check_aligned(header: Header, reference: Header, dims: int) -> None:
    """Refuses a file whose first `dims` axes do not lie on the voxels of `reference`: another shape or affine."""
    remedy = f"resample it to {reference.path}"
    if header.shape[:dims] != reference.shape[:dims]:
        what = f"{header.path} must have the shape of {reference.path}, {reference.shape[:dims]}"
        raise BadInput(what, str(header.path), header.shape, remedy)
    if not np.allclose(header.affine, reference.affine, atol=_AFFINE_TOLERANCE):
        received = Phrase(f"affines that differ by {float(np.abs(header.affine - reference.affine).max()):g}")
        raise BadInput(f"{header.path} must lie in the place of {reference.path}", str(header.path), received, remedy)


def read_voxels(path: Path) -> np.ndarray:
    """The voxels of a file, float32 with the file's axes and its slope applied."""
    image = _open_image(path)
    try:
        with np.errstate(all="ignore"):  # a slope may make numbers infinite: that is for the caller to refuse
            return np.asarray(image.dataobj, dtype=np.float32)
    except _UNREADABLE as error:
        raise BadInput(
            f"{path} must be readable to its end", str(path), Phrase(first_line(error)), "copy or save it again"
        ) from error


def read_intensities(path: Path) -> np.ndarray:
    """The voxels of an image: as `read_voxels`, and every one a finite number."""
    values = read_voxels(path)
    bad = int((~np.isfinite(values)).sum())
    if bad:
        received = Phrase(f"{bad} NaN or infinite voxels")
        raise BadInput(f"voxels of {path} must be finite", str(path), received, "fix or remove the file")
    return values


def read_case(case: VolumeCase, scale: str = "percentiles") -> Tensor:
    """The voxels, float32 `[channels, *shape]`; see `scale_intensities` for "percentiles"."""
    check_choice(scale, "scale", SCALES)
    channels: list[Tensor] = []
    for path in case.files:
        values = torch.from_numpy(read_intensities(path))
        values = values.unsqueeze(-1) if values.dim() == 2 else values
        parts = values[None] if values.dim() == 3 else values.movedim(-1, 0)
        if scale == "percentiles":
            parts = scale_intensities(parts, [str(path)] * len(parts), "leave the case out, or write scale='none'")
        channels.append(parts)
    return torch.cat(channels).contiguous()


def scale_intensities(
    image: Tensor, names: Sequence[str], remedy: str = "fix that channel, or leave the case out"
) -> Tensor:
    """`image[channels, *shape]` with the 5th percentile of each channel moved to 0 and its 95th to 1, nothing clipped.

    `names` say for each channel what an error is about.

    >>> scale_intensities(torch.arange(101.0)[None], ["a file"])[0, [5, 95]].tolist()
    [0.0, 1.0]
    """
    low, high = np.percentile(image.flatten(1).numpy(), _PERCENTILES, axis=1)
    for channel in np.flatnonzero(~(high > low)).tolist():
        what = f"5th and 95th percentile of {names[channel]} must differ"
        raise BadInput(what, names[channel], Phrase(f"{float(low[channel]):g} for both"), remedy)
    shape = (-1, *[1] * (image.dim() - 1))
    zero, one = (torch.from_numpy(level.astype(np.float32)).reshape(shape) for level in (low, high))
    return (image - zero) / (one - zero)


def voxel_volume(case: VolumeCase) -> float:
    """Millilitres of one voxel, where the file says its unit is millimetres (or says nothing)."""
    return _voxel(_open_image(case.files[0]).affine) / 1000


def upright(values: np.ndarray, affine: np.ndarray) -> tuple[np.ndarray, tuple[float, ...]]:
    """A volume turned so that its axes run to the patient's right, front and head, and its spacing in mm.

    Turned by quarter turns and flips, nothing is resampled; an oblique axis goes to the nearest direction.
    """
    nibabel = _import_nibabel()
    turns = nibabel.io_orientation(affine)
    steps = nibabel.affines.voxel_sizes(affine)
    spacing = [float(steps[int(np.flatnonzero(turns[:, 0] == axis)[0])]) for axis in range(3)]
    return nibabel.apply_orientation(values, turns), tuple(spacing)


def write_map(path: Path, values: np.ndarray, case: VolumeCase, what: str) -> None:
    """Writes a map of the case's shape with the affine, spacing, units and codes of its image, atomically."""
    nibabel = _import_nibabel()
    image = _open_image(case.files[0])
    header = image.header.copy()
    header.set_data_dtype(values.dtype)
    header.set_slope_inter(1, 0)
    header["descrip"] = f"dropscope: {what}".encode()[:79]
    header["cal_min"], header["cal_max"] = float(values.min()), float(values.max())  # a viewer's display range
    shape = image.shape[:3] if len(image.shape) > 2 else image.shape
    made = type(image)(values.reshape(shape), image.affine, header)
    atomic_write(path, lambda part: nibabel.save(made, part))


def write_volume(path: Path, values: np.ndarray, spacing: Sequence[float]) -> None:
    """Writes an array as a volume of this spacing in mm, at the origin, atomically."""
    nibabel = _import_nibabel()
    affine = np.diag([*spacing, *[1.0] * (3 - len(spacing)), 1.0])
    atomic_write(path, lambda part: nibabel.save(nibabel.Nifti1Image(values, affine), part))


def _read_case_headers(name: str, files: Sequence[Path]) -> VolumeCase:
    headers = [read_header(path) for path in files]
    for header in headers:
        if len(header.shape) not in (2, 3, 4) or 0 in header.shape:
            what = f"{header.path} must have three axes, or four with the channels last"
            raise BadInput(what, str(header.path), header.shape, "save it in that form")
        if len(files) > 1 and len(header.shape) == 4:
            what = f"{header.path}, one of several files, must hold one channel"
            raise BadInput(what, str(header.path), header.shape, "name the 4-D file alone")
        check_aligned(header, headers[0], dims=3)
    shape = headers[0].shape
    channels = shape[3] if len(shape) == 4 else len(headers)
    return VolumeCase(name, tuple(files), (*shape, 1)[:3] if len(shape) == 2 else shape[:3], channels)


def _open_image(path: Path) -> Any:
    nibabel = _import_nibabel()
    if not path.is_file():
        raise BadInput("images must be files that exist", "images", str(path), "check the path")
    what, remedy = f"{path} must be a NIfTI file (.nii or .nii.gz)", "convert it to NIfTI, or take it out"
    if not _ending(path):
        raise BadInput(what, str(path), path.name, remedy)
    try:
        # What it says of a header is in its error, too, or does not matter to the voxels.
        with _unlogged(nibabel.imageglobals.logger), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            image = nibabel.load(path)
    except (nibabel.filebasedimages.ImageFileError, nibabel.spatialimages.HeaderDataError, *_UNREADABLE) as error:
        raise BadInput(what, str(path), Phrase(first_line(error)), remedy) from error
    if not isinstance(image, nibabel.Nifti1Image):
        raise BadInput(what, str(path), Phrase(f"a file that nibabel reads as {type(image).__name__}"), remedy)
    return image


@contextmanager
def _unlogged(logger: logging.Logger) -> Iterator[None]:
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _ending(path: Path) -> str:
    return next((ending for ending in ENDINGS if path.name.endswith(ending)), "")


def _import_nibabel() -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise MissingExtra("reading NIfTI", "nibabel", "medical") from error
    return nibabel
