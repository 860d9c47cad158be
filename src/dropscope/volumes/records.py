"""Records of finished cases: `case.json`, written after the maps, with what identifies them and a digest of each.

Owns what a folder that was left in the middle means: a case whose record or maps are damaged is predicted again and
that is said; one that was predicted otherwise, or by somebody else, is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dropscope.atomic import atomic_write, output_folder, same_spec
from dropscope.errors import BadInput, Phrase, first_line

NAME = "case.json"
_REMEDY = "choose another folder, or predict again with overwrite=True"


@dataclass(frozen=True)
class State:
    """Whether a case is finished in its folder; if it is not although a record lies there, why."""

    done: bool
    damage: str | None = None


def write_record(folder: Path, spec: Mapping[str, Any], found: Mapping[str, Any], files: Sequence[str]) -> None:
    """Writes the record of a case whose maps are all there."""
    digests = {name: _digest(folder / name) for name in files}
    record = {"spec": dict(spec), "found": dict(found), "files": digests}
    atomic_write(folder / NAME, lambda part: part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8"))


def read_found(folder: Path) -> dict[str, Any]:
    """What was found for a finished case."""
    found: dict[str, Any] = json.loads((folder / NAME).read_text(encoding="utf-8"))["found"]
    return found


def examine_record(folder: Path, spec: Mapping[str, Any], files: Sequence[str], structures: int) -> State:
    """Whether the case in a folder is finished as `spec` asks, with numbers for so many structures.

    Raises:
        BadInput: Where a case that was predicted otherwise, or something else altogether, lies there.
    """
    path = folder / NAME
    if not path.exists():
        return State(done=False)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return State(done=False, damage=f"{NAME} is not readable ({first_line(error)})")
    if not isinstance(record, dict) or "spec" not in record:
        received = Phrase(f"a {NAME} of another kind in {folder}")
        raise BadInput("out must be a folder of predictions", "out", received, _REMEDY)
    if not isinstance(record["spec"], dict) or not _is_complete(record.get("found"), record.get("files"), structures):
        return State(done=False, damage=f"{NAME} is incomplete")
    same_spec(record["spec"], spec, path, _REMEDY)
    for name in files:
        if not (folder / name).is_file():
            return State(done=False, damage=f"{name} is missing")
        if record["files"].get(name) != _digest(folder / name):
            return State(done=False, damage=f"{name} is not as it was written")
    return State(done=True)


def remove_case(folder: Path) -> None:
    """Removes the record and the files that it lists; anything else in the folder stays."""
    path = folder / NAME
    if not path.exists():
        return
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        names = [name for name in files if Path(name).name == name]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        names = []
    path.unlink()
    for name in names:
        if os.path.isfile(folder / name):  # which no odd name is
            (folder / name).unlink()


def check_folder(out: Path, names: Sequence[str], files: Sequence[str]) -> None:
    """Refuses a folder that cannot be written to: a file lies where a folder must be, or the other way round."""
    folders = [output_folder(out / name) for name in names]
    for path in (folder / name for folder in folders for name in (NAME, *files)):
        if path.is_dir():
            raise BadInput("out must be a folder of predictions", "out", Phrase(f"a folder at {path}"), _REMEDY)


def _is_complete(found: object, files: object, structures: int) -> bool:
    """Whether these are the findings of `tables.summarise`, by their types."""
    if not (isinstance(found, dict) and isinstance(files, dict) and isinstance(found.get("maps"), dict)):
        return False
    known = dict.fromkeys(("millilitres", "millilitres_low", "millilitres_high"), structures) | {"foreground": 3}
    perhaps = ("uncertainties", "volume_variation", "pairwise_dice")
    return (
        all(isinstance(found.get(name), str) for name in ("case", "image"))
        and all(_are_numbers(found.get(name), count) for name, count in known.items())
        and all(_are_numbers(found.get(name), structures, or_none=True) for name in perhaps)
        and _are_numbers([found.get("uncertainty", "missing")], 1, or_none=True)
        and all(
            isinstance(row, dict) and _are_numbers(list(row.values()), 2, or_none=True)
            for row in found["maps"].values()
        )
    )


def _are_numbers(values: object, count: int, *, or_none: bool = False) -> bool:
    def is_number(value: object) -> bool:
        return (isinstance(value, int | float) and not isinstance(value, bool)) or (or_none and value is None)

    return isinstance(values, list) and len(values) == count and all(is_number(value) for value in values)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
