"""Sizes and work: what is done at once, within memory and on a CPU within its caches, and how much there is to do.

Owns the sizes. They are settled before a run starts, so that last bits do not depend on what was free later. Work is
counted, in multiply-adds and bytes; see `timing` for how long it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from dropscope.device import runs_kernels
from dropscope.engine import fusion
from dropscope.engine.graph import Captured, expression
from dropscope.engine.tree import Plan, Subtree

_aten = torch.ops.aten
# Working set of a segment on a CPU: beyond the caches, folding is slower than looping.
_CACHE_BYTES = 8 << 20
_CPU_EXAMPLES = 128
_CPU_PASSES = 32  # more at once is no faster, and the allocator keeps what was freed: the peak would grow with passes
_CUDA_EXAMPLES_AT_LEAST = 64


@dataclass(frozen=True)
class Blocks:
    """How much is done at once. Fixed at the start of a run, so that last bits do not depend on what was free later."""

    examples: int
    passes: int
    rows: tuple[int, ...]  # at most so many rows after each step
    fused_rows: tuple[int, ...] = ()  # the same where a kernel stands in for the segment: only its output is kept

    def halved(self) -> Blocks | None:
        """Half of everything; None where there is nothing left to halve."""
        if self.examples == self.passes == 1 and max(self.rows, default=1) == 1:
            return None
        half = tuple(max(1, rows // 2) for rows in self.rows)
        fused_half = tuple(max(1, rows // 2) for rows in self.fused_rows)
        return Blocks(max(1, self.examples // 2), max(1, self.passes // 2), half, fused_half)


def block_sizes(plan: Plan, examples: int, passes: int, memory: int, device: torch.device) -> Blocks:
    """How many examples, passes and rows at once: within `memory`, and on a CPU within its caches."""
    captured = plan.captured
    if not plan.steps:
        return Blocks(min(examples, 256), 1, ())
    levels = _levels(plan)
    heaviest = [
        max(
            1, 2 * bytes_of(captured, step.node), *(peak_bytes(captured, plan.segment(*at), frozenset()) for at in here)
        )
        for step, here in zip(plan.steps, levels, strict=True)
    ]
    share = memory // (2 * max(_levels_held(plan, subtree) for subtree in plan.subtrees) + 2)
    working = min(share, _CACHE_BYTES) if device.type == "cpu" else share
    rows = tuple(max(1, working // size) for size in heaviest)
    plain_bytes = max(sum(bytes_of(captured, node) for node in captured.nodes) // 4, 1)
    if not runs_kernels(device):
        limits = (_CPU_EXAMPLES, _CPU_PASSES) if device.type == "cpu" else (examples, passes)
        at_once = max(1, min(examples, limits[0], share // plain_bytes, min(rows)))
        return Blocks(at_once, max(1, min(passes, limits[1], min(rows) // at_once)), rows)
    kept = tuple(max(_kept_bytes(plan, *at, size) for at in here) for here, size in zip(levels, heaviest, strict=True))
    family = [len(step.rates) * size for step, size in zip(plan.steps, kept, strict=True)]
    pairs = max(1, share // max(family))  # (pass, example) pairs at once: a family of every site must fit
    fitting = max(pairs // passes, min(_CUDA_EXAMPLES_AT_LEAST, pairs))
    at_once = max(1, min(examples, share // plain_bytes, max(fitting // 64 * 64, min(fitting, 64))))
    return Blocks(at_once, max(1, min(passes, pairs // at_once)), rows, tuple(max(1, share // size) for size in kept))


def _levels(plan: Plan) -> list[list[tuple[tuple[int, ...], int]]]:
    """For each step of the plan, where it is a level: the steps of a subtree, and its number among them."""
    found: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in plan.steps]
    for steps in dict.fromkeys(subtree.steps for subtree in plan.subtrees):
        for level, index in enumerate(steps):
            found[index].append((steps, level))
    return found


def _levels_held(plan: Plan, subtree: Subtree) -> int:
    """Levels whose values are in memory at once: all at which the tree fans out, then what later ones read."""
    return min(len(subtree.steps), subtree.fans + plan.alive(subtree.steps))


def _kept_bytes(plan: Plan, steps: tuple[int, ...], level: int, heaviest: int) -> int:
    """Bytes per row of what a segment keeps where a kernel runs it; all it needs where none does."""
    if level + 1 == len(steps):
        return 64 if fusion.tail(plan, steps, ()) is not None else heaviest
    part = fusion.middle(plan, steps, level)
    return heaviest if part is None else bytes_of(plan.captured, plan.steps[steps[level + 1]].node)


class Workload:
    """Multiply-adds and bytes written by the parts of a plan, for one example."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._segments: dict[tuple[tuple[int, ...], int], tuple[int, int]] = {}

    @property
    def whole(self) -> tuple[int, int]:
        """Of one plain pass."""
        return _work(self.plan.captured, self.plan.captured.nodes)

    def of(self, subtree: Subtree) -> tuple[int, int]:
        """Of one pass of all its variants."""
        parts = [(len(level.parent), self._segment(subtree.steps, i)) for i, level in enumerate(subtree.levels)]
        return sum(rows * each[0] for rows, each in parts), sum(rows * each[1] for rows, each in parts)

    def _segment(self, steps: tuple[int, ...], level: int) -> tuple[int, int]:
        if (steps, level) not in self._segments:
            self._segments[steps, level] = _work(self.plan.captured, self.plan.segment(steps, level))
        return self._segments[steps, level]


