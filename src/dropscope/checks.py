"""Checks of single arguments, used by every room: a rate, a choice, a number of passes."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable

from dropscope.errors import BadInput, nearest


def check_rate(value: object, name: str) -> float:
    """The rate as a plain float, or the error that says what a rate is; `name` says whose it is."""
    number = finite_number(value)
    if number is None or not 0 <= number < 1:
        remedy = "write the probability of dropping, such as 0.5; 0 switches a site off"
        raise BadInput("a rate is a number of at least 0 and below 1", name, value, remedy)
    return number


def check_choice(value: object, name: str, valid: Iterable[str]) -> str:
    """The value, if it is one of the valid words; else the error that suggests the nearest."""
    words = tuple(valid)
    if isinstance(value, str) and value in words:
        return value
    raise BadInput(f"{name} is one of {', '.join(words)}", name, value, nearest(str(value), words))


def check_passes(passes: object) -> int:
    if not isinstance(passes, int) or isinstance(passes, bool) or passes < 1:
        raise BadInput("there is at least one pass", "passes", passes, "write passes=100")
    return passes


def finite_number(value: object) -> float | None:
    """The value as a float; None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    # Adding 0.0 turns -0.0 into 0.0, which would otherwise print, and so hash, differently.
    return number + 0.0 if math.isfinite(number) else None
