"""How much is done at once: examples, passes and rows that fit into memory, and on a CPU into its caches.

Owns the sizes. They are settled before a run starts, so that last bits do not depend on what was free later.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dropscope import fused
from dropscope.machine import runs_kernels
from dropscope.plan import Plan, bytes_of, peak_bytes

# Working set of a segment on a CPU: beyond the caches, folding is slower than looping (PITFALLS R25).
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
    steps = range(len(plan.steps))
    if not plan.steps:
        return Blocks(min(examples, 256), 1, ())
    heaviest = [
        max(peak_bytes(captured, plan.segment(0, i), frozenset()), 2 * bytes_of(captured, plan.steps[i].node), 1)
        for i in steps
    ]
    share = memory // (2 * len(plan.steps) + 2)
    working = min(share, _CACHE_BYTES) if device.type == "cpu" else share
    rows = tuple(max(1, working // size) for size in heaviest)
    plain_bytes = max(sum(bytes_of(captured, node) for node in captured.nodes) // 4, 1)
    if not runs_kernels(device):
        limits = (_CPU_EXAMPLES, _CPU_PASSES) if device.type == "cpu" else (examples, passes)
        at_once = max(1, min(examples, limits[0], share // plain_bytes, min(rows)))
        return Blocks(at_once, max(1, min(passes, limits[1], min(rows) // at_once)), rows)
    kept = tuple(_kept_bytes(plan, i, heaviest[i]) for i in steps)
    family = [len(step.rates) * size for step, size in zip(plan.steps, kept, strict=True)]
    pairs = max(1, share // max(family))  # (pass, example) pairs at once: a family of every site must fit
    fitting = max(pairs // passes, min(_CUDA_EXAMPLES_AT_LEAST, pairs))
    at_once = max(1, min(examples, share // plain_bytes, max(fitting // 64 * 64, min(fitting, 64))))
    return Blocks(at_once, max(1, min(passes, pairs // at_once)), rows, tuple(max(1, share // size) for size in kept))


def _kept_bytes(plan: Plan, index: int, heaviest: int) -> int:
    """Bytes per row of what a segment keeps where a kernel runs it; all it needs where none does."""
    if index + 1 == len(plan.steps):
        return 64
    part = fused.middle(plan, 0, index)
    return heaviest if part is None else bytes_of(plan.captured, plan.steps[index + 1].node)
