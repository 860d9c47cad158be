"""Triton kernels for the end of a sweep on a GPU: noise, last layer, softmax and statistics, nothing stored in between.

Owns the kernels alone; `fused.py` says when they apply. They compute what `segments.disturb_rows`, a linear layer and
`statistics.advance` compute, in fp32 accuracy (products split into three TF32 parts).
"""

from __future__ import annotations

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
