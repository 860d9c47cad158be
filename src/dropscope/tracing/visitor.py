"""What a walk shows, and to whom: the names of values, what is known of them, and the visitor that may change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Point(NamedTuple):
    """One value of one forward: the `call`-th value at `position` of what is called `name`."""

    name: str
    call: int
    position: str


@dataclass(frozen=True)
class About:
    """What the walk knows of a value it shows."""

    kind: str  # conv, linear, ffn, recurrent, embedding, attention, residual, dropout, activation, norm, block
    maps: bool = False  # dimension 1 counts feature maps
    homogeneous: bool = False  # before or after an activation that commutes with a non-negative factor
    origin: tuple[str, int] | None = None  # the layer call it came from, through norms
    hidden: bool = False  # an activated linear layer
    depth: int = 0  # layers passed


@dataclass(frozen=True)
class OwnDropout:
    """A dropout of the model as it was called: where, at what rate, with which flag."""

    point: Point
    rate: float
    mask: str
    noise: str
    training: bool


class Visitor(Protocol):
    """What follows a walk. The first three are its own; the rest has an answer that suits most."""

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...

    def wants(self, point: Point) -> bool: ...

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor: ...

    def own_dropout(self, found: OwnDropout) -> bool:
        """Told of a dropout of the model itself; True lets it run as called, and `own_ran` is then shown its effect."""
        return False

    def own_ran(self, found: OwnDropout, before: Tensor, after: Tensor) -> None:
        return None

    def attend(self, point: Point, call: dict[str, Any]) -> Tensor | None:
        """The whole of an attention with its noise at once; None where its weights are to be shown instead."""
        return None

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Told of every function before it runs, but for mere questions; what it returns runs in its place."""
        return func

    def settle(self) -> None:
        """A module returns, or the forward is over: what was put off must be there now."""
        return
