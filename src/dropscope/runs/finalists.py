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
INTERVAL = ("low", "high", "minus_single_pass_low", "minus_single_pass_high")
_RANKING = ["placement", "measure", "score"]


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
    scored: pd.DataFrame,
    chosen: Sequence[str],
    groups: Sequence[Hashable] | None,
    seed: int,
    device: torch.device,
    *,
    show: bool | None,
) -> pd.DataFrame:
    """A row per ranking and score: 95 % intervals of the value, and of its paired difference to the plain entropy's.

    Args:
        examples: Per-example values of the finalists and the baselines.
        scored: Rows of a sweep and its baselines: the values themselves. A placement that equals another by
            mathematics gets the intervals of the one that was computed.
        chosen: The scores.
        groups: What is resampled instead of examples.
        seed: Of the resampling.
        device: Where it is computed.
        show: Whether progress is shown.
    """
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
            for name in ("accuracy", *chosen):
                ends = (*interval(drawn[name]), *paired_interval(drawn[name], reference[name]))
                found.append((placement, measure, name, *ends))
            tick(1)
    table = pd.DataFrame(found, columns=[*_RANKING, *INTERVAL])
    return _with_values(pd.concat([table, _of_equivalents(table, scored)], ignore_index=True), scored)


def _of_equivalents(table: pd.DataFrame, scored: pd.DataFrame) -> pd.DataFrame:
    """The intervals of placements that are equal to a computed one by mathematics."""
    equals = scored[["placement", "equivalent_to"]].dropna().drop_duplicates()
    computed = table.rename(columns={"placement": "equivalent_to"})
    return equals.merge(computed, on="equivalent_to").drop(columns="equivalent_to")


def _with_values(table: pd.DataFrame, scored: pd.DataFrame) -> pd.DataFrame:
    """Beside each interval the value, and its difference to the plain entropy's."""
    wanted = scored.merge(table[["placement", "measure"]].drop_duplicates(), on=["placement", "measure"])
    names = list(table.score.unique())
    values = wanted.melt(["placement", "measure"], names, var_name="score", value_name="value")
    plain = values[values.measure == AGAINST].set_index("score")["value"]
    table = table.merge(values, on=_RANKING, how="left", validate="1:1")
    table["minus_single_pass"] = table["value"] - table.score.map(plain)
    return table[[*_RANKING, "value", *INTERVAL[:2], "minus_single_pass", *INTERVAL[2:]]]
