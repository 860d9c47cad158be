"""When the kernels of `kernels.py` stand in for a segment: what they need of a graph, checked node by node.

Owns the recognition. A segment that is not exactly one of these forms runs as it is; both ways give the same numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from dropscope.engine.tree import Plan, Step
from dropscope.measures.statistics import SUMMED

_aten = torch.ops.aten
_PLAIN_POOL = _aten.max_pool2d.default
_CLASSES_AT_MOST = 60


@dataclass(frozen=True, eq=False)
class Tail:
    """noise → linear → softmax → statistics, at the end of the graph."""

    weight: Tensor
    bias: Tensor

    def sums(
        self, hidden: Tensor, words: Tensor, level: Tensor, gain: Tensor, plain: Tensor, passes: int, children: int
    ) -> Tensor:
        from dropscope.engine import kernels

        return kernels.tail(hidden, words, level, gain, self.weight, self.bias, plain, passes, children)


@dataclass(frozen=True, eq=False)
class Middle:
    """noise on channels → convolution or linear layer → ReLU (→ pooling), for all rates in one product."""

    run: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


def tail(plan: Plan, steps: tuple[int, ...], needs: Collection[str]) -> Tail | None:
    """The fused end of a subtree with these steps, where the graph ends in a linear layer on element noise."""
    step = plan.steps[steps[-1]]
    nodes = plan.segment(steps, len(steps) - 1)
    if len(nodes) != 1 or tuple(nodes) != plan.captured.results or not set(needs) <= SUMMED:
        return None
    (node,) = nodes
    if (
        not _plain_step(plan, step, "element")
        or step.node.meta["val"].dim() != 2
        or node.target is not _aten.linear.default
    ):
        return None
    layer = _layer(plan, node, step)
    return None if layer is None or layer[0].shape[0] > _CLASSES_AT_MOST else Tail(*layer)


def middle(plan: Plan, steps: tuple[int, ...], level: int) -> Middle | None:
    """The fused form of a segment between two sites, where channel noise feeds a layer, a ReLU, perhaps a pooling."""
    step = plan.steps[steps[level]]
    nodes = [node for node in plan.segment(steps, level) if node.target is not torch.ops.dropscope.site.default]
    if not _plain_step(plan, step, "channel") or not nodes or not _only_output(plan, steps, level, nodes[-1]):
        return None
    if (
        nodes[-1].target is operator.getitem
        and nodes[-1].args[1] == 0
        and nodes[-2].target is _aten.max_pool2d_with_indices.default
    ):
        nodes = nodes[:-1]  # a pooling that also gives indices nobody reads
    targets = [_PLAIN_POOL if node.target is _aten.max_pool2d_with_indices.default else node.target for node in nodes]
    if len(nodes) == 3 and targets[1:] == [_aten.relu.default, _PLAIN_POOL] and targets[0] is _aten.conv2d.default:
        return _convolution(plan, nodes, step)
    if (
        len(nodes) == 3
        and targets[1:] == [_aten.linear.default, _aten.relu.default]
        and targets[0] in (_aten.view.default, _aten.flatten.using_ints, _aten.reshape.default)
    ):
        return _linear(plan, nodes, step)
    return None


def _plain_step(plan: Plan, step: Step, mask: str) -> bool:
    value = step.node.meta["val"]
    return (
        step.noise == "bernoulli"
        and step.mask == mask
        and plan.captured.batch(step.node) == (0, 1)
        and value.dtype == torch.float32
    )


def _layer(plan: Plan, node: fx.Node, step: Step, source: fx.Node | None = None) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of a layer applied to the step's value and to nothing else."""
    fixed = plan.captured.fixed
    arguments: tuple[Any, ...] = (*node.args, None)
    _, weight, bias = arguments[:3]
    if not _reads(node, source or step.node) or weight not in fixed:
        return None
    w = fixed[weight]
    b = torch.zeros(w.shape[0], device=w.device) if bias is None else fixed.get(bias)
    return None if b is None or w.dtype != torch.float32 else (w.detach(), b.detach())


