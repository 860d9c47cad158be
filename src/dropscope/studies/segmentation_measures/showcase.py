"""Showcase of the study: maps of the best network on three test cases of different quality, and what measures cost.

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
from dropscope.studies.segmentation_measures.evaluation import compute_maps, measure_costs
from dropscope.studies.segmentation_measures.experiments import Experiment, Network
from dropscope.studies.segmentation_measures.preparation import Prepared
from dropscope.studies.segmentation_measures.rows import foreground_dice
from dropscope.studies.segmentation_measures.units import Work

EXHIBITS = "exhibits.safetensors"


@dataclass(frozen=True, eq=False)
class Exhibits:
    """`about`: experiment, validation_loss, cases (quality, name, dice), costs and timings, passes. `maps`: "0/image",
    "0/label", "0/prediction", "0/averaged_variance" …, of case 0, 1, 2."""

    about: dict[str, Any]
    maps: dict[str, Tensor]


def make_exhibits(work: Work, units: Sequence[Network], rows: pd.DataFrame, prepared: Prepared) -> Exhibits:
    """The exhibits of the best network, made once and kept."""
    best = min(units, key=lambda unit: (work.validation_loss(unit), unit.name))
    experiment = best.experiments[0]
    path = Path(work.folder) / EXHIBITS
    if path.exists():
        exhibits = read_exhibits(path)
        if exhibits.about["experiment"] == experiment.name:
            return exhibits
    device = torch.device(work.device)
    net = work.load_trained(best, prepared)
    chosen = _choose_cases(rows, experiment)
    cases = [prepared.names.index(entry["case"]) for entry in chosen]
    placement = work.placement_of(experiment)
    computed = compute_maps(net, prepared, cases, placement, work.passes, work.seed, device)
    maps: dict[str, Tensor] = {}
    for place, (case, of_case) in enumerate(zip(cases, computed, strict=True)):
        kept = {"image": prepared.images[case], "label": prepared.labels[case], "valid": prepared.valid[case]}
        kept |= {"prediction": of_case.prediction, **of_case.values}
        maps |= {f"{place}/{name}": value.contiguous() for name, value in kept.items()}
    timings = measure_costs(net, prepared, cases[0], placement, work.passes, work.seed, device)
    about = {
        "experiment": experiment.name,
        "placement": placement,
        "validation_loss": work.validation_loss(best),
        "cases": chosen,
        "passes": work.passes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "voxels": int(prepared.labels[0].numel()),
        "costs": {name: min(seconds) for name, seconds in timings.items()},
        "timings": timings,
    }
    atomic_write(path, lambda part: save_file(maps, part, {"about": json.dumps(about)}))
    return Exhibits(about, maps)


def _choose_cases(rows: pd.DataFrame, experiment: Experiment) -> list[dict[str, Any]]:
    """Three test cases by mean foreground Dice, or as many as there are; only those with errors, where there are any,
    for a map to be compared with."""
    of_one = rows[(rows.experiment == experiment.name) & (rows.errors > 0)].drop_duplicates("case")
    of_one = of_one if len(of_one) else rows[rows.experiment == experiment.name].drop_duplicates("case")
    ranked = of_one.assign(dice=foreground_dice(of_one)).sort_values(["dice", "case"], na_position="first")
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
