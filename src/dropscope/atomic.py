"""Atomic file writes, and folders that hold one run.

A file is complete or absent: it is written beside its place, then renamed. A folder belongs to the specification that
was written into it first. While a file is written it is locked, so that what a killed process left behind is told from
what another process is writing now.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dropscope.errors import BadInput, Phrase, first_line

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LONGEST_NAME = 255  # bytes, on every usual file system
PART = ".part-"  # prefix of what a kill between writing and renaming leaves behind
_ABANDONED = 86_400  # seconds since the last change of such a file, where the disk has no locks to ask


def atomic_write(path: Path, write: Callable[[Path], object]) -> Path:
    """Lets `write` fill a temporary file with the same suffix, flushes it to disk, and renames it to `path`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     at = atomic_write(Path(folder) / "below" / "a.txt", lambda part: part.write_text("x"))
    ...     at.read_text(), [p.name for p in at.parent.iterdir()]
    ('x', ['a.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _written(path, write) as name:
        os.chmod(name, 0o644)
        os.replace(name, path)
    return path


def write_once(path: Path, write: Callable[[Path], object]) -> bool:
    """As `atomic_write`, unless the file is there already: the first of several writers wins, and only it gets True."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _written(path, write) as name:
        os.chmod(name, 0o644)
        try:
            os.link(name, path)
        except FileExistsError:
            return False
        except OSError:  # no links on this disk
            if path.exists():
                return False
            os.replace(name, path)
    return True


def remove_torn(folder: Path) -> None:
    """Removes what writers that were killed left behind in a folder and below; files of living writers stay."""
    for torn in folder.rglob(f"{PART}*"):
        with suppress(OSError), open(torn, "rb") as file:  # another process may have removed it
            if _lock(file.fileno(), wait=False) or _is_abandoned(torn):
                torn.unlink()


@contextmanager
def _written(path: Path, write: Callable[[Path], object]) -> Iterator[str]:
    """A temporary file beside `path`, filled, on disk, and locked; it is gone at the end."""
    handle, name = _begin(path)
    try:
        write(Path(name))
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        yield name
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(handle)


def _begin(path: Path) -> tuple[int, str]:
    suffix = ".nii.gz" if path.name.endswith(".nii.gz") else path.suffix
    while True:
        handle, name = tempfile.mkstemp(prefix=PART, suffix=suffix, dir=path.parent)
        _lock(handle, wait=True)
        if os.path.exists(name):  # else it looked torn, before it was locked
            return handle, name
        os.close(handle)


def _lock(handle: int, *, wait: bool) -> bool:
    """Locks a file for as long as it is open; False where another process holds it, or the disk has no locks."""
    if fcntl is None:
        return False
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return True
    return False


def _is_abandoned(torn: Path) -> bool:
    return time.time() - torn.stat().st_mtime > _ABANDONED


def output_folder(out: str | Path) -> Path:
    """The folder, if it is there or can be made. Nothing is made: a mistake is refused before any work.

    Raises:
        BadInput: If it has no name, a file lies in its place or above it, or it must not be made there.
    """
    if not str(out).strip():  # as of a variable that is not set; it would be the current folder
        raise BadInput("out must name a folder", "out", str(out), "write out='results'")
    if "://" in str(out):
        raise BadInput("out must be a folder of this machine here", "out", str(out), "write out='results'")
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


def same_spec(known: Mapping[str, Any], wanted: Mapping[str, Any], record: Path | str, remedy: str) -> None:
    """Checks that a folder holds this run and no other.

    Args:
        known: The specification in the folder.
        wanted: The specification of this run, in values that JSON can hold.
        record: The file that `known` was read from.
        remedy: What to do instead.

    Raises:
        BadInput: If the two differ; `received` names the fields.
    """
    plain = json.loads(json.dumps(dict(wanted), sort_keys=True))
    differing = sorted(key for key in {*known, *plain} if known.get(key) != plain.get(key))
    if differing:
        got = Phrase(f"other values for {', '.join(differing)} than in {record}")
        raise BadInput("out must hold one run", "out", got, remedy)


def read_json(path: Path) -> Any:
    """The content of a JSON file that Dropscope wrote.

    Raises:
        BadInput: If it cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _no_json(str(path), error) from error
    return as_json(content, str(path))


def as_json(content: bytes, path: str) -> Any:
    """What the bytes of a JSON file say; `path` is where they are from."""
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _no_json(path, error) from error


def _no_json(path: str, error: Exception) -> BadInput:
    name, remedy = path.rpartition("/")[2], "restore the file, or remove it and run again"
    return BadInput(f"{name} must be readable JSON", path, Phrase(first_line(error)), remedy)
