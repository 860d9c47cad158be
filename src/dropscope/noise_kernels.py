"""Triton kernels that put Bernoulli noise on values in one trip through memory, with the sum and layer norm behind it.

Owns the kernels alone; `injection.Noise` says when they apply. The bits are those of `noise.bits`, to the last. In
attention no softmax weight ever reaches memory, and sums run in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dropscope import noise

HEAD_WIDTHS = (16, 32, 64, 128)  # that attention has tiles for
INNER = 2  # dimensions between the examples and the last one, at most
NORMED = 4096  # columns of a layer norm, at most: a row stays in registers
_LOG2_E = 1.4426950408889634

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


@triton.jit
def _row_state(
    start, passes, examples, row, here, first_size, second_size, pass_step: tl.constexpr, inner: tl.constexpr
):
    """The 64-bit states of rows of the last dimension."""
    example = row // (first_size * second_size)
    state = _absorb(start, tl.load(passes + example * pass_step, mask=here, other=0))
    state = _absorb(state, tl.load(examples + example, mask=here, other=0))
    if inner > 0:
        state = _absorb(state, (row // second_size) % first_size)
    if inner > 1:
        state = _absorb(state, row % second_size)
    return state


@triton.jit
def _dropped(value, other, at, there, word, level, gain, added: tl.constexpr):
    """Units under the mask of `word`, and `other` added to them; rounded as often as plain torch rounds."""
    x = tl.load(value + at, mask=there, other=0.0)
    kept = (x.to(tl.float32) * gain).to(x.dtype)
    kept = tl.where(word >= level, kept, x * 0)
    if added:
        kept = (kept.to(tl.float32) + tl.load(other + at, mask=there, other=0.0).to(tl.float32)).to(x.dtype)
    return kept


@triton.jit(do_not_specialize=["start", "rows", "first_size", "second_size", "level"])
def _bernoulli(
    value, other, passes, examples, out, start, rows, columns, first_size, second_size, level, gain,
    pass_step: tl.constexpr, inner: tl.constexpr, added: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """`high` rows of the last dimension, `wide` units of each."""
    row = tl.program_id(0).to(tl.int64) * high + tl.arange(0, high)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    here = row < rows
    state = _row_state(start, passes, examples, row, here, first_size, second_size, pass_step, inner)
    word = _word(state[:, None], column[None, :])
    at = row[:, None] * columns + column[None, :]
    there = here[:, None] & (column < columns)[None, :]
    tl.store(out + at, _dropped(value, other, at, there, word, level, gain, added), mask=there)


@triton.jit(do_not_specialize=["start", "rows", "first_size", "second_size", "level"])
def _normed(
    value, other, weight, bias, passes, examples, out, start, rows, columns, first_size, second_size, level, gain,
    epsilon, pass_step: tl.constexpr, inner: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """One whole row: noise, sum, layer norm. By one warp where it is short, whose sums need no waiting."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, wide)
    inside = column < columns
    state = _row_state(start, passes, examples, row, True, first_size, second_size, pass_step, inner)
    at = row * columns + column
    x = _dropped(value, other, at, inside, _word(state, column), level, gain, True).to(tl.float32)
    apart = tl.where(inside, x - tl.sum(x, 0) / columns, 0.0)
    steady = tl.rsqrt(tl.sum(apart * apart, 0) / columns + epsilon)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (apart * steady * w + b).to(out.dtype.element_ty), mask=inside)


