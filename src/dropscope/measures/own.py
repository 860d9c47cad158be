"""Measures of a user's own: which of the two forms a function has, what it reads, and checks of what it returns.

A function takes the statistics or the passes `[passes, N, C, ...]`. Unless it says which, it is tried on a few numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from dropscope.errors import BadInput, DropscopeError, Phrase, first_line
from dropscope.measures.statistics import CHEAP, PassStatistics

Form = Literal["statistics", "passes"]
FORMS: tuple[Form, Form] = ("statistics", "passes")
_PASSES, _PLACEMENTS, _EXAMPLES, _CLASSES = 5, 2, 3, 4
_SPATIAL: tuple[tuple[int, ...], ...] = ((), (6, 6), (6, 6, 6))  # a function may ask for maps or volumes
_TWO_FORMS = (
    "write a function of the statistics, such as lambda stats: stats.class_variance.amax(-1), or of the passes, "
    "such as lambda passes: passes.std(0).amax(1)"
)


class _Noting(PassStatistics):
    """Statistics of everything, or of what is said to be needed, which note what is read."""

    def __init__(self, p: Tensor, needs: Sequence[str] | None) -> None:
        self.seen: set[str] = set()
        super().__init__((*CHEAP, "predicted_deviation", "histogram") if needs is None else needs, p[0, 0], bins=10)
        self.update(p, passes_dim=0)

    def read(self, statistic: str, key: str | None = None) -> Tensor:
        self.seen.add(statistic)
        return super().read(statistic, key)


_Noting.__name__ = PassStatistics.__name__  # in the errors that users read


def form_of(
    function: Callable[..., Any], name: str, asked: Form | None = None, needs: Sequence[str] | None = None
) -> tuple[Form, tuple[str, ...]]:
    """Which form a function has, and what it reads of the statistics.

    Args:
        function: The measure.
        name: Its name, for the error.
        asked: The form it must have; None takes what its annotation says, or what works.
        needs: The statistics that it says it reads; None finds out, and keeps the cheap ones beside them.

    Raises:
        BadInput: Where it works in neither form, or not in the one it must have.
    """
    faults = []
    certain = asked or ("statistics" if needs is not None else _annotated(function))
    for form in FORMS if certain is None else (certain,):
        first = ""
        for spatial in _SPATIAL:
            reads, fault = _tried(function, form, spatial, needs)
            if not fault:
                return form, reads
            first = first or fault
        faults.append(f"{first} from {form}")
    rule = f"measure {name!r} must turn statistics or passes into one number per example"
    raise BadInput(rule, "measures", Phrase("; ".join(faults)), _TWO_FORMS)


def checked(found: Any, name: str, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """What a measure returned, if it is a finite number for each example (or voxel)."""
    if not isinstance(found, Tensor) or tuple(found.shape) != tuple(shape) or found.is_complex():
        rule = f"measure {name!r} must return a tensor of shape {tuple(shape)}, a number per example"
        received = Phrase(f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__)
        raise BadInput(rule, "measures", received, "sum or average over the other dimensions; classes: dim=-1 or dim=2")
    found = found.detach() if found.is_floating_point() else found.detach().float()
    wrong = int((~torch.isfinite(found)).sum())
    if wrong:
        received = Phrase(f"{wrong} NaN or infinite among {found.numel()}")
        rule = f"measure {name!r} must return finite numbers"
        raise BadInput(rule, "measures", received, "look for 0/0 and log(0): clamp_min(1e-12) before them")
    return found


def called(function: Callable[..., Any], name: str, passes: PassStatistics | Tensor) -> Tensor:
    """A measure of the user's own on statistics or passes, checked."""
    shape = passes.cells if isinstance(passes, PassStatistics) else (passes.shape[1], *passes.shape[3:])
    try:
        found = function(passes)
    except DropscopeError:
        raise
    except Exception as error:
        rule = f"measure {name!r} must work on the {'passes' if isinstance(passes, Tensor) else 'statistics'}"
        raise BadInput(rule, "measures", Phrase(f"{type(error).__name__}: {first_line(error)}"), _TWO_FORMS) from error
    return checked(found, name, shape)


def base_name(function: Any) -> tuple[str, bool]:
    """What to call a function, and whether that is its own name; a lambda, a partial or an object has none."""
    name = getattr(function, "__name__", "")
    if name.isidentifier():
        return name, True
    inner = getattr(getattr(function, "func", None), "__name__", "")  # of a partial
    if inner.isidentifier():
        return inner, False
    return ("lambda" if name == "<lambda>" or inner else type(function).__name__), False


def _annotated(function: Callable[..., Any]) -> Form | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    kind = parameters[0].annotation if parameters else None
    written = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    forms: dict[str, Form] = {"Tensor": "passes", "PassStatistics": "statistics"}
    return forms.get(written.rpartition(".")[2])


def _tried(
    function: Callable[..., Any], form: Form, spatial: tuple[int, ...], needs: Sequence[str] | None
) -> tuple[tuple[str, ...], str]:
    """What a function reads of a few made-up numbers, and why they are no measure of them."""
    examples = _PLACEMENTS * _EXAMPLES if form == "statistics" else _EXAMPLES
    steps = torch.arange(_PASSES * examples * _CLASSES * max(1, torch.Size(spatial).numel()))
    p = (1.7 * steps.float()).sin().reshape(_PASSES, examples, _CLASSES, *spatial).softmax(2)
    given: Any = p
    shape: tuple[int, ...] = (_EXAMPLES, *spatial)
    if form == "statistics":  # of several placements, as a sweep has them, classes last
        given = _Noting(p.movedim(2, -1).unflatten(1, (_PLACEMENTS, _EXAMPLES)), needs)
        shape = (_PLACEMENTS, *shape)
    try:
        found = function(given)
    except Exception as error:
        return (), f"{type(error).__name__}: {first_line(error, 80)}"
    if not isinstance(found, Tensor) or tuple(found.shape) != shape:
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        return (), f"{got}, not shape {shape},"
    if form == "passes":
        return (), ""
    return tuple(dict.fromkeys((*CHEAP, *sorted(given.seen)))) if needs is None else tuple(needs), ""
