"""docs/tutorial.md: its files are written, its commands run, and each prints the lines that the page shows."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dropscope.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```python title="(\S+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
CONSOLE = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ dropscope (.*)\n((?:(?!\$ ).*\n)*)", "".join(CONSOLE), re.MULTILINE)
(SCRIPT,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def heads(text: str) -> set[str]:
    """The first word of each line: the numbers behind it are those of one machine."""
    return {line.split()[0] for line in text.splitlines() if line.strip()} - {"…"}


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The reader's folder, with the trained network in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "80")
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    sys.modules.pop("mine", None)
    runpy.run_path("train.py")
    yield
    sys.modules.pop("mine", None)


def test_the_commands_and_the_script_do_what_is_shown(started):
    assert set(FILES) == {"mine.py", "train.py"}
    assert [command.split()[0] for command, _ in COMMANDS] == [
        "--version", "sites", "audit", "try", "compare", "calibrate", "predict", "check",
    ]  # fmt: skip
    for command, shown in COMMANDS:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, (command, result.output)
        if command.startswith(("sites", "audit")):
            assert all(line in result.output for line in shown.splitlines())
        elif command.startswith(
            ("try", "compare")
        ):  # which placement is best, and where a verdict's lines break, may differ
            assert "Verdict:" in heads(result.output) & heads(shown)
        else:
            assert heads(shown) <= heads(result.output), command
    exec(compile(SCRIPT, "tutorial.md", "exec"), {})
