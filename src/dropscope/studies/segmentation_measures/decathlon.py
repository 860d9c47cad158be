"""A folder in the layout of the Medical Segmentation Decathlon, or of nnU-Net (CASE_0000.nii.gz, a file per channel):
imagesTr, labelsTr, with or without dataset.json.

Owns finding, pairing and checking the files; every complaint names the file. An optional `cases.csv` (columns case,
and any of centre, patient, role) says what the layout cannot. Voxels are read when a case is loaded.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope.errors import BadInput, MissingExtra
from dropscope.studies.segmentation_measures.volumes import ROLES, Case, Volumes
from dropscope.volumes import CHANNEL, by_case

_ENDINGS = (".nii.gz", ".nii")
_LITTER = ("._", ".DS_Store")  # what macOS puts beside the official files
_AFFINE_TOLERANCE = 1e-3
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error)


def read_decathlon(folder: str | Path, ignore_label: int | None = None) -> Volumes:
    """Every labelled case of a folder, headers checked; without dataset.json, classes are counted in the labels."""
    root = Path(folder)
    for part in ("imagesTr", "labelsTr"):
        if not (root / part).is_dir():
            remedy = "name a folder that holds imagesTr and labelsTr, or write --data phantom"
            raise BadInput("a Decathlon folder holds imagesTr and labelsTr", "--data", str(root / part), remedy)
    labels = _files(root / "labelsTr")
    images = _by_case(_files(root / "imagesTr"), labels)
    for name in sorted({*images, *labels}):
        if name not in images or name not in labels:
            there = images[name][0] if name in images else labels[name]
            missing = "labelsTr" if name in images else "imagesTr"
            raise BadInput(
                "every image has a label of the same name", str(there), f"none in {missing}", "add or remove it"
            )
    about = _dataset_json(root / "dataset.json")
    listed = _cases_csv(root / "cases.csv", sorted(images))
    shapes = {name: _checked_case(images[name], labels[name]) for name in sorted(images)}
    _check_alike(shapes, images)
    channels, spacing = next((c, s) for _, c, s in shapes.values())
    cases = tuple(
        Case(
            name,
            shape,
            lambda files=images[name], label=labels[name]: _voxels(files, label),  # type: ignore[misc]
            place=str(images[name][0]),
            **listed.get(name, {"patient": name}),
        )
        for name, (shape, _, _) in shapes.items()
    )
    ignored = about.get("labels", {}).pop("ignore", None) if isinstance(about.get("labels"), dict) else None
    if ignored is not None and ignored != ignore_label:  # as nnU-Net marks voxels that nobody labelled
        remedy = f"write --ignore-label {ignored}"
        raise BadInput("labels that dataset.json ignores are ignored", "--ignore-label", ignore_label, remedy)
    classes = _names(about, "labels") or [f"class {i}" for i in range(_highest(labels, ignore_label) + 1)]
    named = _names(about, "modality", "channel_names") or [f"channel {i}" for i in range(channels)]
    if len(named) != channels:
        remedy = "name as many modalities as the images have channels"
        raise BadInput(f"the images have {channels} channels", str(root / "dataset.json"), named, remedy)
    return Volumes(str(root), cases, tuple(named), tuple(classes), spacing)


def _files(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(_LITTER):
            continue
        ending = next((e for e in _ENDINGS if path.name.endswith(e)), None)
        if ending is None or not path.is_file():
            raise BadInput(
                "a folder of volumes holds .nii or .nii.gz files only", "file", str(path), "move it elsewhere"
            )
        name = path.name.removesuffix(ending)
        if name in found:
            raise BadInput("a case is one file", str(path), f"also {found[name].name}", "remove one of them")
        found[name] = path
    if not found:
        raise BadInput("a folder of volumes holds .nii or .nii.gz files", "folder", str(folder), "put volumes there")
    return found


def _by_case(images: dict[str, Path], labels: dict[str, Path]) -> dict[str, list[Path]]:
    """The files of each case; a number at the end is a channel where labels have none, else it is the case's own."""
    parted = [CHANNEL.fullmatch(name) for name in images]
    channels = all(match is not None and match[1] in labels for match in parted)
    return by_case(list(images.values())) if channels else {name: [path] for name, path in images.items()}


