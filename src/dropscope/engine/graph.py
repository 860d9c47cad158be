"""The graph of a model: exported once, functional, with one marked node for every value that may get noise.

Owns export, the marks and what is static about each node: does it grow with the batch, along which dimension, does it
count rows. The marks are set by the tracer that injects noise, so names agree by construction. It executes nothing.
"""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from traceback import walk_tb
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from dropscope.engine import programs
from dropscope.engine.alignment import aligned
from dropscope.errors import DropscopeError, first_line
from dropscope.model import Call, Outputs, code_fingerprint, output_tensor, shadow, undisturbed, writes
from dropscope.tracing import Point

_NUMBERS = (programs.EXAMPLES, 5, 7)  # of examples, where no symbol will do


class CaptureFailed(DropscopeError):
    """A model that cannot be run as a graph; the message says why, and the plain path runs instead."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A functional graph. `nodes` are in execution order; `fixed` holds weights; `marks` says where noise can enter."""

    nodes: tuple[fx.Node, ...]
    feeds: tuple[fx.Node, ...]  # one per tensor of the flattened inputs
    fixed: Mapping[fx.Node, Any]
    marks: Mapping[Point, fx.Node]
    output: Sequence[Any]  # the tensors of what the model returns: nodes, or constants
    rebuilt: Callable[[Sequence[Any]], Any]  # from their values to what the model returns
    expected: tuple[tuple[Any, Any], ...]  # tensors whose values the model's code reads, with what it read
    symbol: sympy.Symbol | None  # stands for the number of examples
    position: Mapping[fx.Node, int] = field(repr=False)
    counts_rows: frozenset[fx.Node] = field(repr=False)  # values made from the batch size itself, rebuilt when it grows
    names: Mapping[fx.Node, str] = field(repr=False)  # in the model, of the weights among the fixed
    reads_weights: bool = False  # whether the model's code reads numbers from something else than its inputs

    def batch(self, node: fx.Node) -> tuple[int, int] | None:
        """(dimension that grows with the batch, indices per example); None for a value that all examples share."""
        return batch_dimension(node.meta.get("val"), self.symbol)

    def runs_per_copy(self, node: fx.Node, noisy: Collection[fx.Node]) -> bool:
        """Whether a value that all examples share, and that is among the noisy, comes into a node or out of it."""
        if node not in noisy or node.target in (operator.getitem, torch.ops.dropscope.site.default):
            return False
        # Of several results, those that are read: a BatchNorm also returns statistics, which nobody does.
        made = [node] if is_tensor(node) else [user for user in node.users if user.target is operator.getitem]
        around = [*made, *(a for a in node.all_input_nodes if a in noisy)]
        return any(is_tensor(a) and self.batch(a) is None for a in around)

    def rebuilt_inputs(self, node: fx.Node, noisy: Collection[fx.Node]) -> list[fx.Node]:
        """The inputs of a node, looking through those that count rows: they are rebuilt, so their own are read.

        Where a node runs for each copy by itself, its rows are the examples, and what counts them is as it was.
        """
        found: dict[fx.Node, None] = {}
        seen, stack = {node}, [node]
        while stack:
            reader = stack.pop()
            through = set() if self.runs_per_copy(reader, noisy) else self.counts_rows
            for a in reader.all_input_nodes:
                if a not in through:
                    found[a] = None
                elif a not in seen:
                    seen.add(a)
                    stack.append(a)
        return list(found)

    def over(self, model: nn.Module, points: Collection[Point]) -> Captured:
        """The same graph over the weights that the model has now, with marks at some of its points."""
        weights = _named_weights(model)
        fixed = {node: weights.get(self.names.get(node, ""), value) for node, value in self.fixed.items()}
        return replace(self, fixed=fixed, marks={point: self.marks[point] for point in points})

    @property
    def results(self) -> tuple[fx.Node, ...]:
        """The nodes of the output, each once."""
        return tuple(dict.fromkeys(leaf for leaf in self.output if isinstance(leaf, fx.Node)))

    def returning(self, outputs: Outputs) -> Captured:
        """The same graph without what only other parts of the model's output need; a function may read all of it."""
        leaves = list(self.output)
        if not callable(outputs):
            places = [torch.empty(0) for _ in leaves]
            read = output_tensor(self.rebuilt(places), outputs)
            leaves = [leaf if place is read else None for leaf, place in zip(leaves, places, strict=True)]
        wanted = [*leaves, *self.marks.values(), *(node for node, _ in self.expected)]
        needed = ancestors(node for node in wanted if isinstance(node, fx.Node))
        return replace(self, output=leaves, nodes=tuple(node for node in self.nodes if node in needed))


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and everything that they are computed from."""
    stack, found = list(nodes), set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def module_path(node: fx.Node) -> str:
    """The module of the user's model in which a value is made."""
    path = next(reversed([path for path, _ in node.meta.get("nn_module_stack", {}).values()]), "")
    return path.removeprefix("model").removeprefix(".") or "the model"


