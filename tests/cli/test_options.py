"""Options of the commands: records whose fields become options, and lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from dropscope.cli import app
from dropscope.cli.app import Commands
from dropscope.cli.options import DataOptions, numbers, takes_records, words
from support.errors import refused


@dataclass(frozen=True)
class Trip:
    """A record.

    Attributes:
        place: Where to.
        kind: How, given
            `place`.
        days: How long.
        stops: Where one rests.
        prices: What it costs.
        map: A file.
        guided: Somebody knows the way.
        alone: Nobody else comes.
        progress: Whether progress is shown.
    """

    place: str
    kind: Literal["train", "boat"] = "train"
    days: int = 3
    stops: Sequence[str] | None = None
    prices: tuple[float, ...] = (1.5, 2.0)
    map: str | Path | None = None
    guided: bool = True
    alone: bool = False
    progress: bool | None = None


@pytest.fixture
def received() -> list[Any]:
    return []


@pytest.fixture
def trips(received: list[Any]) -> typer.Typer:
    app = typer.Typer(cls=Commands)

    @app.callback()
    def root() -> None:
        pass

    @app.command()
    @takes_records(stops="--stop")
    def go(
        who: Annotated[str, typer.Argument()],
        trip: Trip,
        alone: Annotated[bool, typer.Option("--alone", help="Own.")] = False,
    ) -> None:
        """Go there."""
        received.extend([who, trip, alone])

    return app


def invoke(trips: typer.Typer, *arguments: str) -> Any:
    return CliRunner().invoke(trips, ["go", *arguments])


def test_a_record_has_its_defaults(trips: typer.Typer, received: list[Any]) -> None:
    assert invoke(trips, "me", "--place", "Rome").exit_code == 0
    assert received == ["me", Trip("Rome"), False]


def test_every_field_is_an_option(trips: typer.Typer, received: list[Any]) -> None:
    done = invoke(trips, "--place", "Rome", "--kind", "boat", "--days", "5", "--stop", "Bern, Como", "--prices", "3,.5",
                  "--map", "a.pdf", "--no-guided", "--alone", "me")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert received == ["me", Trip("Rome", "boat", 5, ("Bern", "Como"), (3.0, 0.5), "a.pdf", guided=False), True]


@pytest.mark.parametrize(
    "arguments",
    [
        ("me",),  # --place is required
        ("me", "--place", "Rome", "--kind", "car"),
        ("me", "--place", "Rome", "--days", "many"),
        ("me", "--place", "Rome", "--prices", "3,free"),
        ("me", "--place", "Rome", "--progress"),  # for Python alone
        ("me", "--place", "Rome", "--no-alone"),  # the command's own parameter
    ],
)
def test_what_does_not_fit_a_field_is_refused(trips: typer.Typer, received: list[Any], arguments: Any) -> None:
    assert invoke(trips, *arguments).exit_code == 2
    assert received == []


def test_help_comes_from_the_docstring_with_fields_as_flags(trips: typer.Typer) -> None:
    (command,) = get_command(trips).commands.values()  # type: ignore[attr-defined]
    texts = {parameter.name: parameter.help for parameter in command.params}
    assert texts["kind"] == "How, given --place."
    assert texts["alone"] == "Own."
    assert command.help == "Go there."


def _options(command: Any, path: str = "dropscope") -> Iterator[tuple[str, Any]]:
    for parameter in command.params:
        yield f"{path} {parameter.name}", parameter
    for name, below in getattr(command, "commands", {}).items():
        yield from _options(below, f"{path} {name}")


def test_every_option_of_every_command_has_a_help() -> None:
    options = dict(_options(get_command(app)))
    assert len(options) > 100
    assert [name for name, parameter in options.items() if not parameter.help] == []


@pytest.mark.parametrize(
    ("command", "choices"),
    [
        (("sweep",), ("isotonic_penalty", "running_minimum_penalty", "nll", "multilabel_logits", "<mean|plain>")),
        (("predict",), ("percentiles", "per_example", "per_pass", "multilabel_logits")),
        (("study", "transformer-profile"), ("per_configuration", "component", "paper", "<auto|fp32|bf16>")),
    ],
)
def test_help_breaks_no_choice(command: tuple[str, ...], choices: tuple[str, ...], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = {word.strip(".,:;") for word in CliRunner().invoke(app, [*command, "--help"]).stdout.split()}
    assert set(choices) <= shown


def test_data_options_are_the_arguments_of_open_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dropscope import loading

    asked: dict[str, Any] = {}

    def open_data(name: str, **options: Any) -> Any:
        asked.update(options, name=name)
        return lambda model: loading.LoadedData([], remarks=("texts are cut; pass text_column='body'",))

    monkeypatch.setattr(loading, "open_data", open_data)
    DataOptions("a.csv", text_column="body").open()(None)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "remark: texts are cut; pass --text-column body\n"
    assert asked["name"] == "a.csv"
    assert asked["text_column"] == "body"
    assert asked["labels"] is None


def test_lists() -> None:
    assert words(" a,,b ,") == ("a", "b")
    assert numbers("", int, "--n") == ()
    for text, kind in (("1.5", int), ("9" * 5000, int), ("half", float)):
        with refused("--n"):
            numbers(text, kind, "--n")
