"""Mistakes in the arguments: one line in the voice of every other error, exit code 2, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from dropscope.cli import app, options
from dropscope.cli.app import Commands
from dropscope.cli.predict import run_predict
from dropscope.errors import BadInput
from dropscope.model.outputs import KINDS
from dropscope.runs.passes import LABELS
from dropscope.scores import CALIBRATION, RANKING
from dropscope.volumes.nifti import SCALES

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
        (("new", "keras"), "framework", "FRAMEWORK must be one of torch, hf, monai, got 'keras'"),
        (("study", "where-to-drop", "--data", "d", "--task", "cifar"), "task", "'cifar10'"),
        (("study", "transformer-profile", "--learning-rate", "x"), "learning_rate", "must be a number, got 'x'"),
        (("predict", "m", "--placement", "fc1=2", "--image", "i", "--out", "o"), "rate of 'fc1'", "2"),
        ((*SWEEP, "--passes", "9" * 400), "passes", "at most"),
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

MODEL = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).eval()

def data():
    return torch.rand(12, 3, 2, 2), torch.arange(12) % 3
"""
DATA = ("--data", "net.py:data")
STARTS = (
    ("sites", "net.py:model", *DATA),
    ("audit", "net.py:model", "1=0.5", *DATA),
    ("sweep", "net.py:model", *DATA, "--sites", "1", "--rates", "0.5", "--passes", "2"),
    ("try", "net.py:model", *DATA, "--passes", "2"),
    ("uncertainty", "net.py:model", *DATA, "--passes", "2"),
    ("predict", "net.py:model", "--placement", "1=0.5", "--image", "v.nii.gz", "--out", "maps"),
    ("demo",),
    ("new", "torch", "new.py"),
    ("study", "where-to-drop", "--data", "empty"),
    ("study", "transformer-profile", "--data", "t.csv", "--models", "./nowhere"),
    ("study", "segmentation-measures", "--data", "empty"),
)
NINES = "9" * 400
VALUES = (
    *("", " ", "0", "-1", "3", "0.5", "nan", "inf", "1e400", "1e-400", "0x10", "٣", str(2**63), NINES, f"0.{NINES}"),
    *("net.py", "net.py:model", "net.py:data", "net.py:", ":", "a:b:c", "hf:", "empty", "t.csv", "net.py/x", "é.py"),
    *(".", "..", "/", "/dev/null", "~", "x" * 300, f"{'x' * 300}.py", "\udcff", "a\0", "a\nb"),
    *("own", "none", "1=0.5", "1=1", "=", f"own*{NINES}", "{x}", "1,2", ",", "4x4"),
    *("cpu", "cuda:99", "vulkan", "hpu", "mps", "xla", "meta", "gpu", "auto", "4GiB", f"{NINES}GiB"),
)


def flags(start: tuple[str, ...]) -> list[str]:
    command: Any = get_command(app)
    for name in start:
        if name in getattr(command, "commands", {}):
            command = command.commands[name]
    return [flag for each in command.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("--")]


@st.composite
def argument_lists(draw: Any) -> list[str]:
    """A command that is almost right: some of its arguments are replaced, and some more are given."""
    start = draw(st.sampled_from(STARTS))
    arguments = list(start)
    places = [place for place in range(1, len(start)) if not start[place].startswith("--") and start[0] != "study"]
    for _ in range(draw(st.integers(0, 1)) if places else 0):
        arguments[draw(st.sampled_from(places))] = draw(st.sampled_from(VALUES))
    known = st.sampled_from([flag for flag in flags(start) if flag not in ("--roi", "--image-size")])
    for _ in range(draw(st.integers(0, 2))):
        arguments += draw(st.sampled_from([[draw(known), draw(st.sampled_from(VALUES))], [draw(known)], ["--nope"]]))
    return [*arguments, "--dry-run"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    (folder / "net.py").write_text(MODEL)
    (folder / "t.csv").write_text("text,label\na,0\nb,1\n")
    (folder / "empty").mkdir()
    return folder


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=argument_lists())
def test_random_arguments_never_end_in_a_traceback(
    arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, SystemExit | None), done.exception
    assert done.exit_code in (0, 1, 2)
    assert done.exit_code != 2 or "error: " in done.stderr
