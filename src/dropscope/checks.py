"""Checks of single arguments, used by every room: a rate, a choice, a count, a seed, files and folders."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dropscope.errors import BadInput, CheckpointNotFound, Phrase, nearest

_MOST = 2**31 - 1
_T = TypeVar("_T")


def check_rate(value: object, name: str) -> float:
    """The rate as a plain float. `name` is how the error calls it."""
    number = finite_number(value)
    if number is None or not 0 <= number < 1:
        remedy = "write the probability of dropping, such as 0.5; 0 switches a site off"
        if number is not None and 1 < number < 100:
            remedy = f"write {number / 100:g} for {number:g} %"
        raise BadInput(f"{name} must be in [0, 1)", name, value, remedy)
    return number


def check_share(value: object, name: str, example: float) -> float:
    """The value as a plain float, if it is above 0 and below 1. The remedy is `example`, or a percentage as a share."""
    number = finite_number(value)
    if number is None or not 0 < number < 1:
        meant = number / 100 if number is not None and 1 < number < 100 else example
        raise BadInput(f"{name} must be above 0 and below 1", name, value, f"write {name}={meant:g}")
    return number


def check_choice(value: object, name: str, valid: Iterable[str]) -> str:
    """The value, if it is one of the valid words."""
    words = tuple(valid)
    if isinstance(value, str) and value in words:
        return value
    remedy = nearest(str(value), words)
    if name.isidentifier() and "did you mean" not in remedy:  # the message lists the words already
        remedy = f"write {name}={words[0]!r}"
    raise BadInput(f"{name} must be one of {', '.join(words)}", name, value, remedy)


def check_literals(record: object) -> None:
    """Checks every field of a dataclass whose type is a Literal: its value must be one of the words."""
    for name, hint in get_type_hints(type(record)).items():
        if get_origin(hint) is Literal:
            check_choice(getattr(record, name), name, get_args(hint))


def check_count(value: object, name: str, example: int) -> int:
    """The value, if it is a whole number of at least 1, and one that a loop can count to. The remedy is `example`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        bound = "of at least 1" if not isinstance(value, int) or value < 1 else f"of at most {_MOST:,}"
        raise BadInput(f"{name} must be a whole number {bound}", name, value, f"write {name}={example}")
    return value


def check_passes(passes: object, *words: str) -> int:
    """The number of passes, in whose place some `words` may stand."""
    if words and isinstance(passes, str):
        what, remedy = f"passes must be a whole number or {' or '.join(map(repr, words))}", nearest(passes, words)
        raise BadInput(what, "passes", passes, remedy if "did you mean" in remedy else "write passes=100")
    return check_count(passes, "passes", 100)


def check_seed(seed: object) -> int:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise BadInput("seed must be a whole number", "seed", seed, "write seed=0")
    return seed


def check_training_seed(seed: object) -> int:
    """The seed, if torch and NumPy can draw from it; noise alone takes any whole number."""
    if not 0 <= check_seed(seed) <= _MOST:
        raise BadInput(f"seed must be a whole number from 0 to {_MOST:,}", "seed", seed, "write seed=0")
    return check_seed(seed)


def check_new_file(file: str, name: str, endings: tuple[str, ...], *, overwrite: bool | None = None) -> Path:
    """The path of a file that can be written: with one of the endings, in a folder, and not there yet.

    Args:
        file: The path.
        name: The argument it was given as.
        endings: Such as ".csv"; the first is the one to suggest.
        overwrite: Whether it may be there; None where that is no choice.
    """
    path = Path(file)
    if path.suffix not in endings:
        written = f"{path.stem or name}{endings[0]}"
        raise BadInput(f"{name} must end in {' or '.join(endings)}", name, file, f"write {name}={written}")
    if path.exists() and not overwrite:
        other = "move the file away" if overwrite is None else "add overwrite=True"
        raise BadInput(f"{name} must not exist yet", name, file, f"choose another name, or {other}")
    if not path.parent.is_dir():
        raise BadInput(f"{name} must be in a folder that exists", name, file, f"create the folder {path.parent} first")
    return path


def check_checkpoint(name: str) -> str:
    """The name of a checkpoint, `~` expanded: a folder, or what may be a name on the Hub.

    Raises:
        CheckpointNotFound: For a path without a folder, which the Hub would be asked for in vain: a name that starts
            with `.`, `/` or `~`, has more than one slash, or a folder before its slash.
    """
    path = os.path.expanduser(name)
    parent = os.path.dirname(os.path.normpath(path))
    meant = path.startswith((".", "/", "~")) or path.count("/") > 1 or os.path.isdir(parent) or os.path.isfile(path)
    if meant and not os.path.isdir(path):
        what = "checkpoint must be a folder or a name on the Hub"
        got = Phrase(f"{name!r}, and no such folder is here")
        raise CheckpointNotFound(what, name, got, checkpoint_meant(path) or "check the path")
    return path


def checkpoint_meant(name: str) -> str:
    """The nearest folder of a checkpoint, as a remedy; empty where there is none."""
    path = Path(os.path.normpath(name))
    try:
        beside = sorted(found.parent.name for found in path.parent.glob("*/config.json"))
    except (OSError, ValueError):
        beside = []
    meant = nearest(path.name, beside)
    return meant.replace("did you mean", "did you mean the folder") if "did you mean" in meant else ""


def as_record(kind: type[_T], content: object) -> _T:
    """A dataclass from the values that JSON has for it: its fields by name, each of the type that is declared.

    Numbers are finite; where a float may not be None, null stands for NaN. Lists become tuples.

    >>> from dataclasses import make_dataclass
    >>> as_record(make_dataclass("Line", [("name", str), ("ends", tuple[float, float])]), {"name": "a", "ends": [0, 1]})
    Line(name='a', ends=(0.0, 1.0))

    Raises:
        ValueError: Where the content is not of that form; the text names the field.
    """
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"{kind.__name__} that is no object")
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    strange = sorted({*content} - {*known})
    if strange:
        raise ValueError(f"an unknown field {strange[0][:40]!r}")
    given = {}
    for name, field in known.items():
        if name in content:
            given[name] = _as_value(hints[name], content[name], name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"no field {name!r}")
    return kind(**given)


def _as_value(hint: Any, value: object, name: str) -> Any:
    """The value as a type hint has it."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        return _as_any(inner, value, name)
    if is_dataclass(hint):
        return as_record(hint, value)  # type: ignore[arg-type]
    if origin is Literal:
        if isinstance(value, str) and value in inner:
            return value
    elif hint is float:
        number = math.nan if value is None else finite_number(value)
        if number is not None:
            return number
    elif origin is tuple and isinstance(value, list | tuple):
        wanted = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(value) == len(wanted):
            return tuple(_as_value(each, one, name) for each, one in zip(wanted, value, strict=True))
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {_as_value(inner[0], key, name): _as_value(inner[1], one, name) for key, one in value.items()}
    elif (hint in (str, bool, NoneType) and isinstance(value, hint)) or (
        hint is int and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    ):
        return value
    raise ValueError(f"a wrong value of {name!r}")


def _as_any(kinds: tuple[Any, ...], value: object, name: str) -> Any:
    """The value as the first of several types that it fits; None only where that is one of them."""
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        try:
            return _as_value(kind, value, name)
        except ValueError:
            continue
    raise ValueError(f"a wrong value of {name!r}")


def finite_number(value: object) -> float | None:
    """The value as a float, or None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    # Adding 0.0 turns -0.0 into 0.0, which would otherwise print, and so hash, differently.
    return number + 0.0 if math.isfinite(number) else None
