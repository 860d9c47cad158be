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
    def site(self) -> tuple[str, int]:
        """The call of what it belongs to: all positions there share their masks."""
        return self.name, self.call

    @property
    def place(self) -> tuple[str, str]:
        """The position, whichever call."""
        return self.name, self.position

    @property
    def address(self) -> str:
        """As a placement writes it: name[#call]@position, without the first call's number."""
        return f"{self.name}{f'#{self.call}' if self.call else ''}@{self.position}"


@dataclass(frozen=True)
class About:
    """What the tracer knows of a value it shows."""

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
    """What follows a forward. The first three methods differ from visitor to visitor; the rest has a usual answer."""

    def begin(self, call: Call) -> None: ...

    def wants(self, point: Point) -> bool: ...

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor: ...

    def own_dropout(self, found: OwnDropout) -> bool:
        """Sees a dropout of the model itself; True lets it run as called, and `own_ran` then sees its effect."""
        return False

    def own_ran(self, found: OwnDropout, before: Tensor, after: Tensor) -> None:
        return None

    def attend(self, point: Point, call: dict[str, Any]) -> Tensor | None:
        """The whole of an attention with its noise at once; None where its weights are to be shown instead."""
        return None

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Sees every function before it runs, except mere questions; what it returns runs in its place."""
        return func

    def settle(self) -> None:
        """A module returns, or the forward is over: what was put off must be there now."""
        return
