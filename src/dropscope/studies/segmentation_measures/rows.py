"""Rows of the study, one per experiment, case and measure: their names in print, and how they are averaged.

Owns the mean over the images of an experiment; an image without errors has no AUC-PR and is left out. See `evaluation`
for how a row is computed.
"""

from __future__ import annotations

import pandas as pd

LABELS = {
    "averaged_variance": "averaged variance",
    "averaged_entropy": "averaged entropy",
    "bhattacharyya": "Bhattacharyya",
    "kullback_leibler": "Kullback-Leibler",
    "averaged_std": "averaged std",
    "kullback_leibler_1e-10": "Kullback-Leibler, floor 1e-10",
    "kullback_leibler_1e-3": "Kullback-Leibler, floor 1e-3",
    "predictive_entropy": "predictive entropy",
    "plain_entropy": "entropy of one plain pass",
    "plain_max_probability": "1 − max probability of one plain pass",
}


def dice_columns(rows: pd.DataFrame) -> list[str]:
    return sorted((c for c in rows.columns if c.startswith("dice_")), key=lambda c: int(c[5:]))


def foreground_dice(rows: pd.DataFrame) -> pd.Series:
    """Mean Dice over the foreground classes of each row; a class that is in neither label nor prediction has none."""
    return rows[dice_columns(rows)[1:]].mean(axis=1)


def mean_auprc(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean AUC-PR: a row per experiment in the order of the grid, a column per measure."""
    order, columns = rows.experiment.unique(), rows.measure.unique()
    return rows.pivot_table("auprc", "experiment", "measure", "mean", dropna=False).reindex(
        index=order, columns=columns
    )
