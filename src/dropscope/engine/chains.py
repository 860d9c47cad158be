"""Pointwise work of a segment in one trip through memory: noise, BatchNorm, a sum and an activation.

Owns the recognition of such chains in a segment's graph, and what each stands for, written out. On a GPU the chain is
one kernel (`kernels.pointwise`); narrow 3×3 convolutions and wide linear layers have one too, because cuDNN and
cuBLAS are slow at them in fp32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from dropscope.device import multiplies_in_parts, runs_kernels
from dropscope.engine.folding import disturb_rows, spread

_aten = torch.ops.aten
_INFERENCE_NORM = getattr(_aten, "_native_batch_norm_legit_no_training").default  # noqa: B009 - a name of torch's own
# BatchNorms: behind value, weight, bias, mean and variance, where eps is among the arguments.
_BATCH_NORMS: dict[Any, int] = {_INFERENCE_NORM: 6, _aten.batch_norm.default: 7, _aten.cudnn_batch_norm.default: 7}
_TRAINING: dict[Any, int] = {_aten.batch_norm.default: 5, _aten.cudnn_batch_norm.default: 5}
_ACTIVATIONS: dict[Any, str] = {_aten.relu.default: "relu", _aten.silu.default: "silu"}
_WRITTEN_OUT: dict[str, Callable[[Tensor], Tensor]] = {"": lambda x: x, "relu": torch.relu, "silu": F.silu}
WIDE = 64  # units in and out from which our product is faster than cuBLAS's in fp32
NARROW = 32  # channels in and out up to which our convolution is faster than cuDNN's (benchmarks/README.md)


def pointwise(value: Tensor, noise: Any, affine: Any, other: Any, copies: Any, activation: str) -> Tensor:
    """activation(norm(noise(value)) + other), or as much of it as is not None.

    Args:
        value: Rows.
        noise: The arguments of `folding.disturb_rows` behind the value.
        affine: Scale and shift of each channel: a BatchNorm of a trained model.
        other: What is added; it stands for itself `copies` times over, where that is not None.
        copies: See there.
        activation: A name of `_WRITTEN_OUT`.
    """
    if runs_kernels(value.device):
        from dropscope.engine import kernels

        found = kernels.pointwise(value, noise, affine, other, activation)
        if found is not None:
            return found
    x = value if noise is None else disturb_rows(value, *noise)
    if affine is not None:
        scale, shift = (part.view(-1, *[1] * (x.dim() - 2)) for part in affine)
        x = x * scale + shift
    if other is not None:
        x = x + (other if copies is None else spread(other, 0, copies))
    return _WRITTEN_OUT[activation](x)


def narrow_convolution(value: Tensor, weight: Tensor, bias: Any, taps: Tensor) -> Tensor:
    """A 3×3 convolution with stride and padding 1; `taps[9, outputs, channels]` is its weight for the kernel."""
    if runs_kernels(value.device):
        from dropscope.engine import kernels

        found = kernels.narrow_convolution(value, taps, bias)
        if found is not None:
            return found
    return F.conv2d(value, weight, bias, 1, 1)


def wide_linear(value: Tensor, weight: Tensor, bias: Any, split: Tensor) -> Tensor:
    """A linear layer; `split` holds the `halves` of its weight, for the kernel."""
    if runs_kernels(value.device) and not torch.backends.cuda.matmul.allow_tf32:
        from dropscope.engine import products

        found = products.linear(value, split, bias)
        if found is not None:
            return found
    return F.linear(value, weight, bias)


def halves(weight: Tensor) -> Tensor:
    """`[2, outputs, units]`: the weight rounded to 11 bits, and what that leaves, rounded likewise."""
    high = _rounded(weight.detach().contiguous())
    return torch.stack([high, _rounded(weight.detach() - high)])


def _rounded(x: Tensor) -> Tensor:
    """To the nearest number of 11 significant bits, ties to even."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & -8192).view(torch.float32)


@dataclass(eq=False)
class _Chain:
    """Nodes that one call replaces, in order."""

    nodes: list[fx.Node]
    value: Any
    noise: Any = None
    affine: Any = None
    other: Any = None
    copies: Any = None
    activation: str = ""


def fuse(module: nn.Module, splits: dict[int, Tensor]) -> None:
    """Rewrites the graph of a segment: every chain, narrow convolution and wide linear layer becomes one call.

    Args:
        module: The segment.
        splits: Weights of linear layers as the kernel takes them, by address, for all segments of a plan.
    """
    assert isinstance(module, fx.GraphModule)
    graph, taken = module.graph, set[fx.Node]()
    for node in list(graph.nodes):
        if node in taken or node.op != "call_function":
            continue
        chain = _chain(node)
        if chain is not None:
            taken.update(chain.nodes)
            _replace(module, chain)
        elif _is_narrow(node):
            weight = _tensor(node.args[1])
            assert weight is not None
            taps = weight.permute(2, 3, 0, 1).reshape(9, *weight.shape[:2]).contiguous()
            with graph.inserting_before(node):
                kept = _constant(module, taps)
            node.target, node.args = narrow_convolution, (*(*node.args, None)[:3], kept)
        elif _is_wide(node):
            _split(module, node, splits)
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()


