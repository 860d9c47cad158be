"""The command group `dropscope study`: one command for each published study, and what they share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from dropscope.cli.app import Commands, app
from dropscope.cli.console import stdout

if TYPE_CHECKING:
    from dropscope.report import Claim

study = typer.Typer(cls=Commands, no_args_is_help=True, help="A published study, end to end.")
app.add_typer(study, name="study")


def print_claims(claims: Iterable[Claim]) -> None:
    """Prints each claim with its verdict, and the result that decides it."""
    for claim in claims:
        stdout().print(f"{claim.verdict}: {claim.statement}\n    {claim.ours}", soft_wrap=True)
