"""Files of a study: tables (CSV, Markdown, LaTeX) and figures (PNG, PDF).

Owns their formats; every file is written atomically. What is in them is up to the study; see `summaries` for the file
that is read first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dropscope.atomic import atomic_write, read_json, same_spec
from dropscope.report.typesetting import latex

SPEC = "study.json"  # what a folder's study is of
COMMAND = "command.txt"  # what made it


def write_text(path: Path, text: str) -> Path:
    """Writes a text file atomically."""
    return atomic_write(path, lambda part: part.write_text(text, encoding="utf-8"))


def claim_folder(folder: Path, spec: Mapping[str, Any], name: str = SPEC) -> None:
    """Makes a folder that of one study: its specification is written at the first start and must agree later.

    Raises:
        BadInput: Where the folder holds a study of another specification.
    """
    record = folder / name
    if not record.exists():
        write_text(record, json.dumps(dict(spec), indent=2) + "\n")
        return
    same_spec(read_json(record), spec, record, "choose another folder, or repeat the first command exactly")


def write_table(folder: Path, name: str, table: pd.DataFrame, caption: str, digits: int = 4) -> list[Path]:
    """`tables/NAME.csv` (full precision), `.md` and `.tex` (rounded)."""
    at = folder / "tables" / name
    return [
        atomic_write(at.with_suffix(".csv"), lambda part: table.to_csv(part, index=False)),
        write_text(at.with_suffix(".md"), f"{caption}\n\n{markdown(table, digits)}\n"),
        write_text(at.with_suffix(".tex"), latex(_printed(table, digits), caption, name)),
    ]


def new_figure(width: float = 6.4, height: float = 4.2) -> Figure:
    """A figure outside pyplot's global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(folder: Path, name: str, figure: Figure, corner: str) -> list[Path]:
    """`figures/NAME.png` and `.pdf`, with the evidence in the lower right corner: see `figures.evidence`."""
    at = folder / "figures" / name
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for legend in figure.legends:  # stays where the layout put it when the page grows
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
    # Below everything else, so that nothing lies on it; the page grows with it.
    figure.text(0.995, -0.01, corner, ha="right", va="top", fontsize=7.5, color="0.35")
    page: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.06}
    return [
        atomic_write(at.with_suffix(".png"), lambda part: figure.savefig(part, dpi=150, **page)),
        atomic_write(at.with_suffix(".pdf"), lambda part: figure.savefig(part, **page)),
    ]


def markdown(table: pd.DataFrame, digits: int = 4) -> str:
    """A Markdown table.

    >>> print(markdown(pd.DataFrame({"a": ["x|y"], "b": [0.12345]})))
    | a | b |
    |---|---|
    | x\\|y | 0.1235 |
    """
    rows = [[value.replace("|", "\\|") for value in row] for row in _printed(table, digits).itertuples(index=False)]
    head = [str(name).replace("|", "\\|") for name in table.columns]
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _printed(table: pd.DataFrame, digits: int) -> pd.DataFrame:
    """The same table as texts."""
    columns = [[_cell(value, digits) for value in column.tolist()] for _, column in table.items()]
    return pd.DataFrame(dict(enumerate(columns)), dtype=object).set_axis(table.columns, axis=1)


def _cell(value: object, digits: int) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.{digits}f}" if abs(value) >= 10**-digits or value == 0 else f"{value:.1e}"
