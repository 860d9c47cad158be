"""Files that are there whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

PART = ".part-"  # what a kill between writing and renaming leaves begins with this


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Lets `write` fill a temporary file of the same ending, then gives it its name, on disk as well.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     at = write_whole(Path(folder) / "below" / "a.txt", lambda part: part.write_text("x"))
    ...     at.read_text(), [p.name for p in at.parent.iterdir()]
    ('x', ['a.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = ".nii.gz" if path.name.endswith(".nii.gz") else path.suffix
    handle, name = tempfile.mkstemp(prefix=PART, suffix=ending, dir=path.parent)
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
