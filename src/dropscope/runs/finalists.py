"""Finalists of a sweep: which rows they are, with intervals and paired differences from their per-example values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import scores
from dropscope.analysis import REPLICATES, bootstrap_scores, interval, paired_interval, resamples
from dropscope.progress import track

AGAINST = "plain_entropy"  # the baseline that differences are taken to


def select_finalists(rows: pd.DataFrame, keep: int | None, objective: str) -> pd.DataFrame:
    """The `keep` best rows by `objective` (None: all), each computed placement once."""
    own = rows[rows.equivalent_to.isna()]
    if keep is None:
        return own
    rising = scores.TABLE[objective].direction == "lower"
    return own.sort_values(objective, ascending=rising, kind="stable").head(keep)


def values_table(ids: np.ndarray, placement: str, measure: str, uncertainty: Tensor, correct: Tensor) -> pd.DataFrame:
    """One measure of one placement, example by example."""
    return pd.DataFrame(
        {
            "id": ids,
            "placement": placement,
            "measure": measure,
            "uncertainty": uncertainty.cpu().numpy(),
            "correct": correct.cpu().numpy(),
        }
    )


def interval_table(
    examples: pd.DataFrame,
    chosen: Sequence[str],
    groups: Sequence[Hashable] | None,
    seed: int,
    device: torch.device,
    *,
    show: bool | None,
) -> pd.DataFrame:
    """95 % intervals of every ranking in `examples`, and of its paired difference to the plain entropy's."""
    kept = list(examples.groupby(["placement", "measure"], sort=False))
    kept.sort(key=lambda pair: pair[0][1] != AGAINST)  # what the others are compared with comes first
    indices = resamples(len(kept[0][1]), groups, REPLICATES, seed)
    found = []
    reference: dict[str, Tensor] = {}
    with track("intervals", len(kept), "rows", show=show) as tick:
        for (placement, measure), group in kept:
            uncertainty = torch.as_tensor(group.uncertainty.to_numpy(copy=True), device=device)
            correct = torch.as_tensor(group.correct.to_numpy(copy=True), device=device)
            drawn = bootstrap_scores(uncertainty, correct, indices)
            reference = reference or drawn
            entry = {"placement": placement, "measure": measure}
            for name in ("accuracy", *chosen):
                entry[f"{name}_low"], entry[f"{name}_high"] = interval(drawn[name])
            for name in chosen:
                low, high = paired_interval(drawn[name], reference[name])
                entry[f"{name}_minus_baseline_low"], entry[f"{name}_minus_baseline_high"] = low, high
            found.append(entry)
            tick(1)
    return pd.DataFrame(found)
