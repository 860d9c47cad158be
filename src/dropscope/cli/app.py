"""The application: its name, its exit codes, and the options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dropscope import __version__
from dropscope.cli.console import stderr, stdout
from dropscope.errors import AuditFailed, BadInput


class _Commands(TyperGroup):
    """Turns what Dropscope raises on purpose into one message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BadInput as error:
            stderr().print(f"error: {error}", style="red")
            raise typer.Exit(2) from error
        except AuditFailed as error:
            stderr().print(f"failed: {error}", style="red")
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Commands,
    help="Monte Carlo Dropout with evidence, for any trained PyTorch model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="file.py:callable, package.module:callable or hf:CHECKPOINT")
]
PlacementText = Annotated[
    str, typer.Argument(metavar="PLACEMENT", help="for example 'last=0.5', 'conv2=0.3,fc1=0.5', 'own', 'attention=0.1'")
]
DataName = Annotated[
    str,
    typer.Option("--data", help="file.py:callable, a .csv, .jsonl or .parquet of texts, or an image folder"),
]
TextColumn = Annotated[str | None, typer.Option(help="Column of the texts in a table; 'text' if not given.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the labels in a table; 'label' if there is one.")]
Labels = Annotated[
    str | None, typer.Option(help="Table of an image folder, columns file and label; its labels.csv if not given.")
]
ImageSize = Annotated[str | None, typer.Option(help="Resize images to a side or HEIGHTxWIDTH.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and say what would be done; do not do it.")]
Seed = Annotated[int, typer.Option(help="Seed of the noise.")]


def _print_version(asked: bool) -> None:
    if asked:
        stdout().print(f"dropscope {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def words(text: str) -> list[str]:
    """The values, without blanks around them.

    >>> words("conv2, fc1,")
    ['conv2', 'fc1']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in words(text)]
    except ValueError as error:
        raise BadInput("this option takes whole numbers", option, text, f"write {option} 5,15") from error


def numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in words(text)]
    except ValueError as error:
        raise BadInput("this option takes numbers", option, text, f"write {option} 0.1,0.5") from error
