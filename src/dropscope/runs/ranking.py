"""The best rows of a run: a table that prints in few columns, in a terminal as in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pandas as pd

from dropscope.display import Table

_ARROWS = {"lower": "↓", "higher": "↑"}


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
    titles = ["placement", "measure", "accuracy↑", f"{score}{_ARROWS[direction]}"]
    with_interval = "low" in rows and bool(rows.low.notna().any())
    with_difference = "aurc_minus_single_pass" in rows and score == "aurc"
    titles += ["95 % interval"] * with_interval + ["− 1 pass"] * with_difference + ["cost↓"]
    return Table(titles, [_cells(row, score, titles) for row in rows.to_dict("records")], caption, list(notes), names=2)


def _cells(row: dict[str, Any], score: str, titles: list[str]) -> list[str]:
    name = "plain pass" if row["measure"].startswith("plain_") and row["placement"] == "none" else row["placement"]
    cells = [name, row["measure"], f"{row['accuracy']:.4f}", f"{row[score]:.4f}"]
    if "95 % interval" in titles:
        cells.append("" if pd.isna(row["low"]) else f"{row['low']:.4f}–{row['high']:.4f}")
    if "− 1 pass" in titles:
        cells.append(f"{row['aurc_minus_single_pass']:+.4f}")
    return [*cells, f"{row['cost']:.1f}×" if row["cost"] < 100 else f"{row['cost']:.0f}×"]
