"""The best network shown: its maps on three test cases of different quality, and what each measure costs there.

Owns the choice (best validation Dice loss, never the test set) and the file `exhibits.safetensors`, so that figures
and tables can be drawn again without a network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dropscope.atomic import atomic_write
from dropscope.studies.segmentation_measures.evaluation import costs, maps_of
from dropscope.studies.segmentation_measures.experiments import Experiment, Network, Work
from dropscope.studies.segmentation_measures.preparing import Prepared
from dropscope.studies.segmentation_measures.tables import foreground

EXHIBITS = "exhibits.safetensors"


@dataclass(frozen=True, eq=False)
class Exhibits:
    """`about`: experiment, validation_loss, cases (quality, name, dice), costs, passes. `maps`: "0/image", "0/label",
    "0/prediction", "0/averaged_variance" …, of case 0, 1, 2."""

    about: dict[str, Any]
    maps: dict[str, Tensor]


def exhibit(work: Work, units: Sequence[Network], rows: pd.DataFrame, prepared: Prepared) -> Exhibits:
    """The exhibits of the best network; made once and kept."""
    best = min(units, key=lambda unit: (work.validation_loss(unit), unit.name))
    experiment = best.experiments[0]
    path = Path(work.folder) / EXHIBITS
    if path.exists():
        found = read_exhibits(path)
        if found.about["experiment"] == experiment.name:
            return found
    device = torch.device(work.device)
    net = work.trained(best, prepared)
    chosen = _chosen(rows, experiment)
    numbers = [prepared.names.index(case["case"]) for case in chosen]
    text = work.text(experiment)
    found_maps = maps_of(net, prepared, numbers, text, work.passes, work.seed, device)
    maps: dict[str, Tensor] = {}
    for place, (number, found_map) in enumerate(zip(numbers, found_maps, strict=True)):
        kept = {"image": prepared.images[number], "label": prepared.labels[number], "valid": prepared.valid[number]}
        kept |= {"prediction": found_map.prediction, **found_map.values}
        maps |= {f"{place}/{name}": value.contiguous() for name, value in kept.items()}
    about = {
        "experiment": experiment.name,
        "placement": text,
        "validation_loss": work.validation_loss(best),
        "cases": chosen,
        "passes": work.passes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "voxels": int(prepared.labels[0].numel()),
        "costs": costs(net, prepared, numbers[0], text, work.passes, work.seed, device),
    }
    atomic_write(path, lambda part: save_file(maps, part, {"about": json.dumps(about)}))
    return Exhibits(about, maps)


def _chosen(rows: pd.DataFrame, experiment: Experiment) -> list[dict[str, Any]]:
    """Three test cases by mean foreground Dice, or as many as there are; those with errors alone, which a map can be
    held against."""
    of_one = rows[(rows.experiment == experiment.name) & (rows.errors > 0)].drop_duplicates("case")
    of_one = of_one if len(of_one) else rows[rows.experiment == experiment.name].drop_duplicates("case")
    ranked = of_one.assign(dice=foreground(of_one)).sort_values(["dice", "case"], na_position="first")
    places: dict[int, str] = {}
    for quality, i in (("worst", 0), ("best", len(ranked) - 1), ("median", (len(ranked) - 1) // 2)):
        places.setdefault(i, quality)
    return [
        {"quality": quality, "case": str(ranked["case"].iloc[i]), "dice": float(ranked["dice"].iloc[i])}
        for i, quality in sorted(places.items())
    ]


def read_exhibits(path: Path) -> Exhibits:
    with safe_open(path, "pt") as file:
        return Exhibits(json.loads(file.metadata()["about"]), {n: file.get_tensor(n) for n in file.keys()})  # noqa: SIM118
