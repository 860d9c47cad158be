"""A Triton kernel that puts Bernoulli noise on a value in one trip through memory: hash, compare, multiply.

Owns the kernel alone; `noise.disturb` says when it applies. The bits are those of `noise.bits`, to the last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["count", "columns", "level"])
def _bernoulli(value, states, out, count, columns, level, gain, golden, first, second, third, size: tl.constexpr):
    """One unit each: `states` holds a 64-bit key per row of the last dimension."""
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    there = at < count
    state = tl.load(states + at // columns, mask=there, other=0)
    low = state.to(tl.int32)
    high = (state >> 32).to(tl.int32)
    v = ((at % columns).to(tl.int32) * golden.to(tl.int32)) ^ low
    v = (v ^ ((v >> 16) & 0xFFFF)) * first.to(tl.int32)
    v = ((v ^ ((v >> 15) & 0x1FFFF)) + high) * second.to(tl.int32)
    v = (v ^ ((v >> 16) & 0xFFFF)) * third.to(tl.int32)
    v = v ^ ((v >> 15) & 0x1FFFF)
    x = tl.load(value + at, mask=there, other=0.0)
    kept = (x.to(tl.float32) * gain).to(x.dtype)
    tl.store(out + at, tl.where(v >= level.to(tl.int32), kept, kept * 0), mask=there)


def bernoulli(value: Tensor, states: Tensor, level: int, gain: float, constants: tuple[int, int, int, int]) -> Tensor:
    """`value` (contiguous, rows of its last dimension keyed by `states`) with units below `level` dropped.

    A unit that is dropped is 0 times its value, so that an infinite or undefined one stays visible as in plain torch.
    """
    out = torch.empty_like(value)
    count = value.numel()
    if count:
        size = 1024
        grid = (triton.cdiv(count, size),)
        _bernoulli[grid](value, states, out, count, value.shape[-1], level, gain, *constants, size=size)
    return out
