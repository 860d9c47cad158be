"""Image folders: which files belong to them, with which labels, and the data set that they make up.

A folder has a sub-folder per class, as torchvision's ImageFolder takes it; or a table with columns `file` and `label`;
or images alone, without labels. See `pixels` for how a file is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dropscope.device import free_bytes
from dropscope.errors import BadInput, Phrase, first_line, nearest
from dropscope.loading.classes import SPLITS, match_names, number_folders, read_labels
from dropscope.loading.pixels import SUFFIXES, Header, Reading, read_header
from dropscope.loading.tables import find_column, read_table, written

_FILE_COLUMNS = ("file", "file_name", "filename")


class ImageFiles(Dataset[Any]):
    """Image files as a data set: items are `(image, label)`, or `image` where there are no labels."""

    def __init__(self, paths: Sequence[Path], labels: Tensor | None, reading: Reading) -> None:
        self._paths, self._labels, self._reading = paths, labels, reading

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor | tuple[Tensor, Tensor]:
        image = self._reading(self._paths[index])
        return image if self._labels is None else (image, self._labels[index])

    def check_memory(self) -> None:
        """Refuses images that do not fit into memory together."""
        if len(self) == 0:
            return
        needed, free = self._reading(self._paths[0]).nbytes * len(self), free_bytes(torch.device("cpu"))
        if needed > free:
            got = Phrase(f"{len(self)} images, {needed / 1e9:.1f} GB as tensors")
            remedy = "pass a smaller image_size, or fewer images"
            raise BadInput(f"images must fit into memory ({free / 1e9:.1f} GB free)", "data", got, remedy)


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a folder in order.

    Attributes:
        paths: Where they are.
        names: Relative to the folder.
        labels: int64 `[n]`, or None.
        class_names: In the order of the class numbers, or None.
        remarks: What was guessed or left out.
        table: The table they come from, for errors; None without one.
    """

    paths: list[Path]
    names: list[str]
    labels: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()
    table: Path | None = None

    def headers(self) -> list[Header]:
        """The header of each, checked."""
        pairs = enumerate(zip(self.paths, self.names, strict=True))
        return [read_header(path, self._place(i), name) for i, (path, name) in pairs]

    def check_sizes(self, headers: Sequence[Header]) -> None:
        """Refuses images of several sizes."""
        seen: dict[tuple[int, int], str] = {}
        for name, header in zip(self.names, headers, strict=True):
            shown = f"{name}: {header.width}x{header.height} {'grey' if header.grey else 'colour'}"
            seen.setdefault((header.width, header.height), shown)
        if len(seen) > 1:
            remedy = "pass image_size to resize them, such as image_size=224"
            raise BadInput("images must have one size", "image_size", list(seen.values())[:3], remedy)

    def _place(self, i: int) -> str:
        return "data" if self.table is None else f"row {i + 1} of {self.table.name}"


def list_images(
    folder: Path,
    table: Path | None,
    label_column: str | None,
    asked: Sequence[str] | None,
    of_model: Sequence[str] | None,
    *,
    labelled: bool = True,
) -> Listing:
    """The images of a folder, with their labels.

    Args:
        folder: The folder, or one image.
        table: A table with a row per image; None takes `labels.csv` in the folder, if there is one.
        label_column: The column of the labels in the table.
        asked: The class names that the caller gave.
        of_model: The class names of the model.
        labelled: Whether labels are wanted.
    """
    if table is None and os.path.isfile(folder / "labels.csv"):
        table = folder / "labels.csv"
    if table is not None:
        return _of_table(folder, table, label_column, asked or of_model, labelled=labelled)
    if label_column is not None:
        remedy = "pass the table with labels=, or leave label_column out"
        raise BadInput("label_column must name a column of a table", "label_column", label_column, remedy)
    if os.path.isfile(folder):
        return Listing([folder], [folder.name])
    return _of_folder(folder, asked, of_model, labelled=labelled)


# --- a table ----------------------------------------------------------------------------------------------------------


def _of_table(
    folder: Path, table: Path, label_column: str | None, names: Sequence[str] | None, *, labelled: bool
) -> Listing:
    rows = read_table(table, "labels")
    files = written(rows, find_column(rows, table, None, _FILE_COLUMNS, "file"), table)
    labels = read_labels(rows, label_column, table, names) if labelled else None
    paths = [_inside(folder, file, f"row {number} of {table.name}") for number, file in enumerate(files, 1)]
    return Listing(paths, files, labels, None if names is None else tuple(names), (), table)


