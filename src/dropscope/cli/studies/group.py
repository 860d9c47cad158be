"""The group `dropscope study`: what the commands of the three published studies share."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

import typer

from dropscope.cli.app import Commands, app
from dropscope.cli.console import stdout

if TYPE_CHECKING:
    from dropscope.report import Claim


def print_claims(claims: Iterable[Claim]) -> None:
    """Each claim with its verdict and our result."""
    for claim in claims:
        stdout().print(f"{claim.verdict}: {claim.statement}\n    {claim.ours}", soft_wrap=True)


class Preset(str, Enum):
    paper = "paper"
    small = "small"
    smoke = "smoke"


study = typer.Typer(cls=Commands, no_args_is_help=True, help="A published study, end to end.")
app.add_typer(study, name="study")
