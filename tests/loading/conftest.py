"""Files as a user writes them, in a folder of their own."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into a folder of its own, which is also the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write
