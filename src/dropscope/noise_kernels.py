"""Triton kernels that put Bernoulli noise on values in one trip through memory: keys, hash, compare, multiply.

Owns the kernels alone; `injection.Noise` says when they apply. The bits are those of `noise.bits`, to the last. In
attention no softmax weight ever reaches memory, and sums run in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dropscope import noise

HEAD_WIDTHS = (16, 32, 64, 128)  # that attention has tiles for
INNER = 2  # dimensions between the examples and the last one, at most

_GOLDEN_64 = tl.constexpr(noise.GOLDEN_64)
_FIRST_64 = tl.constexpr(noise.MIX_64[0])
_SECOND_64 = tl.constexpr(noise.MIX_64[1])
_GOLDEN_32 = tl.constexpr(noise.GOLDEN_32)
_FIRST_32 = tl.constexpr(noise.MIX_32[0])
_SECOND_32 = tl.constexpr(noise.MIX_32[1])
_THIRD_32 = tl.constexpr(noise.MIX_32[2])


@triton.jit
def _absorb(state, value):
    """`noise._absorb` on int64."""
    x = state ^ (value * _GOLDEN_64)
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST_64
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND_64
    return (x ^ ((x >> 31) & 0x1FFFFFFFF)) + _GOLDEN_64


@triton.jit
def _word(state, column):
    """The last step of `noise.bits`: int32 from the 64-bit state of a row and the last coordinate."""
    v = (column * _GOLDEN_32) ^ state.to(tl.int32)
    v = (v ^ ((v >> 16) & 0xFFFF)) * _FIRST_32
    v = ((v ^ ((v >> 15) & 0x1FFFF)) + (state >> 32).to(tl.int32)) * _SECOND_32
    v = (v ^ ((v >> 16) & 0xFFFF)) * _THIRD_32
    return v ^ ((v >> 15) & 0x1FFFF)


@triton.jit(do_not_specialize=["start", "rows", "first_size", "second_size", "level"])
def _bernoulli(
    value, passes, examples, out, start, rows, columns, first_size, second_size, level, gain,
    pass_step: tl.constexpr, inner: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """`high` rows of the last dimension, `wide` units of each."""
    row = tl.program_id(0).to(tl.int64) * high + tl.arange(0, high)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    here = row < rows
    example = row // (first_size * second_size)
    state = _absorb(start, tl.load(passes + example * pass_step, mask=here, other=0))
    state = _absorb(state, tl.load(examples + example, mask=here, other=0))
    if inner > 0:
        state = _absorb(state, (row // second_size) % first_size)
    if inner > 1:
        state = _absorb(state, row % second_size)
    word = _word(state[:, None], column[None, :])
    at = row[:, None] * columns + column[None, :]
    there = here[:, None] & (column < columns)[None, :]
    x = tl.load(value + at, mask=there, other=0.0)
    kept = (x.to(tl.float32) * gain).to(x.dtype)
    tl.store(out + at, tl.where(word >= level, kept, kept * 0), mask=there)


def bernoulli(value: Tensor, start: int, passes: Tensor, examples: Tensor, rate: float) -> Tensor:
    """`value[examples, …, units]`, contiguous, with units dropped at `rate`: `noise.disturb` for element masks.

    `start` is `noise.start`, `passes` holds one number or one per example. A unit that is dropped is 0 times its value,
    so that an infinite or undefined one stays visible as in plain torch.
    """
    out = torch.empty_like(value)
    columns = value.shape[-1]
    inner = value.shape[1:-1]
    first, second = (*inner, *[1] * (INNER - len(inner)))
    rows = value.numel() // max(columns, 1)
    if rows:
        wide = min(512, triton.next_power_of_2(columns))
        high = max(1, 2048 // wide)
        gain = float(torch.tensor(1.0 / (1.0 - rate), dtype=value.dtype))
        _bernoulli[(triton.cdiv(rows, high), triton.cdiv(columns, wide))](
            value, passes, examples, out, start, rows, columns, first, second, noise.threshold(rate), gain,
            pass_step=int(len(passes) > 1), inner=len(inner), high=high, wide=wide,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["start", "queries", "seen", "heads", "level"])
def _attend(
    q, k, v, mask, passes, examples, out, start, qb, qh, ql, kb, kh, kl, vb, vh, vl, mb, mh, mq, mk, ob, oh, ol, heads,
    queries, seen, scale, level, gain, pass_step: tl.constexpr, masked: tl.constexpr, causal: tl.constexpr,
    width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """One head of one example, `rows` queries; keys come `columns` at a time under a running maximum."""
    example = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    here = row < queries
    unit = tl.arange(0, width)
    query = tl.load(q + example * qb + head * qh + row[:, None] * ql + unit[None, :], mask=here[:, None], other=0.0)
    state = _absorb(_absorb(start, tl.load(passes + example * pass_step)), tl.load(examples + example))
    state = _absorb(_absorb(state, head), row.to(tl.int64))
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
        kept = tl.where(_word(state[:, None], column[None, :]) >= level, p * gain, 0.0)
        value = tl.load(
            v + example * vb + head * vh + column[:, None] * vl + unit[None, :], mask=there[:, None], other=0.0
        )
        mixed = mixed * fade[:, None] + tl.dot(kept.to(value.dtype), value)
        top = new
    mixed = mixed / tl.where(total == 0, 1.0, total)[:, None]
    to = out + example * ob + head * oh + row[:, None] * ol + unit[None, :]
    tl.store(to, mixed.to(query.dtype), mask=here[:, None])


def attend(call: Mapping[str, Any], start: int, passes: Tensor, examples: Tensor, rate: float) -> Tensor:
    """Attention `[examples, heads, queries, width]` of scaled_dot_product_attention with noise on its weights.

    The answer lies as [examples, queries, heads, width], which is how a model wants it next.
    """
    q, k, v, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    count, heads, queries, width = q.shape
    out = torch.empty((count, queries, heads, width), dtype=q.dtype, device=q.device).transpose(1, 2)
    shown = q if mask is None else mask.expand(count, heads, queries, k.shape[2])
    masked = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    shown = shown.view(torch.uint8) if masked == 1 else shown
    scale = width**-0.5 if call["scale"] is None else float(call["scale"])
    rows = min((64, 32), key=lambda size: -(-queries // size) * size)  # the fewest rows beyond the last query
    # Only the first dimension of a launch takes more than 65,535 programs.
    _attend[(count * heads, triton.cdiv(queries, rows))](
        q, k, v, shown, passes, examples, out, start, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        *shown.stride(), *out.stride()[:3], heads, queries, k.shape[2], scale, noise.threshold(rate),
        1.0 / (1.0 - rate), pass_step=int(len(passes) > 1), masked=masked, causal=bool(call["is_causal"]), width=width,
        rows=rows, columns=32, num_warps=4 if rows == 64 else 2,
    )  # fmt: skip
    return out
