"""A module as a walk meets it: what it is, one call of it, and which of its values counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dropscope import recognise
from dropscope.tags import Tag

ROOT = "root"  # what the model itself is called where a value of its own forward needs a name


@dataclass(frozen=True, eq=False)
class Part:
    """A module and what it is, found out once."""

    path: str
    module: nn.Module
    kind: str
    composite: bool
    whole: bool  # the model itself, whose input and output are nobody's values, unless it is a single layer

    @classmethod
    def of(cls, path: str, module: nn.Module) -> Part:
        kind = recognise.kind(module)
        whole = path == ROOT and kind not in recognise.LAYERS
        return cls(path, module, kind, recognise.is_composite_activation(module), whole)


@dataclass
class Frame:
    """A call of a module that has not returned yet."""

    part: Part
    call: int
    input: Tensor | None
    before: Tag | None
    dropped: bool = False  # a dropout function was called in it


def main_value(output: Any) -> Tensor | None:
    """The value of a module call: what it returns, or the first of several."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def replaced(structure: Any, old: Tensor, new: Tensor) -> Any:
    """The nested structure with one tensor in the place of another; only containers on the way to it are rebuilt."""
    if structure is old:
        return new
    if isinstance(structure, tuple):
        parts = [replaced(part, old, new) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    if isinstance(structure, list):
        return [replaced(part, old, new) for part in structure]
    if isinstance(structure, dict) and type(structure) is dict:
        return {key: replaced(part, old, new) for key, part in structure.items()}
    return structure