def feed_values(call: Call) -> list[Tensor]:
    """The tensors of a call in the order of `Captured.feeds`."""
    return Call(call.args, dict(sorted(call.kwargs.items()))).tensors


@dataclass(frozen=True, eq=False)
class _Kept:
    """A capture for the next call: of any points among its own, and of any weights unless its code read some."""

    structure: Any
    weights: Any
    points: frozenset[Point]
    captured: Captured

    def serves(self, structure: Any, weights: Any, points: frozenset[Point]) -> bool:
        # Where attention weights are marked, the attention is written out: slower, so for nobody who did not ask.
        written_out = {point for point in self.points - points if point.position == "weights"}
        same = self.structure == structure and (self.weights == weights or not self.captured.reads_weights)
        return same and points <= self.points and not written_out


_cache: weakref.WeakKeyDictionary[nn.Module, list[_Kept]] = weakref.WeakKeyDictionary()


def capture(model: nn.Module, call: Call, points: Iterable[Point]) -> Captured:
    """`model` as a graph with `points` marked, over its present weights.

    Kept for further calls with the same model, the same input signature and no other points. Where there are others,
    all that were asked for so far are marked at once.
    """
    structure, weights, wanted = _structure(model, call), _weights(model), frozenset(points)
    with undisturbed():  # to torch, the whole process exports
        kept = _cache.setdefault(model, [])
        for known in kept:
            if known.serves(structure, weights, wanted):
                return known.captured.over(model, wanted)
        before = {point for known in kept if known.structure == structure for point in known.points}
        joined = wanted | {point for point in before if point.position != "weights"}
        captured = _export(model, call, tuple(sorted(joined)))
        kept[:] = [*kept[-3:], _Kept(structure, weights, joined, captured)]
        return captured.over(model, wanted)


def is_captured(model: nn.Module, call: Call, points: Iterable[Point]) -> bool:
    """Whether `capture` has this graph already."""
    asked = _structure(model, call), _weights(model), frozenset(points)
    return any(known.serves(*asked) for known in _cache.get(model, []))


def _structure(model: nn.Module, call: Call) -> tuple[Any, ...]:
    """What a graph depends on, the values of weights aside."""
    shapes = tuple((name, weight.shape, weight.dtype, weight.device) for name, weight in _named_weights(model).items())
    # Tensors that are neither weights nor buffers are constants of the graph.
    loose = (value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor))
    return _signature(call), shapes, tuple((id(value), writes(value)) for value in loose), code_fingerprint(model)


def _named_weights(model: nn.Module) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(model.named_buffers(remove_duplicate=False))}


def _weights(model: nn.Module) -> tuple[Any, ...]:
    return tuple((id(weight), writes(weight)) for weight in _named_weights(model).values())


def _signature(call: Call) -> Any:
    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    return str(spec), tuple(
        (tuple(x.shape[1:]), x.dtype, x.device) if isinstance(x, Tensor) else repr(x) for x in leaves
    )


