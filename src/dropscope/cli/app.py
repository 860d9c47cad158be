"""The application: its name, its exit codes, and the options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dropscope import __version__
from dropscope.cli.console import stderr, stdout
from dropscope.cli.flags import flags_of, in_flags
from dropscope.errors import AuditFailed, BadInput


class Commands(TyperGroup):
    """A group of commands that turns Dropscope's errors into one message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BadInput as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            flags = flags_of(() if command is None else command.params)
            stderr().print(f"error: {in_flags(error, flags)}", style="red")
            raise typer.Exit(2) from error
        except AuditFailed as error:
            stderr().print(f"failed: {error}", style="red")
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=Commands,
    help="Monte Carlo Dropout with evidence, for any trained PyTorch model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="The model: file.py:callable, package.module:callable or hf:CHECKPOINT."),
]
PlacementText = Annotated[
    str,
    typer.Argument(
        metavar="PLACEMENT", help="Where noise goes: 'last=0.5', 'conv2=0.3,fc1=0.5', 'own' or 'attention=0.1'."
    ),
]
DataName = Annotated[
    str,
    typer.Option("--data", help="The data: file.py:callable, a .csv, .jsonl or .parquet of texts, or an image folder."),
]
TextColumn = Annotated[str | None, typer.Option(help="Column of the texts in a table. Default: 'text'.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the labels in a table. Default: 'label', if present.")]
Labels = Annotated[
    str | None,
    typer.Option(help="Table of an image folder, with columns file and label. Default: labels.csv in the folder."),
]
ImageSize = Annotated[str | None, typer.Option(help="Resize images: one side, or HEIGHTxWIDTH.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan, without running it.")]
Seed = Annotated[int, typer.Option(help="Seed of the noise.")]


def _print_version(asked: bool) -> None:
    if asked:
        stdout().print(f"dropscope {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def words(text: str) -> list[str]:
    """The comma-separated values of an option, without the blanks around them.

    >>> words("conv2, fc1,")
    ['conv2', 'fc1']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str, option: str) -> list[int]:
    """The comma-separated whole numbers of an option.

    >>> whole_numbers("5,15", "--n-train")
    [5, 15]
    """
    try:
        return [int(part) for part in words(text)]
    except ValueError as error:
        remedy = f"write {option} 5,15"
        raise BadInput(f"{option} must hold whole numbers, comma-separated", option, text, remedy) from error


def numbers(text: str, option: str) -> list[float]:
    """The comma-separated numbers of an option.

    >>> numbers("0.1,0.5", "--rates")
    [0.1, 0.5]
    """
    try:
        return [float(part) for part in words(text)]
    except ValueError as error:
        remedy = f"write {option} 0.1,0.5"
        raise BadInput(f"{option} must hold numbers, comma-separated", option, text, remedy) from error
