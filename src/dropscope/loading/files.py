"""Data files: tables (.csv, .jsonl, .parquet), JSON lines, and image folders with a table of labels.

Owns what a row must hold and what it becomes: token batches padded on the right; images as [C, H, W] in [0, 1], without
any other normalisation. Everything is checked before anything is computed; errors give the row, from 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from dropscope.errors import BadInput, Phrase, first_line, nearest

TABLES = (".csv", ".jsonl", ".parquet")
LABEL_COLUMNS = ("label", "labels")

_BATCH = 32
_SIZE = re.compile(r"([1-9]\d*)(?:x([1-9]\d*))?", re.ASCII)


# --- tables -----------------------------------------------------------------------------------------------------------


def read_text(path: Path, name: str = "data") -> str:
    """The text of a UTF-8 file; `name` is what errors call it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{name} must be a readable UTF-8 file", name, str(path), "check the path") from error


def read_json_lines(path: Path, name: str = "data") -> list[tuple[int, dict[str, Any]]]:
    """The object on every line that is not empty, with the number of its line; `name` is what errors call the file."""
    rows = []
    for number, line in enumerate(read_text(path, name).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row, fault = json.loads(line), ""
        except (json.JSONDecodeError, RecursionError) as error:
            row, fault = None, first_line(error)
        if not isinstance(row, dict):
            where, got = f"{path.name}, line {number}", Phrase(fault or type(row).__name__)
            raise BadInput(f"{where} must be one JSON object", where, got, "fix the line, or leave it out")
        rows.append((number, row))
    return rows


def read_table(path: Path, name: str = "data") -> pd.DataFrame:
    """A table of at least one row, its values as written: a text "NA" or "null" stays a text.

    `name` is what errors call the file.
    """
    if not path.is_file():
        beside = sorted(p.name for p in path.parent.iterdir() if p.suffix in TABLES) if path.parent.is_dir() else []
        remedy = nearest(path.name, beside) if beside else "check the path"
        raise BadInput(f"{name} must be a file that exists", name, str(path), remedy)
    if path.suffix not in TABLES:
        raise BadInput(f"{name} must be a .csv, .jsonl or .parquet file", name, path.name, "convert it to one of these")
    try:
        table = _read(path, name)
    except BadInput:
        raise
    except (ValueError, OSError) as error:  # the errors of pandas, pyarrow and Unicode are all of these
        remedy = "write it again as UTF-8" if path.suffix != ".parquet" else "write it again with pandas or pyarrow"
        what = f"{path.name} must be readable as {path.suffix}"
        raise BadInput(what, path.name, Phrase(first_line(error)), remedy) from error
    if table.empty:
        raise BadInput(f"{path.name} must hold at least one row", path.name, Phrase("no rows"),
                       "pass a file with examples")  # fmt: skip
    return table


def _read(path: Path, name: str) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    if path.suffix == ".jsonl":
        return pd.DataFrame([row for _, row in read_json_lines(path, name)], dtype=object)
    return pd.read_parquet(path)


def find_column(table: pd.DataFrame, path: Path, asked: str | None, defaults: Sequence[str], name: str) -> str:
    """The column that was asked for, or the first of the defaults that the table has.

    Args:
        table: The table.
        path: Where it was read from.
        asked: The column, if one was named.
        defaults: Usual names.
        name: The argument that names the column, or the column itself where there is no such argument.
    """
    columns = [str(column) for column in table.columns]
    wanted = [asked] if asked else list(defaults)
    column = next((column for column in wanted if column in columns), None)
    if column is None:
        fixed = asked is None and name in defaults
        remedy = nearest(wanted[0], columns) if asked or fixed else f"name another column with {name}"
        raise BadInput(f"{path.name} must have a column {wanted[0]!r}", name, columns, remedy)
    return column


def column_texts(table: pd.DataFrame, column: str, path: Path) -> list[str]:
    """The values of a column as texts without blanks around them, whole numbers without a fraction; none is empty."""
    texts = []
    for number, value in enumerate(table[column].tolist(), 1):
        whole = isinstance(value, float) and value.is_integer()
        text = "" if value is None or value != value else str(int(value) if whole else value).strip()
        if not text:
            raise empty_cell(number, column, path, value)
        texts.append(text)
    return texts


def empty_cell(number: int, column: str, path: Path, value: object) -> BadInput:
    """The error of a row, counted from 1, without a value."""
    where = f"row {number} of {path.name}"
    return BadInput(f"{where} must have a value in column {column!r}", where, value, "fill it in, or leave the row out")


# --- texts ------------------------------------------------------------------------------------------------------------


def token_batches(
    path: Path, tokenizer: Any, config: Any, text_column: str | None = None, label_column: str | None = None
) -> list[dict[str, Tensor]]:
    """Batches of tokens with `labels`, where the table has any; names of labels are the checkpoint's (`label2id`)."""
    table = read_table(path)
    texts = _texts(table, find_column(table, path, text_column, ("text",), "text_column"), path)
    labels = _labels(table, label_column, path, config.label2id)
    batches = []
    for start in range(0, len(texts), _BATCH):
        encoded = tokenizer(texts[start : start + _BATCH], padding=True, truncation=True, return_tensors="pt")
        batch = dict(encoded)
        if labels is not None:
            batch["labels"] = labels[start : start + _BATCH]
        batches.append(batch)
    return batches


def _texts(table: pd.DataFrame, column: str, path: Path) -> list[str]:
    texts = table[column].tolist()
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str) or not text.strip():
            raise empty_cell(number, column, path, text)
    return texts


