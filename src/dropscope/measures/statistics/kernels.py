"""Triton kernels for histograms over passes: passes taken in at one reading, measures read off in one scan.

Owns the kernels alone; `histograms` says when they apply. They compute what `sums.advance`, `histograms.scatter` and
the scan on a CPU compute, with the same tables.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_CELLS = 128  # per program, a lane each, when passes are taken in
_CELLS_SCANNED = 8  # per program, when a row of counts is a tile's


# Sizes that change from volume to volume are not specialised on: each new size would compile the kernel again.
@triton.jit(do_not_specialize=["cells", "inner", "passes"])
def _take_in(
    p, total, squared, shift, histogram, cells, inner, passes, classes,
    p_pass, p_outer, p_inner, p_class, s_outer, s_inner, s_class, c_outer, c_inner, c_class,
    summed: tl.constexpr, moments: tl.constexpr, bins: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Some cells, class by class, pass by pass: a count's row is fetched once for all passes that come together."""
    cell = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    there = cell < cells
    outer, along = cell // inner, cell % inner
    for c in range(classes):
        row = histogram + (cell * classes + c) * bins
        state = outer * s_outer + along * s_inner + c * s_class
        value = p + outer * p_outer + along * p_inner + c * p_class
        sums = tl.zeros((block,), dtype=tl.float64)
        squares = tl.zeros((block,), dtype=tl.float64)
        centre = tl.zeros((block,), dtype=tl.float64)
        if moments:
            centre = tl.load(shift + outer * c_outer + along * c_inner + c * c_class, mask=there, other=0.0).to(
                tl.float64
            )
        for _ in range(passes):
            x = tl.load(value, mask=there, other=0.0)
            value += p_pass
            # A cell has a lane of its own, so no two lanes meet in a row, and a lane sees what it wrote.
            place = row + tl.minimum(tl.maximum((x * bins).to(tl.int32), 0), bins - 1)
            tl.store(place, tl.load(place, mask=there, other=0) + 1, mask=there)
            wide = x.to(tl.float64)
            sums += wide
            squares += (wide - centre) * (wide - centre)
        if summed:
            tl.store(total + state, tl.load(total + state, mask=there, other=0.0) + sums, mask=there)
        if moments:
            tl.store(squared + state, tl.load(squared + state, mask=there, other=0.0) + squares, mask=there)


def take_in(state: dict[str, Tensor], p: Tensor) -> bool:
    """Adds passes `p[passes, *cells, C]` to the sums, squares and counts of `state`, in place.

    False, and nothing done, where they do not lie in memory as `[outer, inner, C]` with the neighbours in one row.
    """
    histogram = state["histogram"]
    shape, classes = p.shape[1:], p.shape[-1]
    cells = math.prod(shape[:-1])
    inner = _in_a_row(p)
    views = {}
    try:
        given = p.view(len(p), cells // inner, inner, classes)
        for name in ("sum_p", "squared", "shift"):
            if name in state:
                views[name] = state[name].expand(shape).view(cells // inner, inner, classes)
    except RuntimeError:
        return False
    total = views.get("sum_p", given[0])
    squared, shift = views.get("squared", total), views.get("shift", given[0])
    if squared.stride() != total.stride():
        return False
    _take_in[(triton.cdiv(cells, _CELLS),)](
        given, total, squared, shift, histogram, cells, inner, len(p), classes,
        *given.stride(), *total.stride(), *shift.stride(),
        "sum_p" in state, "squared" in state, histogram.shape[-1], _CELLS,
        num_warps=4, num_stages=1,  # a later pass must read what an earlier one wrote
    )  # fmt: skip
    return True


def _in_a_row(p: Tensor) -> int:
    """How many neighbouring cells of `p[passes, *cells, C]` lie in memory at one distance from each other."""
    inner = distance = 1
    for dim in range(p.dim() - 2, 0, -1):
        if inner == 1:
            distance = p.stride(dim)
        elif p.shape[dim] > 1 and p.stride(dim) != distance * inner:
            break
        inner *= p.shape[dim]
    return inner


@triton.jit(do_not_specialize=["cells", "passes"])
def _scan(
    histogram, pair, filled, logs, out, cells, passes, classes,
    paired: tl.constexpr, bins: tl.constexpr, padded: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Some cells, their rows of counts beside each other in a tile; shares and logarithms come from tables."""
    cell = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    bin_ = tl.arange(0, padded)
    there = (cell < cells)[:, None] & (bin_ < bins)[None, :]
    entropy = tl.zeros((block,), dtype=tl.float64)
    for c in range(classes):
        n = tl.load(histogram + ((cell * classes + c) * bins)[:, None] + bin_[None, :], mask=there, other=0).to(
            tl.int32
        )
        entropy += tl.sum(n.to(tl.float64) * tl.load(logs + n), 1)
    tl.store(out + cell * 3, -entropy / passes / classes, mask=cell < cells)
    if paired:
        first = tl.load(pair + cell * 2, mask=cell < cells, other=0).to(tl.int64)
        second = tl.load(pair + cell * 2 + 1, mask=cell < cells, other=0).to(tl.int64)
        n = tl.load(histogram + ((cell * classes + first) * bins)[:, None] + bin_[None, :], mask=there, other=0)
        m = tl.load(histogram + ((cell * classes + second) * bins)[:, None] + bin_[None, :], mask=there, other=0)
        n, m = n.to(tl.int32), m.to(tl.int32)
        both = tl.sqrt(n.to(tl.float32) * m.to(tl.float32)).to(tl.float64)
        tl.store(out + cell * 3 + 1, tl.sum(both, 1) / passes, mask=cell < cells)
        inside = (bin_ < bins)[None, :]
        f = tl.where(inside, tl.load(filled + n), 0.0)
        g = tl.where(inside, tl.load(filled + m), 0.0)
        gap = tl.load(logs + n) - tl.load(logs + m)
        apart = tl.sum(f * gap, 1) / tl.sum(f, 1) - tl.sum(g * gap, 1) / tl.sum(g, 1)
        tl.store(out + cell * 3 + 2, apart, mask=cell < cells)


def scan(counts: Tensor, pair: Tensor | None, filled: Tensor) -> Tensor:
    """Entropy, overlap and divergence `[cells, 3]`, float64, of `counts[cells, C, bins]`: `histograms.summarize`."""
    cells, classes, bins = counts.shape
    out = torch.zeros((cells, 3), dtype=torch.float64, device=counts.device)
    _scan[(triton.cdiv(cells, _CELLS_SCANNED),)](
        counts.contiguous(), counts if pair is None else pair.contiguous(), filled, filled.log(), out,
        cells, len(filled) - 1, classes, pair is not None, bins, triton.next_power_of_2(bins), _CELLS_SCANNED,
        num_warps=4,
    )  # fmt: skip
    return out
