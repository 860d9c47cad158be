"""The best rows of a run: a table that prints in few columns, in a terminal as in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pandas as pd

from dropscope.display import Table

_ARROWS = {"lower": "↓", "higher": "↑"}
_DIFFERENCE, _INTERVAL = "vs plain", "95 % interval"
_RANKS = {"accuracy↑": 1, _INTERVAL: 2, "cost↓": 3}  # what a narrow terminal leaves out, the highest first
_NAME = 30  # columns that a placement keeps


class BestRows(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """Rows ranked by a score. All columns are there; printed are those that say whether a row is worth its cost."""

    _metadata: ClassVar = ["ranked_by", "direction"]  # what pandas keeps beside the columns

    @classmethod
    def of(cls, rows: pd.DataFrame, score: str, direction: str) -> BestRows:
        """`rows` with the columns that are printed first."""
        first = [name for name in ("placement", "measure", "accuracy", score, "low", "high") if name in rows]
        made = cls(rows[[*first, *(name for name in rows if name not in first)]])
        made.ranked_by, made.direction = score, direction
        return made

    @property
    def _constructor(self) -> type[BestRows]:
        return BestRows

    def __repr__(self) -> str:
        return best_table(self, self.ranked_by, self.direction).text() if self._is_whole() else super().__repr__()

    def _repr_html_(self) -> str | None:
        return best_table(self, self.ranked_by, self.direction).html() if self._is_whole() else super()._repr_html_()

    def _is_whole(self) -> bool:
        return {"placement", "measure", "accuracy", "cost", getattr(self, "ranked_by", "")} <= {*self.columns}


def best_table(rows: pd.DataFrame, score: str, direction: str, caption: str = "", notes: Iterable[str] = ()) -> Table:
    """The columns by which rows are chosen. An arrow says which direction is better."""
    titles = ["placement", "measure", f"{score}{_ARROWS[direction]}"]
    notes = list(notes)
    if "aurc_minus_single_pass" in rows and score == "aurc":
        titles.append(_DIFFERENCE)
        notes.insert(0, f"{_DIFFERENCE}: aurc less that of one plain pass ranked by entropy; below 0 is better")
    titles += ["accuracy↑"] + [_INTERVAL] * ("low" in rows and bool(rows.low.notna().any())) + ["cost↓"]
    cells = [_cells(row, score, titles) for row in rows.to_dict("records")]
    return Table(titles, cells, caption, notes, names=2, least=_NAME, ranks=[_RANKS.get(title, 0) for title in titles])


def _cells(row: dict[str, Any], score: str, titles: list[str]) -> list[str]:
    plain = row["measure"].startswith("plain_") and row["placement"] == "none"
    cells = {
        "placement": "plain pass" if plain else row["placement"],
        "measure": row["measure"],
        _DIFFERENCE: f"{row.get('aurc_minus_single_pass', 0.0):+.4f}",
        "accuracy↑": f"{row['accuracy']:.4f}",
        _INTERVAL: "" if pd.isna(row.get("low")) else f"{row['low']:.4f}–{row['high']:.4f}",
        "cost↓": f"{row['cost']:.1f}×" if row["cost"] < 100 else f"{row['cost']:.0f}×",
    }
    return [cells.get(title, f"{row[score]:.4f}") for title in titles]
