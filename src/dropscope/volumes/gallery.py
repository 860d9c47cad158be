"""Pictures of a folder of predictions: which files, numbers and words go into each. See `overlays` for the drawing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dropscope.volumes.labels import read_label, structure_text
from dropscope.volumes.nifti import VolumeCase, read_header, read_voxels
from dropscope.volumes.options import LABELS
from dropscope.volumes.overlays import TILES, Picture, draw_case, draw_overview, drawn_mark
from dropscope.volumes.tables import format_volume

OVERLAY, OVERVIEW = "overlay.png", "overview.png"
_FIRST_CHOICE = "predictive_entropy"
_NATS = ("predictive_entropy", "expected_entropy", "plain_entropy")  # at most log C
_BRIGHT = 99.9  # percentile of a map without a known scale that gets the brightest colour


def draw_overlay(
    folder: Path,
    case: VolumeCase,
    found: Mapping[str, Any],
    names: Sequence[str],
    dice: Sequence[float | None] | None,
    label: Path | None,
    measures: Sequence[str],
) -> None:
    """Draws the picture of a case, unless it is there with the same words.

    Args:
        folder: Where its maps are.
        case: The case.
        found: What `tables.summarise` found.
        names: Names of the structures.
        dice: Dice of each structure, where there is a label.
        label: Its label file, where there is one.
        measures: Names of the maps; the first is shown, or the predictive entropy where it is among them.
    """
    lines = []
    for i, name in enumerate(names):
        volume = format_volume(*(found[f"millilitres{kind}"][i] for kind in ("_low", "", "_high")))
        line = f"{structure_text(name)}  {volume}"
        lines.append(line if dice is None or dice[i] is None else f"{line}   Dice {dice[i]:.2f}")
    level = "nothing but background" if found["uncertainty"] is None else f"{found['uncertainty']:.3f} nats"
    title = f"{case.name}   uncertainty {level}"
    mark = json.dumps([title, lines, str(label), list(measures), found["maps"]])
    if drawn_mark(folder / OVERLAY) != mark:
        draw_case(folder / OVERLAY, _picture(folder, case, label, measures, len(names) + 1, title, lines), mark)


def draw_cases(
    out: Path,
    ranked: Sequence[VolumeCase],
    table: pd.DataFrame,
    labels: Mapping[str, Path],
    measures: Sequence[str],
    classes: int,
) -> None:
    """Draws the overview of the most uncertain cases, in the order of the table."""
    pictures = []
    for case, row in zip(ranked[:TILES], table.to_dict("records"), strict=False):
        level = "–" if math.isnan(row["uncertainty"]) else f"{row['uncertainty']:.3f}"
        dice = row.get("dice", math.nan)
        score = "" if math.isnan(dice) else f"   Dice {dice:.2f}"
        title = f"{row['rank']}  {_shortened(case.name)}\n{level}{score}"
        pictures.append(_picture(out / case.name, case, labels.get(case.name), measures, classes, title, []))
    draw_overview(out / OVERVIEW, pictures, len(ranked))


def _picture(
    folder: Path,
    case: VolumeCase,
    label: Path | None,
    measures: Sequence[str],
    classes: int,
    title: str,
    lines: Sequence[str],
) -> Picture:
    shown = _FIRST_CHOICE if _FIRST_CHOICE in measures else measures[0]
    image = read_voxels(case.files[0]).reshape(*case.shape, -1)[..., 0]
    uncertainty = read_voxels(folder / f"{shown}.nii.gz").reshape(case.shape)
    if shown in _NATS:
        words, most = f"{shown.replace('_', ' ')} (nats)", math.log(classes)
    else:
        words, most = shown.replace("_", " "), float(np.percentile(uncertainty, _BRIGHT)) or 1.0
    return Picture(
        image,
        read_voxels(folder / f"{LABELS}.nii.gz").reshape(case.shape).astype(int),
        uncertainty,
        None if label is None else read_label(label, case, classes).numpy(),
        read_header(case.files[0]).affine,
        lines,
        title,
        words,
        most,
    )


def _shortened(name: str, length: int = 24) -> str:
    return name if len(name) <= length else f"{name[: length // 2 - 1]}…{name[-length // 2 :]}"
