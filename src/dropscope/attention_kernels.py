"""A Triton kernel for attention whose softmax weights carry Bernoulli noise: no weight ever reaches memory.

Owns the kernel alone; `injection.Noise.attend` says when it applies. The bits are those of `noise.bits`; sums run in
fp32, so in half precision it is nearer to fp32 than attention written out in half precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["queries", "seen", "heads", "level"])
def _attend(
    q, k, v, mask, states, out, qb, qh, ql, kb, kh, kl, vb, vh, vl, mb, mh, mq, mk, ob, oh, ol, heads, queries, seen,
    scale, level, gain, golden, first, second, third, masked: tl.constexpr, causal: tl.constexpr, width: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """One head of one example, `rows` queries; keys come `columns` at a time under a running maximum."""
    example = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    here = row < queries
    unit = tl.arange(0, width)
    query = tl.load(q + example * qb + head * qh + row[:, None] * ql + unit[None, :], mask=here[:, None], other=0.0)
    state = tl.load(states + (example * heads + head) * queries + row, mask=here, other=0)
    low, high = state.to(tl.int32), (state >> 32).to(tl.int32)
    top = tl.full((rows,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((rows,), dtype=tl.float32)
    mixed = tl.zeros((rows, width), dtype=tl.float32)
    for begin in range(0, seen, columns):
        column = begin + tl.arange(0, columns)
        there = column < seen
        key = tl.load(
            k + example * kb + head * kh + column[None, :] * kl + unit[:, None], mask=there[None, :], other=0.0
        )
        score = tl.dot(query, key) * scale
        if masked > 0:
            at = mask + example * mb + head * mh + row[:, None] * mq + column[None, :] * mk
            given = tl.load(at, mask=here[:, None] & there[None, :], other=0)
            if masked == 1:
                score = tl.where(given != 0, score, float("-inf"))
            else:
                score += given.to(tl.float32)
        allowed = there[None, :]
        if causal:
            allowed = allowed & (column[None, :] <= row[:, None])
        score = tl.where(allowed, score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        level_of = tl.where(new == float("-inf"), 0.0, new)  # a query that sees nothing gets zeros
        p = tl.exp(score - level_of[:, None])
        fade = tl.exp(top - level_of)
        total = total * fade + tl.sum(p, 1)
        word = (column[None, :] * golden.to(tl.int32)) ^ low[:, None]
        word = (word ^ ((word >> 16) & 0xFFFF)) * first.to(tl.int32)
        word = ((word ^ ((word >> 15) & 0x1FFFF)) + high[:, None]) * second.to(tl.int32)
        word = (word ^ ((word >> 16) & 0xFFFF)) * third.to(tl.int32)
        word = word ^ ((word >> 15) & 0x1FFFF)
        kept = tl.where(word >= level.to(tl.int32), p * gain, 0.0)
        value = tl.load(
            v + example * vb + head * vh + column[:, None] * vl + unit[None, :], mask=there[:, None], other=0.0
        )
        mixed = mixed * fade[:, None] + tl.dot(kept.to(value.dtype), value)
        top = new
    mixed = mixed / tl.where(total == 0, 1.0, total)[:, None]
    to = out + example * ob + head * oh + row[:, None] * ol + unit[None, :]
    tl.store(to, mixed.to(query.dtype), mask=here[:, None])


def attend(
    call: dict[str, Any], scale: float, states: Tensor, level: int, gain: float, constants: Sequence[int]
) -> Tensor:
    """Noisy attention `[examples, heads, queries, width]` of a call of scaled_dot_product_attention.

    `states` holds a 64-bit key per (example, head, query). The answer lies as [examples, queries, heads, width],
    which is how a model wants it next.
    """
    q, k, v, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    examples, heads, queries, width = q.shape
    out = torch.empty((examples, queries, heads, width), dtype=q.dtype, device=q.device).transpose(1, 2)
    shown = q if mask is None else mask.expand(examples, heads, queries, k.shape[2])
    masked = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    shown = shown.view(torch.uint8) if masked == 1 else shown
    rows, columns = 64, 32
    # Only the first dimension of a launch takes more than 65,535 programs.
    _attend[(examples * heads, triton.cdiv(queries, rows))](
        q, k, v, shown, states, out, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *shown.stride(),
        *out.stride()[:3], heads, queries, k.shape[2], scale, level, gain, *constants, masked=masked,
        causal=bool(call["is_causal"]), width=width, rows=rows, columns=columns,
    )  # fmt: skip
    return out
