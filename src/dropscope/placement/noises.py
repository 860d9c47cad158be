"""Noises by name: those of the papers, and functions of a user's own that texts of placements can name.

Owns the names alone. See `noise` for what a function gets, `injection` for where it is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dropscope.errors import BadInput, nearest

NOISES = ("bernoulli", "gaussian", "multinomial")
Function = TypeVar("Function", bound=Callable[..., Any])

_OWN: dict[str, Callable[..., Any]] = {}
_TAKEN = (*NOISES, "alpha", "rate_in", "none")


def register_noise(function: Function, *, name: str | None = None) -> Function:
    """Makes a function a noise that placements can name: `noise=my_noise` in Python and in texts. Also a decorator.

    The noise is on the same keyed uniforms as every other: seed, site, pass, example and coordinates decide it, batches
    and their order do not.

    Args:
        function: Takes `uniforms` and `rate`; returns the factor λ on each unit, a tensor shaped like `uniforms`.
            `uniforms` are float32 in (0, 1): `[n, *units]` with the dimensions of one example's value under
            mask="element", `[n, C]` with one per feature map under mask="channel". What an example gets must depend on
            its own row alone. A mean of 1 and a variance of rate/(1 − rate) make it comparable with the others.
        name: What placements call it. None takes the function's own name. A name that was registered before now means
            this function.

    Returns:
        The function.

    Raises:
        BadInput: Where the name is no identifier, or that of a built-in noise.

    Examples:
        >>> @register_noise
        ... def uniform(uniforms, rate):
        ...     return 1 + (2 * uniforms - 1) * (3 * rate / (1 - rate)) ** 0.5
        >>> from dropscope import Placement
        >>> Placement("fc1=0.2 noise=uniform") == Placement({"fc1": 0.2}, noise=uniform)
        True
    """
    name = getattr(function, "__name__", "") if name is None else name
    if not callable(function):
        remedy = "pass a function of (uniforms, rate)"
        raise BadInput("noise must be a function", "noise", function, remedy)
    if not isinstance(name, str) or not name.isidentifier() or name in _TAKEN:
        rule = "noise must have a name of its own: a Python name, and not one of " + ", ".join(_TAKEN)
        raise BadInput(rule, "noise", name, "write register_noise(function, name='my_noise')")
    _OWN[name] = function
    return function


def own_noise(name: str) -> Callable[..., Any] | None:
    """The function registered under this name; None for the built-in noises."""
    return _OWN.get(name)


def noise_names() -> tuple[str, ...]:
    """Every name that `noise=` takes."""
    return (*NOISES, *_OWN)


def noise_name(noise: object) -> str:
    """The name of a noise given by name or as a function, which is registered under its own name if it is new.

    Raises:
        BadInput: Where nothing is registered under the name, or another function is.
    """
    if isinstance(noise, str):
        if noise not in noise_names():
            rule = f"noise must be one of {', '.join(noise_names())}, or one that register_noise was given"
            raise BadInput(rule, "noise", noise, _remedy(noise))
        return noise
    name = next((known for known, function in _OWN.items() if function is noise), None)
    if name is not None:
        return name
    name = getattr(noise, "__name__", "")
    if name in _OWN and not _alike(_OWN[name], noise):
        rule = f"noise must be the function that is registered as {name!r}"
        remedy = f"call register_noise(function) to replace it, or register_noise(function, name='{name}_2')"
        raise BadInput(rule, "noise", noise, remedy)
    register_noise(noise, name=name)  # type: ignore[type-var]
    return name


def _remedy(noise: str) -> str:
    close = nearest(noise, noise_names())
    return close if "did you mean" in close else f"call register_noise(function, name={noise!r}) first"


def _alike(first: Any, second: Any) -> bool:
    """Whether two functions are the same code with the same closure: a cell of a notebook that ran twice."""

    def parts(function: Any) -> tuple[Any, ...]:
        held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        defaults = (getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None))
        return getattr(function, "__code__", function), repr(held), repr(defaults)

    return parts(first) == parts(second)
