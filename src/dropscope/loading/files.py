"""Data files: text tables (.csv, .jsonl, .parquet) and image folders with a CSV of labels.

Owns what a row must hold and what is made of it: token batches padded on the right; images as [C, H, W] in [0, 1],
without any other normalisation. Everything is checked before anything is computed; errors give the row, from 1.
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

from dropscope.errors import BadInput, nearest

TABLES = (".csv", ".jsonl", ".parquet")
LABEL_COLUMNS = ("label", "labels")

_BATCH = 32
_SIZE = re.compile(r"([1-9]\d*)(?:x([1-9]\d*))?", re.ASCII)


def tokenised(
    path: Path, tokenizer: Any, config: Any, text_column: str | None = None, label_column: str | None = None
) -> list[dict[str, Tensor]]:
    """Batches of tokens with `labels`, where the table has any; names of labels are the checkpoint's (`label2id`)."""
    table = read_table(path)
    texts = _texts(table, _column(table, text_column, ("text",), path, "--text-column"), path)
    labels = _labels(table, label_column, path, config.label2id)
    batches = []
    for start in range(0, len(texts), _BATCH):
        encoded = tokenizer(texts[start : start + _BATCH], padding=True, truncation=True, return_tensors="pt")
        batch = dict(encoded)
        if labels is not None:
            batch["labels"] = labels[start : start + _BATCH]
        batches.append(batch)
    return batches


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
        rows = read_table(table)
        names = _texts(rows, _column(rows, None, ("file",), table, "the column 'file'"), table)
        self._labels = _labels(rows, label_column, table, {})
        self._paths = [folder / name for name in names]
        seen: dict[tuple[Any, ...], str] = {}
        for number, (name, path) in enumerate(zip(names, self._paths, strict=True), 1):
            grey, size = _peek(path, f"row {number} of {table.name}")
            seen.setdefault((grey, *(self._size or size)), name)
        if len(seen) > 1:
            shown = [f"{name}: {w}x{h} {'grey' if grey else 'colour'}" for (grey, w, h), name in list(seen.items())[:3]]
            remedy = "give --image-size to resize them; convert where some are grey and some in colour"
            raise BadInput("images of one data set have one size and one kind", str(folder), shown, remedy)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor | tuple[Tensor, Tensor]:
        image = _image(self._paths[index], self._size)
        return image if self._labels is None else (image, self._labels[index])


def read_table(path: Path) -> pd.DataFrame:
    """A table of at least one row, its values as written: a text "NA" or "null" stays a text."""
    if not path.is_file():
        beside = sorted(p.name for p in path.parent.iterdir() if p.suffix in TABLES) if path.parent.is_dir() else []
        remedy = nearest(path.name, beside) if beside else "check the path"
        raise BadInput("a file that is named exists", "file", str(path), remedy)
    if path.suffix not in TABLES:
        raise BadInput("a table is a .csv, .jsonl or .parquet file", "file", path.name, "convert it to one of these")
    try:
        table = _READERS[path.suffix](path)
    except (ValueError, OSError) as error:  # pandas', pyarrow's, json's and Unicode's errors are all of these
        said = " ".join(str(error).split())
        remedy = "write it anew as UTF-8" if path.suffix != ".parquet" else "write it anew with pandas or pyarrow"
        raise BadInput(f"a {path.suffix} file can be read as one", path.name, said, remedy) from error
    if table.empty:
        raise BadInput("data holds at least one row", path.name, "no rows", "pass a file with examples")
    return table


def _read_csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")


def _read_jsonl(path: Path) -> pd.DataFrame:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number}: {type(row).__name__}, not an object")
            rows.append(row)
    return pd.DataFrame(rows, dtype=object)


_READERS = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": pd.read_parquet}


def _column(table: pd.DataFrame, asked: str | None, defaults: Sequence[str], path: Path, option: str) -> str:
    columns = [str(column) for column in table.columns]
    found = next((name for name in ([asked] if asked else defaults) if name in columns), None)
    if found is None:
        name = asked or defaults[0]
        remedy = nearest(name, columns) if asked or option.startswith("the") else f"name one of {columns} with {option}"
        raise BadInput(f"a column that is named exists in {path.name}", option, name, remedy)
    return found


def _texts(table: pd.DataFrame, column: str, path: Path) -> list[str]:
    texts = table[column].tolist()
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str) or not text.strip():
            rule, where = f"every row has a text in column {column!r}", f"row {number} of {path.name}"
            raise BadInput(rule, where, text, "fill it in, or leave the row out")
    return texts


def _labels(table: pd.DataFrame, asked: str | None, path: Path, numbers: Mapping[str, int]) -> Tensor | None:
    """Class numbers; None where no column was asked for and none has the usual name."""
    if asked is None and not set(LABEL_COLUMNS) & set(table.columns):
        return None
    column = _column(table, asked, LABEL_COLUMNS, path, "--label-column")
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
        remedy = nearest(value, numbers) + ", or a class number"
    else:
        remedy = "write the number of the class: 0, 1, ..."
    raise BadInput("every row has a label: the class's number, or its name in the checkpoint", where, value, remedy)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    """(width, height), as Pillow has it, from "side" or "HEIGHTxWIDTH"."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BadInput("an image size is a side or HEIGHTxWIDTH", "--image-size", text, "write 224 or 200x320")
    height = int(match[1])
    return int(match[2] or height), height


def _peek(path: Path, where: str) -> tuple[bool, tuple[int, int]]:
    """Whether an image is grey, and its size, from its header alone."""
    if not path.is_file():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        remedy = nearest(path.name, beside) if beside else "file names are relative to the image folder"
        raise BadInput("every file that is named exists in the image folder", where, path.name, remedy)
    try:
        with Image.open(path) as image:
            mode, size = image.mode, image.size
    except OSError as error:  # Pillow's UnidentifiedImageError among them
        raise BadInput("an image can be read by Pillow", where, path.name, "convert it to PNG or JPEG") from error
    if mode in ("F", "I", "CMYK", "LAB", "HSV"):
        remedy = "convert it to 8 or 16 bits per grey value, or to RGB"
        raise BadInput("an image's values have a known range", where, f"{path.name} in mode {mode}", remedy)
    return _is_grey(mode), size


def _is_grey(mode: str) -> bool:
    return mode in ("1", "L", "LA") or mode.startswith("I;16")


def _image(path: Path, size: tuple[int, int] | None) -> Tensor:
    try:
        return _pixels(path, size)
    except (OSError, SyntaxError) as error:  # Pillow raises either for a file that is cut or damaged
        raise BadInput("an image can be read whole", str(path), str(error), "replace it, or leave it out") from error


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
