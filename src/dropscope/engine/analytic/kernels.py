"""A Triton kernel for cubature on a GPU: logits at the points, softmax and sums, nothing stored in between.

Owns the kernel alone; `cubature` says when it applies. It computes what plain torch computes, in fp32 accuracy.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_POINTS = 64  # at once
_SUMS = 4  # behind the class sums: Σ p log p, Σ (max − shift), Σ (max − shift)², Σ (p(c*) − p*(c*))²
_LEAST = 16  # side of a product on tensor cores


@triton.jit
def _sums(
    logits, spreads, at, plain_class, plain_value, out,
    points: tl.constexpr, rows: tl.constexpr, classes: tl.constexpr,
    padded: tl.constexpr, columns: tl.constexpr, part: tl.constexpr,
):  # fmt: skip
    """One example, some points at a time."""
    example = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, padded), tl.arange(0, columns)
    known, real = row < rows, column < classes
    moves = tl.load(
        spreads + (example * rows + row[:, None]) * classes + column[None, :],
        mask=known[:, None] & real[None, :],
        other=0.0,
    )
    plain = tl.load(logits + example * classes + column, mask=real, other=0.0)
    best, best_value = tl.load(plain_class + example), tl.load(plain_value + example)
    total = tl.zeros((part, columns), dtype=tl.float32)
    for first in range(0, points, part):
        point = first + tl.arange(0, part)
        live = point < points
        there = live[:, None] & known[None, :]
        factor = tl.load(at + point[:, None] * rows + row[None, :], mask=there, other=0.0)
        z = tl.dot(factor, moves, input_precision="tf32x3") + plain[None, :]
        z = tl.where(real[None, :], z, float("-inf"))
        highest = tl.max(z, 1)
        raised = tl.exp(z - highest[:, None])
        mass = tl.sum(raised, 1)
        p = raised / mass[:, None]
        logarithm = tl.where(real[None, :], z - (highest + tl.log(mass))[:, None], 0.0)
        information = tl.sum(p * logarithm, 1)
        top = 1.0 / mass - best_value
        deviation = tl.sum(tl.where(column[None, :] == best, p, 0.0), 1) - best_value
        q = tl.where(column[None, :] == classes, information[:, None], p)
        q = tl.where(column[None, :] == classes + 1, top[:, None], q)
        q = tl.where(column[None, :] == classes + 2, (top * top)[:, None], q)
        q = tl.where(column[None, :] == classes + 3, (deviation * deviation)[:, None], q)
        total += tl.where(live[:, None], q, 0.0)
    width: tl.constexpr = classes + 4
    tl.store(out + example * width + column, tl.sum(total, 0), mask=column < width)


def sums_at(logits: Tensor, spreads: Tensor, at: Tensor, plain: Tensor) -> Tensor:
    """`cubature.sums_at` in one call."""
    (n, classes), (points, rows) = logits.shape, at.shape
    value, chosen = plain.max(1)
    out = logits.new_empty(n, classes + _SUMS)
    padded, columns = (max(_LEAST, triton.next_power_of_2(size)) for size in (rows, classes + _SUMS))
    _sums[(n,)](
        logits.contiguous(), spreads.contiguous(), at.contiguous(), chosen, value, out,
        points, rows, classes, padded, columns, _POINTS, num_warps=4,
    )  # fmt: skip
    return out
