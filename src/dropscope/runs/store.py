"""Stores of runs: `run.json` says what it is, `rows/part-*.parquet` what came out.

Owns the files, their names and what may be mixed: a part is complete or absent, and a place belongs to one
specification. The name of a part ends in a checksum of its bytes: one that is truncated or changed counts as absent,
and is computed again. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.atomic import as_json, same_spec
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.runs.places import FolderPlace, Place

log = logging.getLogger("dropscope")

FORMAT = 2  # 1 had no checksums
OPEN = ("engine",)  # of a specification: known only when a run is planned
_PART = re.compile(r"part-(?P<name>[^.]+)\.(?P<sum>[0-9a-f]{32})\.parquet")
_RUN, _SUMS = "run.json", "finished.json"


class Store:
    """The place of one run; made on first use, joined when its specification is the same."""

    def __init__(self, place: Place | str | Path) -> None:
        self.place: Place = FolderPlace(Path(place)) if isinstance(place, str | Path) else place
        self._read: dict[str, pd.DataFrame] = {}  # file → rows
        self._damaged: set[str] = set()  # files that were told of

    @property
    def at(self) -> Path | str:
        """As a user writes it."""
        return self.place.at

    def open(self, spec: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Starts the run or takes it up again. `spec` must agree; `fixed` (blocks, versions) is the first start's."""
        found = self.begin(spec, fixed)
        self._compare(self.read_spec()["spec"], spec)
        self.place.clean()
        return found

    def begin(self, spec: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Starts the run, unless another process has just done so: what that one settled stands, and is returned."""
        if not self.place.exists(_RUN):
            # In this order: another process that begins writes run.json before its first part.
            if self.place.names("rows") and not self.place.exists(_RUN):
                what, remedy = "out must be a folder of a run, or empty", "choose an empty or new folder"
                raise BadInput(what, "out", str(self.at), remedy)
            known = {"format": FORMAT, "spec": dict(spec), "fixed": dict(fixed)}
            self.place.create(_RUN, json.dumps(known, indent=2, sort_keys=True).encode())
        return dict(self.read_spec()["fixed"])

    def check(self, spec: Mapping[str, Any]) -> bool:
        """Whether a run was started here; refuses one whose specification differs. What `spec` leaves open may."""
        if not self.place.exists(_RUN):
            return False
        known = self.read_spec()["spec"]
        self._compare({name: value for name, value in known.items() if name in spec or name not in OPEN}, spec)
        return True

    def _compare(self, known: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        remedy = "choose another folder for this run, or repeat the first one exactly"
        same_spec(known, spec, f"{self.at}/{_RUN}", remedy)

    def settled(self, name: str, otherwise: Any) -> Any:
        """What the first start of this run settled; `otherwise` where it has not started."""
        return self.read_spec()["fixed"].get(name, otherwise) if self.place.exists(_RUN) else otherwise

    def read_spec(self) -> dict[str, Any]:
        if not self.place.exists(_RUN):
            remedy = "pass the folder that a sweep wrote"
            raise BadInput("folder must hold a run.json", "folder", str(self.at), remedy)
        path = f"{self.at}/{_RUN}"
        known = as_json(self.place.read(_RUN), path)
        if isinstance(known, dict) and known.get("format") != FORMAT:
            what, remedy = f"run.json must have format {FORMAT}", "use the version of Dropscope that wrote it"
            raise BadInput(what, path, known.get("format"), remedy)
        if not isinstance(known, dict) or not all(isinstance(known.get(part), dict) for part in ("spec", "fixed")):
            received = Phrase("neither a specification nor settings")
            remedy = "restore it, or start in a new folder"
            raise BadInput("run.json must say what the run is", path, received, remedy)
        return dict(known)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def write_rows(self, name: str, rows: pd.DataFrame) -> None:
        content = _as_bytes(rows)
        self.place.write(f"rows/part-{name}.{_checksum(content)}.parquet", content)

    def write_failure(self, name: str, record: Mapping[str, Any]) -> None:
        """Says why a part is missing."""
        self.place.write(f"failures/part-{name}.json", json.dumps(dict(record), indent=2).encode())

    def failures(self) -> dict[str, Any]:
        """Name → why it is missing, of parts that failed and were not computed since."""
        there = self.parts()
        names = (name.removeprefix("part-").removesuffix(".json") for name in self.place.names("failures"))
        files = {name: f"failures/part-{name}.json" for name in names if name not in there}
        return {name: as_json(self.place.read(file), f"{self.at}/{file}") for name, file in files.items()}

    def parts(self) -> dict[str, pd.DataFrame]:
        """Name → rows of every part that is whole. What was read once is not read again: its name is its content."""
        found = {}
        for match in filter(None, map(_PART.fullmatch, self.place.names("rows"))):
            rows = self._read.get(match[0])
            if rows is None:
                rows = self._table(match[0], match["sum"])
            if rows is not None:
                found[match["name"]] = self._read[match[0]] = rows
        return found

    def _table(self, file: str, checksum: str) -> pd.DataFrame | None:
        """The rows of a part, if its bytes are those that were written."""
        try:
            content = self.place.read(f"rows/{file}")
        except FileNotFoundError:
            return None
        if _checksum(content) == checksum:
            return _as_table(content, f"{self.at}/rows/{file}")
        if file not in self._damaged:
            self._damaged.add(file)
            log.warning("%s/rows/%s is damaged: its rows are computed again", self.at, file)
        return None

    def read_rows(self) -> pd.DataFrame:
        """Every row there is, in the order of the placements."""
        parts = list(self.parts().values())
        if not parts:
            raise BadInput("folder must hold rows", "folder", str(self.at), "run the sweep to its end first")
        return ordered_rows(parts)

    # --- tables of a finished run -------------------------------------------------------------------------------------

    def write_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """All of them; the record of their checksums, which comes last, says that the run is finished."""
        sums = {}
        for name, table in tables.items():
            content = _as_bytes(table)
            self.place.write(f"{name}.parquet", content)
            sums[name] = _checksum(content)
        self.place.write(_SUMS, json.dumps(sums, indent=2, sort_keys=True).encode())

    def read_tables(self, names: Collection[str]) -> dict[str, pd.DataFrame] | None:
        """The tables, if all are there and whole; else None."""
        try:
            sums = as_json(self.place.read(_SUMS), f"{self.at}/{_SUMS}")
            read = {name: self.place.read(f"{name}.parquet") for name in names}
        except (FileNotFoundError, BadInput):
            return None
        if not isinstance(sums, dict) or any(_checksum(content) != sums.get(name) for name, content in read.items()):
            log.warning("tables of %s are damaged: they are made again", self.at)
            return None
        return {name: _as_table(content, f"{self.at}/{name}.parquet") for name, content in read.items()}

    def write_record(self, name: str, record: Mapping[str, Any]) -> None:
        content = json.dumps({**record, "checksum": _checksum(json.dumps(record).encode())}, indent=1)
        self.place.write(f"{name}.json", content.encode())

    def read_record(self, name: str) -> dict[str, Any]:
        """What was written by that name; nothing where an earlier version wrote none, or it is damaged."""
        try:
            known = dict(as_json(self.place.read(f"{name}.json"), f"{self.at}/{name}.json"))
        except (FileNotFoundError, BadInput, TypeError, ValueError):
            return {}
        stated = known.pop("checksum", None)
        return known if stated == _checksum(json.dumps(known).encode()) else {}


def ordered_rows(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Rows of all parts in the order of the placements, then of the measures."""
    rows = pd.concat(parts, ignore_index=True).sort_values(["number", "order"], kind="stable")
    return rows.drop(columns=["number", "order"]).reset_index(drop=True)


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _as_table(content: bytes, path: str) -> pd.DataFrame:
    try:
        return pd.read_parquet(io.BytesIO(content))
    except (OSError, ValueError) as error:  # what Arrow raises is one of these
        name, remedy = path.rpartition("/")[2], "remove it and run again: it is computed again"
        raise BadInput(f"{name} must be readable", path, Phrase(first_line(error)), remedy) from error


def _as_bytes(table: pd.DataFrame) -> bytes:
    into = io.BytesIO()
    table.to_parquet(into, index=False)
    return into.getvalue()