def _export(model: nn.Module, call: Call, wanted: tuple[Point, ...]) -> Captured:
    """The graph for any number of examples: by a symbol of our own, by torch's, or from exports at three numbers.

    Where the model's code limits that number (cuDNN's choice of a BatchNorm does, at 65,535), the limit is left to
    torch: it concerns which kernels run, and every plan is compared with the loop before it is used. Code that reads
    numbers from tensors gets those of a few examples, and the graph holds for examples that give the same.
    """
    copy = shadow(model).eval()
    _switch_cache_off(copy, model)
    call = Call(call.args, dict(sorted(call.kwargs.items())))
    reads, errors = False, []
    ours = torch.export.Dim("batch", min=1, max=1 << 24)
    attempts: list[Any] = [ours, torch.export.Dim.AUTO, None]
    if _limits_examples(copy, call):
        attempts[:2] = attempts[1::-1]
    while attempts:
        try:
            if attempts[0] is None:
                some = [programs.export(copy, call, wanted, None, number, reads=reads) for number in _NUMBERS]
                exported = aligned(some, _NUMBERS)
            else:
                exported = programs.export(copy, call, wanted, attempts[0], reads=reads)
            captured = _read(exported, wanted)
        except CaptureFailed:
            raise
        except Exception as error:  # export raises its own and everybody else's errors; each means the same here
            errors.append(error)
            if not reads and "data-dependent" in str(error):
                reads = True
                continue
        else:
            if attempts[0] is ours or _share_symbol(captured):
                return captured
        del attempts[0]
    if not errors:
        raise CaptureFailed("torch.export takes the number of examples for a constant")
    cause = errors[1] if reads else errors[0]
    where, what = _culprit(cause, copy), first_line(cause, 120).rstrip(".")
    raise CaptureFailed(f"torch.export could not export {where}: {what}") from cause


def _limits_examples(model: nn.Module, call: Call) -> bool:
    """Whether a symbol of our own is sure to be refused: by cuDNN's choice of a BatchNorm."""
    on_gpu = any(tensor.is_cuda for tensor in call.tensors)
    norms = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
    return on_gpu and any(isinstance(module, norms) for module in model.modules())


