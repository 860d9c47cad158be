"""Files of parquet by their footers: which there are, what they hold, and their row groups, read in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dropscope.errors import BadInput, Phrase, first_line, nearest
from dropscope.model import digest

FEATURES = ("features", "input", "inputs")  # columns of lists, by their usual names


@dataclass(frozen=True, eq=False)
class File:
    """A file of parquet, whose footer was read."""

    name: str
    system: Any
    path: str
    footer: pq.FileMetaData

    @property
    def rows(self) -> int:
        return int(self.footer.num_rows)

    @property
    def mark(self) -> str:
        """A hash of the footer: offsets, sizes and statistics of every column."""
        return digest(str(self.footer.to_dict()))

    def groups(self) -> list[tuple[int, int]]:
        """Number and rows of each row group that has any."""
        counts = [int(self.footer.row_group(i).num_rows) for i in range(self.footer.num_row_groups)]
        return [(i, count) for i, count in enumerate(counts) if count]

    def batches(self, group: int, columns: Sequence[str], size: int) -> Iterator[pa.RecordBatch]:
        with self.system.open(self.path, "rb") as handle:
            yield from pq.ParquetFile(handle).iter_batches(size, row_groups=[group], columns=list(columns))


@dataclass(frozen=True, eq=False)
class Unit:
    """A row group: what one part holds."""

    number: int  # of the file
    file: File
    group: int
    rows: int

    @property
    def name(self) -> str:
        return f"{self.number:06}-{self.group:06}.parquet"


def units_of(files: Sequence[File]) -> list[Unit]:
    return [Unit(number, file, group, rows) for number, file in enumerate(files) for group, rows in file.groups()]


def find_files(data: str | Path | Sequence[str | Path]) -> list[File]:
    from fsspec.core import url_to_fs

    found = []
    for entry in [data] if isinstance(data, str | Path) else data:
        try:
            system, path = url_to_fs(str(entry))
            below = f"{path}/*.parquet" if system.isdir(path) else path
            paths = sorted(system.glob(below)) if any(sign in below for sign in "*?[") else [below]
            found += [File(one.rsplit("/", 1)[-1], system, one, _footer(system, one)) for one in paths]
        except (OSError, ValueError, ImportError, pa.ArrowException) as error:
            what, got = "data must be readable files of parquet", Phrase(f"{str(entry)!r}: {first_line(error)}")
            raise BadInput(what, "data", got, "check the path and its access") from error
    if not found or not sum(file.rows for file in found):
        raise BadInput("data must hold at least one row", "data", str(data), "check the path or the pattern")
    first = found[0].footer.schema.to_arrow_schema()
    for file in found:
        if file.footer.schema.to_arrow_schema() != first:
            got = Phrase(f"others in {file.name} than in {found[0].name}")
            raise BadInput("data must have the same columns in every file", "data", got, "score them one by one")
    return found


def _footer(system: Any, path: str) -> pq.FileMetaData:
    with system.open(path, "rb") as handle:
        return pq.ParquetFile(handle).metadata


def feature_columns(
    file: File, columns: Sequence[str] | None, text_column: str | None, id_column: str | None
) -> list[str] | None:
    """The columns of the features, by the file's footer; None for texts."""
    schema = file.footer.schema.to_arrow_schema()
    wanted = {"text_column": [text_column], "id_column": [id_column], "columns": columns or []}
    for name, listed in wanted.items():
        for one in listed:
            if one is not None and one not in schema.names:
                what = f"{name} must name columns of {file.name}"
                raise BadInput(what, name, one, nearest(one, schema.names))
    if text_column is not None:
        return None
    if columns:
        return list(columns)
    usual = next((name for name in FEATURES if name in schema.names), None)
    floats = [field.name for field in schema if pa.types.is_floating(field.type) and field.name != id_column]
    if usual is None and not floats:
        got = Phrase(f"columns {', '.join(schema.names)[:80]}")
        raise BadInput("data must have columns of floats, or one of lists", "columns", got, "name the columns")
    return floats if usual is None else [usual]
