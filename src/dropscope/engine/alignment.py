"""Alignment of programs: one model exported at some numbers of examples becomes a graph for any number.

Owns the comparison, node by node: a size that differs must be a straight line. For code that makes a plain number of
its batch size (`len(x)`, `int(x.shape[0])`), which torch.export takes for a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from dropscope.engine.programs import Exported


def aligned(exports: Sequence[Exported], examples: Sequence[int]) -> Exported:
    """The first of the programs, with a symbol wherever the others show that a size follows the number of examples.

    Args:
        exports: Of one model, at each number of `examples`.
        examples: Three numbers or more: two make a line of anything.

    Raises:
        ValueError: Where the programs differ in more than sizes.
    """
    symbol, graph = _Symbol(examples), exports[0].program.graph
    if any(other.read != exports[0].read for other in exports):
        raise ValueError("what the model's code reads from tensors depends on the number of examples")
    for node, *others in zip(*(exported.program.graph.nodes for exported in exports), strict=True):
        if len({(each.op, each.name, str(each.target)) for each in (node, *others)}) > 1:
            raise ValueError("the number of examples changes which operations run")
        node.args, node.kwargs = _leaf_by_leaf(symbol.argument, [(each.args, each.kwargs) for each in (node, *others)])
        if "val" in node.meta:
            node.meta["val"] = _leaf_by_leaf(symbol.value, [each.meta["val"] for each in (node, *others)])
    graph.lint()
    return exports[0]


def _leaf_by_leaf(function: Callable[..., Any], structures: Sequence[Any]) -> Any:
    """`function` of the leaves of structures that must be alike."""
    flat = [pytree.tree_flatten(structure) for structure in structures]
    if any(spec != flat[0][1] for _, spec in flat):
        raise ValueError("the number of examples changes how many values there are")
    together = zip(*(leaves for leaves, _ in flat), strict=True)
    return pytree.tree_unflatten([function(*leaves) for leaves in together], flat[0][1])


class _Symbol:
    """The number of examples, and what follows it in a straight line."""

    def __init__(self, examples: Sequence[int]) -> None:
        self._numbers = examples
        self._fake = FakeTensorMode(shape_env=ShapeEnv())
        grows: Any = StatelessSymbolicContext([DimDynamic.DYNAMIC])
        self._examples = self._fake.from_tensor(torch.empty(examples[0]), symbolic_context=grows).shape[0]

    def size(self, *seen: int) -> Any:
        first, second = self._numbers[:2]
        factor = (seen[1] - seen[0]) // (second - first)
        rest = seen[0] - factor * first
        if any(size != factor * number + rest for size, number in zip(seen, self._numbers, strict=True)):
            raise ValueError(f"sizes of {', '.join(map(str, seen))} do not follow the number of examples")
        return self._examples * factor + rest if factor else rest

    def argument(self, *seen: Any) -> Any:
        if all(type(each) is int for each in seen):
            return self.size(*seen)
        same = [each.name if isinstance(each, fx.Node) else each for each in seen]
        if any(each != same[0] for each in same):
            raise ValueError(f"the number of examples changes {same[0]} to {same[1]}")
        return seen[0]

    def value(self, *seen: Any) -> Any:
        if not isinstance(seen[0], Tensor):
            return seen[0]
        shape = [self.size(*map(int, sizes)) for sizes in zip(*(each.shape for each in seen), strict=True)]
        if all(isinstance(size, int) for size in shape):
            return seen[0]
        with self._fake:
            return torch.empty(shape, dtype=seen[0].dtype, device=seen[0].device)
