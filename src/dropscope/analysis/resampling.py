"""Intervals of scores: a bootstrap over examples, or over their groups, paired where two rankings are compared.

Owns the resampling. Replicates are examples or groups (patients, contexts, volumes), never passes, voxels, placements.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from dropscope import scores

REPLICATES = 500
_AT_ONCE = 1 << 22  # resampled values handled at once


def resamples(n: int, groups: Sequence[Hashable] | None, replicates: int, seed: int) -> list[Tensor]:
    """Indices of each replicate. With groups, whole groups are drawn, so replicates differ in size."""
    draw = np.random.default_rng(seed & 0xFFFFFFFFFFFFFFFF)  # NumPy takes no negative seed
    if groups is None:
        return list(torch.from_numpy(draw.integers(0, n, (replicates, n))))
    names, member = np.unique(np.asarray([str(g) for g in groups]), return_inverse=True)
    members = [np.flatnonzero(member == i) for i in range(len(names))]
    return [
        torch.from_numpy(np.concatenate([members[i] for i in draw.integers(0, len(names), len(names))]))
        for _ in range(replicates)
    ]


def bootstrap_scores(uncertainty: Tensor, correct: Tensor, indices: Sequence[Tensor]) -> dict[str, Tensor]:
    """Ranking scores and accuracy of every replicate, `[replicates]`, for one measure `[n]` and its outcome `[n]`."""
    found: dict[str, list[Tensor]] = {}
    at_once = max(1, _AT_ONCE // len(uncertainty))
    order = sorted(range(len(indices)), key=lambda i: len(indices[i]))  # those of one size are scored together
    sized = [indices[i] for i in order]
    start = 0
    while start < len(sized):
        size = len(sized[start])
        stop = start
        while stop < len(sized) and stop - start < at_once and len(sized[stop]) == size:
            stop += 1
        chosen = torch.stack(sized[start:stop]).to(uncertainty.device)
        right = correct[chosen]
        for name, value in scores.ranking_scores(uncertainty[chosen], right).items():
            found.setdefault(name, []).append(value)
        found.setdefault("accuracy", []).append(right.double().mean(-1))
        start = stop
    back = torch.tensor(order).argsort().to(uncertainty.device)
    return {name: torch.cat(parts)[back] for name, parts in found.items()}


def interval(replicates: Tensor, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval; replicates in which a score is undefined are left out."""
    finite = replicates[torch.isfinite(replicates)].double().cpu().numpy()
    if finite.size == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