def _labels(table: pd.DataFrame, asked: str | None, path: Path, numbers: Mapping[str, int]) -> Tensor | None:
    """Class numbers; None where no column was asked for and none has the usual name."""
    if asked is None and not set(LABEL_COLUMNS) & set(table.columns):
        return None
    column = find_column(table, path, asked, LABEL_COLUMNS, "label_column")
    values = [
        _class_number(value, numbers, f"row {number} of {path.name}, column {column!r}")
        for number, value in enumerate(table[column].tolist(), 1)
    ]
    return torch.tensor(values, dtype=torch.int64)


def _class_number(value: Any, numbers: Mapping[str, int], where: str) -> int:
    if isinstance(value, str) and value in numbers:
        return numbers[value]
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if number.is_integer() and number >= 0:
        return int(number)
    if isinstance(value, str) and value.strip() and numbers:
        remedy = f"write the number of the class, or its name: {nearest(value, numbers)}"
    else:
        remedy = "write the number of the class: 0, 1, ..."
    raise BadInput(f"{where} must be a class number, or a class name of the checkpoint", where, value, remedy)


# --- images -----------------------------------------------------------------------------------------------------------


class ImageFolder(Dataset[Any]):
    """Images of a folder, one per row of a CSV with columns `file` and `label` (unlabelled without the latter).

    Items are `(image, label)` or `image`: float [1, H, W] for grey images and [3, H, W] for all others, scaled to
    [0, 1], read with Pillow as stored (no EXIF rotation). All have one size, or are resized to `image_size`: "224" is
    a side, "200x320" a height and a width.
    """

    def __init__(
        self, folder: Path, table: Path, label_column: str | None = None, image_size: str | None = None
    ) -> None:
        self._size = _parse_size(image_size)
        rows = read_table(table, "labels")
        names = _texts(rows, find_column(rows, table, None, ("file",), "file"), table)
        self._labels = _labels(rows, label_column, table, {})
        self._paths = [folder / name for name in names]
        seen: dict[tuple[Any, ...], str] = {}
        for number, (name, path) in enumerate(zip(names, self._paths, strict=True), 1):
            grey, size = _peek(path, f"row {number} of {table.name}")
            seen.setdefault((grey, *(self._size or size)), name)
        if len(seen) > 1:
            kinds = [f"{name}: {w}x{h} {'grey' if grey else 'colour'}" for (grey, w, h), name in list(seen.items())[:3]]
            remedy = "pass image_size to resize them; convert where some are grey and some in colour"
            raise BadInput(f"images in {folder} must have one size and one kind", "image_size", kinds, remedy)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor | tuple[Tensor, Tensor]:
        image = _image(self._paths[index], self._size)
        return image if self._labels is None else (image, self._labels[index])


def _parse_size(text: str | None) -> tuple[int, int] | None:
    """(width, height), as Pillow has it, from "side" or "HEIGHTxWIDTH"."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BadInput("image_size must be a side or HEIGHTxWIDTH", "image_size", text, "write 224 or 200x320")
    height = int(match[1])
    return int(match[2] or height), height


def _peek(path: Path, where: str) -> tuple[bool, tuple[int, int]]:
    """Whether an image is grey, and its size, from its header alone."""
    if not path.is_file():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        remedy = nearest(path.name, beside) if beside else "write file names relative to the image folder"
        raise BadInput(f"{where} must name a file of the image folder", where, path.name, remedy)
    try:
        with Image.open(path) as image:
            mode, size = image.mode, image.size
    except OSError as error:  # Pillow's UnidentifiedImageError among them
        raise BadInput(f"{where} must name an image", where, path.name, "convert it to PNG or JPEG") from error
    if mode in ("F", "I", "CMYK", "LAB", "HSV"):
        remedy = "convert it to 8 or 16 bits per grey value, or to RGB"
        got = Phrase(f"{path.name} in mode {mode}")
        raise BadInput(f"{where} must name an image whose values have a known range", where, got, remedy)
    return _is_grey(mode), size


def _is_grey(mode: str) -> bool:
    return mode in ("1", "L", "LA") or mode.startswith("I;16")


def _image(path: Path, size: tuple[int, int] | None) -> Tensor:
    try:
        return _pixels(path, size)
    except (OSError, SyntaxError) as error:  # Pillow raises either for a file that is cut or damaged
        what, got = f"image {path.name} must be complete", Phrase(first_line(error))
        raise BadInput(what, str(path), got, "replace it, or leave it out") from error


def _pixels(path: Path, size: tuple[int, int] | None) -> Tensor:
    with Image.open(path) as opened:
        deep = opened.mode.startswith("I;16")
        if deep:  # Pillow resizes these only as floats
            image = Image.fromarray(np.asarray(opened).astype(np.float32) / 65535)
        else:
            image = opened.convert("L" if _is_grey(opened.mode) else "RGB")
        if size is not None and image.size != size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        values = np.asarray(image, dtype=np.float32) / (1 if deep else 255)
    return torch.from_numpy(values.copy()).reshape(*values.shape[:2], -1).permute(2, 0, 1).contiguous()
