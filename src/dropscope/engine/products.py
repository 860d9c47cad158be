"""Triton kernel for linear layers in fp32 on tensor cores: twice as fast as fp32 units, and no less exact.

Owns the kernel alone; `chains` says when it applies. Both factors are split into the 11 bits that a tensor core takes
and the rest; three of the four products make up an fp32 product to its last bits. Tensor cores truncate as they sum,
so a sum stays on them for 32 terms at most and goes on in fp32 registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS, _PART, _GROUP = 64, 128, 32, 8  # the fastest of fifteen shapes on an H200
_FEWEST_ROWS = 1024  # below, a launch is not worth while


@triton.jit(do_not_specialize=["count"])
def _product(
    value, high, low, bias, out, count, outputs: tl.constexpr, units: tl.constexpr, biased: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, part: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    """One tile; tiles that read the same rows and columns run side by side, so that these are read from cache."""
    across: tl.constexpr = (outputs + columns - 1) // columns
    wide: tl.constexpr = group * across
    number = tl.program_id(0)
    first = number // wide * group
    size = min(tl.cdiv(count, rows) - first, group)
    row = ((first + number % wide % size) * rows + tl.arange(0, rows)).to(tl.int64)
    column = number % wide // size * columns + tl.arange(0, columns)
    unit = tl.arange(0, part)
    there, inside = (row < count)[:, None], (column < outputs)[None, :]
    at = value + row[:, None] * units + unit[None, :]
    upper = high + column[None, :] * units + unit[:, None]
    lower = low + column[None, :] * units + unit[:, None]
    total = tl.zeros((rows, columns), dtype=tl.float32)
    for _ in range(0, units, part):
        x = tl.load(at, mask=there, other=0.0)
        w = tl.load(upper, mask=inside, other=0.0)
        v = tl.load(lower, mask=inside, other=0.0)
        top = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        now = tl.dot(x - top, w, input_precision="tf32")
        now = tl.dot(top, v, now, input_precision="tf32")
        now = tl.dot(top, w, now, input_precision="tf32")
        total += now
        at += part
        upper += part
        lower += part
    if biased:
        total += tl.load(bias + column, mask=column < outputs, other=0.0)[None, :]
    tl.store(out + row[:, None] * outputs + column[None, :], total, mask=there & inside)


def linear(value: Tensor, split: Tensor, bias: Tensor | None) -> Tensor | None:
    """A linear layer by the `halves` of its weight (see `chains`).

    None where the values do not lie as the kernel needs them.
    """
    _, outputs, units = split.shape
    if value.dtype != torch.float32 or not value.is_contiguous() or value.numel() < _FEWEST_ROWS * units:
        return None
    count = value.numel() // units
    out = torch.empty((*value.shape[:-1], outputs), dtype=value.dtype, device=value.device)
    _product[(triton.cdiv(count, _ROWS) * triton.cdiv(outputs, _COLUMNS),)](
        value, split[0], split[1], value if bias is None else bias, out, count, outputs, units, bias is not None,
        _ROWS, _COLUMNS, _PART, _GROUP, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out
