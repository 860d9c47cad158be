"""Points of a forward, what is known of the values there, and the visitor protocol that may change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from dropscope.model import Call


class Point(NamedTuple):
    """One value of one forward: the `call`-th value at `position` of what is called `name`."""

    name: str
    call: int
    position: str

    @property
    def address(self) -> str:
        """As a placement writes it; the first call needs no number.

        >>> Point("fc", 0, "output").address, Point("fc", 2, "output").address
        ('fc@output', 'fc#2@output')
        """
        return f"{self.name}{f'#{self.call}' if self.call else ''}@{self.position}"

    @property
    def site(self) -> tuple[str, int]:
        """Name and call: all positions of one site share their masks."""
        return self.name, self.call

    @property
    def place(self) -> tuple[str, str]:
        """Name and position, in every call."""
        return self.name, self.position


@dataclass(frozen=True)
class About:
    """What the tracer knows of a value that it shows to a visitor."""

    kind: str  # conv, linear, ffn, recurrent, embedding, attention, residual, dropout, activation, norm, block
    maps: bool = False  # dimension 1 counts feature maps
    homogeneous: bool = False  # before or after an activation that commutes with a non-negative factor
    origin: tuple[str, int] | None = None  # the layer call it came from, through norms
    hidden: bool = False  # an activated linear layer
    depth: int = 0  # layers passed
    in_place: bool = False  # what is shown instead is written into the value itself


@dataclass(frozen=True)
class OwnDropout:
    """A dropout of the model as it was called: where, at what rate, with which flag."""

    point: Point
    rate: float
    mask: str
    noise: str
    training: bool


class Visitor(Protocol):
    """Follows a forward. Every visitor defines the first three methods; the others have a default."""

    def begin(self, call: Call) -> None:
        """A forward begins."""
        ...

    def wants(self, point: Point) -> bool:
        """Whether `visit` is to be called for this point."""
        ...

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        """What the model goes on with in the place of `value`; `value` itself changes nothing."""
        ...

    def own_dropout(self, dropout: OwnDropout) -> bool:
        """A dropout of the model itself is called. True lets it run, and `own_ran` then gets its effect."""
        return False

    def own_ran(self, dropout: OwnDropout, before: Tensor, after: Tensor) -> None:
        """A dropout of the model itself ran."""
        return

    def attend(self, point: Point, call: dict[str, Any]) -> Tensor | None:
        """The output of a whole attention with its noise; None to be shown its weights instead."""
        return None

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        """What runs in the place of a function; called for every function that computes something."""
        return func

    def settle(self) -> None:
        """A module returns, or the forward is over: deferred values must be written now."""
        return
