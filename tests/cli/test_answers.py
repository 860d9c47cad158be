"""The commands try and uncertainty: what is printed, what is written, and what is refused before any work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dropscope.errors import BadInput
from support.terminal import commands_in

NET = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)).eval()

def bare():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)).eval()

def data():
    draw = torch.Generator().manual_seed(1)
    return torch.randn(80, 6, generator=draw), torch.arange(80) % 3

def unlabelled():
    return data()[0]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    return commands_in(tmp_path, monkeypatch, NET)


def test_try_gives_a_verdict_and_writes_what_it_names(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("try", "net.py:model", "--data", "net.py:data", "--passes", "5", "--out", "answer")
    assert "Verdict: " in result.stdout
    assert "10 %" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert (tmp_path / "answer" / "curves.png").read_bytes().startswith(b"\x89PNG")
    for name in ("choice.json", "deferral.csv", "examples.csv"):
        assert (tmp_path / "answer" / name).stat().st_size > 0


def test_try_answers_in_json(run: Callable[..., Any]) -> None:
    answer = json.loads(run("try", "net.py:model", "--data", "net.py:data", "--passes", "5", "--json").stdout)
    assert answer["verdict"] in ("better", "worse", "undecided")
    assert {row["deferred"] for row in answer["deferral"]} >= {0.0, 0.1}
    assert answer["judgement"]["low"] <= answer["judgement"]["difference"] <= answer["judgement"]["high"]


def test_a_dry_run_of_try_writes_nothing(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("try", "net.py:model", "--data", "net.py:data", "--passes", "5", "--dry-run")
    assert "5 passes" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


def test_a_dry_run_of_try_lists_what_is_tried_and_what_the_budget_leaves_out(run: Callable[..., Any]) -> None:
    arguments = ("try", "net.py:model", "--data", "net.py:data", "--dry-run")
    everything = json.loads(run(*arguments, "--json").stdout)
    assert everything["placements"] == ["own", *(f"{site}=0.{rate}" for site in ("last", "0") for rate in (1, 3, 5))]
    assert everything["left_out"] == []
    little = json.loads(run(*arguments, "--budget", "1e-6", "--json").stdout)
    assert little["left_out"] == ["0=0.1", "0=0.3", "0=0.5"]
    assert little["passes"] < everything["passes"]
    text = run(*arguments, "--budget", "1e-6").stdout
    assert "left out each of these at 0.1, 0.3, 0.5: 0" in text
    assert "own" in text


def test_uncertainty_prints_the_most_uncertain_first(run: Callable[..., Any]) -> None:
    result = run("uncertainty", "net.py:model", "--data", "net.py:data", "--passes", "5", "--show", "4")
    first, header, *rows, last = result.stdout.splitlines()
    assert "placement own" in first
    assert header.split()[-3:] == ["predictive_entropy", "±", "error"]
    values = [float(row.split()[-2]) for row in rows]
    assert len(values) == 4
    assert values == sorted(values, reverse=True)
    assert "80 examples (4 shown), accuracy" in last


def test_the_last_layer_needs_no_passes(run: Callable[..., Any]) -> None:
    arguments = ("uncertainty", "net.py:model", "--data", "net.py:data", "--engine", "analytic", "--show", "4")
    first, header, *_ = run(*arguments).stdout.splitlines()
    assert "placement own, no passes" in first
    assert header.split()[-1] == "predictive_entropy"
    result = run(*arguments, "--placement", "0@input=0.5", code=2)
    assert "--engine" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_usual_placement_without_dropout_is_the_last_layer(run: Callable[..., Any]) -> None:
    result = run("uncertainty", "net.py:bare", "--data", "net.py:unlabelled", "--passes", "3")
    assert "placement last=0.5" in result.stdout
    assert "accuracy" not in result.stdout


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_whole_table_is_written(run: Callable[..., Any], tmp_path: Path, form: str) -> None:
    file = f"table.{form}"
    arguments = ("uncertainty", "net.py:model", "--data", "net.py:data", "--passes", "3", "--out", file)
    run(*arguments, "--measures", "bald,plain_entropy", "--sort", "bald")
    table = pd.read_csv(tmp_path / file) if form == "csv" else pd.read_parquet(tmp_path / file)
    known = ["id", "label", "prediction", "probability", "correct"]
    assert list(table.columns) == [*known, "bald", "plain_entropy", "bald_error"]
    assert len(table) == 80
    assert table.bald.is_monotonic_decreasing
    refusal = run(*arguments, code=2)
    assert "--out must not exist yet" in refusal.stderr
    run(*arguments, "--overwrite")
    assert "bald" in (pd.read_csv(tmp_path / file) if form == "csv" else pd.read_parquet(tmp_path / file))


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("--out", "table.xlsx", "out"),
        ("--out", "nowhere/table.csv", "out"),
        ("--sort", "plain_margin", "sort"),
        ("--measures", "bold", "measures"),
        ("--placement", "0:0.5", "placement"),
        ("--passes", "0", "passes"),
    ],
)
def test_mistakes_are_one_line(run: Callable[..., Any], option: str, value: str, name: str) -> None:
    result = run("uncertainty", "net.py:model", "--data", "net.py:data", option, value, code=2)
    error: BaseException | None = result.exception
    while error is not None and not isinstance(error, BadInput):
        error = error.__cause__ or error.__context__
    assert isinstance(error, BadInput)
    assert len(result.stderr.splitlines()) == 1


def test_passes_may_be_as_many_as_a_goal_takes(run: Callable[..., Any]) -> None:
    arguments = ("uncertainty", "net.py:model", "--data", "net.py:data", "--passes", "auto", "--defer", "0.2")
    answer = json.loads(run(*arguments, "--json").stdout)
    deferred = [row["deferred"] for row in answer["examples"]]
    assert sum(deferred) == round(0.2 * len(deferred))
    assert all(8 <= row["passes"] <= 48 for row in answer["examples"])
    assert 0 < answer["threshold"] < 2
    printed = run(*arguments, "--show", "3").stdout
    assert f"{sum(deferred)} deferred (predictive_entropy above {answer['threshold']:.4g})" in printed


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("--passes", ("--passes", "atuo")),
        ("--passes", ("--passes", "20", "--defer", "0.1")),
        ("--defer", ("--passes", "auto", "--defer", "10")),
        ("--sort", ("--passes", "auto", "--defer", "0.1", "--measures", "bald,margin", "--sort", "margin")),
    ],
)
def test_a_goal_that_cannot_be_names_its_flag(run: Callable[..., Any], named: str, options: tuple[str, ...]) -> None:
    result = run("uncertainty", "net.py:model", "--data", "net.py:data", *options, code=2)
    assert f"error: {named} must" in result.stderr


def test_a_dry_run_of_uncertainty_says_what_it_would_write(run: Callable[..., Any], tmp_path: Path) -> None:
    arguments = ("uncertainty", "net.py:model", "--data", "net.py:data", "--out", "table.csv", "--dry-run", "--json")
    plan = json.loads(run(*arguments).stdout)
    assert plan["would_write"] == "table.csv"
    assert plan["placement"] == "own"
    assert not (tmp_path / "table.csv").exists()
