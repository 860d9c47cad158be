"""The commands calibrate, predict --data and check: one predictor from its making to a warning about new data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.terminal import commands_in

NET = """
import torch
from torch import nn

def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)).eval()

def other():
    return model(1)

def drawn(n, seed, scale=2.0):
    draw, net = torch.Generator().manual_seed(seed), model()
    x = scale * torch.randn(n, 6, generator=draw)
    with torch.no_grad():
        return x, torch.multinomial((3 * net(x)).softmax(1), 1, generator=draw)[:, 0]

def data():
    return drawn(400, 1)

def test():
    return drawn(300, 2)

def new():
    return drawn(200, 3)[0]

def faint():
    return drawn(200, 4, 0.5)[0]
"""
CALIBRATE = ("calibrate", "net.py:model", "--data", "net.py:data", "--max-error", "0.3", "--out", "p")
PREDICT = ("predict", "net.py:model", "--data", "net.py:new", "--predictor", "p")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    return commands_in(tmp_path, monkeypatch, NET)


@pytest.mark.parametrize("noise", [(), ("--placement", "own", "--passes", "10")], ids=["plain", "own"])
def test_from_labels_to_decisions(run: Callable[..., Any], noise: tuple[str, ...], tmp_path: Path) -> None:
    result = run(*CALIBRATE, *noise, "--test", "net.py:test")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "sensitivity" in result.stdout
    result = run(*PREDICT, "--out", "said.csv")
    assert max(map(len, result.stdout.splitlines())) <= 80
    table = pd.read_csv("said.csv")
    assert 0 < table.defer.sum() < len(table) == 200
    assert json.loads(run(*PREDICT, "--json").stdout)["deferred"] == pytest.approx(table.defer.mean())
    check = ("check", "net.py:model", "--predictor", "p", "--data")
    assert not json.loads(run(*check, "net.py:new", "--json").stdout)["drifted"]
    assert "alarm: " in run(*check, "net.py:faint").stdout


def test_a_trial_makes_a_predictor_of_what_it_chose(run: Callable[..., Any], tmp_path: Path) -> None:
    trial = ("try", "net.py:model", "--data", "net.py:data", "--passes", "5", "--predictor", "p", "--max-error", "0.4")
    answer = json.loads(run(*trial, "--json").stdout)
    assert answer["rule"]["confidence"] == 0.9
    assert len(pd.DataFrame(json.loads(run(*PREDICT, "--json").stdout)["examples"])) == 200
    assert run(*trial[:-3], ".", code=2).stderr.startswith("error: ")


def test_a_target_out_of_reach_exits_with_1(run: Callable[..., Any]) -> None:
    answer = json.loads(run(*CALIBRATE[:-3], "0.001", "--out", "p", "--json", code=1).stdout)
    assert answer["rule"]["threshold"] is None
    assert answer["rule"]["reason"]


def test_dry_runs_write_nothing(run: Callable[..., Any], tmp_path: Path) -> None:
    assert json.loads(run(*CALIBRATE, "--dry-run", "--json").stdout)["would_write"] == "p"
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]
    run(*CALIBRATE)
    run(*PREDICT, "--out", "said.csv", "--dry-run")
    run("check", "net.py:model", "--predictor", "p", "--data", "net.py:new", "--dry-run")
    assert not (tmp_path / "said.csv").exists()


def test_groups_are_lines_of_a_file(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "patients.txt").write_text("\n".join(str(i // 2) for i in range(400)))
    assert "200 groups" in run(*CALIBRATE, "--groups", "patients.txt").stdout
    (tmp_path / "patients.txt").write_text("1\n2\n")
    assert run(*CALIBRATE, "--groups", "patients.txt", code=2).stderr.startswith("error: --groups ")


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("predict", "net.py:model", "--data", "net.py:new"), "--predictor"),
        (("predict", "net.py:model", "--predictor", "p"), "--data"),
        ((*PREDICT, "--placement", "own"), "--placement"),
        (("predict", "net.py:model"), "--image"),
        (("predict", "net.py:other", "--data", "net.py:new", "--predictor", "p"), "MODEL"),
        ((*PREDICT[:-1], "nowhere"), "--predictor"),
        ((*PREDICT[:-1], "."), "--predictor"),
        ((*PREDICT, "--out", "said.txt"), "--out"),
        ((*CALIBRATE, "--confidence", "1"), "--confidence"),
        ((*CALIBRATE, "--measure", "bald"), "--measure"),
        (("calibrate", "net.py:model", "--data", "net.py:new", "--out", "q"), "--data"),
        (("check", "net.py:model", "--predictor", "p", "--data", "net.py:new", "--alpha", "0"), "--alpha"),
    ],
)
def test_mistakes_are_one_line(run: Callable[..., Any], arguments: tuple[str, ...], flag: str) -> None:
    run(*CALIBRATE)
    result = run(*arguments, code=2)
    assert result.stderr.startswith(f"error: {flag} "), result.stderr
    assert result.stderr.count("\n") == 1
