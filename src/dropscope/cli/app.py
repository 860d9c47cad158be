"""The application: its name and its exit codes."""

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
