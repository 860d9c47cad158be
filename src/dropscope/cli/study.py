"""The commands `dropscope study NAME`: one for each published study, over the same flow as everything else."""

from __future__ import annotations

from enum import Enum

import typer

from dropscope.cli.application import app


class Preset(str, Enum):
    paper = "paper"
    small = "small"
    smoke = "smoke"


study = typer.Typer(no_args_is_help=True, help="A published study, end to end.")
app.add_typer(study, name="study")
