"""Triton kernels for the end of a sweep on a GPU: noise, last layer, softmax and statistics, nothing stored in between.

Also pointwise chains and narrow convolutions between noises. Owns the kernels alone; `chains` and `fusion` say when
they apply. They compute what plain torch computes, in fp32 accuracy (products split into three TF32 parts).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

SUMS = 4  # behind the class sums: Σ p log p, Σ (max − shift), Σ (max − shift)², Σ (p(c*) − p*(c*))²


# Sizes that change from block to block are not specialised on: each new size would compile the kernel again.
@triton.jit(do_not_specialize=["hidden_rows", "examples", "passes"])
def _tail(
    hidden, words, level, gain, weight, bias, plain_class, plain_value, shift, out, hidden_rows, examples, passes,
    plain: tl.constexpr, units: tl.constexpr, classes: tl.constexpr, children: tl.constexpr, rows: tl.constexpr,
    part: tl.constexpr, columns: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """One earlier variant and one example; a tile's rows are (pass, child): a hidden row is read once for all rates."""
    parent = (tl.program_id(0) // examples).to(tl.int64)
    example = tl.program_id(0) % examples
    at_once: tl.constexpr = rows // children
    row = tl.arange(0, rows)
    child, step = row % children, row // children
    low = tl.load(level + parent * children + child)
    factor = tl.load(gain + parent * children + child)
    column = tl.arange(0, columns)
    real = column < classes
    offset = tl.load(bias + column, mask=real, other=0.0)
    best, best_value, top_value = (
        tl.load(plain_class + example),
        tl.load(plain_value + example),
        tl.load(shift + example),
    )
    member = (tl.arange(0, padded)[:, None] == child[None, :]).to(tl.float32)
    total = tl.zeros((padded, columns), dtype=tl.float32)
    for first in range(0, passes, at_once):
        number = first + step
        live = (step < at_once) & (number < passes)
        z = tl.zeros((rows, columns), dtype=tl.float32)
        for begin in range(0, units, part):
            unit = begin + tl.arange(0, part)
            there = live[:, None] & (unit < units)[None, :]
            row_of = number.to(tl.int64) * examples + example
            held = parent * hidden_rows + (example + 0 * row_of if plain else row_of)
            value = tl.load(hidden + held[:, None] * units + unit[None, :], mask=there, other=0.0)
            word = tl.load(words + row_of[:, None] * units + unit[None, :], mask=there, other=0)
            noisy = tl.where(word >= low[:, None], value * factor[:, None], 0.0)
            w = tl.load(
                weight + column[None, :] * units + unit[:, None],
                mask=real[None, :] & (unit < units)[:, None],
                other=0.0,
            )
            z = tl.dot(noisy, w, z, input_precision="tf32x3")
        z = tl.where(real[None, :], z + offset[None, :], float("-inf"))
        highest = tl.max(z, 1)
        raised = tl.exp(z - highest[:, None])
        mass = tl.sum(raised, 1)
        p = raised / mass[:, None]
        logarithm = tl.where(real[None, :], z - (highest + tl.log(mass))[:, None], 0.0)
        entropy = tl.sum(p * logarithm, 1)
        top = 1.0 / mass - top_value
        deviation = tl.sum(tl.where(column[None, :] == best, p, 0.0), 1) - best_value
        q = tl.where(column[None, :] == classes, entropy[:, None], p)
        q = tl.where(column[None, :] == classes + 1, top[:, None], q)
        q = tl.where(column[None, :] == classes + 2, (top * top)[:, None], q)
        q = tl.where(column[None, :] == classes + 3, (deviation * deviation)[:, None], q)
        q = tl.where(live[:, None], q, 0.0)
        total = tl.dot(member, q, total, input_precision="tf32x3")
    variant = tl.arange(0, padded)
    width: tl.constexpr = classes + 4
    where = ((parent * children + variant[:, None]) * examples + example) * width + column[None, :]
    tl.store(out + where, total, mask=(variant < children)[:, None] & (column < width)[None, :])


def tail(
    hidden: Tensor,
    words: Tensor,
    level: Tensor,
    gain: Tensor,
    weight: Tensor,
    bias: Tensor,
    plain: Tensor,
    passes: int,
    children: int,
) -> Tensor:
    """Sums over passes, `[variants, examples, classes + 4]`, of softmax(linear(noise × hidden)).

    `hidden[parents, passes × examples, units]`, or `[1, examples, units]` where it is plain;
    `words[passes × examples, units]`; `level` and `gain` per variant, `children` of them for each parent;
    `plain[examples, classes]`.
    """
    classes, units = weight.shape
    examples = plain.shape[0]
    parents = level.shape[0] // children
    best_value, best = plain.max(1)
    out = torch.empty((level.shape[0], examples, classes + SUMS), dtype=torch.float32, device=hidden.device)
    _tail[(parents * examples,)](
        hidden.contiguous(), words.contiguous(), level, gain, weight.contiguous(), bias.contiguous(),
        best, best_value, best_value, out, hidden.shape[1], examples, passes,
        hidden.shape[1] == examples, units, classes, children,
        max(64, triton.next_power_of_2(children)), min(64, max(16, triton.next_power_of_2(units))),
        max(16, triton.next_power_of_2(classes + SUMS)), max(16, triton.next_power_of_2(children)),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["held_rows", "parents", "words", "examples", "choices"])
def _prefix_linear(
    x, weight, bias, order, kept, gain, out, held_rows, parents, words, examples, choices, plain: tl.constexpr,
    channels: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, outputs: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """One (pass, example): its channels by falling word, so that each rate's sum is a prefix of the next's."""
    word = tl.program_id(0).to(tl.int64)
    parent = tl.program_id(1) * rows + tl.arange(0, rows)
    column = tl.program_id(2) * columns + tl.arange(0, columns)
    unit = tl.arange(0, padded)
    there = (parent < parents)[:, None] & (unit < size)[None, :]
    start_of = (parent.to(tl.int64) * held_rows + (word % examples if plain else word)) * (channels * size)
    offset = tl.load(bias + column, mask=column < outputs, other=0.0)
    total = tl.zeros((rows, columns), dtype=tl.float32)
    for back in range(choices):
        choice = choices - 1 - back
        # Both ends are read: a bound carried from one turn to the next is taken for a constant by the compiler (3.6).
        ends = kept + word * (choices + 1) + choice
        for place in range(tl.load(ends + 1), tl.load(ends)):
            channel = tl.load(order + word * channels + place)
            value = tl.load(x + start_of[:, None] + channel * size + unit[None, :], mask=there, other=0.0)
            w = tl.load(
                weight + column[None, :] * (channels * size) + channel * size + unit[:, None],
                mask=(column < outputs)[None, :] & (unit < size)[:, None], other=0.0,
            )  # fmt: skip
            total = tl.dot(value, w, total, input_precision="tf32x3")
        z = tl.maximum(total * tl.load(gain + choice) + offset[None, :], 0.0)
        where = ((parent.to(tl.int64) * choices + choice) * words + word)[:, None] * outputs + column[None, :]
        tl.store(out + where, z, mask=(parent < parents)[:, None] & (column < outputs)[None, :])


def prefix_linear(
    x: Tensor, words: Tensor, levels: Tensor, gain: Tensor, weight: Tensor, bias: Tensor, examples: int
) -> Tensor:
    """relu(linear(flatten(noise × x))) for every rate at once, `[parents × choices × words, outputs]`.

    `x[parents, words, channels, *space]`, or `[1, examples, channels, *space]` where it is plain;
    `words[words, channels]`; `levels` and `gain` hold the choices, the rates rising. Coupled masks are nested: one
    product serves them all.
    """
    parents, rows, channels = x.shape[:3]
    size = x[0, 0, 0].numel()
    order, kept = _nested(words, levels)
    outputs, choices = weight.shape[0], len(gain)
    out = torch.empty((parents * choices * len(words), outputs), dtype=torch.float32, device=x.device)
    tile = min(32, max(16, triton.next_power_of_2(parents)))
    columns = min(64, max(16, triton.next_power_of_2(outputs)))
    _prefix_linear[(len(words), triton.cdiv(parents, tile), triton.cdiv(outputs, columns))](
        x.contiguous(), weight.contiguous(), bias.contiguous(), order, kept, gain, out,
        rows, parents, len(words), examples, choices, rows != len(words),
        channels, size, max(16, triton.next_power_of_2(size)), outputs, tile, columns, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out


def _nested(words: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Channels by falling word `[words, channels]`, and how many a level keeps `[words, choices + 1]` (last: none)."""
    order = words.argsort(1, descending=True)
    kept = (words[:, None, :] >= levels[None, :, None]).sum(2, dtype=torch.int32)
    return order.to(torch.int32), F.pad(kept, (0, 1)).contiguous()


@triton.jit(do_not_specialize=["held_rows", "parents", "words", "examples", "choices"])
def _prefix_conv(
    x, weight, bias, order, kept, gain, out, held_rows, parents, words, examples, choices, plain: tl.constexpr,
    channels: tl.constexpr, height: tl.constexpr, width: tl.constexpr, outputs: tl.constexpr,
    pool: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """As `_prefix_linear`, for a 3×3 convolution with padding 1: rows are (parent, window, pixel of the window)."""
    word = tl.program_id(0).to(tl.int64)
    column = tl.program_id(2) * columns + tl.arange(0, columns)
    offset = tl.load(bias + column, mask=column < outputs, other=0.0)
    total = tl.zeros((rows, columns), dtype=tl.float32)
    pixels: tl.constexpr = height * width
    inside: tl.constexpr = pool * pool
    across: tl.constexpr = width // pool
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    parent, pixel = row // pixels, row % pixels
    window, sub = pixel // inside, pixel % inside
    up = (window // across) * pool + sub // pool
    along = (window % across) * pool + sub % pool
    tap = tl.arange(0, 16)
    y = up[:, None] + tap[None, :] // 3 - 1
    z_ = along[:, None] + tap[None, :] % 3 - 1
    there = (parent < parents)[:, None] & (tap < 9)[None, :] & (y >= 0) & (y < height) & (z_ >= 0) & (z_ < width)
    start_of = (parent.to(tl.int64) * held_rows + (word % examples if plain else word)) * (channels * pixels)
    for back in range(choices):
        choice = choices - 1 - back
        # Both ends are read: a bound carried from one turn to the next is taken for a constant by the compiler (3.6).
        ends = kept + word * (choices + 1) + choice
        for place in range(tl.load(ends + 1), tl.load(ends)):
            channel = tl.load(order + word * channels + place)
            value = tl.load(x + start_of[:, None] + channel * pixels + y * width + z_, mask=there, other=0.0)
            w = tl.load(
                weight + (column[None, :] * channels + channel) * 9 + tap[:, None],
                mask=(column < outputs)[None, :] & (tap < 9)[:, None], other=0.0,
            )  # fmt: skip
            total = tl.dot(value, w, total, input_precision="tf32x3")
        z = tl.maximum(total * tl.load(gain + choice) + offset[None, :], 0.0)
        pooled = tl.max(tl.reshape(z, (rows // inside, inside, columns)), 1)
        cell = tl.program_id(1) * (rows // inside) + tl.arange(0, rows // inside)
        owner, place_of = cell // (pixels // inside), cell % (pixels // inside)
        base = ((owner.to(tl.int64) * choices + choice) * words + word) * outputs
        where = (base[:, None] + column[None, :]) * (pixels // inside) + place_of[:, None]
        tl.store(out + where, pooled, mask=(owner < parents)[:, None] & (column < outputs)[None, :])


def prefix_conv(
    x: Tensor, words: Tensor, levels: Tensor, gain: Tensor, weight: Tensor, bias: Tensor, examples: int, pool: int
) -> Tensor:
    """max_pool(relu(conv3×3(noise × x))) for every rate at once, the arguments as in `prefix_linear`.

    Returns `[parents × choices × words, outputs, height / pool, width / pool]`.
    """
    parents, rows, channels, height, width = x.shape
    order, kept = _nested(words, levels)
    outputs, choices = weight.shape[0], len(gain)
    out = torch.empty(
        (parents * choices * len(words), outputs, height // pool, width // pool), dtype=torch.float32, device=x.device
    )
    tile = 128 if parents * height * width >= 128 else 64
    columns = min(64, max(16, triton.next_power_of_2(outputs)))
    _prefix_conv[(len(words), triton.cdiv(parents * height * width, tile), triton.cdiv(outputs, columns))](
        x.contiguous(), weight.contiguous(), bias.contiguous(), order, kept, gain, out,
        rows, parents, len(words), examples, choices, rows != len(words),
        channels, height, width, outputs, pool, tile, columns, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["words_of", "examples", "period", "each"])
def _pointwise(
    value, words, level, gain, parent, scale, shift, other, out, words_of, examples, period, each, units,
    inner, channels, noise: tl.constexpr, source: tl.constexpr, affine: tl.constexpr, added: tl.constexpr,
    activation: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """`wide` units of a row. `source` says which row of the value it takes: 0 its own, 1 its example's, 2 its parent's
    where each has as many children, 3 by a table. `noise` is 1 for a word per unit, 2 per map, 3 per last unit."""
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * wide + tl.arange(0, wide)
    here = unit < units
    variant, word_row = row // words_of, row % words_of
    if source == 0:
        taken = row
    elif source == 1:
        taken = word_row % examples
    elif source == 2:
        taken = (variant // each) * words_of + word_row
    else:
        taken = tl.load(parent + variant).to(tl.int64) * words_of + word_row
    x = tl.load(value + taken * units + unit, mask=here, other=0.0)
    if noise > 0:
        if noise == 1:
            word = tl.load(words + word_row * units + unit, mask=here, other=0)
        elif noise == 2:
            word = tl.load(words + word_row * channels + unit // inner, mask=here, other=0)
        else:
            word = tl.load(words + word_row * channels + unit % channels, mask=here, other=0)
        x = tl.where(word >= tl.load(level + variant), x * tl.load(gain + variant), x * 0)
    if affine:
        x = x * tl.load(scale + unit // inner, mask=here, other=0.0) + tl.load(
            shift + unit // inner, mask=here, other=0.0
        )
    if added:
        x += tl.load(other + (row % period) * units + unit, mask=here, other=0.0)
    if activation == 1:
        x = tl.where(x > 0, x, tl.where(x == x, 0.0, x))  # NaN stays NaN
    if activation == 2:
        x = x / (1 + tl.exp(-x))
    tl.store(out + row * units + unit, x, mask=here)


_ACTIVATIONS = {"": 0, "relu": 1, "silu": 2}


def pointwise(value: Tensor, noise: Any, affine: Any, other: Tensor | None, activation: str) -> Tensor | None:
    """What `chains.pointwise` says; None where the values do not lie as the kernel needs them."""
    if value.dtype != torch.float32 or not value.is_contiguous() or value.dim() < 2:
        return None
    units = value[0].numel() if len(value) else 0
    rows, words_of, examples, each, source, kind = len(value), 1, 1, 1, 0, 0
    words = level = gain = parent = scale = shift = value
    channels, inner = value.shape[1], max(1, units // value.shape[1])
    if noise is not None:
        dim, folded, shape, _, words, level, gain, given = noise
        kind = _word_kind(tuple(value.shape[1:]), tuple(shape))
        if dim != 0 or folded != 1 or kind == 0:
            return None
        words, words_of, rows = words.contiguous(), len(words), len(level) * len(words)
        channels = value.shape[-1] if kind == 3 else channels
        if given is None:
            source, examples = 1, len(value)
        elif isinstance(given, Tensor):
            source, parent = 3, given.contiguous()
        else:
            source, each = 2, given
    if affine is not None:
        if noise is not None and kind == 3 and value.dim() > 2:
            return None
        scale, shift = affine
    if other is not None and (
        not other.is_contiguous()
        or other.dtype != value.dtype
        or other.shape[1:] != value.shape[1:]
        or rows % len(other)
    ):
        return None
    out = torch.empty((rows, *value.shape[1:]), dtype=value.dtype, device=value.device)
    if out.numel():
        wide = min(1024, max(32, triton.next_power_of_2(units)))
        _pointwise[(rows, triton.cdiv(units, wide))](
            value, words, level, gain, parent, scale, shift, value if other is None else other, out, words_of, examples,
            1 if other is None else len(other), each, units, inner, channels, kind, source, affine is not None,
            other is not None, _ACTIVATIONS[activation], wide, num_warps=max(1, wide // 256),
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


def _word_kind(shape: tuple[int, ...], units: tuple[int, ...]) -> int:
    """How words lie over a row: 1 one per unit, 2 one per map, 3 one per unit of the last dimension; 0 otherwise."""
    if units == shape:
        return 1
    if units == (shape[0], *[1] * (len(shape) - 1)):
        return 2
    return 3 if units == (*[1] * (len(shape) - 1), shape[-1]) else 0


@triton.jit(do_not_specialize=["pixels_of_all"])
def _narrow_convolution(
    x, weight, bias, out, pixels_of_all, channels: tl.constexpr, outputs: tl.constexpr, height, width,
    biased: tl.constexpr, part: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """`rows` pixels, all outputs: for each tap products of [outputs, channels] and [channels, pixels]."""
    at = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)
    pixels = height * width
    image, pixel = at // pixels, (at % pixels).to(tl.int32)
    up, along = pixel // width, pixel % width
    here = at < pixels_of_all
    channel = tl.arange(0, part)
    total = tl.zeros((columns, rows), dtype=tl.float32)
    for tap in range(9):  # unrolled, the taps would take all registers
        y, z = up + tap // 3 - 1, along + tap % 3 - 1
        there = here & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        start_of = image * (channels * pixels) + y * width + z
        for first in range(0, channels, part):
            unit = first + channel
            value = tl.load(
                x + start_of[None, :] + (unit * pixels)[:, None], mask=there[None, :] & (unit < channels)[:, None],
                other=0.0,
            )  # fmt: skip
            w = tl.load(
                weight + (tap * outputs + column[:, None]) * channels + unit[None, :],
                mask=(column < outputs)[:, None] & (unit < channels)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(w, value, total, input_precision="tf32x3")
    if biased:
        total += tl.load(bias + column, mask=column < outputs, other=0.0)[:, None]
    to = (image * outputs * pixels + pixel)[None, :] + (column * pixels)[:, None]
    tl.store(out + to, total, mask=here[None, :] & (column < outputs)[:, None])


def narrow_convolution(value: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor | None:
    """A 3×3 convolution with stride and padding 1 by `taps[9, outputs, channels]`.

    None where the values do not lie as the kernel needs them.
    """
    if value.dtype != torch.float32 or not value.is_contiguous() or value.dim() != 4:
        return None
    images, channels, height, width = value.shape
    outputs = taps.shape[1]
    out = torch.empty((images, outputs, height, width), dtype=value.dtype, device=value.device)
    pixels, tile = images * height * width, 128
    if pixels:
        _narrow_convolution[(triton.cdiv(pixels, tile),)](
            value, taps, taps if bias is None else bias, out, pixels, channels, outputs, height, width,
            bias is not None, 16, max(16, triton.next_power_of_2(outputs)), tile, num_warps=4, num_stages=1,
        )  # fmt: skip
    return out
