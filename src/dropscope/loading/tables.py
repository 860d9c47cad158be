"""Tables and JSON lines: .csv, .jsonl and .parquet files, and data frames.

Owns what a row must hold. Everything is checked before anything is computed; errors give the row, from 1. See `classes`
for labels, `texts` and `images` for what rows become.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute
import pyarrow.parquet
import torch

from dropscope.device import free_bytes
from dropscope.errors import BadInput, Phrase, first_line, nearest

TABLES = (".csv", ".jsonl", ".parquet")
LABEL_COLUMNS = ("label", "labels")

_SHOWN = 120  # characters of a path
_MOST_ROWS = 100_000_000  # a file of a few kilobytes may claim more


def read_text(path: Path, name: str = "data") -> str:
    """The text of a UTF-8 file; `name` is what errors call it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # not there, not UTF-8, or no name that a file can have
        raise BadInput(f"{name} must be a readable UTF-8 file", name, str(path), "check the path") from error


def read_json_lines(path: Path, name: str = "data") -> list[tuple[int, dict[str, Any]]]:
    """The object on every line that is not empty, with the number of its line; `name` is what errors call the file."""
    rows = []
    for number, line in enumerate(read_text(path, name).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row, fault = json.loads(line), ""
        except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of thousands of digits
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
    suffix = path.suffix.lower()
    if suffix not in TABLES:
        raise BadInput(f"{name} must be a .csv, .jsonl or .parquet file", name, path.name, "convert it to one of these")
    if not os.path.isfile(path):
        raise not_found(path, name, TABLES)
    try:
        table = _read(path, suffix, name)
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # the parsers raise errors of many kinds for bytes that are no table
        remedy = "write it again as UTF-8" if suffix != ".parquet" else "write it again with pandas or pyarrow"
        what = f"{path.name} must be readable as {suffix}"
        raise BadInput(what, path.name, Phrase(first_line(error)), remedy) from error
    return check_rows(table, path)


def check_rows(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The table with texts as the names of its columns, if it holds anything."""
    if table.empty:
        raise BadInput(f"{path.name} must hold at least one row", path.name, Phrase("no rows"),
                       "pass a table with examples")  # fmt: skip
    named = all(isinstance(column, str) for column in table.columns)
    return table if named else table.set_axis([str(column) for column in table.columns], axis=1)


def not_found(path: Path, name: str, suffixes: Sequence[str] = ()) -> BadInput:
    """The error of a path that leads nowhere, with the nearest names beside it."""
    try:
        beside = sorted(p.name for p in path.parent.iterdir() if p.suffix.lower() in suffixes or not suffixes)
    except (OSError, ValueError):
        beside = []
    beside = [other for other in beside if not other.startswith(".")]
    remedy = nearest(path.name, beside) if beside else "check the path"
    what = f"{name} must be a {'file' if suffixes else 'file or folder'} that exists"
    shown = str(path) if len(str(path)) < _SHOWN else f"...{str(path)[-_SHOWN:]}"
    return BadInput(what, name, Phrase(f"{shown!r}, which was not found"), remedy)


def _read(path: Path, suffix: str, name: str) -> pd.DataFrame:
    if suffix == ".csv":
        with warnings.catch_warnings():  # a row of more fields than the header would lose its last ones
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8", index_col=False)
    if suffix == ".jsonl":
        return pd.DataFrame([row for _, row in read_json_lines(path, name)], dtype=object)
    with pyarrow.parquet.ParquetFile(path) as file:
        texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        _check_size(file.metadata, path)
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:  # a text that is repeated is held once
        table = file.read()
    _check_fits(sum(map(_text_bytes, table.columns)), path)
    whole = [column.cast(column.type.value_type) if _is_dictionary(column) else column for column in table.columns]
    table = pyarrow.Table.from_arrays(whole, names=table.column_names)
    table.validate(full=True)  # of texts that are no UTF-8
    return table.to_pandas()  # without what pandas wrote about itself, which may be broken


def _check_size(metadata: pyarrow.parquet.FileMetaData, path: Path) -> None:
    """Refuses more numbers than fit, before any is read: one that is repeated takes no room in a file."""
    if metadata.num_rows > _MOST_ROWS:
        got = Phrase(f"{metadata.num_rows:,} rows")
        raise BadInput(f"{path.name} must hold at most {_MOST_ROWS:,} rows", path.name, got, "pass a part of it")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    _check_fits(8 * sum(group.column(i).num_values for group in groups for i in range(group.num_columns)), path)


def _check_fits(size: int, path: Path) -> None:
    if size > (free := free_bytes(torch.device("cpu"))):
        what = f"{path.name} must fit into memory ({free / 1e9:.1f} GB free)"
        raise BadInput(what, path.name, Phrase(f"{size / 1e9:.1f} GB"), "pass a part of it")


def _is_text(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_string(kind) or pyarrow.types.is_binary(kind)


def _is_dictionary(column: pyarrow.ChunkedArray) -> bool:
    return pyarrow.types.is_dictionary(column.type) and _is_text(column.type.value_type)


def _text_bytes(column: pyarrow.ChunkedArray) -> int:
    """Bytes of the texts of a column, each counted as often as it is repeated."""
    if not _is_dictionary(column):
        return 0
    lengths = [pyarrow.compute.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    return sum(pyarrow.compute.sum(each).as_py() or 0 for each in lengths)


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
        if name == "text_column" and all(map(_is_number, table.iloc[:1].to_numpy().ravel())):
            remedy = "for a table of numbers, pass a function that returns inputs and labels, as file.py:callable"
        raise BadInput(f"{path.name} must have a column {wanted[0]!r}", name, columns, remedy)
    if columns.count(column) > 1:
        raise BadInput(f"{path.name} must have one column {column!r}", name, columns, "rename the others")
    return column


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def written(table: pd.DataFrame, column: str, path: Path) -> list[str]:
    """The texts of a column as they are; none is blank."""
    texts = table[column].tolist()
    for number, text in enumerate(texts, 1):
        if _is_missing(text) or (isinstance(text, str) and not text.strip()):
            raise empty_cell(number, column, path, text)
        where = f"row {number} of {path.name}"
        if not isinstance(text, str):
            raise BadInput(f"{where} must hold a text in column {column!r}", where, text, "write a text there")
        _check_unicode(text, where, column)
    return texts


def _check_unicode(text: str, where: str, column: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = Phrase("half of a surrogate pair")
        raise BadInput(f"{where} must hold valid Unicode in column {column!r}", where, got, "fix it") from error


def column_texts(table: pd.DataFrame, column: str, path: Path) -> list[str]:
    """The values of a column as texts without blanks around them, whole numbers without a fraction; none is empty."""
    texts = []
    for number, value in enumerate(table[column].tolist(), 1):
        whole = isinstance(value, float) and value.is_integer()
        text = "" if _is_missing(value) else str(int(value) if whole else value).strip()
        if not text:
            raise empty_cell(number, column, path, value)
        _check_unicode(text, f"row {number} of {path.name}", column)
        texts.append(text)
    return texts


def empty_cell(number: int, column: str, path: Path, value: object) -> BadInput:
    """The error of a row, counted from 1, without a value."""
    where = f"row {number} of {path.name}"
    return BadInput(f"{where} must have a value in column {column!r}", where, value, "fill it in, or leave the row out")


def _is_missing(value: object) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)
