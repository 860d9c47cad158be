"""Strata of voxels by their distance to the border of a label: errors lie there, and so does most uncertainty.

Owns the distance (chessboard, in voxels, to the nearest voxel of another class) and the table. A measure that only
finds borders is good over all voxels and poor within a stratum.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from dropscope.studies.segmentation_measures.rows import LABELS

STRATA = {"border": "1 voxel", "near": "2 to 3 voxels", "far": "more than 3 voxels"}
_POOLS = {2: F.max_pool2d, 3: F.max_pool3d}


def divide_by_distance(label: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Which voxels of `label[N, *spatial]` lie at the border, near it and far from it.

    >>> found = divide_by_distance(torch.tensor([[[0, 0, 0, 0, 0, 1]]]), torch.ones(1, 1, 6, dtype=torch.bool))
    >>> {name: mask[0, 0].int().tolist() for name, mask in found.items()}
    {'border': [0, 0, 0, 0, 1, 1], 'near': [0, 0, 1, 1, 0, 0], 'far': [1, 1, 0, 0, 0, 0]}
    """
    at_border, within = (_meets_another(label, valid, reach) for reach in (1, 3))
    return {"border": at_border & valid, "near": within & ~at_border & valid, "far": ~within & valid}


def _meets_another(label: Tensor, valid: Tensor, reach: int) -> Tensor:
    """Whether a voxel of another class lies within `reach` along every axis; what is not valid is no class."""
    pool = _POOLS[label.dim() - 1]
    values = label.unsqueeze(1).float()
    counted = valid.unsqueeze(1)
    nothing = torch.finfo(torch.float32).min

    def highest(of: Tensor) -> Tensor:
        return pool(torch.where(counted, of, nothing), 2 * reach + 1, stride=1, padding=reach)

    return (highest(values) > -highest(-values)).squeeze(1)


def strata_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per measure: mean AUC-PR over experiments, of all voxels and within each stratum; the last rows are shares
    of voxels and of errors. Rows of an older run have no strata, and give no table."""
    if "auprc_border" not in rows:
        return pd.DataFrame()
    columns = {"all voxels": "auprc"} | {words: f"auprc_{name}" for name, words in STRATA.items()}
    table = []
    for name in rows.measure.unique():
        own = rows[rows.measure == name]
        means = own.groupby("experiment", sort=False)[list(columns.values())].mean().mean()
        line: dict[str, Any] = {"measure": LABELS.get(str(name), str(name))}
        table.append(line | {words: means[column] for words, column in columns.items()})
    cases = rows.drop_duplicates(["experiment", "case"])
    for what in ("voxels", "errors"):
        total = cases[what].sum()
        shares = {words: cases[f"{what}_{name}"].sum() / max(total, 1) for name, words in STRATA.items()}
        table.append({"measure": f"share of {what}", "all voxels": 1.0} | shares)
    return pd.DataFrame(table)


def strata_words(table: pd.DataFrame) -> list[str]:
    """The sentence of the summary."""
    if table.empty:
        return []
    by_name = table.set_index("measure")
    share, measures = by_name.loc["share of errors"], by_name.iloc[:-2]
    leaders = [
        f"{words} {measures[words].idxmax()} ({measures[words].max():.3f})"
        for words in STRATA.values()
        if measures[words].notna().any()
    ]
    parts = ", ".join(f"{100 * share[words]:.0f} % at {words}" for words in STRATA.values())
    return [f"Errors by distance to the border of the label: {parts}. Highest mean AUC-PR at {', '.join(leaders)}."]