def _reads(node: fx.Node, source: fx.Node) -> bool:
    """Whether the node's first argument is the value of `source`, looking through marks."""
    value: Any = node.args[0]
    while value is not source and isinstance(value, fx.Node) and value.target is torch.ops.dropscope.site.default:
        value = value.args[0]
    return value is source


def _only_output(plan: Plan, steps: tuple[int, ...], level: int, last: fx.Node) -> bool:
    """Whether everything later reads this segment through the next step's value alone."""
    if level + 1 >= len(steps):
        return False
    following = plan.steps[steps[level + 1]].node
    inner = set(plan.segment(steps, level)) | {plan.steps[steps[level]].node}
    later = [node for i in range(level + 1, len(steps)) for node in plan.segment(steps, i)]
    if any(a in inner and a is not following for node in later for a in node.all_input_nodes):
        return False
    source = following
    while source.target is torch.ops.dropscope.site.default and source is not last:
        source = source.all_input_nodes[0]
    return source is last


def _linear(plan: Plan, nodes: list[fx.Node], step: Step) -> Middle | None:
    value, flat = step.node.meta["val"], nodes[0].meta["val"]
    layer = _layer(plan, nodes[1], step, nodes[0])
    if (
        layer is None
        or not _reads(nodes[0], step.node)
        or value.dim() < 3
        or flat.dim() != 2
        or not _reads(nodes[2], nodes[1])
    ):
        return None
    channels, space = value.shape[1], tuple(value.shape[2:])
    weight, bias = layer

    def run(x: Tensor, words: Tensor, levels: Tensor, gain: Tensor, examples: int) -> Tensor:
        from dropscope.engine import kernels

        return kernels.prefix_linear(
            x.reshape(x.shape[0], -1, channels, *space), words, levels, gain, weight, bias, examples
        )

    return Middle(run)


def _convolution(plan: Plan, nodes: list[fx.Node], step: Step) -> Middle | None:
    convolution, relu, pool = nodes
    layer = _layer(plan, convolution, step)
    value = step.node.meta["val"]
    rest = [list(a) if isinstance(a, list | tuple) else a for a in (*convolution.args[3:], *[None] * 4)][:4]
    stride, padding, dilation, groups = rest
    window = [list(a) if isinstance(a, list | tuple) else a for a in pool.args[1:]]
    plain_pool = (
        window
        and window[0] == [2, 2]
        and (len(window) < 2 or window[1] in ([], [2, 2]))
        and len(window) <= 2
        and not pool.kwargs
    )
    if (
        layer is None
        or not plain_pool
        or not _reads(relu, convolution)
        or not _reads(pool, relu)
        or value.shape[-1] % 2
        or value.shape[-2] % 2
    ):
        return None
    if (
        tuple(layer[0].shape[2:]) != (3, 3)
        or stride not in (None, [1, 1])
        or padding != [1, 1]
        or dilation not in (None, [1, 1])
        or groups not in (None, 1)
    ):
        return None
    channels, height, width = (int(s) for s in value.shape[1:])
    weight, bias = layer

    def run(x: Tensor, words: Tensor, levels: Tensor, gain: Tensor, examples: int) -> Tensor:
        from dropscope.engine import kernels

        return kernels.prefix_conv(
            x.reshape(x.shape[0], -1, channels, height, width), words, levels, gain, weight, bias, examples, 2
        )

    return Middle(run)


def nested_choices(choice: np.ndarray, parents: int) -> np.ndarray | None:
    """The choices, rising, if every parent has exactly the same ones; None otherwise."""
    if parents == 0 or len(choice) % parents:
        return None
    table = choice.reshape(parents, -1)
    same = bool((table == table[0]).all()) and bool((np.diff(table[0]) > 0).all())
    return table[0] if same else None
