"""Histograms of probabilities over passes: counting, and the one scan that reads entropy, overlap and divergence.

bin = min(⌊bins·p⌋, bins − 1). On a CPU passes wait as bin numbers, a byte a value, and are counted together, so that a
row is fetched once for many of them; on a GPU a kernel does it all. See `measures` for what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dropscope.device import runs_kernels

WAITING = 32  # passes that wait before they are counted
_INDEX_AT_ONCE = 3 << 13  # values whose rows are looked up at once: their index, and the rows, fit into a cache
_SCATTER_AT_ONCE = 1 << 24  # the same on a GPU without Triton: 128 MiB of index
_THREADS_PAY_OFF = 1 << 22  # counts below which one thread does it alone
_FUSED = frozenset({"sum_p", "squared", "shift", "histogram"})


@dataclass(frozen=True, eq=False)
class HistogramSummary:
    """What the measures read off histograms, per cell, float64. Overlap and divergence are None without two classes."""

    entropy: Tensor  # [cells]: (1/C) Σ_c −Σ_b f_cb log f_cb
    overlap: Tensor | None  # [cells]: Σ_b sqrt(f_1b f_2b)
    divergence: Tensor | None  # [cells]: KL(f_1‖f_2) + KL(f_2‖f_1), empty bins filled up to the floor


class Waiting:
    """Passes that wait as bin numbers until there are enough to be counted together."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)  # [WAITING, *cells, C], each pass laid out as it came
        self._count = 0

    def add(self, p: Tensor, histogram: Tensor) -> None:
        """Takes in passes `p[passes, *cells, C]` of values in [0, 1]; NaN lands in an arbitrary bin."""
        bins = histogram.shape[-1]
        if self._numbers.shape[1:] != p.shape[1:]:
            laid_out = torch.empty_like(p[0])
            strides = (p[0].numel(), *laid_out.stride())
            kind = torch.uint8 if bins < 256 else torch.int32  # 1 is first taken for bin number `bins`
            self._numbers = torch.empty_strided((WAITING, *p.shape[1:]), strides, dtype=kind)
        for each in p:
            into = self._numbers[self._count].numpy()
            with np.errstate(invalid="ignore"):
                np.multiply(each.numpy(), each.numpy().dtype.type(bins), out=into, casting="unsafe")
            np.minimum(into, bins - 1, out=into)
            self._count += 1
            if self._count == WAITING:
                self.count_into(histogram)

    def count_into(self, histogram: Tensor) -> None:
        """Adds what was collected to the histogram."""
        if self._count:
            _count(histogram, self._numbers[: self._count])
            self._count = 0


