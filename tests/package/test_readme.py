"""README.md: its Python runs, and every output it shows is compared with the real one."""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dropscope.cli import app

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks():
    return BLOCK.findall(README.read_text(encoding="utf-8"))


def test_the_python_prints_what_is_shown(blocks):
    names: dict[str, object] = {}
    printed = ""
    for language, text in blocks:
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, str(README), "exec"), names)
            printed = out.getvalue()
        elif language == "text":
            assert printed == text


def test_the_commands_print_what_is_shown(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "100")
    (shown,) = [text for language, text in blocks if language == "console"]
    printed = ""
    for line in shown.splitlines():
        if line.startswith("$ "):
            result = CliRunner().invoke(app, shlex.split(line.removeprefix("$ dropscope ")))
            printed += "\n".join([line, *(row.rstrip() for row in result.output.splitlines())]) + "\n"
    assert printed == shown
