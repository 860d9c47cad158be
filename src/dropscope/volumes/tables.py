"""Numbers of each case, and the table of cases, most uncertain first.

`summarise` makes what `case.json` keeps, by the number of each structure; `case_table` names them, adds Dice and volume
errors where there are labels, and ranks: by the mean predictive entropy over the predicted foreground, or by another
column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope.scores import dice, foreground_mean, worst_patch
from dropscope.volumes.nifti import VolumeCase, voxel_volume
from dropscope.volumes.windows import VolumePrediction

PATCH = 8  # voxels a side of the patch that `worst_patch` looks for
_MIDDLE = (0.025, 0.975)  # the middle 95 % of passes


def summarise(case: VolumeCase, prediction: VolumePrediction, classes: int) -> dict[str, Any]:
    """The numbers of a case, one per structure (class 1, 2, …). Those that do not exist are None.

    A structure that no voxel is predicted as has no uncertainty, one pass no pairwise Dice.
    """
    labels, per_voxel = prediction.labels[None], voxel_volume(case)
    agreement, structures = prediction.pass_labels, range(1, classes)
    volumes = agreement.volumes[:, 0].double() * per_voxel
    low, high = torch.quantile(volumes, torch.tensor(_MIDDLE, dtype=torch.float64), 0, interpolation="nearest")
    total = torch.quantile(volumes[:, 1:].sum(1), torch.tensor(_MIDDLE, dtype=torch.float64), interpolation="nearest")
    pairs = agreement.pairwise_dice[0].tolist() if agreement.passes > 1 else [None] * classes
    inside = [prediction.entropy[prediction.labels == c].double().mean().item() for c in structures]
    return {
        "case": case.name,
        "image": case.place,
        "uncertainty": _number(foreground_mean(prediction.entropy[None], labels)),
        "foreground": [int((labels > 0).sum()) * per_voxel, *total.tolist()],
        "uncertainties": [_number(value) for value in inside],
        "millilitres": [int((labels == c).sum()) * per_voxel for c in structures],
        "millilitres_low": low[1:].tolist(),
        "millilitres_high": high[1:].tolist(),
        "volume_variation": [_number(value) for value in agreement.volume_variation[0, 1:]],
        "pairwise_dice": [_number(value) for value in pairs[1:]],
        "maps": {
            name: {
                "foreground_mean": _number(foreground_mean(value[None], labels)),
                "worst_patch": _number(worst_patch(value[None], PATCH)),
            }
            for name, value in prediction.maps.items()
        },
    }


def structure_scores(prediction: Tensor, label: Tensor, classes: int) -> dict[str, list[float | None]]:
    """Dice and volume error of each structure; None where it is in neither.

    The volume error is |predicted − true| / true, at most 1: a bounded loss.

    >>> label = torch.tensor([1, 1, 1, 1, 0, 2])
    >>> structure_scores(torch.tensor([1, 1, 1, 0, 0, 0]), label, 4)["volume_error"]
    [0.25, 1.0, None]
    """
    overlap = [_number(value) for value in dice(prediction[None], label[None], classes)[0, 1:]]
    sizes = [[int((labels == c).sum()) for labels in (prediction, label)] for c in range(1, classes)]
    wrong = [None if not (p or t) else min(1.0, abs(p - t) / t) if t else 1.0 for p, t in sizes]
    return {"dice": overlap, "volume_error": wrong}


def case_table(
    found: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    scores: Mapping[str, Mapping[str, Sequence[float | None]]],
    places: Mapping[str, Mapping[str, str]],
    rank_by: str = "uncertainty",
) -> pd.DataFrame:
    """One row per case, most uncertain first; cases without any foreground come before all others.

    Args:
        found: What `summarise` found for each case.
        names: Names of the structures.
        scores: Case → what `structure_scores` found, for the cases that have a label.
        places: Case → column → files that belong to it.
        rank_by: The column that ranks.
    """
    rows = []
    for each in found:
        row: dict[str, Any] = {"case": each["case"], "uncertainty": each["uncertainty"]}
        for kind in ("dice", "volume_error") if scores else ():
            row |= _columns(kind, scores.get(each["case"], {}).get(kind, [None] * len(names)), names)
        row["ml"], row["ml_low"], row["ml_high"] = each["foreground"]
        for i, name in enumerate(names):
            row[f"ml_{name}"] = each["millilitres"][i]
            row[f"ml_{name}_low"], row[f"ml_{name}_high"] = each["millilitres_low"][i], each["millilitres_high"][i]
        row |= {"volume_variation": _mean(each["volume_variation"]), "pairwise_dice": _mean(each["pairwise_dice"])}
        for column in ("uncertainty", "volume_variation", "pairwise_dice"):
            values = each["uncertainties" if column == "uncertainty" else column]
            row |= {f"{column}_{name}": value for name, value in zip(names, values, strict=True)}
        for measure, numbers in each["maps"].items():
            row |= {f"{measure}_{kind}": value for kind, value in numbers.items()}
        rows.append(row | dict(places[each["case"]]) | {"image": each["image"]})
    table = pd.DataFrame(rows)
    table = table.assign(**{column: table[column].astype(float) for column in table if _is_numeric(rows, column)})
    order = np.lexsort((table.case, -rising(table, rank_by).fillna(np.inf)))
    table = table.iloc[order].reset_index(drop=True)
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    return table


def format_volume(low: float, value: float, high: float) -> str:
    """A volume with its interval, to three digits.

    >>> format_volume(1.4, 1.5, 1.61), format_volume(0.0, 0.0, 0.012), format_volume(1400, 1500.4, 1620)
    ('1.50 ml (1.40–1.61)', '0.0000 ml (0.0000–0.0120)', '1500 ml (1400–1620)')
    """
    largest = max(value, high)
    digits = max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 2
    return f"{value:.{digits}f} ml ({low:.{digits}f}–{high:.{digits}f})"


def rankings(measures: Sequence[str]) -> tuple[str, ...]:
    """The columns that cases can be ranked by, where these measures have maps.

    >>> rankings(["averaged_variance"])[-2:]
    ('averaged_variance_foreground_mean', 'averaged_variance_worst_patch')
    """
    of_maps = (f"{name}_{kind}" for name in measures for kind in ("foreground_mean", "worst_patch"))
    return ("uncertainty", "volume_variation", "pairwise_dice", *of_maps)


def rising(table: pd.DataFrame, column: str) -> pd.Series:
    """A column as uncertainty, higher where passes agree less."""
    return 1 - table[column] if column.startswith("pairwise_dice") else table[column]


def _columns(kind: str, values: Sequence[float | None], names: Sequence[str]) -> dict[str, float | None]:
    return {kind: _mean(values)} | {f"{kind}_{name}": value for name, value in zip(names, values, strict=True)}


def _mean(values: Sequence[float | None]) -> float | None:
    """Of the structures that are there."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _is_numeric(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    return not any(isinstance(row[column], str) for row in rows)


def _number(value: Any) -> float | None:
    """A float that JSON can hold: None for NaN."""
    number = float("nan") if value is None else float(value)
    return None if number != number else number
