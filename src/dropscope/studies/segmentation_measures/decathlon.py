"""The folder layout of the Medical Segmentation Decathlon and of nnU-Net (CASE_0000.nii.gz, a file per channel).

Owns imagesTr, labelsTr, dataset.json (optional) and cases.csv (optional: columns case, and any of centre, patient,
role, which the layout cannot say). See the room `volumes` for the files. Voxels are read when a case is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import volumes
from dropscope.atomic import read_json
from dropscope.errors import BadInput, Phrase
from dropscope.loading import read_table
from dropscope.studies.segmentation_measures.cases import ROLES, Case, Volumes

_FRAMES = r"patient\d+(?=_frame\d+$)"  # ACDC: two frames of a patient are two files


def read_decathlon(folder: str | Path, ignore_label: int | None = None, patients: str | None = None) -> Volumes:
    """Every labelled case of a folder, headers checked; without dataset.json, classes are counted in the labels.

    `patients` is a regular expression whose match in a case's name is its patient. Without it, and without a column
    patient in cases.csv, every case is a patient, except frames of one (patient001_frame01).
    """
    root = Path(folder)
    for part in ("imagesTr", "labelsTr"):
        if not (root / part).is_dir():
            remedy = "name a folder that holds imagesTr and labelsTr, or write data='phantom'"
            received = Phrase(f"no folder {root / part}")
            raise BadInput("data must hold the folders imagesTr and labelsTr", "data", received, remedy)
    labels = {volumes.volume_name(path): path for path in volumes.list_volumes(root / "labelsTr")}
    images = _image_files(volumes.list_volumes(root / "imagesTr"), labels)
    for name in sorted({*images, *labels}):
        if name not in images or name not in labels:
            present = images[name][0] if name in images else labels[name]
            part = "labelsTr" if name in images else "imagesTr"
            what = f"{present} must have a partner of its name in {part}"
            raise BadInput(what, str(present), Phrase("no such file"), "add or remove it")
    dataset = _read_dataset_json(root / "dataset.json")
    listed = _read_cases_csv(root / "cases.csv", sorted(images))
    owners, remarks = _patients_by_name(sorted(images), patients)
    headers = {name: _check_case(images[name], labels[name]) for name in sorted(images)}
    _check_alike(headers)
    first = next(iter(headers.values()))
    cases = tuple(
        Case(
            name,
            header.shape,
            lambda files=images[name], label=labels[name]: _load(files, label),  # type: ignore[misc]
            place=str(images[name][0]),
            **{"patient": owners[name]} | {key: value for key, value in listed.get(name, {}).items() if value},
        )
        for name, (header, _) in headers.items()
    )
    _check_ignored(dataset, ignore_label)
    channels = first[1]
    classes = _names(dataset, "labels") or [f"class {i}" for i in range(_highest_label(labels, ignore_label) + 1)]
    named = _names(dataset, "modality", "channel_names") or [f"channel {i}" for i in range(channels)]
    if len(named) != channels:
        path = root / "dataset.json"
        what = f"{path} must name the {channels} channels of the images"
        raise BadInput(what, str(path), named, "name each channel once")
    remarks = [] if any(row.get("patient") for row in listed.values()) else remarks
    return Volumes(str(root), cases, tuple(named), tuple(classes), first[0].spacing, tuple(remarks))


def _patients_by_name(names: Sequence[str], pattern: str | None) -> tuple[dict[str, str], list[str]]:
    """The patient of each case by its name, and a remark where cases share one."""
    try:
        found = {name: re.search(pattern or _FRAMES, name) for name in names}
    except re.error as error:
        remedy = "write patients='patient[0-9]+'"
        raise BadInput("patients must be a regular expression", "patients", pattern, remedy) from error
    absent = [name for name in names if found[name] is None or not found[name].group()]  # type: ignore[union-attr]
    if pattern and absent:
        remedy = "write one that every file's name has, or a table cases.csv"
        raise BadInput(
            f"patients must match the name of every case, such as {absent[0]!r}", "patients", pattern, remedy
        )
    if absent:
        return {name: name for name in names}, []
    owners = {name: str(match.group()) for name, match in found.items() if match}
    count = len({*owners.values()})
    return owners, [f"{len(names)} cases of {count} patients, by their names"] if count < len(names) else []


def _image_files(images: Sequence[Path], labels: dict[str, Path]) -> dict[str, list[Path]]:
    """The files of each case; a number at the end is a channel where labels have none, else it is the case's own."""
    if all(volumes.channel_owner(path) in labels for path in images):
        return volumes.group_by_case(images)
    return {volumes.volume_name(path): [path] for path in images}


def _check_case(files: Sequence[Path], label: Path) -> tuple[volumes.Header, int]:
    """(header of the first image, cut to the axes of the label; channels) of a case whose files fit each other."""
    reference = volumes.read_header(label)
    dims = len(reference.shape)
    if dims not in (2, 3):
        what = f"{label} must have two or three dimensions"
        raise BadInput(what, str(label), reference.shape, "save one label map per file")
    if min(reference.shape) < 2:
        remedy = "leave it out, or save all images and labels of the folder as two-dimensional"
        what = f"{files[0]} must have more than one slice along every axis"
        raise BadInput(what, str(files[0]), reference.shape, remedy)
    headers, channels = [volumes.read_header(path) for path in files], 0
    for header in headers:
        volumes.check_aligned(header, reference, dims)
        own = header.shape[dims] if len(header.shape) > dims else 1
        if len(header.shape) > dims + 1 or (len(files) > 1 and own > 1):
            what = f"{header.path} must hold one channel, or alone several along its last axis"
            raise BadInput(what, str(header.path), header.shape, "save one image per file")
        channels += own
    first = headers[0]
    return volumes.Header(first.path, first.shape[:dims], first.affine, first.spacing[:dims]), channels


