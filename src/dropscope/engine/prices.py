"""Prices of the two ways to run: what the loop takes, what sharing takes, and what a capture takes before it.

Owns the estimate by which "auto" leaves a run to the loop: a short one, or one whose placements have nothing to share.
Work is counted on one forward of two examples, and the prices are constants: a clock would choose one engine today and
the other tomorrow, with other last bits.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from dropscope.engine.session import Session, sealed
from dropscope.injection import ResolvedPlacement
from dropscope.model import Call, evaluating
from dropscope.progress import format_duration
from dropscope.tracing import About, Point, Visitor, trace

ALWAYS = "DROPSCOPE_CAPTURE"  # "always" in this variable: "auto" captures whatever it costs


@dataclass(frozen=True)
class Prices:
    """Seconds: of the loop per operation, floating-point operation, byte written and word hashed; of a capture in all
    and per operation of the model."""

    operation: float
    flop: float
    byte: float
    word: float
    capture: float
    captured_operation: float


_CPU = Prices(6e-6, 2e-11, 2e-10, 5e-9, 0.15, 0.006)  # one thread of a server: measured, rounded
_CUDA = Prices(1e-5, 5e-14, 1e-12, 0.0, 0.5, 0.008)
_OF_A_MASK = 40  # operations that noise at one site takes


@dataclass(frozen=True)
class Estimate:
    """Seconds that the loop takes in all, that the shared engine does, and that its capture and checks take before."""

    loop: float
    shared: float
    capture: float

    @property
    def favours_loop(self) -> bool:
        """Whether the loop is done before the shared engine would be."""
        return self.loop < self.capture + self.shared

    def __str__(self) -> str:
        loop, shared, capture = map(_seconds, (self.loop, self.shared, self.capture))
        return f"about {loop}; to capture the model would take about {capture}, to share its passes then {shared}"


def _seconds(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 10 else f"{seconds:.1g} s"


def estimate(session: Session, placements: Sequence[ResolvedPlacement], passes: int) -> Estimate:
    """From counted work alone."""
    prices = _CUDA if session.device.type == "cuda" else _CPU
    batches, examples = session.data.batches, session.data.n
    points = {point for resolved in placements for point in resolved}
    whole, before, few = counted(session, points)

    def seconds(work: Work) -> float:
        """Of so much work in every forward, for one pass over the data."""
        each = (work.flops * prices.flop + work.bytes * prices.byte) / few
        return work.operations * prices.operation * len(batches) + each * examples

    def masks(point: Point, resolved: ResolvedPlacement) -> float:
        words = before[point].values if point in before and resolved[point].mask == "element" else 0
        hashed = words / few * examples * prices.word
        return _OF_A_MASK * prices.operation * len(batches) + hashed

    noise = sum(masks(point, resolved) for resolved in placements for point in resolved)
    loop = passes * (len(placements) * seconds(whole) + noise)
    shared = 0.0  # on a GPU kernels make it so much faster that it hardly counts
    if session.device.type != "cuda":
        first = {point: resolved for resolved in reversed(placements) for point in resolved}
        words = sum(masks(point, resolved) for point, resolved in first.items())  # the same for all rates
        reached = {point: seconds(before[point]) for point in points if point in before}
        shared = passes * (_of_tree(placements, reached, seconds(whole)) + words)
    signatures = len({batch.signature for batch in batches})
    return Estimate(loop, shared, signatures * (prices.capture + prices.captured_operation * whole.operations))


def _of_tree(placements: Sequence[ResolvedPlacement], reached: dict[Point, float], whole: float) -> float:
    """Seconds of one pass of all placements where those with the same noise so far are computed once.

    `reached` says when a forward of `whole` seconds comes to each point. What comes before any noise counts nothing.
    """
    order = sorted(reached, key=reached.__getitem__)
    variant = [0] * len(placements)  # of each placement, so far; 0 is plain
    known: dict[tuple[int, Any], int] = {}
    total = 0.0
    for point, end in zip(order, [*(reached[point] for point in order[1:]), whole], strict=True):
        for number, resolved in enumerate(placements):
            if point in resolved:
                kind = variant[number], (point, resolved[point].rate, resolved[point].style)
                variant[number] = known.setdefault(kind, len(known) + 1)
        total += (end - reached[point]) * len({one for one in variant if one})
    return total


def always_captures() -> bool:
    """Whether "auto" is told not to mind what a capture costs."""
    return os.environ.get(ALWAYS) == "always"


class Work(NamedTuple):
    """What a forward has done up to somewhere; `values` counts those of the tensor that it has come to."""

    operations: int
    flops: int
    bytes: int
    values: int = 0


class _Counter(TorchDispatchMode):
    """Counts what runs in it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.flops = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.operations += 1
        if not getattr(func, "is_view", False):
            self.bytes += sum(value.nbytes for value in pytree.tree_leaves(output) if isinstance(value, Tensor))
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=output))
        return output

    def so_far(self, values: int = 0) -> Work:
        return Work(self.operations, self.flops, self.bytes, values)


class _Milestones(Visitor):
    """Notes how much was counted when a forward comes to each point."""

    def __init__(self, points: Collection[Point], counter: _Counter) -> None:
        self.passed: dict[Point, Work] = {}
        self._points, self._counter = points, counter

    def begin(self, call: Call) -> None:
        pass

    def wants(self, point: Point) -> bool:
        return point in self._points

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        self.passed[point] = self._counter.so_far(value.numel())
        return value


def counted(session: Session, points: Collection[Point]) -> tuple[Work, dict[Point, Work], int]:
    """The work of one forward of a few examples, the work before each point, and how many examples these are."""
    few, model, counter = session.data.batches[0].first_two(), session.running, _Counter()
    call, milestones = session.fed(few.call), _Milestones(points, counter)
    with torch.no_grad(), sealed(), evaluating(model), trace(model, milestones), counter:
        call.run(model)
    return counter.so_far(), milestones.passed, few.n
