"""Numbers of each case, and the table of cases, most uncertain first.

`summarise` makes what `case.json` keeps, by the number of each structure; `case_table` names them, adds Dice where
there are labels, and ranks. A case is ranked by the mean predictive entropy over its predicted foreground.
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


def structure_dice(prediction: Tensor, label: Tensor, classes: int) -> list[float | None]:
    """Dice of each structure; None where it is in neither."""
    return [_number(value) for value in dice(prediction[None], label[None], classes)[0, 1:]]


def case_table(
    found: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    scores: Mapping[str, Sequence[float | None]],
    places: Mapping[str, Mapping[str, str]],
) -> pd.DataFrame:
    """One row per case, most uncertain first; cases without any foreground come before all others.

    Args:
        found: What `summarise` found for each case.
        names: Names of the structures.
        scores: Case → Dice of each structure, for the cases that have a label.
        places: Case → column → files that belong to it.
    """
    rows = []
    for each in found:
        row: dict[str, Any] = {"case": each["case"], "uncertainty": each["uncertainty"]}
        if scores:
            row |= _dice_columns(scores.get(each["case"], [None] * len(names)), names)
        row["ml"], row["ml_low"], row["ml_high"] = each["foreground"]
        for i, name in enumerate(names):
            row[f"ml_{name}"] = each["millilitres"][i]
            row[f"ml_{name}_low"], row[f"ml_{name}_high"] = each["millilitres_low"][i], each["millilitres_high"][i]
        for column in ("uncertainty", "volume_variation", "pairwise_dice"):
            values = each["uncertainties" if column == "uncertainty" else column]
            row |= {f"{column}_{name}": value for name, value in zip(names, values, strict=True)}
        for measure, numbers in each["maps"].items():
            row |= {f"{measure}_{kind}": value for kind, value in numbers.items()}
        rows.append(row | dict(places[each["case"]]) | {"image": each["image"]})
    table = pd.DataFrame(rows)
    table = table.assign(**{column: table[column].astype(float) for column in table if _is_numeric(rows, column)})
    order = np.lexsort((table.case, -table.uncertainty.fillna(np.inf)))
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


def _dice_columns(values: Sequence[float | None], names: Sequence[str]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    mean = float(np.mean(known)) if known else None
    return {"dice": mean} | {f"dice_{name}": value for name, value in zip(names, values, strict=True)}


def _is_numeric(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    return not any(isinstance(row[column], str) for row in rows)


def _number(value: Any) -> float | None:
    """A float that JSON can hold: None for NaN."""
    number = float("nan") if value is None else float(value)
    return None if number != number else number
