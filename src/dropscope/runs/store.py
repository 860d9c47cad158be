"""Folders of runs: `run.json` says what it is, `rows/part-*.parquet` what came out.

Owns the files, their names and what may be mixed: a part is complete or absent, and a folder belongs to one
specification. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.atomic import PART, atomic_write, read_json, same_spec
from dropscope.errors import BadInput, Phrase, first_line

FORMAT = 1
OPEN = ("engine",)  # of a specification: known only when a run is planned


class Store:
    """The folder of one run; made on first use, joined when its specification is the same."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.rows_folder = self.folder / "rows"

    def open(self, spec: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Starts the run or takes it up again. `spec` must agree; `fixed` (blocks, versions) is the first start's."""
        known = self.read_spec() if (self.folder / "run.json").exists() else None
        if known is None:
            if self.rows_folder.exists() and any(self.rows_folder.iterdir()):
                what, remedy = "out must be a folder of a run, or empty", "choose an empty or new folder"
                raise BadInput(what, "out", str(self.folder), remedy)
            try:
                self.rows_folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                received = Phrase(f"{self.folder}: {error.strerror}")
                raise BadInput(
                    "out must be a folder that can be made", "out", received, "choose another name"
                ) from error
            known = {"format": FORMAT, "spec": dict(spec), "fixed": dict(fixed)}
            self._begin(json.dumps(known, indent=2, sort_keys=True))
            known = self.read_spec()
        self._compare(known["spec"], spec)
        self.rows_folder.mkdir(exist_ok=True)
        for torn in self.folder.rglob(f"{PART}*"):
            torn.unlink()  # left by a kill between writing and renaming: never part of the run
        return dict(known["fixed"])

    def check(self, spec: Mapping[str, Any]) -> bool:
        """Whether a run was started here; refuses one whose specification differs. What `spec` leaves open may."""
        if not (self.folder / "run.json").exists():
            return False
        known = self.read_spec()["spec"]
        self._compare({name: value for name, value in known.items() if name in spec or name not in OPEN}, spec)
        return True

    def _compare(self, known: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        remedy = "choose another folder for this run, or repeat the first one exactly"
        same_spec(known, spec, self.folder / "run.json", remedy)

    def _begin(self, text: str) -> None:
        """Writes run.json unless another process just did: then that one stands, and this one is compared with it."""
        part = atomic_write(self.folder / f"{PART}{os.getpid()}.json", lambda part: part.write_text(text))
        try:
            os.link(part, self.folder / "run.json")
        except FileExistsError:
            pass
        except OSError:  # no links on this disk
            os.replace(part, self.folder / "run.json")
        part.unlink(missing_ok=True)

    def settled(self, name: str, otherwise: Any) -> Any:
        """What the first start of this run settled; `otherwise` where it has not started."""
        return self.read_spec()["fixed"].get(name, otherwise) if (self.folder / "run.json").exists() else otherwise

    def read_spec(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        if not path.exists():
            remedy = "pass the folder that a sweep wrote"
            raise BadInput("folder must hold a run.json", "folder", str(self.folder), remedy)
        known = read_json(path)
        if isinstance(known, dict) and known.get("format") != FORMAT:
            what, remedy = f"run.json must have format {FORMAT}", "use the version of Dropscope that wrote it"
            raise BadInput(what, str(path), known.get("format"), remedy)
        if not isinstance(known, dict) or not {"spec", "fixed"} <= {*known}:
            received = Phrase("neither a specification nor settings")
            remedy = "restore it, or start in a new folder"
            raise BadInput("run.json must say what the run is", str(path), received, remedy)
        return dict(known)

    def has(self, name: str) -> bool:
        return (self.rows_folder / f"part-{name}.parquet").exists()

    def write_rows(self, name: str, rows: pd.DataFrame) -> None:
        _write_table(self.rows_folder / f"part-{name}.parquet", rows)

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        _write_table(self.folder / f"{name}.parquet", table)

    def read_table(self, name: str) -> pd.DataFrame | None:
        path = self.folder / f"{name}.parquet"
        return _read_table(path) if path.exists() else None

    def read_rows(self) -> pd.DataFrame:
        """Every row there is, in the order of the placements."""
        parts = [_read_table(path) for path in sorted(self.rows_folder.glob("part-*.parquet"))]
        if not parts:
            raise BadInput("folder must hold rows", "folder", str(self.folder), "run the sweep to its end first")
        return ordered_rows(parts)


def ordered_rows(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Rows of all parts in the order of the placements, then of the measures."""
    rows = pd.concat(parts, ignore_index=True).sort_values(["number", "order"], kind="stable")
    return rows.drop(columns=["number", "order"]).reset_index(drop=True)


def _read_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # what Arrow raises is one of these
        remedy = "remove it and run again: it is computed again"
        raise BadInput(f"{path.name} must be readable", str(path), Phrase(first_line(error)), remedy) from error


def _write_table(path: Path, table: pd.DataFrame) -> None:
    atomic_write(path, lambda part: table.to_parquet(part, index=False))
