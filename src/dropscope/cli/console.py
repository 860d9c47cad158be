"""Output of the command line: answers on stdout, remarks on stderr, tables whose names can be copied."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from dropscope.injection import Audit, Site

_UNLIMITED = 100_000  # columns of what is no terminal
_GAP = 2  # blanks between two columns
_BREAKS = re.compile(r"(?<=,)|(?=[.@])")  # where a placement or the name of a site may be broken


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, in values that JSON can hold."""
    return json.loads(table.to_json(orient="records"))


class _Answers(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich exits with 1, which says that an audit failed


def stdout() -> Console:
    """A console on the present `sys.stdout`; nothing wraps where that is no terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show must not end a command
        sys.stdout.reconfigure(errors="backslashreplace")
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _UNLIMITED
    return _Answers(file=sys.stdout, width=width, highlight=False, markup=False)


def stderr() -> Console:
    return Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)


def print_json(answer: dict[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=2))


def print_plan(plan: dict[str, Any], noise: list[dict[str, Any]], as_json: bool) -> None:
    """What a dry run would do: the model, its inputs, and where noise would go."""
    if as_json:
        print_json({**plan, **({"noise": noise} if noise else {})})
        return
    stdout().print(f"model: {plan['model']}")
    for name, shape in plan["inputs"].items():
        stdout().print(f"input {name}: {shape}")
    for row in noise:
        stdout().print(f"noise at {row['site']}: {row['noise']}, rate {row['rate']:g}")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its head.
        cells: A text per row.
        right: Whether the texts are numbers, set to the right.
        breaks: How wide it stays where long texts may go on in the next line; 0 where they may not.
        rank: How soon the column is left out where a terminal is narrow: the highest first, 0 never.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    breaks: int = 0
    rank: int = 0

    @property
    def width(self) -> int:
        return max(map(len, [self.title, *self.cells]))


def print_table(columns: Sequence[Column]) -> None:
    """Prints columns side by side: at one line a row where they fit, else fewer columns and broken names.

    A line below names the columns that were left out.
    """
    console = stdout()
    shown = _fitting(columns, console.width)
    left = console.width - sum(column.width + _GAP for column in shown if not column.breaks)
    widths = [min(c.width, max(len(c.title), left)) if c.breaks else c.width for c in shown]
    for row in [[column.title for column in shown], *zip(*(column.cells for column in shown), strict=True)]:
        cells = [broken(cell, width) if c.breaks else [cell] for cell, c, width in zip(row, shown, widths, strict=True)]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            set_out = [
                part.rjust(width) if column.right else part.ljust(width)
                for part, column, width in zip(parts, shown, widths, strict=True)
            ]
            console.print((" " * _GAP).join(set_out).rstrip(), soft_wrap=True)
    left_out = [column.title for column in columns if column not in shown]
    if left_out:
        console.print(f"not shown in {console.width} columns: {', '.join(left_out)}", style="dim")


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit, the most important ones first; a column that may be broken needs less than it has."""
    shown = list(columns)
    for column in sorted((c for c in columns if c.rank), key=lambda c: -c.rank):
        needed = sum(min(c.width, c.breaks) if c.breaks else c.width for c in shown) + _GAP * (len(shown) - 1)
        if needed <= width:
            break
        shown.remove(column)
    return shown


def broken(text: str, width: int) -> list[str]:
    """A placement or the name of a site in lines of at most `width`: broken at commas and dots where that is enough.

    >>> broken("conv2=0.3,layer.0.dense=0.5", 12)
    ['conv2=0.3,', '  layer.0', '  .dense=0.5']
    """
    lines, line = [], ""
    for part in _BREAKS.split(text):
        if line.strip() and len(line) + len(part) > width:
            lines.append(line)
            line = "  "
        line += part
        while len(line) > width:
            lines.append(line[:width])
            line = "  " + line[width:]
    return [*lines, line] if line.strip() or not lines else lines


def print_rows(rows: pd.DataFrame, objective: str) -> None:
    """Rows with the interval of the objective. An arrow says which direction is better."""
    from dropscope.scores import TABLE as SCORES

    arrows = {"lower": "↓", "higher": "↑"}

    def score(name: str, rank: int) -> Column:
        return Column(f"{name}{arrows[SCORES[name].direction]}", [f"{v:.4f}" for v in rows[name]], True, rank=rank)

    ends = zip(rows.low, rows.high, strict=True)
    others = [name for name in ("aurc", "error_auroc", "isotonic_penalty") if name != objective and name in rows]
    print_table(
        [
            Column("placement", list(rows.placement), breaks=22),
            Column("measure", list(rows.measure)),
            score(objective, 0),
            Column("95 % interval", [f"{low:.4f}–{high:.4f}" for low, high in ends], True, rank=1),
            Column("accuracy↑", [f"{value:.4f}" for value in rows.accuracy], True, rank=2),
            Column("cost↓", [f"{value:.1f}×" for value in rows.cost], True, rank=3),
            *(score(name, 4 + number) for number, name in enumerate(others)),
        ]
    )


def print_examples(table: pd.DataFrame, by: str) -> None:
    """A line per example, the measure `by` last; what identifies an example is cut to what the terminal has left."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("example", no_wrap=True, overflow="ellipsis", ratio=1)
    names = [name for name in ("true_class", "label") if name in table][:1]
    names += ["predicted_class" if "predicted_class" in table else "prediction"]
    for name in names:
        longest = max(map(len, (name, *(str(value) for value in table[name]))), default=0)
        width = min(longest + 2, 16)
        shown.add_column(name.replace("_", " "), no_wrap=True, overflow="ellipsis", min_width=width, max_width=20)
    for name in ("probability", by):
        shown.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for row in table.to_dict("records"):
        wrong = " ✗" if row.get("correct") in (False, 0) else ""
        cells = [str(row[name]) for name in names]
        cells[-1] += wrong
        shown.add_row(" ".join(str(row["id"]).split()), *cells, f"{row['probability']:.3f}", f"{row[by]:.4g}")
    stdout().print(shown)


def print_sites(sites: Sequence[Site]) -> None:
    """A row per site; a name is never broken, so that it can be copied."""
    columns = [
        Column("site", [site.name for site in sites]),
        Column("kind", [site.kind for site in sites], rank=1),
        Column("own rate", ["" if site.own_rate is None else f"{site.own_rate:g}" for site in sites], True, rank=2),
        Column("shape", ["×".join(map(str, site.shape)) or "scalar" for site in sites], rank=4),
        Column("auto position", [site.positions[0] for site in sites], rank=3),
        Column("other positions", [" ".join(site.positions[1:]) for site in sites], rank=5),
    ]
    print_table([column for column in columns if any(column.cells)])


def print_audit(report: Audit) -> None:
    """The verdict, a row per site, and what is wrong."""
    console = stdout()
    console.print(f"audit of '{report.placement}': {'ok' if report.ok else 'FAILED'}", soft_wrap=True)
    found = report.findings
    answers = {True: "yes", False: "no", None: "-"}
    if found:
        columns = [
            Column("site", [f.site for f in found], breaks=48),
            Column("noise", [f.noise for f in found], rank=4),
            Column("asked", [f"{f.asked:.3f}" for f in found], True),
            Column("measured", ["-" if f.measured is None else f"{f.measured:.4f}" for f in found], True),
            Column("units", [str(f.units) for f in found], True, rank=5),
            Column("fired", [answers[f.fired] for f in found], rank=2),
            Column("effect", [answers[f.effect] for f in found], rank=3),
        ]
        print_table(columns)
    for finding in found:
        if not finding.ok:
            console.print(f"problem: {finding.site}: {finding.problem}", soft_wrap=True)
    for name, texts in (("problem", report.problems), ("remark", report.remarks)):
        for text in texts:
            console.print(f"{name}: {text}", soft_wrap=True)
