"""A light start: what the command line imports before a command runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "dropscope.studies.training", "dropscope.engine")
COMMANDS = ("demo", "new", "sites", "audit", "sweep", "predict")
STUDIES = ("where-to-drop", "transformer-profile", "segmentation-measures")
CODE = """
import sys
from dropscope.cli import app

code = 0
try:
    app({arguments!r})
except SystemExit as ending:
    code = ending.code
loaded = [name for name in {heavy!r} if name in sys.modules]
sys.exit(f"imported {{loaded}}" if loaded else code or 0)
"""


def _start(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = CODE.format(arguments=list(arguments), heavy=HEAVY)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "command",
    [(), *((name,) for name in COMMANDS), ("study",), *(("study", name) for name in STUDIES)],
    ids=lambda command: " ".join(command) or "dropscope",
)
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    started = _start(*command, "--help")
    assert started.returncode == 0, started.stderr
    assert "Usage:" in started.stdout


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("sites", "toy.py:model", "--dta", "toy.py:data"), "--dta"),  # mistyped
        (("sites", "toy.py:model"), "--data"),  # missing
        (("audit", "toy.py:model", "fc1=2", "--data", "toy.py:data"), "fc1"),  # a bad placement
        (("sweep", "toy.py:model", "--data", "toy.py:data", "--sites", "fc1", "--rates", "half"), "--rates"),
        (("demo", "--passes", "0"), "--passes"),
    ],
)
def test_a_mistake_is_reported_without_importing_anything_heavy(arguments: tuple[str, ...], names: str) -> None:
    started = _start(*arguments)
    assert started.returncode == 2, started.stderr
    assert names in started.stderr
