"""The command defer: columns in, a rule out, and what is refused before any work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dropscope.cli import app
from dropscope.deploy import DeferralRule, defer
from support.planted_errors import draw


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    u, right = draw(np.random.default_rng(0), 800)
    table = pd.DataFrame({"id": range(800), "label": np.arange(800) % 2, "correct": right, "predictive_entropy": u})
    table["prediction"] = np.where(right, table.label, 1 - table.label)
    table["noise"] = np.random.default_rng(1).random(800)
    table["patient"] = np.arange(800) // 2
    table.to_csv("scores.csv", index=False)
    table.to_parquet("scores.parquet")

    def run(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["defer", *arguments])
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_table_becomes_the_rule_that_python_makes(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("scores.csv", "--max-error", "0.1", "--out", "rule.json")
    assert max(map(len, result.stdout.splitlines())) <= 80
    table = pd.read_parquet("scores.parquet")
    rule = defer({"predictive_entropy": table.predictive_entropy}, table.correct, 0.1)
    assert DeferralRule.load("rule.json").facts() == rule.facts()
    answer = json.loads(run("scores.parquet", "--max-error", "0.1", "--json").stdout)
    assert answer["threshold"] == rule.threshold
    assert answer["file"] is None


def test_several_risks_and_measures_are_named_by_columns(run: Callable[..., Any]) -> None:
    options = ("--max-false-negatives", "0.2", "--costs", "1:0=5,0:1=1", "--max-cost", "0.6", "--prevalence", "0.3")
    answer = json.loads(run("scores.csv", *options, "--json").stdout)
    assert [risk["name"] for risk in answer["risks"]] == ["false negatives", "cost"]
    picked = run("scores.csv", "--uncertainty", "noise,predictive_entropy", "--max-error", "0.1", "--json").stdout
    assert json.loads(picked)["measure"] == "predictive_entropy"
    by_class = json.loads(run("scores.csv", "--per-class", "--max-error", "0.2", "--json").stdout)
    assert set(by_class["thresholds"]) == {"0", "1"}
    assert "groups are independent" in run("scores.csv", "--groups", "patient", "--max-error", "0.2").stdout
    spent = json.loads(run("scores.csv", "--budget", "0.3", "--json").stdout)
    assert spent["max_error"] is None
    assert spent["bound"] < 1


def test_what_cannot_be_promised_exits_with_1_and_writes_nothing(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("scores.csv", "--max-error", "0.001", "--out", "rule.json", code=1)
    assert "n = " in result.stdout
    assert not (tmp_path / "rule.json").exists()


def test_a_dry_run_says_what_would_be_read(run: Callable[..., Any]) -> None:
    plan = json.loads(run("scores.csv", "--groups", "patient", "--out", "rule.json", "--dry-run", "--json").stdout)
    assert plan["examples"] == 800
    assert plan["groups"] == "patient"
    assert plan["would_write"] == "rule.json"


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("nothing.csv",), "SCORES"),
        (("scores.csv", "--uncertainty", "nois"), "--uncertainty"),
        (("scores.csv", "--correct", "right"), "--correct"),
        (("scores.csv", "--groups", "pat"), "--groups"),
        (("scores.csv", "--confidence", "95"), "--confidence"),
        (("scores.csv", "--costs", "5"), "--costs"),
        (("scores.csv", "--costs", "1:0=5"), "--max-cost"),
        (("scores.csv", "--prevalence", "much"), "--prevalence"),
        (("scores.csv", "--out", "rule.txt"), "--out"),
    ],
)
def test_mistakes_are_one_line(run: Callable[..., Any], arguments: tuple[str, ...], flag: str) -> None:
    result = run(*arguments, code=2)
    assert result.stderr.startswith(f"error: {flag} ")
    assert result.stderr.count("\n") == 1
