"""The graph of a model: exported once, functional, with one marked node for every value that may get noise.

Owns export, the marks and what is static about each node: does it grow with the batch, along which dimension, does it
count rows. The marks are set by the tracer that injects noise, so names agree by construction. It executes nothing.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from dropscope.engine.writes import without_writes
from dropscope.errors import DropscopeError, first_line
from dropscope.model import Call, code_fingerprint, random_state_kept, shadow, undisturbed, writes
from dropscope.tracing import About, Point, Visitor, trace

_BATCH = (
    3  # examples in the exported batch: 0 and 1 are special to torch's shapes, and no small kernel size is 3 by rule
)


@torch.library.custom_op("dropscope::site", mutates_args=())
def mark(value: Tensor, index: int) -> Tensor:
    """Marks a value in an exported graph; never executed."""
    return value.clone()


@mark.register_fake
def _(value: Tensor, index: int) -> Tensor:
    return torch.empty_like(value)


class CaptureFailed(DropscopeError):
    """A model that cannot be run as a graph; the message says why, and the plain path runs instead."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A functional graph. `nodes` are in execution order; `fixed` holds weights; `marks` says where noise can enter."""

    nodes: tuple[fx.Node, ...]
    feeds: tuple[fx.Node, ...]  # one per tensor of the flattened inputs
    fixed: Mapping[fx.Node, Any]
    marks: Mapping[Point, fx.Node]
    output: Any  # nested structure whose leaves are nodes or constants
    out_spec: pytree.TreeSpec
    symbol: sympy.Symbol | None  # stands for the number of examples
    position: Mapping[fx.Node, int] = field(repr=False)
    counts_rows: frozenset[fx.Node] = field(repr=False)  # values made from the batch size itself, rebuilt when it grows

    def batch(self, node: fx.Node) -> tuple[int, int] | None:
        """(dimension that grows with the batch, indices per example); None for a value that all examples share."""
        return _batch_dimension(node.meta.get("val"), self.symbol)

    def rebuilt_inputs(self, node: fx.Node) -> list[fx.Node]:
        """The inputs of a node, looking through those that count rows: they are rebuilt, so their own are read."""
        found = []
        for a in node.all_input_nodes:
            found += self.rebuilt_inputs(a) if a in self.counts_rows else [a]
        return found


def feed_values(call: Call) -> list[Tensor]:
    """The tensors of a call in the order of `Captured.feeds`."""
    return [x for x in pytree.tree_leaves((call.args, dict(sorted(call.kwargs.items())))) if isinstance(x, Tensor)]


_cache: weakref.WeakKeyDictionary[nn.Module, list[tuple[Any, Captured]]] = weakref.WeakKeyDictionary()


def capture(model: nn.Module, call: Call, points: Iterable[Point]) -> Captured:
    """`model` as a graph with `points` marked; kept for the next call with the same model and input signature."""
    wanted = tuple(sorted(points))
    weights = tuple((id(p), writes(p)) for p in (*model.parameters(), *model.buffers()))
    key = wanted, _signature(call), weights, code_fingerprint(model)
    with undisturbed():  # to torch, the whole process exports
        kept = _cache.setdefault(model, [])
        for known, captured in kept:
            if known == key:
                return captured
        captured = _export(model, call, wanted)
        kept[:] = [*kept[-3:], (key, captured)]
        return captured


def _signature(call: Call) -> Any:
    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    return str(spec), tuple(
        (tuple(x.shape[1:]), x.dtype, x.device) if isinstance(x, Tensor) else repr(x) for x in leaves
    )


def _export(model: nn.Module, call: Call, wanted: tuple[Point, ...]) -> Captured:
    """The graph for any number of examples. Where the model's code limits that number (cuDNN's choice of a BatchNorm
    does, at 65,535), the limit is left to torch: it concerns which kernels run, and every plan is compared with the
    loop before it is used."""
    copy = shadow(model).eval()
    few = call.take([i % call.examples for i in range(_BATCH)])
    args, kwargs = few.args, _without_cache(copy, dict(sorted(few.kwargs.items())))
    errors: list[Exception] = []
    for batch in (torch.export.Dim("batch", min=1, max=1 << 24), torch.export.Dim.AUTO):
        try:
            captured = _read(_program(copy, args, kwargs, batch, _Marker(wanted)), wanted)
        except CaptureFailed:
            raise
        except Exception as error:  # export raises its own and everybody else's errors; each means the same here
            errors.append(error)
        else:
            if not errors or _share_symbol(captured):
                return captured
    raise CaptureFailed(f"torch.export could not capture the model: {first_line(errors[0], 200)}") from errors[0]


def _program(
    copy: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: Any, marker: _Marker
) -> torch.export.ExportedProgram:
    shapes = pytree.tree_map(
        lambda x: {0: batch} if isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == _BATCH else None, (args, kwargs)
    )
    with warnings.catch_warnings(), torch.no_grad(), random_state_kept(), trace(copy, marker):
        warnings.simplefilter("ignore")
        program = torch.export.export(_Call(copy), (args, kwargs), dynamic_shapes=shapes, strict=False)
        return without_writes(program)


class _Call(nn.Module):
    """The model under one calling convention: a tuple and a dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.model(*args, **kwargs)


class _Marker(Visitor):
    """The visitor that marks."""

    def __init__(self, wanted: tuple[Point, ...]) -> None:
        self._index = {point: i for i, point in enumerate(wanted)}

    def begin(self, call: Call) -> None:
        pass

    def wants(self, point: Point) -> bool:
        return point in self._index

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        return mark(value, self._index[point])


def _without_cache(model: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Decoders return their key-value cache by default: of no use here, and not a tensor."""
    config = getattr(model, "config", None)
    return (
        {**kwargs, "use_cache": False} if getattr(config, "use_cache", False) and "use_cache" not in kwargs else kwargs
    )


def _read(program: torch.export.ExportedProgram, wanted: tuple[Point, ...]) -> Captured:
    signature = program.graph_signature
    fixed: dict[fx.Node, Any] = {}
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
    spec = program.call_spec.out_spec
    assert spec is not None
    results = [output[i] for i, kind in enumerate(signature.output_specs) if kind.kind.name == "USER_OUTPUT"]
    symbol = _symbol(feeds)
    order = {node: i for i, node in enumerate((*feeds, *fixed, *nodes))}
    captured = Captured(
        tuple(nodes), tuple(feeds), fixed, marks, results, spec, symbol, order, frozenset(_counting_rows(nodes, symbol))
    )
    for node in nodes:
        captured.batch(node)  # raises where the batch is not along one dimension
    return captured


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
    return grow == {captured.symbol} and _BATCH not in sizes


def expression(size: Any) -> sympy.Expr | int:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _batch_dimension(value: Any, symbol: sympy.Symbol | None) -> tuple[int, int] | None:
    if not isinstance(value, Tensor) or symbol is None:
        return None
    found = None
    for dim, size in enumerate(value.shape):
        expr = expression(size)
        if isinstance(expr, int) or symbol not in expr.free_symbols:
            continue
        factor = expr / symbol
        if found is not None or not getattr(factor, "is_Integer", False):
            raise CaptureFailed(f"a value of shape {tuple(value.shape)} does not keep its examples along one dimension")
        found = dim, int(factor)
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
        grows = _batch_dimension(node.meta.get("val"), symbol) is not None
        starts = not from_tensors and grows and node.target not in _FILLS
        looks_up = node.target in _LOOKUPS and node.args[0] not in counting
        if starts or (any(a in counting for a in node.all_input_nodes) and not looks_up):
            counting.add(node)
    return counting