def _check_alike(headers: dict[str, tuple[volumes.Header, int]]) -> None:
    reference, channels = next(iter(headers.values()))
    for header, own in headers.values():
        if (len(header.shape), own) != (len(reference.shape), channels):
            wanted = f"{len(reference.shape)} dimensions and {channels} channels"
            received = Phrase(f"{len(header.shape)} dimensions and {own} channels")
            what = f"{header.path} must have {wanted}, as {reference.path}"
            raise BadInput(what, str(header.path), received, "leave out one kind")


def _check_ignored(dataset: dict[str, Any], ignore_label: int | None) -> None:
    """nnU-Net lists voxels that nobody labelled as a class "ignore": it must be asked for, and is then no class."""
    ignored = dataset["labels"].pop("ignore", None) if isinstance(dataset.get("labels"), dict) else None
    if ignored is not None and ignored != ignore_label:
        what = f"ignore_label must be {ignored}, which dataset.json ignores"
        raise BadInput(what, "ignore_label", ignore_label, f"write ignore_label={ignored}")


def _load(files: Sequence[Path], label: Path) -> tuple[Tensor, Tensor]:
    marks = _read_labels(label)
    channels = []
    for path in files:
        values = volumes.read_intensities(path)
        channels.append(np.moveaxis(values, -1, 0) if values.ndim > marks.ndim else values[None])
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(channels))), torch.from_numpy(marks)


def _read_labels(path: Path) -> np.ndarray:
    marks = volumes.read_voxels(path)
    wrong = ~np.isfinite(marks) | (marks != np.round(marks))
    if wrong.any():
        remedy = "save class numbers 0, 1, … without interpolation"
        raise BadInput(f"labels of {path} must be whole numbers", str(path), float(marks[wrong][0]), remedy)
    return marks.astype(np.int64)


def _highest_label(labels: dict[str, Path], ignore_label: int | None) -> int:
    highest = 0
    for path in labels.values():
        marks = _read_labels(path)
        marks = marks if ignore_label is None else marks[marks != ignore_label]
        highest = max(highest, int(marks.max(initial=0)))
    return highest


def _read_dataset_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    dataset = read_json(path)
    if not isinstance(dataset, dict):
        raise BadInput(f"{path} must be a JSON object", str(path), dataset, "fix or remove it")
    return dataset


def _names(dataset: dict[str, Any], *fields: str) -> list[str]:
    """Names in order of their numbers: {"0": "background"} as in the Decathlon, {"background": 0} as in nnU-Net."""
    entry: dict[str, Any] = next(
        (dataset[name] for name in fields if isinstance(dataset.get(name), dict) and dataset[name]), {}
    )
    remedy = 'write {"0": "background", "1": …} without gaps, in dataset.json and in the label files'
    try:
        numbered = all(str(key).isdigit() for key in entry)
        named = {int(key) if numbered else int(entry[key]): str(entry[key] if numbered else key) for key in entry}
    except (TypeError, ValueError) as error:
        raise BadInput(f"{fields[0]} of dataset.json must be numbered", fields[0], entry, remedy) from error
    if sorted(named) != list(range(len(entry))):
        raise BadInput(f"{fields[0]} of dataset.json must be numbered 0, 1, 2, …", fields[0], entry, remedy)
    return [named[number] for number in sorted(named)]


def _read_cases_csv(path: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """What the table says of each case; every case is listed, or there is no table."""
    if not path.exists():
        return {}
    table = read_table(path)
    if "case" not in table.columns or sorted(table["case"]) != names:
        differing = sorted({*names} ^ {*table.get("case", [])})[:5]
        remedy = "list every case once in the column 'case', by its file name without .nii.gz"
        what = f"{path} must list the cases of the folder, each once"
        raise BadInput(what, str(path), differing or Phrase("a case twice"), remedy)
    roles = sorted({*table.get("role", [])} - {*ROLES, ""})
    if roles:
        raise BadInput(f"roles of {path} must be among {', '.join(ROLES)}", str(path), roles, "write one of these")
    return {
        row["case"]: {
            "patient": row.get("patient") or None,
            "centre": row.get("centre") or "all",
            "role": row.get("role") or None,
        }
        for row in table.to_dict("records")
    }


def write_decathlon(data: Volumes, folder: str | Path) -> Path:
    """Writes cases as a folder of this layout, with dataset.json and cases.csv: for viewers and `dropscope predict`."""
    root = Path(folder)
    for case in data.cases:
        image, label = case.load()
        last = np.moveaxis(image.numpy(), 0, -1) if len(image) > 1 else image[0].numpy()
        for part, values in (("imagesTr", last), ("labelsTr", label.numpy().astype(np.uint8))):
            volumes.write_volume(root / part / f"{case.name}.nii.gz", values, data.spacing)
    names = {
        field: {str(i): name for i, name in enumerate(listed)}
        for field, listed in (("modality", data.channels), ("labels", data.classes))
    }
    (root / "dataset.json").write_text(json.dumps(names, indent=2) + "\n")
    fields = ("patient", "centre", "role")
    table = pd.DataFrame([{"case": c.name, **{f: getattr(c, f) or "" for f in fields}} for c in data.cases])
    table.to_csv(root / "cases.csv", index=False)
    return root
