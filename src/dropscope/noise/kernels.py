"""Triton kernels for Bernoulli noise in one trip through memory, with the sum and layer norm that follow it.

Owns the kernels alone; `injection` says when they apply. The bits are exactly those of `keyed.bits`. In attention no
softmax weight ever reaches memory, and sums run in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dropscope.noise import keyed, strata

_ROWS = 2**31 - 2**12  # that int32 counts, with a tile to spare
HEAD_WIDTHS = (16, 32, 64, 128)  # that attention has tiles for
INNER = 2  # dimensions between the examples and the last one, at most
NORMED = 4096  # columns of a layer norm, at most: a row stays in registers
_LOG2_E = 1.4426950408889634

_GOLDEN_64 = tl.constexpr(keyed.GOLDEN_64)
_FIRST_64 = tl.constexpr(keyed.MIX_64[0])
_SECOND_64 = tl.constexpr(keyed.MIX_64[1])
_GOLDEN_32 = tl.constexpr(keyed.GOLDEN_32)
_FIRST_32 = tl.constexpr(keyed.MIX_32[0])
_SECOND_32 = tl.constexpr(keyed.MIX_32[1])
_THIRD_32 = tl.constexpr(keyed.MIX_32[2])
_INSIDE = tl.constexpr(strata.INSIDE)
_PRODUCTS_1 = tl.constexpr(strata.PRODUCTS[0])
_PRODUCTS_2 = tl.constexpr(strata.PRODUCTS[1])
_PRODUCTS_4 = tl.constexpr(strata.PRODUCTS[2])
_PRODUCTS_8 = tl.constexpr(strata.PRODUCTS[3])


@triton.jit
def _absorb(state, value):
    """`keyed._absorb` on int64."""
    x = state ^ (value * _GOLDEN_64)
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST_64
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND_64
    return (x ^ ((x >> 31) & 0x1FFFFFFFF)) + _GOLDEN_64


@triton.jit
def _key(start, number, example, stratified: tl.constexpr):
    """The key of a pass and an example, and what stratifies its words: the products of its place, and a shift."""
    place = number & 15
    key = _absorb(_absorb(start, ~(number >> 4) if stratified else number), example)
    table = (_PRODUCTS_1 & -(place & 1)) ^ (_PRODUCTS_2 & -((place >> 1) & 1))
    table ^= (_PRODUCTS_4 & -((place >> 2) & 1)) ^ (_PRODUCTS_8 & -(place >> 3))
    return key, table, (_absorb(key, place) & _INSIDE).to(tl.int32)  # not computed where nobody reads them


@triton.jit
def _word(state, table, shift, column, stratified: tl.constexpr):
    """The last step of `keyed.bits`: int32 from the 64-bit state of a row and the last coordinate."""
    v = (column * _GOLDEN_32) ^ state.to(tl.int32)
    v = (v ^ ((v >> 16) & 0xFFFF)) * _FIRST_32
    # The upper half of the state is multiplied by itself, once a row: then product and sum are one instruction.
    v = (v ^ ((v >> 15) & 0x1FFFF)) * _SECOND_32 + (state >> 32).to(tl.int32) * _SECOND_32
    v = (v ^ ((v >> 16) & 0xFFFF)) * _THIRD_32
    v = v ^ ((v >> 15) & 0x1FFFF)
    if stratified:  # see `strata.stratify`
        nibble = (((v & 255) * 15) >> 6) & 60
        v = v ^ ((table >> nibble.to(tl.int64)).to(tl.int32) << 28) ^ shift
    return v


@triton.jit
def _row_state(
    start, passes, examples, row, here, first_size, second_size, pass_step: tl.constexpr, inner: tl.constexpr,
    stratified: tl.constexpr,
):  # fmt: skip
    """The states of rows of the last dimension, and what `_key` says. Rows are int32: long integers divide slowly."""
    example = row // (first_size * second_size)
    number = tl.load(passes + example * pass_step, mask=here, other=0)
    state, table, shift = _key(start, number, tl.load(examples + example, mask=here, other=0), stratified)
    if inner > 0:
        state = _absorb(state, ((row // second_size) % first_size).to(tl.int64))
    if inner > 1:
        state = _absorb(state, (row % second_size).to(tl.int64))
    return state, table, shift


@triton.jit(do_not_specialize=["start", "rows", "first_size", "second_size", "level"])
def _bernoulli(
    value, other, passes, examples, out, start, rows, columns, first_size, second_size, level, gain,
    pass_step: tl.constexpr, inner: tl.constexpr, added: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    stratified: tl.constexpr,
):  # fmt: skip
    """`high` rows of the last dimension, `wide` units of each."""
    row = tl.program_id(0) * high + tl.arange(0, high)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    here = row < rows
    state, table, shift = _row_state(
        start, passes, examples, row, here, first_size, second_size, pass_step, inner, stratified
    )
    word = _word(state[:, None], table[:, None], shift[:, None], column[None, :], stratified)
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    there = here[:, None] & (column < columns)[None, :]
    x = tl.load(value + at, mask=there, other=0.0)
    kept = tl.where(word >= level, (x.to(tl.float32) * gain).to(x.dtype), x * 0)
    if added:  # rounded as often as plain torch rounds
        kept = (kept.to(tl.float32) + tl.load(other + at, mask=there, other=0.0).to(tl.float32)).to(x.dtype)
    tl.store(out + at, kept, mask=there)


@triton.jit(do_not_specialize=["start", "rows", "first_size", "second_size"])
def _words(
    passes, examples, out, start, rows, columns, first_size, second_size, inner: tl.constexpr, high: tl.constexpr,
    wide: tl.constexpr, stratified: tl.constexpr,
):  # fmt: skip
    """`high` rows of the last dimension, `wide` words of each."""
    row = tl.program_id(0) * high + tl.arange(0, high)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    here = row < rows
    state, table, shift = _row_state(start, passes, examples, row, here, first_size, second_size, 1, inner, stratified)
    there = here[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    word = _word(state[:, None], table[:, None], shift[:, None], column[None, :], stratified)
    tl.store(out + at, word, mask=there)


def words(start: int, passes: Tensor, examples: Tensor, shape: Sequence[int], *, stratified: bool = False) -> Tensor:
    """`keyed.bits` of as many (pass, example) pairs, int32 `[pairs, *shape]`."""
    out = torch.empty((len(examples), *shape), dtype=torch.int32, device=examples.device)
    columns, inner = shape[-1], shape[:-1]
    rows = out.numel() // max(columns, 1)
    if rows >= _ROWS:
        raise ValueError(f"{rows} rows are more than int32 counts")
    if rows:
        first, second = (*inner, *[1] * (INNER - len(inner)))
        wide = min(256, triton.next_power_of_2(columns))
        high = max(1, 2048 // wide)
        _words[(triton.cdiv(rows, high), triton.cdiv(columns, wide))](
            passes.contiguous(), examples.contiguous(), out, start, rows, columns, first, second, inner=len(inner),
            high=high, wide=wide, stratified=stratified,
        )  # fmt: skip
    return out


@triton.jit
def _noisy_sum(
    value, other, row, state, table, shift, columns, level, gain, begin: tl.constexpr, wide: tl.constexpr,
    stratified: tl.constexpr,
):  # fmt: skip
    """`wide` units of a row from `begin` on: value under its mask, plus other, in fp32. Beyond the row they are 0."""
    column = begin + tl.arange(0, wide)
    inside = column < columns
    at = row.to(tl.int64) * columns + column
    x = tl.load(value + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
    return x * tl.where(_word(state, table, shift, column, stratified) >= level, gain, 0.0) + y


@triton.jit
def _scaled(out, weight, bias, row, apart, steady, columns, begin: tl.constexpr, wide: tl.constexpr):
    """Writes that part of a normed row."""
    column = begin + tl.arange(0, wide)
    inside = column < columns
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    at = row.to(tl.int64) * columns + column
    tl.store(out + at, (apart * steady * w + b).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["start", "rows", "first_size", "second_size", "level"])
def _normed(
    value, other, weight, bias, passes, examples, out, start, rows, columns, first_size, second_size, level, gain,
    epsilon, pass_step: tl.constexpr, inner: tl.constexpr, wide: tl.constexpr, rest: tl.constexpr,
    stratified: tl.constexpr,
):  # fmt: skip
    """One row: noise, sum, layer norm.

    It is `wide` units and then `rest`, because sizes are powers of two. One warp takes a short row: its sums then need
    no waiting.
    """
    row = tl.program_id(0)
    state, table, shift = _row_state(
        start, passes, examples, row, True, first_size, second_size, pass_step, inner, stratified  # noqa: FBT003 - as Triton takes it
    )  # fmt: skip
    x = _noisy_sum(value, other, row, state, table, shift, columns, level, gain, 0, wide, stratified)
    total = tl.sum(x, 0)
    if rest > 0:
        more = _noisy_sum(value, other, row, state, table, shift, columns, level, gain, wide, rest, stratified)
        total += tl.sum(more, 0)
    x -= total / columns  # no unit of the first part lies beyond the row
    squares = tl.sum(x * x, 0)
    if rest > 0:
        more = tl.where(wide + tl.arange(0, rest) < columns, more - total / columns, 0.0)
        squares += tl.sum(more * more, 0)
    steady = tl.rsqrt(squares / columns + epsilon)
    _scaled(out, weight, bias, row, x, steady, columns, 0, wide)
    if rest > 0:
        _scaled(out, weight, bias, row, more, steady, columns, wide, rest)


def takes(value: Tensor) -> bool:
    """Whether a value is laid out as `bernoulli` and `normed` need it."""
    if not 2 <= value.dim() <= INNER + 2 or not value.is_contiguous():
        return False
    return value.numel() < _ROWS * max(value.shape[-1], 1)


def bernoulli(
    value: Tensor,
    start: int,
    passes: Tensor,
    examples: Tensor,
    rate: float,
    other: Tensor | None = None,
    out: Tensor | None = None,
    *,
    stratified: bool = False,
) -> Tensor:
    """`value[examples, …, units]`, contiguous, with units dropped at `rate`, plus `other` of the same shape.

    What `keyed.disturb` does for element masks. `start` is `keyed.start`; `passes` holds one number, or one per
    example. A unit that is dropped is 0 times its value, so that an infinite or undefined one stays visible as in plain
    torch.
    """
    out = torch.empty_like(value) if out is None else out
    shape = _Rows.of(value, rate)
    if shape.rows:
        wide = min(256, triton.next_power_of_2(shape.columns))
        high = max(1, 2048 // wide)
        _bernoulli[(triton.cdiv(shape.rows, high), triton.cdiv(shape.columns, wide))](
            value, value if other is None else other, passes, examples, out, start, *shape,
            pass_step=int(len(passes) > 1), inner=value.dim() - 2, added=other is not None, high=high, wide=wide,
            stratified=stratified,
            enable_fp_fusion=False,  # product and sum in one step would round once, plain torch rounds twice
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
    *,
    stratified: bool = False,
) -> Tensor:
    """The layer norm over the last dimension of `bernoulli(…, other)`; the sum never reaches memory."""
    out = torch.empty_like(value)
    shape = _Rows.of(value, rate)
    if shape.rows:
        wide = 1 << (shape.columns.bit_length() - 1)
        rest = 0 if wide == shape.columns else triton.next_power_of_2(shape.columns - wide)
        _normed[(shape.rows,)](
            value, other, weight, bias, passes, examples, out, start, *shape, epsilon, pass_step=int(len(passes) > 1),
            inner=value.dim() - 2, wide=wide, rest=rest, stratified=stratified, num_warps=max(1, wide // 1024),
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
        return cls(value.numel() // max(columns, 1), columns, first, second, keyed.threshold(rate), gain)


def packed(mask: Tensor, keys: int) -> Tensor:
    """A mask of bools `[…, queries, keys]`, 32 keys to the word: int32 `[1 or examples, 1 or heads, queries, words]`.

    >>> packed(torch.tensor([[True, False, True]]), 3).tolist()
    [[[[5]]]]
    """
    whole = mask[(None,) * (4 - mask.dim())].expand(-1, -1, -1, keys)
    bits = torch.nn.functional.pad(whole, (0, -keys % 32)).unflatten(-1, (-1, 32)).to(torch.int32)
    return (bits << torch.arange(32, dtype=torch.int32, device=mask.device)).sum(-1, dtype=torch.int32)


@triton.jit(do_not_specialize=["start", "first", "queries", "seen", "heads", "level"])
def _attend(
    q, k, v, mask, passes, examples, out, start, first, qb, qh, ql, kb, kh, kl, vb, vh, vl, mb, mh, mq, mk, ob, oh, ol,
    heads, queries, seen, scale, level, gain, pass_step: tl.constexpr, masked: tl.constexpr, causal: tl.constexpr,
    width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, stratified: tl.constexpr,
):  # fmt: skip
    """One head of one example, `rows` queries from `first` on; keys come `columns` at a time under a running maximum.
    `scale`, above 0, brings scores to units of log 2, in the step that takes them off the maximum. `masked` is 1 for a
    packed mask, 2 for one to add."""
    example = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    row = first + tl.program_id(1) * rows + tl.arange(0, rows)
    here = row < queries
    unit = tl.arange(0, width)
    query = tl.load(q + example * qb + head * qh + row[:, None] * ql + unit[None, :], mask=here[:, None], other=0.0)
    number = tl.load(passes + example * pass_step)
    state, table, shift = _key(start, number, tl.load(examples + example), stratified)
    state = _absorb(_absorb(state, head), row.to(tl.int64))
    top = tl.full((rows,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((rows,), dtype=tl.float32)
    mixed = tl.zeros((rows, width), dtype=tl.float32)
    given_to = mask + example * mb + head * mh + row * mq
    bit = 1 << tl.arange(0, columns)
    unit_of_score = scale
    if masked == 2:
        unit_of_score = 1.0
    for begin in range(0, seen, columns):
        column = begin + tl.arange(0, columns)
        there = column < seen
        key = tl.load(
            k + example * kb + head * kh + column[None, :] * kl + unit[:, None], mask=there[None, :], other=0.0
        )
        score = tl.dot(query, key)
        allowed = there[None, :]
        if masked == 1:  # beyond the last key its bits are 0
            bits = tl.load(given_to + begin // 32, mask=here, other=0) >> (begin % 32)
            allowed = (bits[:, None] & bit[None, :]) != 0
        if masked == 2:
            given = tl.load(given_to[:, None] + column[None, :] * mk, mask=here[:, None] & there[None, :], other=0)
            # The lowest number of bfloat16 must not become an infinity: a row of such sees all keys alike.
            added = tl.maximum(given.to(tl.float32) * 1.4426950408889634, -3.0e38)
            score = score * scale + tl.where(given == float("-inf"), float("-inf"), added)
        if causal:
            allowed = allowed & (column[None, :] <= row[:, None])
        score = tl.where(allowed, score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        level_of = tl.where(new == float("-inf"), 0.0, new)  # a query that sees nothing gets zeros
        p = tl.exp2(score * unit_of_score - (level_of * unit_of_score)[:, None])
        fade = tl.exp2((top - level_of) * unit_of_score)
        total = total * fade + tl.sum(p, 1)
        word = _word(state[:, None], table, shift, column[None, :], stratified)
        kept = tl.where(word >= level, p, 0.0)
        value = tl.load(
            v + example * vb + head * vh + column[:, None] * vl + unit[None, :], mask=there[:, None], other=0.0
        )
        mixed = mixed * fade[:, None] + tl.dot(kept.to(value.dtype), value)
        top = new
    mixed = mixed * (gain / tl.where(total == 0, 1.0, total))[:, None]
    to = out + example * ob + head * oh + row[:, None] * ol + unit[None, :]
    tl.store(to, mixed.to(query.dtype), mask=here[:, None])


def attend(
    call: Mapping[str, Any], start: int, passes: Tensor, examples: Tensor, rate: float, bits: Tensor | None = None, *,
    stratified: bool = False,
) -> Tensor:  # fmt: skip
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
    # Only the first dimension of a launch takes more than 65,535 programs.
    for first, blocks, rows, columns in _tiles(queries, k.shape[2]):
        _attend[(count * heads, blocks)](
            q, k, v, shown, passes, examples, out, start, first, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            *shown.stride(), *out.stride()[:3], heads, queries, k.shape[2], scale * _LOG2_E, keyed.threshold(rate),
            1.0 / (1.0 - rate), pass_step=int(len(passes) > 1), masked=masked, causal=bool(call["is_causal"]),
            width=width, rows=rows, columns=columns, stratified=stratified, num_warps=rows // 16,
        )  # fmt: skip
    return out


def _tiles(queries: int, keys: int) -> list[tuple[int, int, int, int]]:
    """Launches that cover all queries: the first one, blocks, queries of a block, keys of a tile. Few queries beyond
    the last whole block have a small one of their own, and few keys lie beyond the last.

    >>> _tiles(64, 64), _tiles(72, 72), _tiles(96, 96)
    ([(0, 1, 64, 32)], [(0, 1, 64, 16), (64, 1, 16, 16)], [(0, 2, 64, 32)])
    """
    rows = min(64, max(16, triton.next_power_of_2(queries)))
    columns = 32 if -keys % 32 < 16 else 16
    whole, rest = divmod(queries, rows)
    if whole and 0 < rest <= 16:
        return [(0, whole, rows, columns), (whole * rows, 1, 16, columns)]
    return [(0, whole + (rest > 0), rows, columns)]
