"""Mammograms of a data set, their patients and labels: the Mini-DDSM tree, or a folder with a CSV.

Owns the layouts and the reading of one file, and writes nothing. See `preprocessing` for what is done to an image and
`patients` for the split.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dropscope.errors import BadInput, Phrase, first_line, nearest
from dropscope.loading import read_table

ABNORMAL, NORMAL = 0, 1  # the paper's labels

_ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm")
_FINDINGS = {"normal": NORMAL, "benign": ABNORMAL, "cancer": ABNORMAL, "malignant": ABNORMAL, "abnormal": ABNORMAL}
_TREE = "Normal/, Benign/ and Cancer/ with a folder per patient"
_DDSM_NAME = re.compile(r"[A-Z]_(\d+)_\d+\.(?:LEFT|RIGHT)_(?:CC|MLO)", re.IGNORECASE)  # A_0002_1.LEFT_CC
_LESION_MASK = re.compile(r"_mask\d*$", re.IGNORECASE)
_ZEROS_AND_ONES = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
_READABLE = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "I")


@dataclass(frozen=True)
class Mammogram:
    path: Path
    patient: str
    label: int  # ABNORMAL or NORMAL


@dataclass(frozen=True)
class Collection:
    """Every mammogram of a data set, in a fixed order, and what was left out of it."""

    images: tuple[Mammogram, ...]
    layout: str
    remarks: tuple[str, ...] = ()


def find_mammograms(folder: Path, labels: Path | None = None) -> Collection:
    """The mammograms under `folder`.

    With a table `labels`: columns `file` (relative to the folder), `patient`, and `abnormal` (0 or 1) or `label`
    (normal, benign, cancer, malignant, abnormal). Without one, the Mini-DDSM tree, or else the folder's `labels.csv`.
    """
    if not folder.is_dir():
        remedy = f"name a folder with {_TREE}, or with a CSV"
        raise BadInput("data must be an existing folder", "data", str(folder), remedy)
    roots = [] if labels is not None else _tree_roots(folder)
    if len(roots) > 1:
        names = [root.name for root in roots]
        raise BadInput("data must hold one copy of the mammograms", "data", names, "name one of these folders")
    if not roots and labels is None:
        labels = folder / "labels.csv"
        if not labels.is_file():
            got = Phrase(f"{sum(1 for _ in _files(folder))} images and no labels.csv in {folder}")
            remedy = f"name a folder with {_TREE}, or add a CSV of labels (file, patient, abnormal)"
            raise BadInput("data must come with labels", "data", got, remedy)
    collection = _tree(roots[0]) if roots else _table(folder, labels)  # type: ignore[arg-type]
    for label, name in ((ABNORMAL, "abnormal"), (NORMAL, "normal")):
        if not any(image.label == label for image in collection.images):
            got = Phrase(f"no {name} one in {labels or roots[0]}")
            raise BadInput("data must hold mammograms of both classes", "data", got, f"add {name} mammograms")
    return collection


def _tree_roots(folder: Path) -> list[Path]:
    """Where class folders lie: the folder itself, or folders in it (the archive unpacks into one of its own)."""
    if _class_folders(folder):
        return [folder]
    return [inner for inner in sorted(folder.iterdir()) if inner.is_dir() and _class_folders(inner)]


def _class_folders(folder: Path) -> dict[Path, int]:
    inner = sorted(folder.iterdir())
    return {path: _FINDINGS[path.name.lower()] for path in inner if path.is_dir() and path.name.lower() in _FINDINGS}


def _tree(root: Path) -> Collection:
    images: list[Mammogram] = []
    masks = 0
    for folder, label in _class_folders(root).items():
        before = len(images)
        for path in _files(folder):
            if _LESION_MASK.search(path.stem):
                masks += 1
            else:
                images.append(Mammogram(path, _patient(path, folder), label))
        if len(images) == before:
            remedy = "check that the archive was unpacked completely, or remove the folder"
            got = Phrase(f"no file that ends in {', '.join(_ENDINGS)}")
            raise BadInput(f"the class folder {folder} must hold images", str(folder), got, remedy)
    remarks = (f"{masks} lesion masks lie beside the mammograms and were not read",) if masks else ()
    return Collection(tuple(images), "Mini-DDSM tree", remarks)


def _patient(path: Path, class_folder: Path) -> str:
    """The number in a DDSM file name, else the patient's folder. One number in two classes counts as one patient:
    joining two patients costs little, splitting one would be a leak."""
    named = _DDSM_NAME.match(path.name)
    if named:
        return named[1]
    if path.parent != class_folder:
        return path.relative_to(class_folder).parts[0]
    remedy = "put each patient's images into a folder, or name them as in A_0002_1.LEFT_CC.png"
    raise BadInput("every mammogram must name its patient", str(path), str(path), remedy)


def _table(folder: Path, table: Path) -> Collection:
    rows = read_table(table)
    for column in ("file", "patient"):
        _check_column(rows.columns, column, table)
    by_flag = "abnormal" in rows.columns
    if not by_flag:
        _check_column(rows.columns, "label", table)
    images: list[Mammogram] = []
    listed: dict[Path, int] = {}
    for number, row in enumerate(rows.to_dict("records"), 1):
        where = f"row {number} of {table.name}"
        path, patient = folder / _text(row["file"], "file", where), _text(row["patient"], "patient", where)
        if not path.is_file():
            beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            remedy = nearest(path.name, beside) if beside else "file names are relative to the data folder"
            raise BadInput(f"file in {where} must exist in the data folder", where, str(path), remedy)
        if path in listed:
            what = f"file in {where} must differ from that in row {listed[path]}"
            raise BadInput(what, where, path.name, "remove one of the two rows")
        listed[path] = number
        images.append(
            Mammogram(path, patient, _flag(row["abnormal"], where) if by_flag else _word(row["label"], where))
        )
    others = sum(1 for path in _files(folder) if path not in listed and not _LESION_MASK.search(path.stem))
    remarks = (f"{others} images in the folder have no row in {table.name} and were not read",) if others else ()
    return Collection(tuple(images), f"folder and {table.name}", remarks)


def _check_column(columns: Iterable[Any], name: str, table: Path) -> None:
    if name not in columns:
        remedy = {
            "patient": "add it; where patients are not known, repeat the file name",
            "label": "add a column 'abnormal' (0 or 1), or 'label' (normal, benign, cancer)",
        }
        what = f"{table.name} must have a column {name!r}"
        raise BadInput(what, name, Phrase(", ".join(map(str, columns))), remedy.get(name, "add it"))


def _text(value: Any, column: str, where: str) -> str:
    if not str(value).strip():
        raise BadInput(f"{column} in {where} must not be empty", where, value, "fill it in, or leave the row out")
    return str(value).strip()


def _flag(value: Any, where: str) -> int:
    known = _ZEROS_AND_ONES.get(str(value).strip().lower().removesuffix(".0"))
    if known is None:
        remedy = "write 1 for benign or cancer, 0 for normal"
        raise BadInput(f"abnormal in {where} must be 0 or 1", where, value, remedy)
    return ABNORMAL if known else NORMAL


def _word(value: Any, where: str) -> int:
    word = str(value).strip().lower()
    if word not in _FINDINGS:
        remedy = f"write one of {', '.join(_FINDINGS)} (a number would not say which class is which)"
        raise BadInput(f"label in {where} must be a finding", where, value, remedy)
    return _FINDINGS[word]


def _files(folder: Path) -> Iterable[Path]:
    return (p for p in sorted(folder.rglob("*")) if p.suffix.lower() in _ENDINGS and p.is_file() and p.name[0] != ".")


# --- one file ---------------------------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def check_image(data: bytes, path: Path, smallest: int) -> None:
    """Refuses a file without a complete image of at least `smallest` pixels on each side. A PNG is not unpacked."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            mode, (width, height), kind = image.mode, image.size, image.format
            if kind == "PNG":
                image.verify()  # every chunk is there and has its checksum
            else:
                image.draft("L", (256, 256))  # a JPEG is then unpacked at an eighth of its size
                image.load()
    except Exception as error:  # a damaged file makes Pillow raise errors of many kinds
        raise _unreadable(path, error) from error
    if mode not in _READABLE and not mode.startswith("I;16"):
        remedy = "convert it to 8 or 16 bits per grey value"
        raise BadInput(f"{path} must have values of a known range", str(path), Phrase(f"mode {mode}"), remedy)
    if min(width, height) < smallest:
        what = f"{path} must have at least {smallest} pixels on each side, so that something is left inside its border"
        raise BadInput(what, str(path), Phrase(f"{width}x{height} pixels"), "leave it out, or use a larger copy")


def read_image(data: bytes, path: Path) -> NDArray[Any]:
    """The image in a file, [height, width] or [height, width, channels], as stored."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB") if image.mode in ("P", "PA") else image)
    except Exception as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> BadInput:
    what, remedy = f"{path} must be a complete image", "fetch it again, or leave it out"
    return BadInput(what, str(path), Phrase(first_line(error)), remedy)
