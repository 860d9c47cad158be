"""Sections that the docstrings of sibling scores have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dropscope.parameters import documented

Function = TypeVar("Function", bound=Callable[..., Any])

_RANKING = {
    "uncertainty": "`[..., n]`, higher for less certain examples.",
    "correct": "0/1 per example, `[n]` or `[..., n]`.",
}
_CURVE = _RANKING | {"points": "Points of the accuracy curve, at least 2."}
_PROBABILITIES = {"probabilities": "`[..., n, C]`.", "labels": "Class indices `[n]` or `[..., n]`."}


def ranking_docs(returns: str = "`[...]`, float64.") -> Callable[[Function], Function]:
    """Scores of a ranking: uncertainty beside correctness."""
    refused = "Where the uncertainty has NaN, or `correct` is not 0/1 or does not match it."
    return documented(_RANKING, returns, {"BadInput": refused})


def curve_docs(returns: str = "`[...]`, float64.") -> Callable[[Function], Function]:
    """Scores that read the accuracy curve of a ranking."""
    refused = "Where the uncertainty has NaN, `correct` is not 0/1 or does not match it, or `points` is below 2."
    return documented(_CURVE, returns, {"BadInput": refused})


def probability_docs(returns: str = "`[...]`, float64.") -> Callable[[Function], Function]:
    """Scores of probabilities beside labels."""
    return documented(
        _PROBABILITIES, returns, {"BadInput": "Where these are no probabilities, or labels are no classes of theirs."}
    )


def correction_docs(function: Function) -> Function:
    """Monotone corrections of a curve."""
    decorate = documented(
        {"curve": "`[..., points]`, as `accuracy_curve` returns it."},
        "The corrected curve, of the same shape, float64.",
        {"BadInput": "Where this is no floating tensor with points."},
    )
    return decorate(function)
