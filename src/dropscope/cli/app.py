"""The application: its name, its exit codes, and one message for whatever goes wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dropscope import __version__
from dropscope.cli.console import stderr, stdout
from dropscope.cli.flags import Flag, flags_of, in_flags
from dropscope.cli.usage import in_our_voice
from dropscope.errors import AuditFailed, BadInput, Phrase, Unfinished, first_line, nearest

_ARGUMENTS = "dropscope.arguments"
_INTERRUPTED, _NOBODY_READS = 130, 141  # as a shell counts them: 128 and the number of the signal
_UsageError: Any = typer.BadParameter.__mro__[1]  # typer does not offer its name


class Commands(TyperGroup):
    """A group of commands that turns errors into one message and an exit code."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        written = list(args)
        _check_width()
        with _one_message(written):
            _check_text(written)
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_ARGUMENTS] = written
        return context

    def invoke(self, ctx: Any) -> Any:
        with _one_message(ctx.meta[_ARGUMENTS], lambda: self._flags(ctx)):
            answer = super().invoke(ctx)
            sys.stdout.flush()  # a reader that went away is noticed here, not at exit
            return answer

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            raise BadInput(f"command must be one of {', '.join(names)}", "command", args[0], nearest(args[0], names))
        return super().resolve_command(ctx, args)

    def _flags(self, ctx: Any) -> dict[str, Flag]:
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        return flags_of(() if command is None else command.params)


@contextmanager
def _one_message(arguments: list[str], flags: Any = dict) -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        _refuse(error, flags())
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        _refuse(in_our_voice(error, arguments), {})
    except (AuditFailed, Unfinished) as error:
        stderr().print(f"failed: {error}", style="red")
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        stderr().print("interrupted", style="red")
        raise typer.Exit(_INTERRUPTED) from error
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_NOBODY_READS) from error
    except OSError as error:
        if error.strerror is None:
            raise
        # A disk that is full has no name in its error: what was written to is known by the command alone.
        what = f"files and folders must be usable ({error.strerror})"
        received = Phrase("no more room") if error.filename is None else error.filename
        _refuse(BadInput(what, "file", received, "check the name, its permissions and the disk"), {})
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        remedy = "free some, or write a smaller --memory or --batch-size"
        _refuse(BadInput("memory must suffice", "memory", Phrase(first_line(error)), remedy), {})


def _check_width() -> None:
    """Forgets a width of no columns, which some programs set for those they start: nothing would be shown in it."""
    with suppress(ValueError):
        if int(os.environ.get("COLUMNS", 1)) > 0:
            return
    del os.environ["COLUMNS"]


def _check_text(arguments: list[str]) -> None:
    """Refuses what no file of a run could hold: bytes that are not UTF-8, which Python reads as lone surrogates."""
    for argument in arguments:
        if "\0" in argument or any("\ud800" <= character <= "\udfff" for character in argument):
            raise BadInput("arguments must be text in UTF-8", "arguments", argument, "rename the file, or link to it")


def _refuse(error: BadInput, flags: Mapping[str, Flag]) -> None:
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in in_flags(error, flags))
    stderr().print(f"error: {line}", style="red")
    raise typer.Exit(2) from error


app = typer.Typer(
    cls=Commands,
    help="Monte Carlo Dropout with evidence, for any trained PyTorch model.",
    no_args_is_help=True,
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
