"""Class names and numbers: what a label stands for, and in which order a model has its classes.

Owns where names come from (the caller, the data, the model) and how folders and labels are matched to them. A label is
matched by name wherever both sides have names; a guess is always said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope.errors import BadInput, Phrase, nearest
from dropscope.loading.tables import LABEL_COLUMNS, find_column, read_text

SPLITS = frozenset(("train", "training", "val", "valid", "validation", "dev", "test", "testing"))

_MOST_CLASSES = 1 << 31
_UNNAMED = re.compile(r"LABEL_\d+")  # what transformers writes where nobody named the classes


# --- where names come from --------------------------------------------------------------------------------------------


def as_class_names(given: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """The names that a caller gives: a sequence, a text with commas, or a file with a name per line.

    >>> as_class_names("cat, dog"), as_class_names(["cat", "dog"]), as_class_names(None)
    (('cat', 'dog'), ('cat', 'dog'), None)
    """
    if given is None:
        return None
    if isinstance(given, str | os.PathLike) and os.path.isfile(given):
        given = read_text(Path(given), "class_names").splitlines()
    elif isinstance(given, str):
        given = given.split(",")
    what, remedy = "class_names must hold a name per class, each another", "write class_names=('cat', 'dog')"
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise BadInput(what, "class_names", given, remedy)
    names = [name.strip() for name in given]
    while names and not names[-1]:  # a last comma, or the end of a file
        names.pop()
    if not names or "" in names or len(set(names)) < len(names):
        raise BadInput(what, "class_names", list(given), remedy)
    return tuple(names)


def class_names_of_model(model: nn.Module | None) -> tuple[str, ...] | None:
    """The names in the model's config, in the order of its outputs; None where nobody gave it any."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(names, Mapping) or not names:
        return None
    try:
        ordered = [str(names[number]) for number in range(len(names))]
    except KeyError:
        return None
    if len(set(ordered)) < len(ordered) or all(_UNNAMED.fullmatch(name) for name in ordered):
        return None
    return tuple(ordered)


def class_names_of_data(data: Any) -> tuple[str, ...] | None:
    """The names that a data set carries: `classes`, as torchvision has them, or the label feature of `datasets`."""
    features = getattr(data, "features", None)
    if isinstance(features, Mapping):
        return _as_names(next((getattr(features[n], "names", None) for n in LABEL_COLUMNS if n in features), None))
    for _ in range(8):  # a DataLoader over a Subset over a data set
        names = _as_names(getattr(data, "classes", None))
        if names is not None:
            return names
        data = getattr(data, "dataset", None)
    return None


def _as_names(names: object) -> tuple[str, ...] | None:
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    return None


def settle_class_names(
    asked: Sequence[str] | None, of_data: Sequence[str] | None, of_model: Sequence[str] | None, outputs: int
) -> tuple[str, ...] | None:
    """The names of a model's outputs: the caller's, else those of the data, else the model's own.

    Raises:
        BadInput: If there are more or fewer than outputs, or the data has the model's classes in another order.
    """
    names = asked or of_data
    if names is None:
        return None if of_model is None or len(of_model) != outputs else tuple(of_model)
    if len(names) != outputs:
        got = Phrase(f"{len(names)}{'' if asked else ' in the data'}: {_few(names)}")
        remedy = "pass class_names in the order of the model's outputs"
        raise BadInput(f"class_names must name the {outputs} outputs of the model", "class_names", got, remedy)
    numbers = None if asked else match_names(names, of_model)
    if numbers is not None and list(numbers.values()) != list(range(outputs)):
        got = Phrase(f"{_few(names)}, where the model has {_few(of_model or ())}")
        remedy = "renumber the labels, or pass class_names if they are in the model's order"
        raise BadInput("data must have its classes in the order of the model's outputs", "data", got, remedy)
    return tuple(names)


# --- from names to numbers --------------------------------------------------------------------------------------------


