"""The commands `dropscope study NAME`: one for each published study, over the same flow as everything else."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import typer

from dropscope.cli.app import app
from dropscope.cli.console import stdout
from dropscope.report import Claim


def print_claims(claims: Iterable[Claim]) -> None:
    """Each claim with its verdict, and what was found."""
    for claim in claims:
        stdout().print(f"{claim.verdict}: {claim.statement}\n    {claim.ours}", soft_wrap=True)


class Preset(str, Enum):
    paper = "paper"
    small = "small"
    smoke = "smoke"


study = typer.Typer(no_args_is_help=True, help="A published study, end to end.")
app.add_typer(study, name="study")
