"""Writes in place, as values: an exported program whose operations only return something new.

Owns the quick way. A program that writes to nothing is taken as it is, and `relu_`, `add_` and their like on values of
the model's own become what they return, which is right where nothing else looks at the same memory. The rest is torch's
to take apart, which takes longer than the export itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

_aten = torch.ops.aten
# In eval mode these return what they are given, though their schemas do not say so.
_IDENTITIES = {_aten.dropout.default, _aten.feature_dropout.default, _aten.alpha_dropout.default}


def without_writes(program: ExportedProgram) -> ExportedProgram:
    """The same program without operations that write in place."""
    nodes = list(program.graph.nodes)
    writes = [node for node in nodes if node.op == "call_function" and _writes(node)]
    nested = any(node.op == "get_attr" for node in nodes)  # regions of their own: autocast, no_grad, control flow
    if nested or not all(_alone(node) and _as_value(node) for node in writes):
        return program.run_decompositions({})
    position = {node: i for i, node in enumerate(nodes)}
    for node in writes:
        _rewrite(program.graph, node, position)
    program.graph.lint()
    return program


def _schema(operation: Any) -> Any:
    return getattr(operation, "_schema", None)


def _writes(node: fx.Node) -> bool:
    schema = _schema(node.target)
    return schema is not None and bool(schema.is_mutable)


def _as_value(node: fx.Node) -> Any:
    """The operation that returns what this one writes; None where there is none with the same arguments."""
    name, _, overload = str(node.target).removeprefix("aten.").partition(".")
    if not name.endswith("_") or node.target not in _overloads(name):
        return None
    found = getattr(getattr(_aten, name[:-1], None), overload, None)
    if found is None or _schema(found).is_mutable:
        return None
    ours, theirs = ([argument.name for argument in _schema(one).arguments] for one in (found, node.target))
    if ours != theirs:
        return None
    written = node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    given = [a.meta.get("val") for a in node.all_input_nodes]
    return found if all(value.dtype == written for value in given if isinstance(value, Tensor)) else None


def _overloads(name: str) -> list[Any]:
    packet = getattr(_aten, name, None)
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


def _alone(node: fx.Node) -> bool:
    """Whether the memory that a node writes to is one value's of the model's own."""
    written = node.args[0] if node.args else None
    if (
        not isinstance(written, fx.Node)
        or written.op != "call_function"
        or not isinstance(written.meta.get("val"), Tensor)
    ):
        return False
    source = written
    while _writes(source):  # what an earlier write returned
        source = source.args[0]  # type: ignore[assignment]
    nearby = (source, *source.users, *written.users)
    return source.op == "call_function" and not any(_may_alias(other) for other in nearby if not _writes(other))


def _may_alias(node: fx.Node) -> bool:
    """Whether what a node returns may be memory that it was given."""
    schema = _schema(node.target)
    if node.op == "output":
        return False
    if schema is None or node.target in _IDENTITIES:
        return True
    return any(result.alias_info is not None for result in schema.returns)


def _rewrite(graph: fx.Graph, node: fx.Node, position: dict[fx.Node, int]) -> None:
    """The node as a value, which everything behind it reads in the place of what was written to."""
    written: Any = node.args[0]
    with graph.inserting_before(node):
        made = graph.call_function(_as_value(node), node.args, node.kwargs)
    made.meta = dict(node.meta)
    position[made] = position[node]
    for user in list(written.users):
        if user is not made and user is not node and position[user] > position[node]:
            user.replace_input_with(written, made)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
