"""The best rows of a run: a table that prints in few columns, in a terminal as in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pandas as pd

from dropscope.display import Table
from dropscope.runs.intervals import INTERVAL, LEAST_ERRORS, MONTE_CARLO

_ARROWS = {"lower": "↓", "higher": "↑"}
_DIFFERENCE, _INTERVAL, _ERROR = "vs plain", "95 % interval", "MC error"
_RANKS = {_INTERVAL: 1, "accuracy↑": 2, "cost↓": 3, _ERROR: 4}  # what a narrow terminal leaves out, the highest first
_NAME = 30  # columns that a placement keeps


class BestRows(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """Rows ranked by a score. All columns are there; printed are those that say whether a row is worth its cost."""

    _metadata: ClassVar = ["ranked_by", "direction"]  # what pandas keeps beside the columns

    @classmethod
    def of(cls, rows: pd.DataFrame, score: str, direction: str) -> BestRows:
        """`rows` with the columns that are printed first."""
        first = [name for name in ("placement", "measure", "accuracy", score, *INTERVAL) if name in rows]
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
    known = bool(rows.minus_single_pass.notna().any()) if "minus_single_pass" in rows else False
    ends = known and bool(rows.minus_single_pass_low.notna().any())
    titles = ["placement", "measure", f"{score}{_ARROWS[direction]}", *[_DIFFERENCE] * known, *[_INTERVAL] * ends]
    titles += [*[_ERROR] * has_errors(rows), "accuracy↑", "cost↓"]
    differences = zip(*difference_cells(rows), strict=True) if known else iter(())
    cells = [_cells(row, score, titles, next(differences, ("", ""))) for row in rows.to_dict("records")]
    ranks = [_RANKS.get(title, 0) for title in titles]
    said = [*(choice_notes(rows, score, direction) if known else []), *notes]
    return Table(titles, cells, caption, said, names=2, least=_NAME, ranks=ranks)


def choice_notes(rows: pd.DataFrame, score: str, direction: str) -> list[str]:
    """What the difference to one plain pass and its interval are, and why there may be none."""
    better = "below" if direction == "lower" else "above"
    notes = [f"{_DIFFERENCE}: less the {score} of one plain pass; {better} 0 is better"]
    if rows.minus_single_pass_low.notna().any():
        of = int(rows.picked_from.max())
        chosen = f", for the best of {of:,} rows on the same examples" if of > 1 else ""
        notes.append(f"{_INTERVAL}: of {_DIFFERENCE}{chosen}")
    if has_errors(rows):
        close = (rows.minus_single_pass.abs() < 2 * rows[MONTE_CARLO]) & (rows[MONTE_CARLO] > 0)
        within = f"; in {int(close.sum())} rows more than half of it" if close.any() else ""
        notes.append(f"{_ERROR}: what other masks move {_DIFFERENCE} by{within}")
    few = rows.errors[rows.errors < LEAST_ERRORS]
    if len(few):
        notes.append(f"no interval with fewer than {LEAST_ERRORS} errors, or right answers (here {int(few.min())})")
    elif rows.errors.isna().any() and rows.errors.notna().any():
        notes.append('no interval of rows that are no finalists: keep="all" has one for each')
    return notes


def has_errors(rows: pd.DataFrame) -> bool:
    """Whether the Monte Carlo error of a row's score is known."""
    return MONTE_CARLO in rows and bool(rows[MONTE_CARLO].gt(0).any())


def error_cells(rows: pd.DataFrame) -> list[str]:
    """The Monte Carlo error of each row's score, in words; a plain pass has none."""
    return ["" if pd.isna(value) or value == 0 else f"{value:.4f}" for value in rows[MONTE_CARLO]]


def difference_cells(rows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The difference of each row to one plain pass, and its interval, in words."""
    values = ["" if pd.isna(value) else f"{value:+.4f}" for value in rows.minus_single_pass]
    ends = zip(rows.minus_single_pass_low, rows.minus_single_pass_high, strict=True)
    return values, ["" if pd.isna(low) else f"{low:+.4f} to {high:+.4f}" for low, high in ends]


def _cells(row: dict[str, Any], score: str, titles: list[str], difference: tuple[str, str]) -> list[str]:
    plain = row["measure"].startswith("plain_") and row["placement"] == "none"
    cells = {
        "placement": "plain pass" if plain else row["placement"],
        "measure": row["measure"],
        _DIFFERENCE: difference[0],
        _INTERVAL: difference[1],
        _ERROR: error_cells(pd.DataFrame([row]))[0] if _ERROR in titles else "",
        "accuracy↑": f"{row['accuracy']:.4f}",
        "cost↓": f"{row['cost']:.1f}×" if row["cost"] < 100 else f"{row['cost']:.0f}×",
    }
    return [cells.get(title, f"{row[score]:.4f}") for title in titles]
