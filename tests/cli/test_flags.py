"""Translation of library errors into the flags of a command."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from dropscope.cli.app import Commands
from dropscope.cli.flags import Flag, flags_of, in_flags
from dropscope.errors import BadInput, MissingExtra, Phrase

FLAGS = {
    "passes": Flag("--passes"),
    "roi": Flag("--roi"),
    "device": Flag("--device"),
    "data": Flag("--data"),
    "outputs": Flag("--outputs"),
    "noise": Flag("--noise"),
    "placement": Flag("--placement"),
    "text_column": Flag("--text-column"),
    "context": Flag("--context", "--no-context", takes_value=False),
    "show_all": Flag("--all", takes_value=False),
    "model": Flag("MODEL", positional=True),
}


@pytest.mark.parametrize(
    ("remedy", "spelled"),
    [
        ("write passes=100", "Write --passes 100."),
        ("write passes=100.", "Write --passes 100."),
        ("write passes=100, or roi=None", "Write --passes 100, or no --roi."),
        ("use device='cpu'", "Use --device cpu."),
        ('use device="cpu"', "Use --device cpu."),
        ("use another one (device='cuda:0')", "Use another one (--device cuda:0)."),
        ("write roi=(128, 128, 16)", "Write --roi 128,128,16."),
        ("write placement='fc1=0.5 noise=gaussian'", "Write --placement 'fc1=0.5 noise=gaussian'."),
        ("write model='hf:CHECKPOINT'", "Write hf:CHECKPOINT."),
        ("leave text_column out", "Leave --text-column out."),
        ("leave noise out", "Leave --noise out."),
        ("pass the table with data=, or none", "Pass the table with --data, or none."),
        ("raise passes= or text_column=", "Raise --passes or --text-column."),
        ("write context=False", "Write --no-context."),
        ("write context=True", "Write --context."),
        ("write show_all=True", "Write --all."),
    ],
)
def test_an_assignment_is_written_as_the_flag(remedy: str, spelled: str) -> None:
    assert in_flags(BadInput("it must fit", "it", 0, remedy), FLAGS) == f"it must fit, got 0. {spelled}"


@pytest.mark.parametrize(
    "remedy",
    [
        "Write fc1=0.9.",  # no parameter of this command
        "Write conv1@data=0.5 or own.passes=2.",
        "Write 'noise=gaussian' after the sites.",  # quoted: a value
        'Write "noise=gaussian" after the sites.',
        "Use Placement(noise='gaussian').",  # a call is Python
        "Pass outputs=lambda o: o.softmax(1).",
        "Write passes=len(x).",
        "Write data=(inputs, labels).",
        "Write roi=[...].",
        "Write show_all=False.",  # a switch without a way off
        "Give the model more passes of the data.",
        "Keep the model's data; the networks' passes do not matter.",
    ],
)
def test_other_text_stays_as_it_is(remedy: str) -> None:
    assert in_flags(BadInput("it must fit", "it", 0, remedy), FLAGS) == f"it must fit, got 0. {remedy}"


@pytest.mark.parametrize(
    ("what", "name", "spelled"),
    [
        ("roi must have three sides", "roi", "--roi must have three sides"),
        ("each of passes must differ", "passes", "each of --passes must differ"),
        ("model must name a file", "model", "MODEL must name a file"),
        ("data must fit the data", "data", "--data must fit the data"),  # the first mention alone
        ("the data must fit data", "data", "the data must fit --data"),  # after an article it is a plain word
        ("the code in data='a:b' must return data", "data", "the code in --data a:b must return data"),
        ("labels must fit the data", "labels", "labels must fit the data"),
        ("roi must fit passes", "roi", "--roi must fit passes"),
        ("rate of 'roi' must be in [0, 1)", "rate of 'roi'", "rate of 'roi' must be in [0, 1)"),
        ("text_column must be in labels.csv", "text_column", "--text-column must be in labels.csv"),
    ],
)
def test_the_argument_that_is_refused_is_named_by_its_flag(what: str, name: str, spelled: str) -> None:
    assert in_flags(BadInput(what, name, 0, "write 1"), FLAGS) == f"{spelled}, got 0. Write 1."


def test_a_received_value_is_shown_as_it_is_and_a_phrase_is_translated() -> None:
    assert "got 'passes=3'." in in_flags(BadInput("it must fit", "it", "passes=3", "write 1"), FLAGS)
    phrase = Phrase("3 volumes with roi=None")
    assert "got 3 volumes with no --roi." in in_flags(BadInput("it must fit", "it", phrase, "write 1"), FLAGS)


def test_without_flags_the_message_is_the_errors_own() -> None:
    for error in (BadInput("roi must fit", "roi", 0, "write roi=1"), MissingExtra("reading", "nibabel", "medical")):
        assert in_flags(error, {}) == str(error)


def _application() -> typer.Typer:
    app, below = typer.Typer(cls=Commands), typer.Typer(cls=Commands)
    app.add_typer(below, name="study")

    @app.callback()
    def root() -> None:
        pass

    def command(
        model: Annotated[str, typer.Argument(metavar="MODEL")],
        out_file: str,
        image_size: Annotated[int, typer.Option("--image-size", "-s")] = 0,
        show_all: Annotated[bool, typer.Option("--all")] = False,
        context: bool = True,
    ) -> None:
        raise BadInput("image_size must be positive", "image_size", image_size, "write image_size=8, context=False")

    app.command("one")(command)
    below.command("two")(command)
    return app


def test_the_flags_of_a_command_come_from_its_parameters() -> None:
    group = typer.main.get_command(_application())
    assert flags_of(group.commands["one"].params) == {  # type: ignore[attr-defined]
        "model": Flag("MODEL", positional=True),
        "out_file": Flag("OUT_FILE", positional=True),
        "image_size": Flag("--image-size"),
        "show_all": Flag("--all", takes_value=False),
        "context": Flag("--context", "--no-context", takes_value=False),
    }


@pytest.mark.parametrize("command", [("one",), ("study", "two")])
def test_a_command_prints_the_error_in_its_own_flags(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(_application(), [*command, "m", "f"])
    assert result.exit_code == 2
    assert result.stderr == "error: --image-size must be positive, got 0. Write --image-size 8, --no-context.\n"
