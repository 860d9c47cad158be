"""Commands as somebody types them: in a folder with a file of a model and data, in 80 columns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dropscope.cli import app


def commands_in(folder: Path, monkeypatch: pytest.MonkeyPatch, net: str) -> Callable[..., Any]:
    """A function that runs a command in `folder`, where net.py has the text `net`, and expects an exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "80")
    (folder / "net.py").write_text(net)

    def run(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result

    return run