def _nibabel() -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise MissingExtra("reading NIfTI", "nibabel", "medical") from error
    return nibabel


def _opened(path: Path) -> Any:
    nibabel = _nibabel()
    try:
        return nibabel.load(path)
    except (nibabel.filebasedimages.ImageFileError, *_UNREADABLE) as error:
        reason = str(error).splitlines()[0][:120]
        raise BadInput("a volume is a NIfTI file", str(path), reason, "replace or remove the file") from error


def _checked_case(files: list[Path], label: Path) -> tuple[tuple[int, ...], int, tuple[float, ...]]:
    """(spatial shape, channels, spacing) of the files of a case, each of which fits the label."""
    found = [_checked_headers(image, label) for image in files]
    for image, (_, channels, _) in zip(files, found, strict=True):
        if len(files) > 1 and channels > 1:
            raise BadInput("one of several files holds one channel", str(image), f"{channels} channels", "split it")
    return found[0][0], sum(channels for _, channels, _ in found), found[0][2]


def _checked_headers(image: Path, label: Path) -> tuple[tuple[int, ...], int, tuple[float, ...]]:
    """(spatial shape, channels, spacing) of a pair of files that fit each other."""
    opened, marked = _opened(image), _opened(label)
    shape, dims = tuple(map(int, marked.shape)), len(marked.shape)
    if dims not in (2, 3):
        raise BadInput("a label has two or three dimensions", str(label), shape, "save one label map per file")
    if min(shape) < 2:
        remedy = "leave it out, or save all images and labels of the folder as two-dimensional"
        raise BadInput("a volume has more than one slice along every axis", str(image), shape, remedy)
    if tuple(opened.shape[:dims]) != shape or len(opened.shape) > dims + 1:
        received = f"image {tuple(opened.shape)}, label {shape}"
        raise BadInput("image and label have the same shape", str(image), received, "resample one to the other")
    difference = float(np.abs(opened.affine - marked.affine).max())
    if not difference <= _AFFINE_TOLERANCE:
        received = f"affines that differ by {difference:g} from those of {label}"
        raise BadInput("image and label lie in the same place", str(image), received, "resample one to the other")
    channels = int(opened.shape[dims]) if len(opened.shape) > dims else 1
    return shape, channels, tuple(float(z) for z in opened.header.get_zooms()[:dims])


def _check_alike(
    shapes: dict[str, tuple[tuple[int, ...], int, tuple[float, ...]]], images: dict[str, list[Path]]
) -> None:
    names = list(shapes)
    first = shapes[names[0]]
    for name in names[1:]:
        shape, channels, _ = shapes[name]
        if (len(shape), channels) != (len(first[0]), first[1]):
            received = f"{len(shape)} dimensions, {channels} channels"
            remedy = f"{images[names[0]][0]} has {len(first[0])} dimensions, {first[1]} channels: leave out one kind"
            raise BadInput("all volumes are alike in dimensions and channels", str(images[name][0]), received, remedy)


def _array(path: Path) -> np.ndarray:
    try:
        values = np.asarray(_opened(path).dataobj)
        if values.dtype.kind not in "biuf":
            raise TypeError(f"voxels of type {values.dtype}, not numbers")
        return values.astype(np.float32)
    except (TypeError, *_UNREADABLE) as error:
        reason = str(error).splitlines()[0][:120]
        raise BadInput("a volume can be read whole", str(path), reason, "fetch the file again") from error


def _voxels(files: list[Path], label: Path) -> tuple[Tensor, Tensor]:
    marks = _label_array(label)
    channels = [_channels(image, marks.ndim) for image in files]
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(channels))), torch.from_numpy(marks)


def _channels(image: Path, dims: int) -> np.ndarray:
    values = _array(image)
    missing = int((~np.isfinite(values)).sum())
    if missing:
        raise BadInput("voxels are numbers", str(image), f"{missing} NaN or infinite voxels", "mend or remove the file")
    return np.moveaxis(values, -1, 0) if values.ndim > dims else values[None]