def _work(captured: Captured, nodes: Sequence[fx.Node]) -> tuple[int, int]:
    return multiply_adds(captured, nodes), sum(bytes_of(captured, node) for node in nodes)


def multiply_adds(captured: Captured, nodes: Sequence[fx.Node]) -> int:
    """Multiply-adds of these nodes for one example."""
    total = 0
    for node in nodes:
        formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if formula is None:
            formula = _composite_formula(node)
        if formula is None:
            continue
        shapes = pytree.tree_map(lambda a: a.meta["val"] if isinstance(a, fx.Node) else a, (node.args, node.kwargs))
        count = formula(*shapes[0], **shapes[1], out_val=node.meta["val"])
        total += int(_at_one(count, captured.symbol))
    return total // 2


def _composite_formula(node: fx.Node) -> Any:
    """Operations that stand for a product but that torch's own table lists under what they decompose to."""
    if node.target in (_aten.linear.default, _aten.matmul.default):
        return lambda a, b, *_, out_val, **__: 2 * _numel(out_val) * a.shape[-1]
    if str(node.target).startswith(("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.conv_transpose")):
        transposed = "transpose" in str(node.target)
        return lambda a, w, *_, out_val, **__: (
            2 * (_numel(a) if transposed else _numel(out_val)) * (_numel(w) // w.shape[0])
        )
    return None


def _numel(value: Tensor) -> Any:
    count: Any = 1
    for size in value.shape:
        count = count * size
    return count


def _at_one(size: Any, symbol: sympy.Symbol | None) -> Any:
    expr = expression(size)
    return expr if isinstance(expr, int) or symbol is None else expr.subs(dict.fromkeys(expr.free_symbols, 1))


def bytes_of(captured: Captured, node: fx.Node) -> int:
    """Bytes of this node's value for one example."""
    total = 0
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, Tensor):
            total += int(_at_one(_numel(value), captured.symbol)) * value.element_size()
    return total


def peak_bytes(captured: Captured, nodes: Sequence[fx.Node], kept: frozenset[fx.Node]) -> int:
    """The most that is alive at once while these nodes run, for one example; `kept` stays to the end."""
    last = {a: i for i, node in enumerate(nodes) for a in (node, *node.all_input_nodes)}
    alive = peak = 0
    for i, node in enumerate(nodes):
        alive += bytes_of(captured, node)
        peak = max(peak, alive)
        alive -= sum(bytes_of(captured, a) for a, end in last.items() if end == i and a not in kept and a in nodes)
    return peak
