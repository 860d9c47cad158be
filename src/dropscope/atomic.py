"""Atomic file writes, and folders that hold one run.

A file is complete or absent: it is written beside its place, then renamed. A folder belongs to the specification that
was written into it first.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dropscope.errors import BadInput, Phrase, first_line

_LONGEST_NAME = 255  # bytes, on every usual file system
PART = ".part-"  # prefix of what a kill between writing and renaming leaves behind


def atomic_write(path: Path, write: Callable[[Path], object]) -> Path:
    """Lets `write` fill a temporary file with the same suffix, flushes it to disk, and renames it to `path`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     at = atomic_write(Path(folder) / "below" / "a.txt", lambda part: part.write_text("x"))
    ...     at.read_text(), [p.name for p in at.parent.iterdir()]
    ('x', ['a.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = ".nii.gz" if path.name.endswith(".nii.gz") else path.suffix
    handle, name = tempfile.mkstemp(prefix=PART, suffix=suffix, dir=path.parent)
    os.close(handle)
    try:
        write(Path(name))
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def output_folder(out: str | Path) -> Path:
    """The folder, if it is there or can be made. Nothing is made: a mistake is refused before any work.

    Raises:
        BadInput: If it has no name, a file lies in its place or above it, or it must not be made there.
    """
    if not str(out).strip():  # as of a variable that is not set; it would be the current folder
        raise BadInput("out must name a folder", "out", str(out), "write out='results'")
    path = Path(out)
    found = next((at for at in (path, *path.parents) if os.path.lexists(at)), Path.cwd())
    problem = None
    if not os.path.isdir(found):
        problem = f"{path}, which is a file" if found == path else f"{path}, but {found} is a file"
    elif found != path and not os.access(found, os.W_OK | os.X_OK):
        problem = f"{path}, but {found} must not be written to"
    elif any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
        problem = "a name that is too long"
    if problem is not None:
        what = "out must be a folder, or the name of a new one"
        raise BadInput(what, "out", Phrase(problem), "choose another folder")
    return path


def same_spec(known: Mapping[str, Any], wanted: Mapping[str, Any], record: Path, remedy: str) -> None:
    """Checks that a folder holds this run and no other.

    Args:
        known: The specification in the folder.
        wanted: The specification of this run, in values that JSON can hold.
        record: The file that `known` was read from.
        remedy: What to do instead.

    Raises:
        BadInput: If the two differ; `received` names the fields.
    """
    as_json = json.loads(json.dumps(dict(wanted), sort_keys=True))
    differing = sorted(key for key in {*known, *as_json} if known.get(key) != as_json.get(key))
    if differing:
        got = Phrase(f"other values for {', '.join(differing)} than in {record}")
        raise BadInput("out must hold one run", "out", got, remedy)


def read_json(path: Path) -> Any:
    """The content of a JSON file that Dropscope wrote.

    Raises:
        BadInput: If it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        remedy = "restore the file, or remove it and run again"
        raise BadInput(f"{path.name} must be readable JSON", str(path), Phrase(first_line(error)), remedy) from error
