"""Places of runs: a folder of this machine, or an address that fsspec knows, such as s3://bucket/run.

Owns what each really gives. An object is put in one request, a file anywhere else is renamed into its place: both are
whole or absent. `create` lets the first of several writers win: by a link in a folder, by a conditional request where a
store has one. Elsewhere two that begin in the same moment may both win.
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dropscope.atomic import PART, atomic_write, output_folder, remove_torn, write_once
from dropscope.errors import BadInput, Phrase, first_line

_ADDRESS = re.compile(r"^[a-z][a-z0-9+.-]*(::|://)", re.IGNORECASE)
# Protocols whose every write is one request.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "hf", "memory"}


class Place(Protocol):
    """Named files, each whole or absent. Names have slashes between their parts."""

    @property
    def at(self) -> Path | str:
        """As a user writes it."""
        ...

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes:
        """The file; raises `FileNotFoundError` where there is none."""
        ...

    def write(self, name: str, content: bytes) -> None: ...

    def create(self, name: str, content: bytes) -> bool:
        """Writes the file unless it is there; whether it did."""
        ...

    def names(self, below: str) -> list[str]:
        """The files directly below a name, without that name, sorted."""
        ...

    def clean(self) -> None:
        """Removes what killed writers left."""
        ...


def open_place(out: str | Path) -> Place:
    """The place that `out` names; nothing is made yet.

    Raises:
        BadInput: If it cannot be used.
    """
    if isinstance(out, str) and _ADDRESS.match(out) and not out.startswith("file://"):
        return AddressedPlace.opened(out)
    out = out.removeprefix("file://") if isinstance(out, str) else out
    return FolderPlace(output_folder(out))


def existing_place(folder: str | Path) -> Place:
    """The place of a run that is to be read; it need not be one that can be written to."""
    addressed = isinstance(folder, str) and _ADDRESS.match(folder)
    return open_place(folder) if addressed else FolderPlace(Path(folder))


class FolderPlace:
    """A folder of a file system."""

    def __init__(self, folder: Path) -> None:
        self.at = folder

    def exists(self, name: str) -> bool:
        return (self.at / name).exists()

    def read(self, name: str) -> bytes:
        return (self.at / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        atomic_write(self.at / name, lambda part: part.write_bytes(content))

    def create(self, name: str, content: bytes) -> bool:
        try:
            return write_once(self.at / name, lambda part: part.write_bytes(content))
        except OSError as error:
            received = Phrase(f"{self.at}: {error.strerror}")
            what = "out must be a folder that can be made and written to"
            raise BadInput(what, "out", received, "choose another folder") from error

    def names(self, below: str) -> list[str]:
        folder = self.at / below
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def clean(self) -> None:
        remove_torn(self.at)


class AddressedPlace:
    """Objects below an address of fsspec."""

    def __init__(self, address: str, system: Any, root: str) -> None:
        self.at = address
        self._system, self._root = system, root

    @classmethod
    def opened(cls, address: str) -> AddressedPlace:
        """Refuses an address whose package is missing, or that does not answer."""
        what, remedy = "out must be an address that fsspec can open", "write out='s3://bucket/run', or a folder"
        try:
            from fsspec.core import url_to_fs

            # Other machines write too: what was listed once is asked for again.
            system, root = url_to_fs(address, use_listings_cache=False)
        except ImportError as error:
            raise BadInput(what, "out", Phrase(first_line(error)), "install the package that it names") from error
        except ValueError as error:
            raise BadInput(what, "out", Phrase(first_line(error)), remedy) from error
        place = cls(address, system, str(root).rstrip("/"))
        with place._asked():
            place.exists("run.json")
        return place

    @contextmanager
    def _asked(self, *, reading: bool = True) -> Iterator[None]:
        """One line for what a store answers instead of the object: no such bucket, no access, no network."""
        try:
            yield
        except (OSError, TimeoutError) as error:
            if reading and isinstance(error, FileNotFoundError):
                raise
            remedy = "check the address, its access keys and the network"
            raise BadInput(f"{self.at} must be reachable", "out", Phrase(first_line(error)), remedy) from error

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def exists(self, name: str) -> bool:
        with self._asked():
            return bool(self._system.exists(self._path(name)))

    def read(self, name: str) -> bytes:
        with self._asked():
            return bytes(self._system.cat_file(self._path(name)))

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with self._asked(reading=False):
            if self._puts:
                self._system.pipe_file(path, content)
            else:
                self._system.makedirs(posixpath.dirname(path), exist_ok=True)
                part = posixpath.join(posixpath.dirname(path), f"{PART}{uuid.uuid4().hex}")
                self._system.pipe_file(part, content)
                self._system.mv(part, path)

    @property
    def _puts(self) -> bool:
        protocol = self._system.protocol
        return bool(_OBJECT_STORES & {protocol} if isinstance(protocol, str) else _OBJECT_STORES & {*protocol})

    def create(self, name: str, content: bytes) -> bool:
        with self._asked(reading=False):
            if self.exists(name):
                return False
            if not self._puts:
                self.write(name, content)
                return True
            try:
                self._system.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                return False
            except (NotImplementedError, TypeError):  # a store without conditional requests: the last writer wins
                self._system.pipe_file(self._path(name), content)
        return True

    def names(self, below: str) -> list[str]:
        try:
            with self._asked():
                return sorted(posixpath.basename(path) for path in self._system.ls(self._path(below), detail=False))
        except FileNotFoundError:
            return []

    def clean(self) -> None:
        """Of objects, a put that was cut off leaves nothing; elsewhere nobody can tell what is still being written."""