def _inside(folder: Path, name: str, where: str) -> Path:
    if os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir:
        remedy = "write file names relative to the image folder"
        raise BadInput(f"{where} must name a file inside the image folder", where, name, remedy)
    path = folder / name
    _check_link(path, folder, where)
    if not os.path.isfile(path):
        try:
            beside = sorted(os.listdir(path.parent))
        except (OSError, ValueError):
            beside = []
        remedy = nearest(path.name, beside) if beside else "write file names relative to the image folder"
        got = Phrase(f"{name!r}, which was not found") if len(name) < 300 else Phrase("a name that is too long")
        raise BadInput(f"{where} must name a file of the image folder", where, got, remedy)
    return path


def _check_link(path: str | Path, folder: Path, where: str) -> None:
    """Refuses what leads out of the folder by way of a link."""
    try:
        inside = os.path.commonpath([os.path.realpath(path), root := os.path.realpath(folder)]) == root
    except (OSError, ValueError):  # no name of a file: that is refused elsewhere
        return
    if not inside:
        what, remedy = f"{where} must name images that lie in their folder", "put a copy in place of the link"
        raise BadInput(what, where, Phrase(f"{str(path)!r}, a link out of it"), remedy)


# --- files alone ------------------------------------------------------------------------------------------------------


def _of_folder(folder: Path, asked: Sequence[str] | None, of_model: Sequence[str] | None, *, labelled: bool) -> Listing:
    others: list[str] = []
    files = sorted(_images(folder, others))
    top = [name for name in files if os.sep not in name]
    classes = sorted({name.split(os.sep)[0] for name in files} - set(top))
    remarks = [f"left out what is no image: {_counted(sorted(others))}"] if others else []
    if not files:
        got = Phrase(f"{str(folder)!r} without any" + (f"; it holds {_counted(sorted(others))}" if others else ""))
        remedy = f"images are files that end in {', '.join(SUFFIXES)}"
        raise BadInput("data must be a folder with images", "data", got, remedy)
    if len(classes) > 1 and SPLITS.issuperset(name.lower() for name in classes):
        got = Phrase(f"{str(folder)!r} with {', '.join(classes)}")
        raise BadInput("data must be one part of a data set", "data", got, f"write data={str(folder / classes[-1])!r}")
    if len(classes) < 2 and (top or match_names(classes, asked or of_model) is None):
        return Listing([folder / name for name in files], files, remarks=(*remarks, *_alone(classes)))
    if not labelled:
        return Listing([folder / name for name in files], files, remarks=tuple(remarks))
    if top:
        remarks.append(f"left out what lies in no class folder: {_counted(top)}")
        files = [name for name in files if name not in set(top)]
    numbers, names, more = number_folders(classes, asked, of_model, str(folder))
    empty = sorted({entry for entry in _sub_folders(folder) if entry not in numbers})
    if empty:
        remarks.append(f"sub-folders without images are no classes: {_counted(empty)}")
    labels = torch.tensor([numbers[name.split(os.sep)[0]] for name in files], dtype=torch.int64)
    return Listing([folder / name for name in files], files, labels, names, (*remarks, *more))


def _alone(classes: Sequence[str]) -> tuple[str, ...]:
    """One sub-folder says nothing about classes."""
    return (f"one sub-folder, {classes[0]!r}, is no set of classes: images have no labels",) if classes else ()


def _images(folder: Path, others: list[str]) -> Iterator[str]:
    """Image files at any depth, relative to the folder; hidden ones are left out, other files go to `others`."""
    seen: set[tuple[int, int]] = set()

    def refuse(error: OSError) -> None:
        got = Phrase(f"{str(error.filename)!r}: {error.strerror or first_line(error)}")
        raise BadInput("data must be a folder that can be read", "data", got, "check its permissions") from error

    for root, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        try:
            status = os.stat(root)
        except OSError as error:
            refuse(error)
        if (status.st_dev, status.st_ino) in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        _check_link(root, folder, "data")
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            path = os.path.join(root, name)
            if name.startswith("."):
                continue
            if name.lower().endswith(SUFFIXES) and os.path.isfile(path):
                if os.path.islink(path):
                    _check_link(path, folder, "data")
                yield os.path.relpath(path, folder)
            else:
                others.append(os.path.relpath(path, folder))


def _sub_folders(folder: Path) -> list[str]:
    return [entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]


def _counted(names: Sequence[str], count: int = 3) -> str:
    return ", ".join(map(repr, names[:count])) + (f" and {len(names) - count} more" if len(names) > count else "")
