"""Provenance of the values of one forward: the layer that made them, their ancestors and their layout.

Owns the tags and how they pass through a function; `tracer` decides what a visitor sees. A tag belongs to a value by
identity and weak reference, so that nothing is kept alive and nothing is written onto the user's tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dropscope.model import tensors
from dropscope.tracing import modules


@dataclass(frozen=True)
class Tag:
    """What is known of a value."""

    origin: tuple[str, int] | None = None  # the layer call (or residual sum) whose output this is, through norms
    source: int = 0  # `shallow` of the value that layer was applied to
    fan_in: int = 0  # inputs of that layer, if linear
    hidden: int = 0  # set once activated: fan_in of the linear layer before the activation
    attention: str | None = None  # softmax weights, made in this module
    maps: bool = False  # feature maps of a convolution: channels are dimension 1
    depth: int = 0  # layers passed
    rank: int = 0
    past: int = 0  # bit i set: value i is an ancestor, or this value itself
    shallow: int = 0  # those of `past` that this value only pads, slices or pools, and itself


_NOTHING = Tag()


class Tags:
    """The tags of the values alive in one forward."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Tensor], Tag]] = {}
        self._count = 0

    def get(self, value: Any) -> Tag | None:
        held = self._held.get(id(value))
        return held[1] if held is not None and held[0]() is value else None

    def set(self, value: Tensor, tag: Tag) -> None:
        self._held[id(value)] = weakref.ref(value), tag

    def of(self, *structures: Any) -> list[Tag]:
        return [tag for value in tensors(structures) if (tag := self.get(value)) is not None]

    def make(self, value: Tensor, parents: Sequence[Tag], *, shortcut: bool = False, **known: Any) -> Tag:
        """Tags a new value: it descends from its parents and is laid out like the deepest of them.

        A `shortcut` may stand for its deepest parents in a residual sum, unless it picks one entry of a dimension.
        """
        self._count += 1
        main, past = _NOTHING, 1 << self._count
        shallow, rank = past, value.dim()
        for parent in parents:
            past |= parent.past
            if parent.depth > main.depth or main is _NOTHING:
                main = parent
        for parent in parents if shortcut else ():
            shallow |= parent.shallow if parent.depth == main.depth and parent.rank == rank else 0
        laid_out = {"maps": main.maps and rank > 2, "depth": main.depth}
        tag = Tag(rank=rank, past=past, shallow=shallow, **{**laid_out, **known})
        self.set(value, tag)
        return tag

    def make_layer_output(
        self, value: Tensor, before: Tag | None, origin: tuple[str, int], kind: str, fan_in: int
    ) -> Tag:
        """Tags the output of a layer; embeddings add no depth: what they are summed into is no residual branch."""
        before = before or _NOTHING
        depth = before.depth + (kind != "embedding")
        maps, source = kind == "conv", before.shallow
        return self.make(value, [before], origin=origin, source=source, fan_in=fan_in, maps=maps, depth=depth)


def survives(name: str, parents: Sequence[Tag], module_path: Callable[[], str]) -> dict[str, Any]:
    """What is still known of a value after the function `name`."""
    if not parents:
        return {}
    tag = parents[0]
    if name in modules.TRANSPARENT:
        return {"attention": tag.attention, "hidden": tag.hidden, **passes_norm(tag)}
    if name in modules.NORMS:
        return passes_norm(tag)
    if name in modules.RESHAPED:
        attention = next((t.attention for t in parents if t.attention), None)
        hidden = max(t.hidden for t in parents)
        # Once dimensions may have moved, dimension 1 no longer counts feature maps.
        moved = {} if name in modules.ELEMENTWISE else {"maps": False}
        return {"attention": attention, "hidden": hidden, **moved}
    if name in modules.SPLITS:
        return {"fan_in": tag.fan_in}
    if name == "softmax":
        return {"attention": module_path()}
    return {}


def passes_norm(tag: Tag) -> dict[str, Any]:
    """What is still known of a value after a norm."""
    return {"origin": tag.origin, "source": tag.source, "fan_in": tag.fan_in, "maps": tag.maps}


def residual_branch(left: Tag, right: Tag) -> int | None:
    """The operand (0 or 1) of a sum that is the branch of a residual connection; None if the sum is something else.

    The other operand is a value the branch was computed from, padded, sliced or pooled perhaps, or one projection
    (layer, perhaps normed) of that.
    """
    deeper, other = (0, right) if left.depth >= right.depth else (1, left)
    branch = (left, right)[deeper]
    if branch.depth > other.depth and branch.past & other.shallow:
        return deeper
    if branch.origin is not None and other.origin is not None and branch.past & other.source:
        return deeper
    return None
