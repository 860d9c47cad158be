"""Chapters about predicted volumes: cases for review, the most uncertain first, and their maps slice by slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dropscope.errors import MissingExtra
from dropscope.report.page.content import Cell, Chapter, Grid, Item, Section
from dropscope.report.page.volumes import volume_of

_SHOWN = 3  # cases to look through
_ROWS = 200
_COLUMNS = {"uncertainty": "uncertainty", "dice": "Dice↑", "ml": "ml", "ml_low": "ml, low", "ml_high": "ml, high"}


def cases_chapter(folder: Path, data: Any) -> Chapter:
    """A folder that `dropscope predict` wrote; `data` is a folder of the scans, where they were moved."""
    table = pd.read_csv(folder / "cases.csv")
    first = table.iloc[0]
    said = [f"Of {len(table):,} cases, `{first['case']}` is the most uncertain ({first['uncertainty']:.4f})."]
    known = table[["uncertainty", "dice"]].dropna() if "dice" in table else table[[]]
    if len(known) > 3 and known.nunique().min() > 1:
        rank = float(known.uncertainty.corr(known.dice, method="spearman"))
        goes = "goes" if rank < 0 else "does not go"
        said.append(f"Uncertainty {goes} with a lower Dice: rank correlation {rank:+.2f}.".replace("-", "−"))
    shown = [name for name in _COLUMNS if name in table]
    rows: list[list[Cell]] = [
        [str(row["case"]), *(None if pd.isna(row[name]) else float(row[name]) for name in shown)]
        for row in table.head(_ROWS).to_dict("records")
    ]
    views: list[Item] = [view for row in table.head(_SHOWN).to_dict("records") for view in _view(folder, row, data)]
    sections = [Section("Look through the most uncertain cases", views)] if views else []
    sections.append(Section("Every case", [Grid(["case", *(_COLUMNS[name] for name in shown)], rows)]))
    tiles = [("cases", f"{len(table):,}")]
    tiles += [("mean Dice", f"{table.dice.mean():.3f}")] if "dice" in table else []
    numbers = {"cases": float(len(table))} | ({"dice": float(table.dice.mean())} if "dice" in table else {})
    assumptions = ["Uncertainty ranks cases for review; it is not the probability of an error."]
    headline = "Look at these cases first"
    name = folder.resolve().name
    return Chapter(
        "volumes", name, "told", "for review", headline, said, tiles, None, None, assumptions, sections, numbers
    )


def _view(folder: Path, row: dict[str, Any], data: Any) -> list[Item]:
    maps = folder / str(row["case"])
    if not (maps / "prediction.nii.gz").is_file():
        return []
    prediction = _voxels(maps / "prediction.nii.gz")
    layers = {"prediction": prediction}
    for file in sorted(maps.glob("*.nii.gz")):
        name = file.name.removesuffix(".nii.gz")
        if name != "prediction" and (values := _voxels(file)).shape == prediction.shape:
            layers[name] = values
    scan = _scan(folder, str(row.get("image", "")), data)
    image = np.zeros(prediction.shape) if scan is None else _voxels(scan)
    layers["image"] = image if image.shape == prediction.shape else np.zeros(prediction.shape)
    return [volume_of(str(row["case"]), layers)]


def _scan(folder: Path, name: str, data: Any) -> Path | None:
    """The file of a scan, where it still lies, or in the folder that was given."""
    places = [Path(name), folder.parent / name]
    places += [Path(data) / Path(name).name] if isinstance(data, str | Path) else []
    return next((place for place in places if name and place.is_file()), None)


def _voxels(file: Path) -> NDArray[Any]:
    """Voxels with the patient's front at the top of a slice."""
    try:
        import nibabel
    except ImportError as error:
        raise MissingExtra("slices of volumes", "nibabel", "medical") from error
    image = nibabel.as_closest_canonical(nibabel.load(file))
    return np.asarray(image.dataobj)[:, ::-1]
