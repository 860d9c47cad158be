"""Segments of a captured graph as functions on rows: the plain trunk, and what runs between one noise and the next.

Rows are (variant, pass, example) with the example fastest. Owns how a value of fewer rows joins one of more: a plain
value is spread over variants and passes, an earlier variant's is selected for its children, and only where they meet.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from dropscope.engine.graph import Captured, CaptureFailed, expression
from dropscope.engine.tree import Plan, Step
from dropscope.noise import OwnNoise, standard_normal


def spread(value: Tensor, dim: int, copies: int) -> Tensor:
    """[…, examples, …] → […, copies × examples, …], the examples fastest."""
    shape = value.shape
    wide = value.unsqueeze(dim).expand(*shape[:dim], copies, *shape[dim:])
    return wide.reshape(*shape[:dim], -1, *shape[dim + 1 :])


def select(value: Tensor, dim: int, variants: int, chosen: Tensor | None) -> Tensor:
    """The rows of the chosen variants, in their order; None chooses all of them as they are."""
    if chosen is None:
        return value
    return value.unflatten(dim, (variants, -1)).index_select(dim, chosen).flatten(dim, dim + 1)


def disturb_rows(
    value: Tensor,
    dim: int,
    folded: int,
    units: Sequence[int],
    noise: str,
    uniform: Tensor,
    level: Tensor,
    gain: Tensor,
    parent: Any,
) -> Tensor:
    """Noise on the rows of all variants at once: `level` and `gain` per variant, `uniform` a word per unit.

    The words are those of (pass, example), the same for all variants: rates are coupled, and the hash is computed once.
    `parent` says which rows of `value` a variant takes: None where the value is plain and every variant and pass takes
    it, a number where each earlier variant has that many children, a tensor of variant numbers otherwise.
    """
    words = uniform.shape[0] * folded
    word = uniform.reshape(1, words, *units)
    each = (level.shape[0], *[1] * (word.dim() - 1))
    if noise == "bernoulli":
        factor = (word >= level.view(each)).float().mul_(gain.view(each))
    else:
        factor = (standard_normal(word) * gain.view(each)).add_(1.0)
    return _multiplied(value, dim, factor, units, parent)


def own_disturbance(own: OwnNoise, mask: str) -> Callable[..., Tensor]:
    """`disturb_rows` for noise of a user's own: `gain` holds the rate of each variant, 0 for none."""

    def disturb_rows_by_own(
        value: Tensor, dim: int, folded: int, units: Sequence[int], noise: str, uniform: Tensor, level: Tensor,
        gain: Tensor, parent: Any,
    ) -> Tensor:  # fmt: skip
        rates = gain.tolist()
        of_rate = {rate: own.factors(uniform, rate, mask, folded) for rate in set(rates) - {0.0}}
        plain = torch.ones_like(uniform, dtype=torch.float32)
        factor = torch.stack([of_rate.get(rate, plain) for rate in rates])
        factor = factor.reshape(len(rates), uniform.shape[0] * folded, *units)
        return _multiplied(value, dim, factor, units, parent)

    return disturb_rows_by_own