def match_names(found: Sequence[str], known: Sequence[str] | None) -> dict[str, int] | None:
    """For each name that was found, its number among the known names; None where one is not among them.

    Names are compared as written, and if that leads nowhere without case, blanks, `_` and `-`.

    >>> match_names(["Polar bear", "ant"], ["ant", "bee", "polar_bear"])
    {'Polar bear': 2, 'ant': 0}
    """
    for spell in (str, _spelling):
        numbers = {spell(name): number for number, name in enumerate(known or ())}
        spelled = {spell(name) for name in found}
        if len(numbers) == len(known or ()) and len(spelled) == len(found) and spelled <= set(numbers):
            return {name: numbers[spell(name)] for name in found}
    return None


def _spelling(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def number_folders(
    folders: Sequence[str], asked: Sequence[str] | None, of_model: Sequence[str] | None, where: str
) -> tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]:
    """The class number of each folder, all class names in order, and remarks.

    Args:
        folders: Their names, sorted.
        asked: The class names that the caller gave.
        of_model: The class names in the model's config.
        where: The folder that holds them.

    Raises:
        BadInput: If the caller's class names leave a folder without a number, or the model has fewer classes.
    """
    known = asked or of_model
    numbers = match_names(folders, known)
    if numbers is not None and known is not None:
        return numbers, tuple(known), ()
    strange = [name for name in folders if match_names([name], known) is None]
    if known is not None and (asked or len(strange) < len(folders)):
        got = Phrase(f"{_few(strange)} in {where}")
        remedy = f"rename or remove what is no class of the model: {_few(known)}"
        raise BadInput("sub-folders must be named like the classes", "class_names" if asked else "data", got, remedy)
    remark = f"classes are numbered in the order of their folders' names: {_numbered(folders)}"
    if any(name.isdecimal() for name in folders) and sorted(folders, key=len) != list(folders):
        remark += "; names are sorted as texts, so 10 comes before 2"
    if known is not None:
        remark += f"; none is a class name of the model ({_few(known)})"
    return (
        {name: number for number, name in enumerate(folders)},
        tuple(folders),
        (f"{remark}; pass class_names for another order",),
    )


def read_labels(table: pd.DataFrame, asked: str | None, path: Path, names: Sequence[str] | None) -> Tensor | None:
    """Class numbers of a table; None where no column was asked for and none has the usual name."""
    if asked is None and not set(LABEL_COLUMNS) & set(table.columns):
        return None
    column = find_column(table, path, asked, LABEL_COLUMNS, "label_column")
    values = table[column].tolist()
    numbers = {name: number for number, name in enumerate(names or ())}
    others = sorted({value for value in values if isinstance(value, str) and value.strip() and _number(value) is None})
    spelled = {} if names is None else match_names(others, names) or {}
    found = []
    for row, value in enumerate(values, 1):
        number = numbers.get(value, spelled.get(value)) if isinstance(value, str) else None
        number = _number(value) if number is None else number
        if number is None:
            raise _no_class(value, f"row {row} of {path.name}, column {column!r}", names, others)
        found.append(number)
    return torch.tensor(found, dtype=torch.int64)


def _number(value: Any) -> int | None:
    """The class number that a cell holds: a whole number, not negative, that a label can be."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() and 0 <= number < _MOST_CLASSES else None


def _no_class(value: Any, where: str, names: Sequence[str] | None, others: Sequence[str]) -> BadInput:
    remedy = "write the number of the class: 0, 1, ..."
    if isinstance(value, str) and value.strip() in others:
        if names is None:
            listed = ", ".join(map(repr, others[:6])) + (", ..." if len(others) > 6 else "")
            remedy = f"name the classes in the order of the model's outputs, such as class_names=({listed})"
        else:
            remedy = f"write the number of the class, or its name: {nearest(value, names)}"
    return BadInput(f"{where} must be a class number or a class name", where, value, remedy)


def _few(names: Sequence[str], count: int = 6) -> str:
    return ", ".join(map(repr, names[:count])) + (f" and {len(names) - count} more" if len(names) > count else "")


def _numbered(names: Sequence[str], count: int = 6) -> str:
    listed = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:count]))
    return listed + (f" … {len(names) - 1} = {names[-1]}" if len(names) > count else "")
