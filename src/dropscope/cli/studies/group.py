"""The command group `dropscope study`: one command for each published study, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dropscope.cli.app import Commands, app
from dropscope.cli.console import print_json, stdout

if TYPE_CHECKING:
    from dropscope.report import Claim

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


def print_claims(claims: Iterable[Claim]) -> None:
    """Prints each claim with its verdict, and the result that decides it."""
    for claim in claims:
        stdout().print(f"{claim.verdict}: {claim.statement}\n    {claim.ours}", soft_wrap=True)
