"""The command export: a file that opens, and what is refused before any work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dropscope.cli import app
from dropscope.deploy import open_export

_CODE = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()

def data():
    return torch.ones(6, 4), torch.zeros(6, dtype=torch.long)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("net.py").write_text(_CODE)

    def run(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["export", "net.py:model", "--data", "net.py:data", *arguments])
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_file_is_written_and_described(run: Callable[..., Any]) -> None:
    options = ("--placement", "last=0.5", "--passes", "5", "--out", "net.pt2", "--threshold", "0.5")
    assert json.loads(run(*options, "--dry-run", "--json").stdout)["would_write"] == "net.pt2"
    assert not Path("net.pt2").exists()
    answer = json.loads(run(*options, "--json").stdout)
    assert (answer["passes"], answer["inputs"], answer["threshold"]) == (5, {"input": [4]}, 0.5)
    found = open_export("net.pt2")(torch.randn(2, 4))
    assert found["probabilities"].shape == (2, 3)
    assert found["defer"].dtype == np.bool_
    assert "--overwrite" in run(*options, code=2).output


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (("--placement", "last=0.5", "--out", "net.pth"), "--out"),
        (("--placement", "last=0.5", "--out", "net.pt2", "--passes", "0"), "--passes"),
        (("--placement", "last=0.5", "--out", "net.pt2", "--measure", "averaged_entropy"), "--measure"),
        (("--placement", "last=0.5", "--out", "net.onnx", "--package"), "--package"),
    ],
)
def test_a_mistake_is_one_line(run: Callable[..., Any], options: tuple[str, ...], flag: str) -> None:
    said = run(*options, code=2).output
    assert flag in said
    assert not list(Path.cwd().glob("*.pt2"))
