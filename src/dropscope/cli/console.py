"""Output of the command line: answers on stdout, remarks on stderr, tables whose names can be copied."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from dropscope.display import GAP, Column, cut, layout

if TYPE_CHECKING:
    import pandas as pd

    from dropscope.injection import Audit, Site

_UNLIMITED = 100_000  # columns of what is no terminal
_CLASS = 18  # columns of a class's name


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


def print_facts(facts: dict[str, Any], as_json: bool) -> None:
    """A line for every fact that is known: what a dry run would do."""
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if value is not None:
            text = ", ".join(value) if isinstance(value, list) else value
            stdout().print(f"{name.replace('_', ' ')}: {text}", soft_wrap=True)


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


def print_table(columns: Sequence[Column]) -> list[str]:
    """Prints columns side by side, as far as they fit; a line below names those that do not, which it returns."""
    console = stdout()
    lines, left_out = layout(columns, console.width)
    for line in lines:
        console.print(line, soft_wrap=True)
    if left_out:
        console.print(f"not shown in {console.width} columns: {', '.join(left_out)}", style="dim")
    return left_out


def print_rows(rows: pd.DataFrame, objective: str, levels: Mapping[str, Mapping[str, float]]) -> None:
    """Rows with their difference to one plain pass, and its interval. An arrow says which direction is better.

    Below are the levels of the penalties that are shown: those of a random and of a monotone measure.
    """
    from dropscope.runs import choice_notes, difference_cells, error_cells, has_errors
    from dropscope.scores import TABLE as SCORES

    arrows = {"lower": "↓", "higher": "↑"}

    def score(name: str, rank: int) -> Column:
        return Column(f"{name}{arrows[SCORES[name].direction]}", [f"{v:.4f}" for v in rows[name]], True, rank=rank)

    differences, ends = difference_cells(rows)
    others = [name for name in ("aurc", "error_auroc", "isotonic_penalty") if name != objective and name in rows]
    left_out = print_table(
        [
            Column("placement", list(rows.placement), breaks=22),
            Column("measure", list(rows.measure)),
            score(objective, 0),
            Column("vs plain", differences, True, rank=0),
            Column("95 % interval", ends, True, rank=1),
            *([Column("MC error", error_cells(rows), True, rank=4)] if has_errors(rows) else []),
            Column("accuracy↑", [f"{value:.4f}" for value in rows.accuracy], True, rank=2),
            Column("cost↓", [f"{value:.1f}×" for value in rows.cost], True, rank=3),
            *(score(name, 5 + number) for number, name in enumerate(others)),
        ]
    )
    for note in choice_notes(rows, objective, SCORES[objective].direction):
        stdout().print(note)
    for name, level in levels.items():
        if name in (objective, *others) and f"{name}↓" not in left_out:
            ends_of = f"random measure {level['random']:.4f}, of a monotone one {level['monotone']:.4f}"
            stdout().print(f"{name} of a {ends_of}", soft_wrap=True)


def print_examples(table: pd.DataFrame, by: str) -> None:
    """A line per example, the measure `by` and its error last; names of examples are cut to what is left."""
    known = [name for name in ("true_class", "label") if name in table][:1]
    known += [name for name in ("predicted_class", "prediction") if name in table][:1]
    cells = {name: [cut(str(value), _CLASS) for value in table[name]] for name in known}
    if "correct" in table:
        marks = ["" if right else " ✗" for right in table.correct]
        cells[known[-1]] = [text + mark for text, mark in zip(cells[known[-1]], marks, strict=True)]
    columns = [Column(name.replace("_", " "), texts) for name, texts in cells.items()]
    shares = [name for name in ("probability", "dice") if name in table]
    columns += [Column(name, [f"{value:.3f}" for value in table[name]], right=True, rank=1) for name in shares]
    columns.append(Column(by, [f"{value:.4g}" for value in table[by]], right=True))
    if f"{by}_error" in table and table[f"{by}_error"].notna().all():
        columns.append(Column("± error", [f"{value:.2g}" for value in table[f"{by}_error"]], right=True, rank=2))
    if "settled" in table:
        columns.append(Column("passes", [str(value) for value in table.passes], right=True))
    left = stdout().width - sum(column.width + GAP for column in columns)
    examples = [cut(" ".join(str(value).split()), max(left, _CLASS)) for value in table["id"]]
    print_table([Column("example", examples), *columns])


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
