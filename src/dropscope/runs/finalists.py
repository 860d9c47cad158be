"""Finalists of a sweep: which rows they are, and their values example by example. See `intervals` for what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from torch import Tensor

from dropscope.scores import Confidences, Score

AGAINST = "plain_entropy"  # the baseline that differences are taken to


@dataclass(frozen=True, eq=False)
class Finalists:
    """Rows that are looked at again, example by example."""

    examples: pd.DataFrame  # a ranking per placement and measure; see `values_table`
    confidences: Mapping[str, Confidences]  # placement → what calibration scores read; empty where none is asked for
    # (placement, measure, score) → its Monte Carlo standard error, where that is known
    errors: Mapping[tuple[str, str, str], float] = field(default_factory=dict)


def select_finalists(rows: pd.DataFrame, keep: int | None, objective: Score) -> pd.DataFrame:
    """The `keep` best rows by `objective` (None: all), each computed placement once."""
    own = rows[rows.equivalent_to.isna()]
    if keep is None:
        return own
    return own.sort_values(objective.name, ascending=objective.direction == "lower", kind="stable").head(keep)


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