def _label_array(label: Path) -> np.ndarray:
    marks = _array(label)
    wrong = ~np.isfinite(marks) | (marks != np.round(marks))
    if wrong.any():
        remedy = "save class numbers 0, 1, … without interpolation"
        raise BadInput("labels are whole numbers", str(label), float(marks[wrong][0]), remedy)
    return marks.astype(np.int64)


def _highest(labels: dict[str, Path], ignore_label: int | None) -> int:
    highest = 0
    for path in labels.values():
        marks = _label_array(path)
        marks = marks if ignore_label is None else marks[marks != ignore_label]
        highest = max(highest, int(marks.max(initial=0)))
    return highest


def _dataset_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        about = json.loads(path.read_text())
    except ValueError as error:
        raise BadInput("dataset.json is JSON", str(path), str(error)[:120], "mend it, or remove it") from error
    if not isinstance(about, dict):
        raise BadInput("dataset.json is an object", str(path), type(about).__name__, "mend it, or remove it")
    return about


def _names(about: dict[str, Any], *fields: str) -> list[str]:
    """Names in order of their numbers: {"0": "background"} as in the Decathlon, {"background": 0} as in nnU-Net."""
    found: dict[str, Any] = next(
        (about[name] for name in fields if isinstance(about.get(name), dict) and about[name]), {}
    )
    try:
        numbered = all(str(key).isdigit() for key in found)
        named = {int(key) if numbered else int(found[key]): str(found[key] if numbered else key) for key in found}
    except (TypeError, ValueError) as error:
        raise BadInput("dataset.json numbers its names", fields[0], found, 'write {"0": "background", …}') from error
    if sorted(named) != list(range(len(found))):
        remedy = "number them 0, 1, 2, … without gaps, in dataset.json and in the label files"
        raise BadInput("dataset.json numbers its names without gaps", fields[0], found, remedy)
    return [named[number] for number in sorted(named)]


def _cases_csv(path: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """What the table says of each case; every case is listed, or there is no table."""
    if not path.exists():
        return {}
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise BadInput("cases.csv is a table", str(path), str(error)[:120], "mend it, or remove it") from error
    if "case" not in table.columns or sorted(table["case"]) != names:
        lacking = sorted({*names} ^ {*table.get("case", [])})[:5]
        remedy = "list every case once in the column 'case', by its file name without .nii.gz"
        raise BadInput("cases.csv lists the cases of the folder", str(path), lacking or "a case twice", remedy)
    if "role" in table.columns and not set(table["role"]) <= {*ROLES, ""}:
        remedy = f"write {', '.join(ROLES)}"
        raise BadInput(
            "a role is train, validation or test", str(path), sorted(set(table["role"]) - {*ROLES, ""}), remedy
        )
    return {
        row["case"]: {
            "patient": row.get("patient") or row["case"],
            "centre": row.get("centre") or "all",
            "role": row.get("role") or None,
        }
        for row in table.to_dict("records")
    }


def write_decathlon(volumes: Volumes, folder: str | Path) -> Path:
    """Cases as a folder of this layout, with dataset.json and cases.csv: for viewers, and for `dropscope predict`."""
    nibabel, root = _nibabel(), Path(folder)
    affine = np.diag([*volumes.spacing, *[1.0] * (3 - len(volumes.spacing)), 1.0])
    for case in volumes.cases:
        image, label = case.load()
        moved = np.moveaxis(image.numpy(), 0, -1) if len(image) > 1 else image[0].numpy()
        for part, array in (("imagesTr", moved), ("labelsTr", label.numpy().astype(np.uint8))):
            (root / part).mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(array, affine), root / part / f"{case.name}.nii.gz")
    names = {
        field: {str(i): name for i, name in enumerate(listed)}
        for field, listed in (("modality", volumes.channels), ("labels", volumes.classes))
    }
    (root / "dataset.json").write_text(json.dumps(names, indent=2) + "\n")
    fields = ("patient", "centre", "role")
    table = pd.DataFrame([{"case": c.name, **{f: getattr(c, f) or "" for f in fields}} for c in volumes.cases])
    table.to_csv(root / "cases.csv", index=False)
    return root