def bernoulli(
    value: Tensor,
    start: int,
    passes: Tensor,
    examples: Tensor,
    rate: float,
    other: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`value[examples, …, units]`, contiguous, with units dropped at `rate`: `noise.disturb` for element masks; plus
    `other`, of the same shape.

    `start` is `noise.start`, `passes` holds one number or one per example. A unit that is dropped is 0 times its value,
    so that an infinite or undefined one stays visible as in plain torch.
    """
    out = torch.empty_like(value) if out is None else out
    shape = _Rows.of(value, rate)
    if shape.rows:
        wide = min(256, triton.next_power_of_2(shape.columns))
        high = max(1, 2048 // wide)
        _bernoulli[(triton.cdiv(shape.rows, high), triton.cdiv(shape.columns, wide))](
            value, value if other is None else other, passes, examples, out, start, *shape,
            pass_step=int(len(passes) > 1), inner=value.dim() - 2, added=other is not None, high=high, wide=wide,
        )  # fmt: skip
    return out


def normed(
    value: Tensor,
    start: int,
    passes: Tensor,
    examples: Tensor,
    rate: float,
    other: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
) -> Tensor:
    """The layer norm over the last dimension of `bernoulli(…, other)`, whose sum never reaches memory."""
    out = torch.empty_like(value)
    shape = _Rows.of(value, rate)
    if shape.rows:
        wide = triton.next_power_of_2(shape.columns)
        _normed[(shape.rows,)](
            value, other, weight, bias, passes, examples, out, start, *shape, epsilon,
            pass_step=int(len(passes) > 1), inner=value.dim() - 2, wide=wide, num_warps=max(1, wide // 1024),
        )  # fmt: skip
    return out


class _Rows(NamedTuple):
    """A value as rows of its last dimension, in the order the kernels take it."""

    rows: int
    columns: int
    first: int
    second: int
    level: int
    gain: float

    @classmethod
    def of(cls, value: Tensor, rate: float) -> _Rows:
        columns = value.shape[-1]
        inner = value.shape[1:-1]
        first, second = (*inner, *[1] * (INNER - len(inner)))
        gain = float(torch.tensor(1.0 / (1.0 - rate), dtype=value.dtype))
        return cls(value.numel() // max(columns, 1), columns, first, second, noise.threshold(rate), gain)


def packed(mask: Tensor, keys: int) -> Tensor:
    """A mask of bools `[…, queries, keys]`, 32 keys to the word: int32 `[1 or examples, 1 or heads, queries, words]`.

    >>> packed(torch.tensor([[True, False, True]]), 3).tolist()
    [[[[5]]]]
    """
    whole = mask[(None,) * (4 - mask.dim())].expand(-1, -1, -1, keys)
    bits = torch.nn.functional.pad(whole, (0, -keys % 32)).unflatten(-1, (-1, 32)).to(torch.int32)
    return (bits << torch.arange(32, dtype=torch.int32, device=mask.device)).sum(-1, dtype=torch.int32)


@triton.jit(do_not_specialize=["start", "queries", "seen", "heads", "level"])
def _attend(
    q, k, v, mask, passes, examples, out, start, qb, qh, ql, kb, kh, kl, vb, vh, vl, mb, mh, mq, mk, ob, oh, ol, heads,
    queries, seen, scale, level, gain, pass_step: tl.constexpr, masked: tl.constexpr, causal: tl.constexpr,
    width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """One head of one example, `rows` queries; keys come `columns` at a time under a running maximum. Scores are in
    units of log 2. `masked` is 1 for a packed mask, 2 for one to add."""
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
    given_to = mask + example * mb + head * mh + row * mq
    for begin in range(0, seen, columns):
        column = begin + tl.arange(0, columns)
        there = column < seen
        key = tl.load(
            k + example * kb + head * kh + column[None, :] * kl + unit[:, None], mask=there[None, :], other=0.0
        )
        score = tl.dot(query, key) * scale
        allowed = there[None, :]
        if masked == 1:  # beyond the last key its bits are 0
            bits = tl.load(given_to + begin // 32, mask=here, other=0)
            allowed = ((bits[:, None] >> (column % 32)[None, :]) & 1) != 0
        if masked == 2:
            given = tl.load(given_to[:, None] + column[None, :] * mk, mask=here[:, None] & there[None, :], other=0)
            # The lowest number of bfloat16 must not become an infinity: a row of such sees all keys alike.
            added = tl.maximum(given.to(tl.float32) * 1.4426950408889634, -3.0e38)
            score += tl.where(given == float("-inf"), float("-inf"), added)
        if causal:
            allowed = allowed & (column[None, :] <= row[:, None])
        score = tl.where(allowed, score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        level_of = tl.where(new == float("-inf"), 0.0, new)  # a query that sees nothing gets zeros
        p = tl.exp2(score - level_of[:, None])
        fade = tl.exp2(top - level_of)
        total = total * fade + tl.sum(p, 1)
        kept = tl.where(_word(state[:, None], column[None, :]) >= level, p, 0.0)
        value = tl.load(
            v + example * vb + head * vh + column[:, None] * vl + unit[None, :], mask=there[:, None], other=0.0
        )
        mixed = mixed * fade[:, None] + tl.dot(kept.to(value.dtype), value)
        top = new
    mixed = mixed * (gain / tl.where(total == 0, 1.0, total))[:, None]
    to = out + example * ob + head * oh + row[:, None] * ol + unit[None, :]
    tl.store(to, mixed.to(query.dtype), mask=here[:, None])


def attend(
    call: Mapping[str, Any], start: int, passes: Tensor, examples: Tensor, rate: float, bits: Tensor | None = None
) -> Tensor:
    """Attention `[examples, heads, queries, width]` of scaled_dot_product_attention with noise on its weights.

    `bits` is the mask of booleans, `packed` (a model gives one mask to all its layers). The answer lies as [examples,
    queries, heads, width], which is how a model wants it next.
    """
    q, k, v, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    count, heads, queries, width = q.shape
    out = torch.empty((count, queries, heads, width), dtype=q.dtype, device=q.device).transpose(1, 2)
    masked, shown = 0, q
    if mask is not None and mask.dtype == torch.bool:
        masked, shown = 1, (packed(mask, k.shape[2]) if bits is None else bits).expand(count, heads, queries, -1)
    elif mask is not None:
        masked, shown = 2, mask.expand(count, heads, queries, k.shape[2])
    scale = width**-0.5 if call["scale"] is None else float(call["scale"])
    rows, columns, warps = _tile(queries, k.shape[2])
    # Only the first dimension of a launch takes more than 65,535 programs.
    _attend[(count * heads, triton.cdiv(queries, rows))](
        q, k, v, shown, passes, examples, out, start, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        *shown.stride(), *out.stride()[:3], heads, queries, k.shape[2], scale * _LOG2_E, noise.threshold(rate),
        1.0 / (1.0 - rate), pass_step=int(len(passes) > 1), masked=masked, causal=bool(call["is_causal"]), width=width,
        rows=rows, columns=columns, num_warps=warps,
    )  # fmt: skip
    return out


def _tile(queries: int, keys: int) -> tuple[int, int, int]:
    """Queries and keys of a tile, and its warps: as few keys beyond the last as that allows."""
    rows = min(64, max(16, triton.next_power_of_2(queries)))
    return rows, 32 if -keys % 32 < 16 else 16, rows // 16
