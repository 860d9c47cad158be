"""A run as a folder: `run.json` says what it is, `rows/part-*.parquet` what came out. Files come whole, by renaming.

Owns the files, their names and what may be mixed: a part is there or it is not, and a folder belongs to one
specification. What a row means is `sweep.py`'s. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.atomic import PART, atomic_write
from dropscope.errors import BadInput

FORMAT = 1


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
                raise BadInput("a run folder has a run.json", "out", str(self.folder), "choose an empty or new folder")
            try:
                self.rows_folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                got = f"{self.folder}: {error.strerror}"
                raise BadInput("a run has a folder", "out", got, "choose another name") from error
            known = {"format": FORMAT, "spec": dict(spec), "fixed": dict(fixed)}
            self._begin(json.dumps(known, indent=2, sort_keys=True))
            known = self.read_spec()
        agreed = json.loads(json.dumps(dict(spec), sort_keys=True))
        differing = sorted(key for key in {*agreed, *known["spec"]} if agreed.get(key) != known["spec"].get(key))
        if differing:
            raise BadInput(
                "a folder holds one run", f"what differs from {self.folder / 'run.json'}", differing,
                "choose another folder for this run, or repeat the first one exactly",
            )  # fmt: skip
        self.rows_folder.mkdir(exist_ok=True)
        for torn in self.folder.rglob(f"{PART}*"):
            torn.unlink()  # left by a kill between writing and renaming: never part of the run
        return dict(known["fixed"])

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

    def fixed(self, name: str, otherwise: Any) -> Any:
        """What was settled at the first start of this run; `otherwise` where it has not started."""
        return self.read_spec()["fixed"].get(name, otherwise) if (self.folder / "run.json").exists() else otherwise

    def read_spec(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        if not path.exists():
            raise BadInput(
                "a run folder has a run.json", "folder", str(self.folder), "pass the folder that a sweep wrote"
            )
        try:
            known = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise BadInput("run.json is JSON", str(path), str(error), "restore it, or start in a new folder") from error
        if isinstance(known, dict) and known.get("format") != FORMAT:
            raise BadInput(
                f"this version reads runs of format {FORMAT}",
                str(path),
                known.get("format"),
                "use the version that wrote it",
            )
        if not isinstance(known, dict) or not {"spec", "fixed"} <= {*known}:
            got = "neither spec nor settings"
            raise BadInput("run.json says what a run is", str(path), got, "restore it, or start in a new folder")
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
            raise BadInput("a run folder has rows", "folder", str(self.folder), "run the sweep to its end first")
        rows = pd.concat(parts, ignore_index=True)
        return (
            rows.sort_values(["number", "order"], kind="stable")
            .drop(columns=["number", "order"])
            .reset_index(drop=True)
        )


def _read_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # what Arrow raises is one of these
        reason = str(error).splitlines()[0][:120]
        raise BadInput(
            "a part of a run can be read", str(path), reason, "remove it and run again: it is made anew"
        ) from error


def _write_table(path: Path, table: pd.DataFrame) -> None:
    atomic_write(path, lambda part: table.to_parquet(part, index=False))