def _chain(node: fx.Node) -> _Chain | None:
    """The longest chain that begins at a node; None where it is a single operation that torch does as well."""
    if node.target is disturb_rows and node.args[4] == "bernoulli":
        chain = _Chain([node], node.args[0], noise=tuple(node.args[1:]))
        following = _only_user(node)
        if following is not None and following.target in _BATCH_NORMS:
            _take_norm(chain, following)
    elif node.target in _BATCH_NORMS:
        chain = _Chain([], node.args[0])
        _take_norm(chain, node)
    elif node.target is _aten.add.Tensor:
        chain = _Chain([], node.args[0])
        _take_sum(chain, node, node.args[0])
    else:
        return None
    if chain.nodes:
        following = _only_user(chain.nodes[-1])
        if following is not None and chain.other is None and following.target is _aten.add.Tensor:
            _take_sum(chain, following, chain.nodes[-1])
        following = _only_user(chain.nodes[-1])
        if following is not None and following.target in _ACTIVATIONS:
            chain.activation = _ACTIVATIONS[following.target]
            chain.nodes.append(following)
    parts = (chain.affine is not None) + (chain.other is not None) + (chain.activation != "")
    return chain if chain.noise is not None or parts > 1 else None


def _only_user(node: fx.Node) -> fx.Node | None:
    """The one call that reads a value, and nothing else does."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op == "call_function" else None


def _take_norm(chain: _Chain, norm: fx.Node) -> None:
    result: fx.Node | None = norm
    training = _TRAINING.get(norm.target)
    if norm.target is not _aten.batch_norm.default:  # returns statistics as well
        result = _only_user(norm)
        if result is None or result.target is not operator.getitem or result.args[1] != 0:
            return
    given = [_tensor(one) for one in norm.args[1:5]]
    missing = any(found is None and one is not None for found, one in zip(given, norm.args[1:5], strict=True))
    if missing or None in norm.args[3:5] or norm.kwargs or (training is not None and norm.args[training]):
        return
    chain.affine = _affine(norm.args[_BATCH_NORMS[norm.target]], *given)  # type: ignore[arg-type]
    chain.nodes += [norm] if result is norm else [norm, result]  # type: ignore[list-item]


def _affine(
    epsilon: float, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Scale and shift of each channel."""
    scale = torch.rsqrt(variance + epsilon)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias


def _take_sum(chain: _Chain, node: fx.Node, mine: Any) -> None:
    """Takes a sum of the chain's value and another of its shape."""
    if node.kwargs or len(node.args) != 2 or node.args[0] is node.args[1]:
        return
    other = node.args[1] if node.args[0] is mine else node.args[0]
    if not isinstance(other, fx.Node) or not isinstance(mine, fx.Node):
        return
    chain.other = other
    if other.target is spread and other.args[1] == 0:
        chain.other, chain.copies = other.args[0], other.args[2]
    chain.nodes.append(node)


def _replace(module: fx.GraphModule, chain: _Chain) -> None:
    graph, last = module.graph, chain.nodes[-1]
    with graph.inserting_before(last):
        affine = None if chain.affine is None else tuple(_constant(module, part) for part in chain.affine)
        made = graph.call_function(
            pointwise, (chain.value, chain.noise, affine, chain.other, chain.copies, chain.activation)
        )
    last.replace_all_uses_with(made)
    for node in reversed(chain.nodes):
        graph.erase_node(node)


def _constant(module: fx.GraphModule, value: Tensor) -> fx.Node:
    """A value computed once, as the graph reads it."""
    name = f"computed_{sum(1 for _ in module.buffers())}"
    module.register_buffer(name, value.detach(), persistent=False)
    return module.graph.get_attr(name)


def _is_narrow(node: fx.Node) -> bool:
    if node.target is not _aten.conv2d.default or node.kwargs:
        return False
    weight = _tensor(node.args[1])
    rest = [list(a) if isinstance(a, list | tuple) else a for a in node.args[3:]]
    plain = rest in ([[1, 1], [1, 1]], [[1, 1], [1, 1], [1, 1]], [[1, 1], [1, 1], [1, 1], 1])
    return (
        plain
        and weight is not None
        and tuple(weight.shape[2:]) == (3, 3)
        and max(weight.shape[:2]) <= NARROW
        and weight.dtype == torch.float32
    )


def _is_wide(node: fx.Node) -> bool:
    if node.target is not _aten.linear.default or node.kwargs:
        return False
    weight = _tensor(node.args[1])
    return (
        weight is not None
        and multiplies_in_parts(weight.device)
        and weight.dtype == torch.float32
        and weight.shape[0] >= WIDE
        and weight.shape[1] >= WIDE
        and weight.shape[1] % 32 == 0
    )


def _split(module: fx.GraphModule, node: fx.Node, splits: dict[int, Tensor]) -> None:
    weight = _tensor(node.args[1])
    assert weight is not None
    address = weight.data_ptr()
    if address not in splits:
        splits[address] = halves(weight)
    with module.graph.inserting_before(node):
        kept = _constant(module, splits[address])
    node.target, node.args = wide_linear, (*(*node.args, None)[:3], kept)


def _tensor(node: Any) -> Tensor | None:
    """The weight that a get_attr node stands for."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    found = getattr(node.graph.owning_module, str(node.target), None)
    return found if isinstance(found, Tensor) else None
