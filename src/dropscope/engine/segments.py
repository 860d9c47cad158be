"""Segments of a captured graph as functions on rows: the plain trunk, and what runs between one noise and the next.

Rows are (variant, pass, example) with the example fastest. Owns how a value of fewer rows joins one of more: a plain
value is spread over variants and passes, an earlier variant's is selected for its children, and only where they meet.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from dropscope.engine.folding import Argument, Copied, disturb_rows, own_disturbance, per_copy, select, spread
from dropscope.engine.graph import Captured, CaptureFailed, ancestors, batch_dimension, expression, is_tensor
from dropscope.engine.tree import Plan, Step


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
    return at_feed_size(plan.captured, (*_plain_reads(plan), *plan.captured.results))


def at_feed_size(captured: Captured, nodes: Sequence[fx.Node]) -> Segment:
    """These values as a function of the inputs, without noise."""
    build = _Builder(captured)
    for node in captured.feeds:
        build.env[node] = build.graph.placeholder(node.name)
    build.graph.output(tuple(build.at_feed_size(node) for node in nodes))
    return Segment(build.module(), (), tuple(nodes))


def _plain_reads(plan: Plan) -> list[fx.Node]:
    """Every plain value that some segment reads, in graph order."""
    found: set[fx.Node] = set()
    for steps in {subtree.steps for subtree in plan.subtrees}:
        noisy, inside = plan.noisy(steps), plan.stochastic(steps)
        for level, index in enumerate(steps):
            if plan.steps[index].node not in inside:
                found.add(plan.steps[index].node)
            for node in plan.segment(steps, level):
                found.update(
                    a
                    for a in plan.captured.rebuilt_inputs(node, noisy)
                    if a not in noisy and a not in plan.captured.fixed
                )
    return sorted((n for n in found if is_tensor(n)), key=plan.captured.position.__getitem__)


def segment(plan: Plan, steps: tuple[int, ...], level: int) -> Segment:
    """What runs after the noise of one level up to the next, for a subtree with these steps."""
    captured, step = plan.captured, plan.steps[steps[level]]
    nodes = plan.segment(steps, level)
    inside = plan.stochastic(steps)
    shared = captured.batch(step.node) is None
    earlier = [plan.steps[i].node for i in steps[:level]]
    born = {node: i for i in range(level) for node in (*plan.segment(steps, i), earlier[i])}
    build = _Builder(captured)
    arguments: list[Any] = [build.graph.placeholder(name) for name in SegmentNoise._fields]
    noise = SegmentNoise(*arguments)
    build.rows, build.copies, build.noisy = noise.rows, noise.copies, plan.noisy(steps)
    build.stochastic_levels = {node: i for node, i in born.items() if node in inside or node in earlier}
    entry = build.graph.placeholder("entry")
    if shared and step.node not in inside:  # a plain one has no dimension of copies yet
        entry = build.graph.call_function(torch.unsqueeze, (entry, 0))
    dim, folded = captured.batch(step.node) or (0, 1)
    units = _unit_tail(step, captured)
    disturb = disturb_rows if step.own is None else own_disturbance(step.own, step.mask)
    build.env[step.node] = build.graph.call_function(
        disturb, (entry, dim, folded, units, step.noise, noise.uniform, noise.level, noise.gain, noise.parent)
    )
    for node in nodes:
        build.copy(node)
    outputs = _outputs(plan, steps, level, nodes)
    build.graph.output(tuple(build.read(node) for node in outputs))
    return Segment(build.module(), tuple(build.reads), outputs)


def _unit_tail(step: Step, captured: Captured) -> tuple[int, ...]:
    """The shape of the words of one row, as they broadcast against the value behind its example dimension.

    A value that all examples share has none, and a row is a pass.
    """
    value = step.node.meta["val"]
    dim = (captured.batch(step.node) or (None, 1))[0]
    channel = step.layout.channel_dim % max(value.dim(), 1)
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
    if level + 1 == len(steps):
        return plan.captured.results
    made = [plan.steps[steps[level]].node, *nodes]
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
        self.noisy: Collection[fx.Node] = ()
        self.reads: list[Read] = []
        self._plain: dict[fx.Node, fx.Node] = {}
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
        known = {*self.env, *self.captured.fixed}
        needed = (n for n in ancestors([node]) if n.op == "call_function" and n not in known)
        return sorted(needed, key=self.captured.position.__getitem__)

    def copy(self, node: fx.Node) -> None:
        """The node in this graph. Sizes are made where they are read, and what only asserts something is left out."""
        if node in self.env or not any(isinstance(v, Tensor) for v in pytree.tree_leaves(node.meta.get("val"))):
            return
        if node.target is torch.ops.dropscope.site.default:
            self.env[node] = self.read(node.all_input_nodes[0])
        elif self.captured.runs_per_copy(node, self.noisy):
            self.env[node] = self._per_copy(node)
        else:
            args, kwargs = _replaced((node.args, node.kwargs), self.read)
            self.env[node] = self.graph.create_node("call_function", _on_rows(node.target), args, kwargs, node.name)

    def _per_copy(self, node: fx.Node) -> fx.Node:
        """The node for each variant and pass by itself, on its own examples: values that they share stay small."""
        given: list[Any] = []
        copied: list[Copied] = []

        def place(argument: Any) -> Argument:
            value, where = self._of_copies(argument)
            given.append(value)
            copied.append(where)
            return Argument(len(given) - 1)

        arguments = _replaced((node.args, node.kwargs), place)
        results = [batch_dimension(value, self.captured.symbol) for value in pytree.tree_leaves(node.meta["val"])]
        run = per_copy(_on_rows(node.target), arguments, copied, results)
        return self.graph.create_node("call_function", run, (self.copies, *given), name=node.name)

    def _of_copies(self, node: Any) -> tuple[Any, Copied]:
        """A value and where its copies lie; a plain one has none."""
        value = node if isinstance(node, torch.SymInt) else node.meta.get("val")
        if isinstance(value, torch.SymInt):
            examples = self.graph.call_function(operator.floordiv, (self.rows, self.copies))
            return self._size(expression(value), examples), Copied(None)
        if node in self.noisy:
            batch = self.captured.batch(node)
            return self.read(node), Copied(0) if batch is None else Copied(batch[0], folded=True)
        if node in self.captured.fixed or not is_tensor(node):
            return self.read(node), Copied(None)
        return self._read_plain(node), Copied(None)

    def read(self, node: Any) -> Any:
        """The value of a captured node, or a size, in this graph, at this graph's number of rows."""
        if isinstance(node, torch.SymInt):
            return self._size(expression(node))
        if node in self.env:
            return self.env[node]
        value = node.meta.get("val")
        if node in self.captured.fixed:
            name = f"fixed_{len(self._tensors)}"
            self._tensors[name] = self.captured.fixed[node]
            self.env[node] = self.graph.get_attr(name)
        elif isinstance(value, torch.SymInt | torch.SymFloat) and free_unbacked_symbols(value):
            args, kwargs = _replaced((node.args, node.kwargs), self.read)  # known when it runs
            self.env[node] = self.graph.create_node("call_function", node.target, args, kwargs)
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
            held, batch = self._read_plain(node), self.captured.batch(node)
            self.env[node] = held if batch is None else self.graph.call_function(spread, (held, batch[0], self.copies))
        return self.env[node]

    def _read_plain(self, node: fx.Node) -> fx.Node:
        """A value of the trunk as it is there."""
        if node not in self._plain:
            self.reads.append(Read(node))
            self._plain[node] = self._placeholder("plain")
        return self._plain[node]

    def _placeholder(self, what: str) -> fx.Node:
        """The next argument of the function: reads come in the order of `reads`."""
        return self.graph.placeholder(f"{what}_{len(self.reads)}")

    def _size(self, expr: sympy.Expr | int, rows: Any = None) -> Any:
        if isinstance(expr, int) or not expr.free_symbols:
            return int(expr)
        rows = self.rows if rows is None else rows
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


def _replaced(arguments: Any, of: Callable[[Any], Any]) -> Any:
    """Arguments of a node with `of` each value and each size that follows the number of examples."""
    return fx.node.map_aggregate(arguments, lambda a: of(a) if isinstance(a, fx.Node | torch.SymInt) else a)


def _on_rows(target: Any) -> Any:
    """The operation on folded rows: they lie in memory otherwise than the values that were exported."""
    return _ROW_FORMS.get(target, target)


def _copied(value: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: FBT001, FBT002 - as torch has it
    """What a value holds after a write of `source` into it."""
    return source.to(value.dtype).expand(value.shape)


_ROW_FORMS: dict[Any, Any] = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten.copy.default: _copied,
}