def _culprit(error: Exception, model: nn.Module) -> str:
    """The module whose code an export stopped in, with the line."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = "the model"
    for frame, line in walk_tb(error.__traceback__):
        path = paths.get(id(frame.f_locals.get("self")))
        if path is not None and frame.f_code.co_filename != inspect.getfile(nn.Module):
            found = f"{path or 'the model'} ({PurePath(frame.f_code.co_filename).name}:{line})"
    return found


def _switch_cache_off(copy: nn.Module, model: nn.Module) -> None:
    """Decoders return their key-value cache by default: of no use here, and not a tensor."""
    shared = {id(getattr(module, "config", None)) for module in model.modules()}
    for module in copy.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True and id(config) not in shared:
            config.use_cache = False


def _read(exported: programs.Exported, wanted: tuple[Point, ...]) -> Captured:
    program = exported.program
    signature = program.graph_signature
    fixed: dict[fx.Node, Any] = {}
    names: dict[fx.Node, str] = {}
    feeds: list[fx.Node] = []
    nodes: list[fx.Node] = []
    marks: dict[Point, fx.Node] = {}
    output: Any = None
    for node in program.graph.nodes:
        if node.op == "placeholder":
            source = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name)
            constant = signature.inputs_to_lifted_tensor_constants.get(node.name)
            if source is not None:
                fixed[node] = program.state_dict[source] if source in program.state_dict else program.constants[source]
                names[node] = source.removeprefix("model.")
            elif constant is not None:
                fixed[node] = program.constants[constant]
            elif isinstance(node.meta.get("val"), Tensor):
                feeds.append(node)
        elif node.op == "call_function":
            nodes.append(node)
            if node.target is torch.ops.dropscope.site.default:
                marks[wanted[node.args[1]]] = node
        elif node.op == "output":
            output = node.args[0]
        else:
            raise CaptureFailed(f"the exported graph holds a {node.op} node, which cannot be split")
    if any(isinstance(arg, fx.Node) and arg.op == "get_attr" for node in nodes for arg in node.args):
        raise CaptureFailed("the exported graph has subgraphs (an autocast or control-flow region)")
    for point in wanted:
        if point not in marks:
            raise CaptureFailed(f"{point.address} is not in the exported graph")
    results = [output[i] for i, kind in enumerate(signature.output_specs) if kind.kind.name == "USER_OUTPUT"]
    returned = len(results) - len(exported.read)
    fed = set(feeds)
    expected = tuple(
        (node, number)
        for node, number in zip(results[returned:], exported.read, strict=True)
        if isinstance(node, fx.Node) and not fed.isdisjoint(ancestors([node]))  # others change with the weights alone
    )
    symbol = _symbol(feeds)
    _check_batches(nodes, symbol)
    order = {node: i for i, node in enumerate((*feeds, *fixed, *nodes))}
    return Captured(
        tuple(nodes),
        tuple(feeds),
        fixed,
        marks,
        results[:returned],
        exported.rebuilt,
        expected,
        symbol,
        order,
        frozenset(_counting_rows(nodes, symbol)),
        names,
        len(expected) < len(exported.read),
    )


def _check_batches(nodes: Iterable[fx.Node], symbol: sympy.Symbol | None) -> None:
    """Refuses a graph in which examples do not lie along one dimension."""
    for node in nodes:
        try:
            batch_dimension(node.meta.get("val"), symbol)
        except CaptureFailed as error:
            raise CaptureFailed(f"{error}, in {module_path(node)}") from None


def _symbol(feeds: list[fx.Node]) -> sympy.Symbol | None:
    for node in feeds:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.dim() and isinstance(value.shape[0], torch.SymInt):
            (symbol,) = value.shape[0].node.expr.free_symbols
            return symbol
    return None


def _share_symbol(captured: Captured) -> bool:
    """Whether all inputs have one symbol for their examples; torch may have taken their number for a constant."""
    sizes = [expression(node.meta["val"].shape[0]) for node in captured.feeds if node.meta["val"].dim()]
    grow = {size for size in sizes if not isinstance(size, int)}
    return grow == {captured.symbol} and programs.EXAMPLES not in sizes


def expression(size: Any) -> sympy.Expr | int:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def batch_dimension(value: Any, symbol: sympy.Symbol | None) -> tuple[int, int] | None:
    if not isinstance(value, Tensor) or symbol is None:
        return None
    found = None
    for dim, size in enumerate(value.shape):
        expr = expression(size)
        if isinstance(expr, int) or symbol not in expr.free_symbols or free_unbacked_symbols(expr):
            continue
        factor = expr / symbol
        if found is not None or not getattr(factor, "is_Integer", False):
            raise CaptureFailed(f"a value of shape {tuple(value.shape)} does not keep its examples along one dimension")
        found = dim, int(factor)
    if found is None:  # as many as the data has, like the tokens that a mask picks: they come in the order of examples
        counted = (dim for dim, size in enumerate(value.shape) if free_unbacked_symbols(size))
        found = next(((dim, 1) for dim in counted), None)
    return found


# Constants of any size: a longer one is more of the same, so repeating it is right.
_FILLS = frozenset(
    getattr(torch.ops.aten, name).default for name in ("full", "zeros", "ones", "full_like", "zeros_like", "ones_like")
)
_LOOKUPS = frozenset({torch.ops.aten.index.Tensor, torch.ops.aten.gather.default, torch.ops.aten.index_select.default})


def _counting_rows(nodes: list[fx.Node], symbol: sympy.Symbol | None) -> Iterable[fx.Node]:
    """Values that say which row is which (arange over the batch), up to where they look something up per example."""
    counting: set[fx.Node] = set()
    for node in nodes:
        from_tensors = any(
            isinstance(v, Tensor) for a in node.all_input_nodes for v in pytree.tree_leaves(a.meta.get("val"))
        )
        grows = batch_dimension(node.meta.get("val"), symbol) is not None
        starts = not from_tensors and grows and node.target not in _FILLS
        looks_up = node.target in _LOOKUPS and node.args[0] not in counting
        if starts or (any(a in counting for a in node.all_input_nodes) and not looks_up):
            counting.add(node)
    return counting
