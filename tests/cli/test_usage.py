"""Mistakes in the arguments: one line in the voice of every other error, exit code 2, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from dropscope.cli import app, options
from dropscope.cli.app import Commands
from dropscope.cli.predict import run_predict
from dropscope.errors import BadInput
from dropscope.model.outputs import KINDS
from dropscope.runs.passes import LABELS
from dropscope.scores import CALIBRATION, RANKING
from dropscope.volumes.nifti import SCALES
from support.argument_fuzz import try_many

SWEEP = ("sweep", "m", "--data", "d", "--sites", "a")


def refusal(*arguments: str, application: Any = app) -> tuple[BadInput, str]:
    """The error behind exit code 2, and the line that says so."""
    done = CliRunner().invoke(application, list(arguments))
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    error: BaseException | None = done.exception
    while not isinstance(error, BadInput):
        assert error is not None
        error = error.__cause__ or error.__context__
    return error, done.stderr


@pytest.mark.parametrize(
    ("arguments", "name", "shown"),
    [
        (("stes",), "command", "'sites'"),
        (("study", "where"), "command", "'where-to-drop'"),
        (("--vers",), "options", "'--version'"),
        (("--",), "arguments", "--help"),
        (("sites",), "model", "MODEL must be given"),
        (("sites", "m"), "data", "--data must be given"),
        (("sites", "m", "--dta", "d"), "options", "'--data'"),
        (("sites", "m", "--data", "d", "extra"), "arguments", "got extra"),
        (("sites", "m", "--data", "d", "--json=3"), "--json", "got '3'"),
        ((*SWEEP, "--passes", "many"), "passes", "got 'many'. Write --passes 100"),
        ((*SWEEP, "--passes=many"), "passes", "got 'many'"),
        ((*SWEEP, "--passes", "5", "--passes"), "--passes", "must have a value"),
        ((*SWEEP, "--outputs", "logit"), "outputs", "'logits'"),
        ((*SWEEP, "--objective", "auroc"), "objective", "'error_auroc'"),
        ((*SWEEP, "--outputs", "it's"), "outputs", 'got "it\'s". Did you mean'),
        ((*SWEEP, "--outputs", "\x07"), "outputs", r"got '\x07'. Write --outputs logits"),
        (("new", "keras"), "framework", "FRAMEWORK must be one of torch, hf, monai, got 'keras'"),
        (("study", "where-to-drop", "--data", "d", "--task", "cifar"), "task", "'cifar10'"),
        (("study", "transformer-profile", "--learning-rate", "x"), "learning_rate", "must be a number, got 'x'"),
        (("predict", "m", "--placement", "fc1=2", "--image", "i", "--out", "o"), "rate of 'fc1'", "2"),
        ((*SWEEP, "--passes", "9" * 400), "passes", "at most"),
        (("study", "segmentation-measures", "--preset", "smoke", "--seed", "-1"), "seed", "from 0"),
        (("study", "transformer-profile", "--data", "d.csv", "--seed", "9" * 30), "seed", "from 0"),
        (("new", "torch", "\udcff.py"), "arguments", "UTF-8"),
        (("new", "torch", "a\0.py"), "arguments", "UTF-8"),
        (("new", "torch", f"{'x' * 300}.py"), "file", "too long"),
    ],
)
def test_a_mistake_is_one_line_with_what_to_write(arguments: tuple[str, ...], name: str, shown: str) -> None:
    error, line = refusal(*arguments)
    assert error.name == name
    assert shown in line


def test_without_arguments_there_is_help() -> None:
    for arguments in ([], ["study"]):
        assert "Usage:" in CliRunner().invoke(app, arguments).output


def test_the_words_of_an_option_are_the_librarys() -> None:
    known = {options.Outputs: KINDS, options.LabelRule: LABELS, options.Objective: (*RANKING, *CALIBRATION)}
    for option, valid in known.items():
        assert set(get_args(get_args(option)[0])) == set(valid)
    assert get_args(get_args(get_type_hints(run_predict)["scale"])[0]) == SCALES


@pytest.mark.parametrize("columns", ["0", "-1", "none", "²"])
def test_a_terminal_without_columns_hides_no_error(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert "'sites'" in refusal("stes")[1]
    assert "Usage:" in CliRunner().invoke(app, ["sites", "--help"]).output


def test_what_was_written_cannot_colour_a_terminal_or_break_a_line() -> None:
    _, line = refusal("new", "torch", "\x1b[31m\u2028\r")
    assert line.rstrip("\n").isprintable()


# --- what ends a command from outside ---------------------------------------------------------------------------------


def ending(error: BaseException) -> Any:
    """An application with a command that ends with an error."""
    application = typer.Typer(cls=Commands)

    @application.callback()
    def root() -> None:
        pass

    @application.command()
    def work() -> None:
        raise error

    return CliRunner().invoke(application, ["work"])


def test_an_interruption_is_one_line_and_exit_code_130() -> None:
    done = ending(KeyboardInterrupt())
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")


def test_a_file_that_the_system_refuses_is_one_line_and_exit_code_2() -> None:
    done = ending(PermissionError(13, "Permission denied", "locked/run.json"))
    assert done.exit_code == 2
    assert "Permission denied" in done.stderr
    assert "'locked/run.json'" in done.stderr


def test_an_error_of_the_system_without_a_file_is_a_bug() -> None:
    assert isinstance(ending(OSError("what")).exception, OSError)


def python_m_dropscope(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dropscope", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    process = python_m_dropscope("new", "torch", "--dry-run", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(60) == 141


def test_what_a_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = python_m_dropscope("new", "torch", "é.py", "--dry-run", cwd=tmp_path, env=environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "would write: \\xe9.py" in out


# --- random arguments -------------------------------------------------------------------------------------------------


def test_random_arguments_work_or_are_one_clear_line(tmp_path: Path) -> None:
    problems = [each for each in try_many(40, 0, tmp_path) if each.problem]
    assert not problems, problems