def _count(histogram: Tensor, numbers: Tensor) -> None:
    """Adds bin numbers `[passes, *cells, C]` to `histogram[*cells, C, bins]`, a few cells at a time."""
    classes, bins = histogram.shape[-2:]
    rows, flat = histogram.view(-1, classes, bins), numbers.reshape(len(numbers), -1, classes)
    step = max(1, _INDEX_AT_ONCE // (len(numbers) * classes))
    one = torch.ones(1, dtype=histogram.dtype)

    @torch.inference_mode()  # the counts may have been made in it, which holds for one thread and as long as it lasts
    def count(part: slice) -> None:
        index = torch.empty((len(numbers), classes, step), dtype=torch.int64)
        for begin in range(part.start, part.stop, step):
            end = min(begin + step, part.stop)
            # Cells lie side by side in a pass, as a rule: the index is filled in that order and read across it.
            where = index[:, :, : end - begin].copy_(flat[:, begin:end].transpose(1, 2)).permute(2, 1, 0)
            rows[begin:end].scatter_add_(-1, where, one.expand_as(where))

    _shared_out(count, len(rows), classes * bins)


def _shared_out(work: Callable[[slice], None], cells: int, width: int) -> None:
    """Divides the cells among torch's threads. The work is many small steps, which torch would give to one thread."""
    threads = torch.get_num_threads() if cells * width > _THREADS_PAY_OFF else 1
    step = -(-cells // threads)
    parts = [slice(begin, min(begin + step, cells)) for begin in range(0, cells, step)]
    if len(parts) == 1:
        work(parts[0])
        return
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(work, parts))


def take_in(state: dict[str, Tensor], p: Tensor) -> bool:
    """Sums, squares and counts of passes `p[passes, *cells, C]` in one kernel, in place; False where none fits."""
    if not (set(state) <= _FUSED and "histogram" in state and p.dtype == torch.float32 and runs_kernels(p.device)):
        return False
    from dropscope.measures.statistics import kernels

    return kernels.take_in(state, p)


def scatter(histogram: Tensor, p: Tensor) -> None:
    """Counts passes `p[passes, *cells, C]` at once: for a GPU without Triton."""
    bins = histogram.shape[-1]
    one = torch.ones(1, dtype=histogram.dtype, device=p.device)
    for part in p.split(max(1, _SCATTER_AT_ONCE // max(1, p[0].numel()))):
        index = (part * bins).long().clamp_(0, bins - 1).movedim(0, -1)
        histogram.scatter_add_(-1, index, one.expand_as(index))


def top_two(mean: Tensor) -> Tensor:
    """The two classes of highest mean, `[..., 2]` of `[..., C]`; equal means go by class index on every device."""
    if mean.shape[-1] == 2:
        return torch.arange(2, device=mean.device).expand(mean.shape)  # no measure asks which of the two is higher
    first = mean.argmax(-1, keepdim=True)
    return torch.cat([first, mean.scatter(-1, first, -1.0).argmax(-1, keepdim=True)], -1)


def summarize(histogram: Tensor, pair: Tensor | None, passes: int, floor: float, at_once: int) -> HistogramSummary:
    """Everything the measures read off `histogram[..., C, bins]` of `passes` passes, in one scan.

    `pair[..., 2]` names the two classes compared. A share is a count over passes, so its logarithm comes from a table.
    On a CPU `at_once` counts are looked at together.
    """
    cells = histogram.reshape(-1, *histogram.shape[-2:])
    chosen = None if pair is None else pair.reshape(-1, 2)
    shares = torch.arange(passes + 1, dtype=torch.float64) / passes
    filled = torch.where(shares > 0, shares, floor)
    if histogram.is_cuda:
        columns = _scan_on_gpu(cells, chosen, filled.to(histogram.device))
    else:
        columns = torch.from_numpy(_scan_on_cpu(cells.numpy(), chosen, filled.numpy(), at_once))
    entropy, overlap, divergence = (columns[:, i].reshape(histogram.shape[:-2]) for i in range(3))
    if pair is None:
        return HistogramSummary(entropy.clamp_min(0), None, None)
    return HistogramSummary(entropy.clamp_min(0), overlap.clamp_max(1), divergence.clamp_min(0))


def _scan_on_cpu(counts: np.ndarray, pair: Tensor | None, filled: np.ndarray, at_once: int) -> np.ndarray:
    """`[cells, 3]`: entropy, overlap, divergence."""
    out = np.zeros((len(counts), 3))
    rows = None if pair is None else pair.numpy()

    def scan(part: slice) -> None:
        _scan(counts[part], None if rows is None else rows[part], filled, out[part], at_once)

    _shared_out(scan, len(counts), counts[0].size)
    return out


def _scan(counts: np.ndarray, pair: np.ndarray | None, filled: np.ndarray, out: np.ndarray, at_once: int) -> None:
    """One thread's cells, a slab at a time in room of its own: fresh memory for each slab would cost more than it."""
    cells, classes, bins = counts.shape
    step = max(1, min(cells, at_once // (classes * bins)))
    passes = len(filled) - 1
    logs = np.log(filled)
    entries = np.arange(passes + 1) * logs / (-passes * classes)  # of −f log f, shared out over the classes
    every = np.empty((step, classes * bins))
    two = np.empty((step, 2, bins), counts.dtype)
    share, logarithm, product = np.empty((step, 2, bins)), np.empty((step, 2, bins)), np.empty((step, bins), np.float32)
    for begin in range(0, cells, step):
        slab = counts[begin : begin + step]
        n, into = len(slab), out[begin : begin + step]
        np.take(entries, slab.reshape(n, -1), out=every[:n], mode="clip").sum(-1, out=into[:, 0])
        if pair is None:
            continue
        rows = pair[begin : begin + step] + (np.arange(n) * classes)[:, None]
        np.take(slab.reshape(-1, bins), rows, axis=0, out=two[:n], mode="clip")
        np.multiply(two[:n, 0], two[:n, 1], out=product[:n], dtype=np.float32, casting="unsafe")
        into[:, 1] = np.sqrt(product[:n], out=product[:n]).sum(-1, dtype=np.float64) / passes
        np.take(filled, two[:n], out=share[:n], mode="clip")
        np.take(logs, two[:n], out=logarithm[:n], mode="clip")
        # With f = g / Σg, KL(f_1‖f_2) + KL(f_2‖f_1) = Σ_b (f_1 − f_2)(log g_1 − log g_2): the logs of the sums cancel.
        gap = np.subtract(logarithm[:n, 0], logarithm[:n, 1], out=logarithm[:n, 0])
        sums = np.einsum("cib,cb->ci", share[:n], gap) / share[:n].sum(-1)
        np.subtract(sums[:, 0], sums[:, 1], out=into[:, 2])


def _scan_on_gpu(counts: Tensor, pair: Tensor | None, filled: Tensor) -> Tensor:
    if not runs_kernels(counts.device):
        return _scan_in_slabs(counts, pair, filled)
    from dropscope.measures.statistics import kernels

    return kernels.scan(counts, pair, filled)


def _scan_in_slabs(counts: Tensor, pair: Tensor | None, filled: Tensor) -> Tensor:
    """As the scan on a CPU, in torch alone."""
    passes, logs = len(filled) - 1, filled.log()
    parts = []
    for begin in range(0, len(counts), step := max(1, _SCATTER_AT_ONCE // counts[0].numel())):
        slab = counts[begin : begin + step].long()
        entropy = -(slab * logs[slab]).sum((-1, -2)) / (passes * counts.shape[1])
        columns = [entropy, torch.zeros_like(entropy), torch.zeros_like(entropy)]
        if pair is not None:
            first, second = torch.take_along_dim(slab, pair[begin : begin + step].unsqueeze(-1), 1).unbind(1)
            columns[1] = (first * second).double().sqrt().sum(-1) / passes
            gap = logs[first] - logs[second]
            one, two = ((filled[n] * gap).sum(-1) / filled[n].sum(-1) for n in (first, second))
            columns[2] = one - two
        parts.append(torch.stack(columns, -1))
    return torch.cat(parts)
