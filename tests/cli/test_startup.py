"""A light start: what the command line imports before a command runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import dropscope

HEAVY = ("torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "dropscope.studies.training", "dropscope.engine")
COMMANDS = ("demo", "new", "sites", "audit", "sweep", "try", "uncertainty", "predict", "meta")
STUDIES = ("where-to-drop", "transformer-profile", "segmentation-measures")
CODE = """
import sys
from dropscope.cli import app

codes = []
for arguments in {lists!r}:
    try:
        codes.append(app(arguments, prog_name="dropscope"))
    except SystemExit as ending:
        codes.append(ending.code)
loaded = [name for name in {heavy!r} if name in sys.modules]
sys.exit(f"imported {{loaded}}" if loaded else max(codes) if min(codes) == max(codes) else f"codes {{codes}}")
"""


def _start(*lists: tuple[str, ...], **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs commands one after another, in one process that imports nothing heavy and ends with their exit code."""
    code = CODE.format(lists=[list(arguments) for arguments in lists], heavy=HEAVY)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def test_help_imports_nothing_heavy() -> None:
    commands = [(), *((name,) for name in COMMANDS), ("study",), *(("study", name) for name in STUDIES)]
    started = _start(*((*command, "--help") for command in commands))
    assert started.returncode == 0, started.stderr
    assert started.stdout.count("Usage:") == len(commands)


DATA = ("--data", "toy.py:data")


def test_a_mistake_is_reported_without_importing_anything_heavy() -> None:
    mistakes = {
        "--dta": ("sites", "toy.py:model", "--dta", "toy.py:data"),  # mistyped
        "--data": ("sites", "toy.py:model"),  # missing
        "stes": ("stes",),
        "./nowhere": ("sites", "hf:./nowhere", *DATA),  # no such folder
        "whre-to-drop": ("study", "whre-to-drop"),
        "fc1": ("audit", "toy.py:model", "fc1=2", *DATA),  # a bad placement
        "fc2": ("predict", "toy.py:model", "--placement", "fc2=2", "--image", "a.nii.gz", "--out", "maps"),
        "--rates": ("sweep", "toy.py:model", *DATA, "--sites", "fc1", "--rates", "half"),
        "--outputs": ("sweep", "toy.py:model", *DATA, "--sites", "fc1", "--outputs", "logit"),  # a wrong choice
        "--task": ("study", "where-to-drop", *DATA, "--task", "cifar"),
        "--masks": ("study", "transformer-profile", "--masks", "none"),
        "--dropout": ("study", "segmentation-measures", "--dropout", "never"),
        "--passes": ("demo", "--passes", "0"),
        "FRAMEWORK": ("new", "keras"),
    }
    started = _start(*mistakes.values())
    assert started.returncode == 2, started.stderr
    lines = started.stderr.splitlines()
    assert len(lines) == len(mistakes)
    for name, line in zip(mistakes, lines, strict=True):
        assert name in line


@pytest.mark.parametrize(
    ("written", "completed"),
    [
        ("dropscope s", {"score", "sites", "sweep", "study"}),
        ("dropscope study where-to-drop --ta", {"--task"}),
        ("dropscope sweep m --objective au", {"aurc", "augrc"}),
        ("dropscope new ", {"torch", "hf", "monai"}),
    ],
)
def test_a_shell_completes_commands_options_and_words(written: str, completed: set[str]) -> None:
    index = str(written.count(" "))
    started = _start((), _DROPSCOPE_COMPLETE="complete_bash", COMP_WORDS=written, COMP_CWORD=index)
    assert started.returncode == 0, started.stderr
    assert set(started.stdout.split()) == completed


def test_python_runs_the_package() -> None:
    started = subprocess.run([sys.executable, "-m", "dropscope", "--version"], capture_output=True, text=True)
    assert started.stdout.strip() == f"dropscope {dropscope.__version__}"
