"""The command group `dropscope study`: one command for each published study, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dropscope.cli.app import Commands, app
from dropscope.cli.console import print_json, records, stdout

if TYPE_CHECKING:
    from dropscope.report import Summary

study = typer.Typer(cls=Commands, no_args_is_help=True, help="A published study, end to end.")
app.add_typer(study, name="study")


def registers(file: str | Path | None, preregister: Callable[[], str], *, as_json: bool) -> bool:
    """Whether a command only registers its run: where the file of the preregistration is not there yet."""
    if file is None or Path(file).exists():
        return False
    digest = preregister()
    if as_json:
        print_json({"preregistration": str(file), "hash": digest})
        return True
    stdout().print(f"registered in {file}, hash {digest}; nothing was run", soft_wrap=True)
    stdout().print("keep or publish the file, then run the same command again", soft_wrap=True)
    return True


def print_summary(summary: Summary) -> None:
    """Prints the answer, then every verdict that was reached in a line."""
    for number, line in enumerate(summary.answer, 1):
        stdout().print(f"{number}. {line.replace('**', '')}", markup=False, highlight=False)
    decided = summary.verdicts[summary.verdicts.verdict != "undecided"]
    if len(decided):
        stdout().print()
    for row in decided.itertuples(index=False):
        stdout().print(f"{row.verdict}: {row.claim} ({row.here})", markup=False, highlight=False)


def summary_record(summary: Summary) -> dict[str, Any]:
    """The same for `--json`, with every claim."""
    from dropscope.report import claims_table

    return {"answer": list(summary.answer), "claims": records(claims_table(summary.claims))}
