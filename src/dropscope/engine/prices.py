"""Prices of the two ways to run: what the loop takes, and what it takes to capture a model, from counted work.

Owns the estimate by which "auto" leaves a short run to the loop. Work is counted on one forward of two examples, and
the prices are constants: a clock would choose one engine today and the other tomorrow, with other last bits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from dropscope.engine.session import Session, sealed
from dropscope.injection import ResolvedPlacement
from dropscope.progress import format_duration

ALWAYS = "DROPSCOPE_CAPTURE"  # "always" in this variable: "auto" captures whatever it costs


@dataclass(frozen=True)
class Prices:
    """Seconds: of the loop per operation, floating-point operation and byte written; of a capture in all and per
    operation of the model."""

    operation: float
    flop: float
    byte: float
    capture: float
    captured_operation: float


_CPU = Prices(6e-6, 2e-11, 2e-10, 0.15, 0.008)  # one thread of a server: measured, rounded
_CUDA = Prices(1e-5, 5e-14, 1e-12, 0.5, 0.008)
_OF_A_MASK = 40  # operations that noise at one site takes


@dataclass(frozen=True)
class Estimate:
    """Seconds that the loop takes in all, and that a capture and its checks take before anything runs."""

    loop: float
    capture: float

    @property
    def favours_loop(self) -> bool:
        """Whether the loop is done before the capture would be."""
        return self.loop < self.capture

    def __str__(self) -> str:
        return f"about {_seconds(self.loop)}; to capture the model would take about {_seconds(self.capture)}"


def _seconds(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 10 else f"{seconds:.1g} s"


def estimate(session: Session, placements: Sequence[ResolvedPlacement], passes: int) -> Estimate:
    """From counted work alone."""
    prices = _CUDA if session.device.type == "cuda" else _CPU
    work, examples = _counted(session)
    batches = session.data.batches
    sites = sum(len(resolved) for resolved in placements)
    forwards = len(placements) * len(batches)
    operations = work.operations * forwards + _OF_A_MASK * sites * len(batches)
    each = (work.flops * prices.flop + work.bytes * prices.byte) / examples
    loop = passes * (operations * prices.operation + len(placements) * session.data.n * each)
    signatures = len({batch.signature for batch in batches})
    return Estimate(loop, signatures * (prices.capture + prices.captured_operation * work.operations))


def always_captures() -> bool:
    """Whether "auto" is told not to mind what a capture costs."""
    return os.environ.get(ALWAYS) == "always"


class _Work(TorchDispatchMode):
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


def _counted(session: Session) -> tuple[_Work, int]:
    few = session.data.batches[0].first_two()
    call = session.fed(few.call)
    work = _Work()
    with torch.no_grad(), sealed(), session.disturbed({}), work:
        call.run(session.running)
    return work, few.n
