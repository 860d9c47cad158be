"""Tables of dense predictions: a row per image or volume, with Dice and uncertainty of each structure.

The background fills most of an image: it decides the share of right voxels, and it dilutes a mean over all of them. So
structures are looked at one by one. Many labels of one example (`multilabel_logits`) have no background; for them every
label counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope.engine import Session, StatisticsBlock
from dropscope.scores import dice, foreground_mean

BACKGROUND = 0


def dense_table(
    session: Session, block: StatisticsBlock, prediction: Tensor, values: dict[str, Tensor]
) -> pd.DataFrame:
    """A row per example of a block.

    Args:
        session: Of the run.
        block: Its examples.
        prediction: Classes `[n, *spatial]`.
        values: Measure → `[n, *spatial]`.

    Returns:
        `id`, `group` (where it is known); `dice` (mean over the structures that are there) and `dice_1`, `dice_2`, …
        (or names) where there are labels; and each measure as its mean over the predicted structures, and over each.
    """
    batch = block.batch
    table: dict[str, Any] = {"id": batch.ids}
    if batch.groups is not None:
        table["group"] = batch.groups
    if session.outputs == "multilabel_logits":
        return pd.DataFrame(table | _over_labels(prediction, batch.labels, session.ignore_label, values))
    structures = [c for c in range(session.classes) if c != BACKGROUND]
    names = [str(c) if session.class_names is None else session.class_names[c] for c in structures]
    if batch.labels is not None:
        overlap = dice(prediction, batch.labels, session.classes, ignore_label=session.ignore_label)[:, structures]
        table["dice"] = overlap.nanmean(1).numpy()
        table |= {f"dice_{name}": column.numpy() for name, column in zip(names, overlap.T, strict=True)}
    for measure, value in values.items():
        u = value.cpu()
        table[measure] = foreground_mean(u, prediction, BACKGROUND).numpy()
        for c, name in zip(structures, names, strict=True):
            table[f"{measure}_{name}"] = foreground_mean(u, (prediction == c).long()).numpy()
    return pd.DataFrame(table)


def _over_labels(
    prediction: Tensor, labels: Tensor | None, ignored: int | None, values: dict[str, Tensor]
) -> dict[str, np.ndarray]:
    """The share of right labels, and the mean of each measure over all labels."""
    columns = {}
    if labels is not None:
        counted = torch.ones_like(prediction, dtype=torch.bool) if ignored is None else labels.ne(ignored)
        right = (prediction == labels) & counted
        columns["correct"] = (right.flatten(1).sum(1).double() / counted.flatten(1).sum(1)).numpy()
    means = {name: value.flatten(1).double().mean(1).cpu().numpy() for name, value in values.items()}
    return columns | means
