"""What the command line prints: answers on stdout, remarks on stderr, tables that a copied name survives."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from dropscope.injection import Site
from dropscope.scores import TABLE as SCORES

_BESIDE_THE_NAME = 60  # columns that the rest of a site's row needs


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(table.to_json(orient="records"))


def stdout() -> Console:
    """Made anew for each print, for whatever stdout is now; where it is no terminal, wide enough for one line a row."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(file=sys.stdout, width=width, highlight=False, markup=False)


def stderr() -> Console:
    return Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)


def print_json(answer: dict[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=2))


def print_plan(described: dict[str, Any], rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({**described, **({"noise": rows} if rows else {})})
        return
    stdout().print(f"model: {described['model']}")
    for name, shape in described["inputs"].items():
        stdout().print(f"input {name}: {shape}")
    for row in rows:
        stdout().print(f"noise at {row['site']}: {row['noise']}, rate {row['rate']:g}")


def print_rows(rows: pd.DataFrame, objective: str) -> None:
    """Rows with the objective's interval; an arrow says which way is better."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    arrows = {"lower": "↓", "higher": "↑"}
    shown = list(dict.fromkeys([objective, "aurc", "error_auroc", "isotonic_penalty"]))
    table.add_column("placement", overflow="fold")
    table.add_column("measure", no_wrap=True)
    for name in ("accuracy↑", *(f"{name}{arrows[SCORES[name].direction]}" for name in shown), "95 % interval", "cost↓"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        interval = f"{row[f'{objective}_low']:.4f}–{row[f'{objective}_high']:.4f}"
        numbers = [f"{row['accuracy']:.4f}", *(f"{row[name]:.4f}" for name in shown), interval, f"{row['cost']:.1f}×"]
        table.add_row(row["placement"], row["measure"], *numbers)
    stdout().print(table)


def print_sites(found: list[Site]) -> None:
    """A row per site, or two lines where the names leave no room for a row: a name that is broken cannot be copied."""
    console = stdout()
    longest = max((len(site.name) for site in found), default=0)
    if longest + _BESIDE_THE_NAME > console.width:
        for site in found:
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
    for site in found:
        rate = "" if site.own_rate is None else f"{site.own_rate:g}"
        table.add_row(site.name, site.kind, " ".join(site.positions), _shape(site), rate)
    console.print(table)


def _shape(site: Site) -> str:
    return "×".join(map(str, site.shape)) or "scalar"
