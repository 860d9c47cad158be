"""The result of a comparison: its tables, its verdict, its pictures and its files."""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.atomic import atomic_write, output_folder
from dropscope.deploy.rivals.plots import ComparisonPlots
from dropscope.deploy.rivals.rows import SCORES, Judged
from dropscope.deploy.rivals.verdicts import Verdict
from dropscope.display import Table
from dropscope.report import evidence, latex, markdown, write_figure, write_text
from dropscope.runs import started_by
from dropscope.scores import TABLE as SCORE_TABLE

_TITLES = {"aurc": "AURC", "augrc": "AUGRC", "error_auroc": "AUROC", "nll": "NLL", "brier": "Brier", "ece": "ECE"}
_ARROWS = {"lower": "↓", "higher": "↑"}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rivals on the same examples.

    Attributes:
        table: A row per rival in the order of AURC: `name`, `kind`, `measure` (of several, the one that the fitting
            examples chose), `accuracy`, `aurc` with `aurc_low` and `aurc_high`, `augrc`, `error_auroc`, `nll`, `brier`,
            `ece`, `temperature` (fitted before the last three), `cost` in plain passes and `milliseconds` per example
            (NaN where it was not run). With shifted data the same scores again, such as `shifted_aurc`.
        differences: A row per rival and score: `name`, `data`, `score`, `value`, `low`, `high`, and `difference`,
            `difference_low`, `difference_high` to the reference. Intervals of differences hold for all rivals at once.
        verdict: One sentence, and what it rests on.
        examples: A row per rival and example of the data: `name`, `id`, `label`, `prediction`, `correct`,
            `uncertainty`.
        rows: Every rival on those examples, as tensors.
        against: The reference.
        settings: What was asked for, in values that JSON can hold.
        fitted_on: How many examples fitted.
        judged_on: How many others judged.
        shifted_on: How many examples the shifted data have; 0 without any.
        remarks: What was left out, and why.
        seconds: Wall time in all.
        groups: What was resampled instead of examples, one for each.
    """

    table: pd.DataFrame
    differences: pd.DataFrame
    verdict: Verdict
    examples: pd.DataFrame
    rows: dict[str, Judged]
    against: str
    settings: dict[str, Any]
    fitted_on: int
    judged_on: int
    shifted_on: int = 0
    remarks: tuple[str, ...] = ()
    seconds: float = 0.0
    groups: Sequence[Any] | None = None

    @property
    def plot(self) -> ComparisonPlots:
        """Draws it: `plot.risk_coverage()`, `plot.costs()`, `plot.gains()`, and `plot.figure()` for a paper."""
        of_data = self.differences[self.differences.data == "data"]
        return ComparisonPlots(self.table, of_data, self.rows, self.groups, self.against)

    def markdown(self) -> str:
        """The table for a README or an issue.

        Returns:
            Markdown.
        """
        return markdown(self._printed())

    def latex(self, label: str = "comparison") -> str:
        r"""The table for a paper; it needs the package booktabs.

        Args:
            label: Of the table, after `tab:`.

        Returns:
            LaTeX source in ASCII.
        """
        return latex(self._printed(), self.caption, label)

    @property
    def caption(self) -> str:
        """What the table shows, for its caption."""
        ordered = f"{len(self.table)} rivals on the same {self.judged_on:,} examples; measures, temperatures and fits"
        return (
            f"{ordered} from {self.fitted_on:,} others. Differences are to {self.against}, with 95 % intervals that "
            "hold for all rows at once; NLL, Brier score and ECE at the temperature fitted for each row."
        )

    def facts(self) -> dict[str, Any]:
        """The comparison in values that JSON can hold."""
        rows, gaps = (json.loads(part.to_json(orient="records")) for part in (self.table, self.differences))
        return {
            "verdict": asdict(self.verdict),
            "against": self.against,
            "fitted_on": self.fitted_on,
            "judged_on": self.judged_on,
            "shifted_on": self.shifted_on,
            "settings": self.settings,
            "remarks": list(self.remarks),
            "seconds": self.seconds,
            "table": rows,
            "differences": gaps,
        }

    def save(self, folder: str | Path) -> Path:
        """Writes everything: `comparison.json`, `table.csv`, `.md` and `.tex`, `differences.csv`, `examples.parquet`,
        and `figures/` as PNG and PDF.

        Args:
            folder: Made where it is missing; files of an earlier comparison are replaced.

        Returns:
            The folder.

        Raises:
            BadInput: Where it cannot be a folder.
        """
        at = output_folder(folder)
        corner = evidence(examples=self.judged_on, fitting_examples=self.fitted_on, passes=self.settings["passes"])
        write_figure(at, "comparison", self.plot.figure(), corner)
        write_figure(at, "differences", self._differences_figure(), corner)
        atomic_write(at / "table.csv", lambda part: self.table.to_csv(part, index=False))
        atomic_write(at / "differences.csv", lambda part: self.differences.to_csv(part, index=False))
        atomic_write(at / "examples.parquet", lambda part: self.examples.to_parquet(part, index=False))
        write_text(at / "table.md", f"{self.caption}\n\n{self.markdown()}\n\n{self.verdict}\n")
        write_text(at / "table.tex", self.latex())
        write_text(at / "comparison.json", json.dumps({**self.facts(), "command": started_by()}, indent=2) + "\n")
        return at

    def __repr__(self) -> str:
        return self._table().short("print it, or look at .table").text()

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The table and the verdict.

        Args:
            width: Columns to keep to; None takes those of the terminal.

        Returns:
            Lines of text.
        """
        room = shutil.get_terminal_size().columns if width is None else width
        lines = [*self._table().text(room).splitlines(), "", f"Verdict: {self.verdict}"]
        wide = max(40, min(room, 100))
        folded = [textwrap.wrap(line, wide, break_on_hyphens=False) if len(line) > room or line is lines[-1] else [line]
                  for line in lines]  # fmt: skip
        return "\n".join(part for parts in folded for part in parts)

    def _repr_html_(self) -> str:
        return self._table().html()

    def _differences_figure(self) -> Any:
        from dropscope.report import new_figure

        figure = new_figure(6.4, 1.1 + 0.24 * len(self.table))
        self.plot.gains(ax=figure.add_subplot())
        return figure

    def _table(self) -> Table:
        printed = self._printed()
        ranks = [_rank(name) for name in printed.columns]
        sizes = f"judged on {self.judged_on:,} examples, fitted on {self.fitted_on:,} others"
        sizes += f", {self.shifted_on:,} shifted ones" if self.shifted_on else ""
        notes = [f"vs ref: less that of {self.against}; intervals hold for all rows at once", *self.remarks]
        rows = printed.to_numpy().tolist()
        return Table(list(printed.columns), rows, f"{len(rows)} rivals, {sizes}", notes, least=20, ranks=ranks)

    def _printed(self) -> pd.DataFrame:
        """The table as people read it, in texts."""
        gaps = self.differences[(self.differences.data == "data") & (self.differences.score == "aurc")]
        gaps = gaps.set_index("name").loc[self.table.name]
        columns: dict[str, list[str]] = {
            "name": list(self.table.name),
            "ranked by": [measure if measure != "own" else "–" for measure in self.table.measure],
            _title("aurc"): _numbers(self.table.aurc),
            "vs ref": [f"{value:+.4f}" if name != self.against else "–" for name, value in gaps.difference.items()],
            "95 % interval": [_ends(row) for _, row in gaps.iterrows()],
            "acc↑": [f"{value:.3f}" for value in self.table.accuracy],
            "cost↓": [f"{value:.1f}×" for value in self.table.cost],
            "ms↓": ["–" if math.isnan(value) else f"{value:.2f}" for value in self.table.milliseconds],
        }
        columns |= {_title(name): _numbers(self.table[name]) for name in SCORES[1:]}
        if self.shifted_on:
            for name in ("accuracy", *SCORES):
                title = f"shifted {_title(name) if name in _TITLES else 'acc↑'}"
                columns[title] = _numbers(self.table[f"shifted_{name}"])
        return pd.DataFrame(columns)


def _title(score: str) -> str:
    return f"{_TITLES[score]}{_ARROWS[SCORE_TABLE[score].direction]}"


def _numbers(column: pd.Series) -> list[str]:
    return ["–" if math.isnan(value) else f"{value:.4f}" for value in column]


def _ends(row: pd.Series) -> str:
    if math.isnan(row.difference_low):
        return "–"
    return f"{row.difference_low:+.4f} to {row.difference_high:+.4f}"


def _rank(title: str) -> int:
    """How soon a column is left out in a narrow terminal."""
    order = (
        "name", "AURC↓", "vs ref", "95 % interval", "cost↓", "acc↑", "ms↓", "NLL↓", "shifted AURC↓", "ECE↓", "AUROC↑",
        "ranked by", "AUGRC↓", "Brier↓",
    )  # fmt: skip
    return max(0, order.index(title) - 2) if title in order else len(order)
