"""The commands `dropscope study NAME`: one for each published study, over the same flow as everything else."""

from __future__ import annotations

import typer

from dropscope.cli.application import app

study = typer.Typer(no_args_is_help=True, help="A published study, end to end.")
app.add_typer(study, name="study")
