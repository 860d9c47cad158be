"""Output of the command line: answers on stdout, remarks on stderr, tables whose names can be copied."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from dropscope.injection import Site

_BESIDE_THE_NAME = 60  # columns that the rest of a site's row needs


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, in values that JSON can hold."""
    return json.loads(table.to_json(orient="records"))


class _Answers(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich exits with 1, which says that an audit failed


def stdout() -> Console:
    """A console on the present `sys.stdout`; wide enough for one line per row where that is no terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show must not end a command
        sys.stdout.reconfigure(errors="backslashreplace")
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
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


def print_rows(rows: pd.DataFrame, objective: str) -> None:
    """Rows with the intervals of the objective. An arrow says which direction is better."""
    from dropscope.scores import TABLE as SCORES

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    arrows = {"lower": "↓", "higher": "↑"}
    score_names = list(dict.fromkeys([objective, "aurc", "error_auroc", "isotonic_penalty"]))
    table.add_column("placement", overflow="fold")
    table.add_column("measure", no_wrap=True)
    titles = [f"{name}{arrows[SCORES[name].direction]}" for name in score_names]
    for title in ("accuracy↑", *titles, "95 % interval", "cost↓"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        scores = [f"{row[name]:.4f}" for name in ("accuracy", *score_names)]
        interval = f"{row['low']:.4f}–{row['high']:.4f}"
        table.add_row(row["placement"], row["measure"], *scores, interval, f"{row['cost']:.1f}×")
    stdout().print(table)


def print_examples(table: pd.DataFrame, by: str) -> None:
    """A line per example, the measure `by` last; what identifies an example is cut to what the terminal has left."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("example", no_wrap=True, overflow="ellipsis", ratio=1)
    names = [name for name in ("true_class", "label") if name in table][:1]
    names += ["predicted_class" if "predicted_class" in table else "prediction"]
    for name in names:
        shown.add_column(name.replace("_", " "), no_wrap=True, overflow="ellipsis", max_width=20)
    for name in ("probability", by):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in table.to_dict("records"):
        wrong = " ✗" if row.get("correct") in (False, 0) else ""
        cells = [str(row[name]) for name in names]
        cells[-1] += wrong
        shown.add_row(" ".join(str(row["id"]).split()), *cells, f"{row['probability']:.3f}", f"{row[by]:.4g}")
    stdout().print(shown)


def print_sites(sites: list[Site]) -> None:
    """A row per site, or two lines where a row is too long: a name broken over two lines cannot be copied."""
    console = stdout()
    longest = max((len(site.name) for site in sites), default=0)
    if longest + _BESIDE_THE_NAME > console.width:
        for site in sites:
            rate = "" if site.own_rate is None else f", own rate {site.own_rate:g}"
            console.print(site.name, soft_wrap=True)
            console.print(f"    {site.kind}, {_shape(site)}{rate}: {' '.join(site.positions)}", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("site", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("positions (first: auto)")
    table.add_column("shape", no_wrap=True)
    table.add_column("own rate", justify="right", no_wrap=True)
    for site in sites:
        rate = "" if site.own_rate is None else f"{site.own_rate:g}"
        table.add_row(site.name, site.kind, " ".join(site.positions), _shape(site), rate)
    console.print(table)


def _shape(site: Site) -> str:
    return "×".join(map(str, site.shape)) or "scalar"