def _multiplied(value: Tensor, dim: int, factor: Tensor, units: Sequence[int], parent: Any) -> Tensor:
    """Factors `[variants, words, *units]`, which nobody else holds, times the rows they fall on."""
    rows = value.movedim(dim, 0)
    (variants, words), tail = factor.shape[:2], rows.shape[1:]
    factor = factor.to(value.dtype)
    if parent is None:
        examples = rows.shape[0]
        product = _times(factor.view(variants, words // examples, examples, *units), rows)
    elif isinstance(parent, Tensor):
        product = _times(factor, rows.unflatten(0, (-1, words)).index_select(0, parent))
    else:
        product = _times(factor.unflatten(0, (-1, parent)), rows.unflatten(0, (-1, 1, words)))
    return product.reshape(-1, *tail).movedim(0, dim)


def _times(factor: Tensor, rows: Tensor) -> Tensor:
    """factor × rows, into the factor where it has the shape of the product: nobody else holds it."""
    shape = torch.broadcast_shapes(factor.shape, rows.shape)
    return factor.mul_(rows) if factor.shape == shape and factor.dtype == rows.dtype else factor * rows


class SegmentNoise(NamedTuple):
    """The noise at the entry of a segment: the first arguments of its function, in this order."""

    rows: int  # variants × passes × examples
    copies: int  # variants × passes
    uniform: Tensor
    level: Tensor
    gain: Tensor
    parent: Any  # see `disturb_rows`


@dataclass(frozen=True)
class Read:
    """A value that a segment reads: plain where `level` is None, else of an earlier level."""

    node: fx.Node
    level: int | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """A function on rows. Its arguments: `SegmentNoise`, the entry value, then for each of `reads` the value, and for
    an earlier level's also how many variants it holds and which of them are chosen. It returns `outputs`."""

    module: nn.Module
    reads: tuple[Read, ...]
    outputs: tuple[fx.Node, ...]


def trunk(plan: Plan) -> Segment:
    """The plain forward of a block of examples; its outputs are what any segment reads, then the model's output."""
    captured = plan.captured
    wanted = _plain_reads(plan)
    build = _Builder(captured)
    for node in captured.feeds:
        build.env[node] = build.graph.placeholder(node.name)
    outputs = (*wanted, *(n for n in pytree.tree_leaves(captured.output) if isinstance(n, fx.Node)))
    result = tuple(build.at_feed_size(node) for node in outputs)
    build.graph.output(result)
    return Segment(build.module(), (), outputs)


def _plain_reads(plan: Plan) -> list[fx.Node]:
    """Every plain value that some segment reads, in graph order."""
    found: set[fx.Node] = set()
    for steps in {subtree.steps for subtree in plan.subtrees}:
        inside = plan.stochastic(steps)
        for level, index in enumerate(steps):
            if plan.steps[index].node not in inside:
                found.add(plan.steps[index].node)
            for node in plan.segment(steps, level):
                found.update(
                    a for a in plan.captured.rebuilt_inputs(node) if a not in inside and a not in plan.captured.fixed
                )
    return sorted((n for n in found if _is_tensor(n)), key=plan.captured.position.__getitem__)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def segment(plan: Plan, steps: tuple[int, ...], level: int) -> Segment:
    """What runs after the noise of one level up to the next, for a subtree with these steps."""
    captured, step = plan.captured, plan.steps[steps[level]]
    nodes = plan.segment(steps, level)
    inside = plan.stochastic(steps)
    earlier = [plan.steps[i].node for i in steps[:level]]
    born = {node: i for i in range(level) for node in (*plan.segment(steps, i), earlier[i])}
    build = _Builder(captured)
    arguments: list[Any] = [build.graph.placeholder(name) for name in SegmentNoise._fields]
    noise = SegmentNoise(*arguments)
    build.rows, build.copies = noise.rows, noise.copies
    build.stochastic_levels = {node: i for node, i in born.items() if node in inside or node in earlier}
    entry = build.graph.placeholder("entry")
    dim, folded = captured.batch(step.node) or (0, 1)
    units = _unit_tail(step, captured)
    disturb = disturb_rows if step.own is None else own_disturbance(step.own, step.mask)
    build.env[step.node] = build.graph.call_function(
        disturb, (entry, dim, folded, units, step.noise, noise.uniform, noise.level, noise.gain, noise.parent)
    )
    for node in nodes:
        build.copy(node)
    outputs = _outputs(plan, steps, level, nodes)
    build.graph.output(tuple(build.env[node] for node in outputs))
    return Segment(build.module(), tuple(build.reads), outputs)


def _unit_tail(step: Step, captured: Captured) -> tuple[int, ...]:
    """The shape of the words of one row, as they broadcast against the value behind its example dimension."""
    value = step.node.meta["val"]
    dim = (captured.batch(step.node) or (0, 1))[0]
    channel = step.layout.channel_dim % value.dim()
    kept = {"element": set(range(value.dim())), "channel": {channel}, "example": set()}[step.mask]
    return tuple(int(size) if d in kept else 1 for d, size in enumerate(value.shape) if d != dim)


def unit_shape(step: Step, captured: Captured) -> tuple[int, ...]:
    """The coordinates that are hashed: as `noise.factors` does for the plain path."""
    folded = (captured.batch(step.node) or (0, 1))[1]
    tail = _unit_tail(step, captured)
    if step.mask == "channel":
        return folded, max(tail, default=1)
    if step.mask == "example":
        return (folded,)
    return (folded, *tail) if folded > 1 else (tail or (1,))


def _outputs(plan: Plan, steps: tuple[int, ...], level: int, nodes: list[fx.Node]) -> tuple[fx.Node, ...]:
    made = [plan.steps[steps[level]].node, *nodes]
    if level + 1 == len(steps):
        return tuple(n for n in pytree.tree_leaves(plan.captured.output) if isinstance(n, fx.Node) and n in set(made))
    later = plan.read_after(steps, level)
    return tuple(node for node in made if node in later)


class _Builder:
    """Writes a new graph from nodes of the captured one, at another number of rows."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.graph = fx.Graph()
        self.env: dict[fx.Node, Any] = {}
        self.rows: Any = None  # None: the size of the feeds
        self.copies: Any = None
        self.reads: list[Read] = []
        self.stochastic_levels: Mapping[fx.Node, int] = {}
        self._tensors: dict[str, Any] = {}

    def module(self) -> nn.Module:
        root = nn.Module()
        for name, tensor in self._tensors.items():
            if isinstance(tensor, nn.Parameter):
                root.register_parameter(name, tensor)
            else:
                root.register_buffer(name, tensor, persistent=False)
        self.graph.lint()
        return fx.GraphModule(root, self.graph)

    def at_feed_size(self, node: fx.Node) -> Any:
        """The node in a graph without noise: itself and whatever it needs."""
        for needed in self._needs(node):
            self.copy(needed)
        return self.read(node)

    def _needs(self, node: fx.Node) -> list[fx.Node]:
        stack, seen = [node], set()
        while stack:
            current = stack.pop()
            if (
                current in seen
                or current in self.env
                or current in self.captured.fixed
                or current.op != "call_function"
            ):
                continue
            seen.add(current)
            stack += current.all_input_nodes
        return sorted(seen, key=self.captured.position.__getitem__)

    def copy(self, node: fx.Node) -> None:
        if node in self.env or isinstance(node.meta.get("val"), torch.SymInt | int | float | bool):
            return
        if node.target is torch.ops.dropscope.site.default:
            self.env[node] = self.read(node.all_input_nodes[0])
            return
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.read)
        self.env[node] = self.graph.create_node("call_function", node.target, args, kwargs)

    def read(self, node: fx.Node) -> Any:
        """The value of a captured node in this graph, at this graph's number of rows."""
        if node in self.env:
            return self.env[node]
        value = node.meta.get("val")
        if node in self.captured.fixed:
            name = f"fixed_{len(self._tensors)}"
            self._tensors[name] = self.captured.fixed[node]
            self.env[node] = self.graph.get_attr(name)
        elif isinstance(value, torch.SymInt):
            self.env[node] = self._size(expression(value))
        elif isinstance(value, int | float | bool):
            return value
        elif node in self.captured.counts_rows:
            self.copy(node)
        elif node in self.stochastic_levels:
            level = self.stochastic_levels[node]
            self.reads.append(Read(node, level))
            held, variants, chosen = (self._placeholder(what) for what in ("earlier", "variants", "chosen"))
            dim = (self.captured.batch(node) or (0, 1))[0]
            self.env[node] = self.graph.call_function(select, (held, dim, variants, chosen))
        else:
            self.reads.append(Read(node))
            held = self._placeholder("plain")
            batch = self.captured.batch(node)
            self.env[node] = held if batch is None else self.graph.call_function(spread, (held, batch[0], self.copies))
        return self.env[node]

    def _placeholder(self, what: str) -> fx.Node:
        """The next argument of the function: reads come in the order of `reads`."""
        return self.graph.placeholder(f"{what}_{len(self.reads)}")

    def _size(self, expr: sympy.Expr | int) -> Any:
        if isinstance(expr, int) or not expr.free_symbols:
            return int(expr)
        rows: Any = self.rows
        if rows is None:
            rows = self.graph.call_function(first_size, (self.env[self.captured.feeds[0]],))
        line = sympy.Poly(expr, self.captured.symbol).all_coeffs() if expr.is_polynomial() else []
        if len(line) != 2 or not all(getattr(part, "is_Integer", False) for part in line):
            raise CaptureFailed(f"a size of {expr} does not follow the number of examples in a straight line")
        factor, rest = line
        scaled = rows if factor == 1 else self.graph.call_function(operator.mul, (rows, int(factor)))
        return scaled if rest == 0 else self.graph.call_function(operator.add, (scaled, int(rest)))


def first_size(value: Tensor) -> int:
    return value.shape[0]
