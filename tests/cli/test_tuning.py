"""`dropscope tune`: one command from model to verdict, its files, and one message for what cannot be tuned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dropscope as ds
from dropscope.cli import app

MODEL = """
from support.planted_votes import Votes, noise_finds_the_errors

def model():
    return Votes()

def data():
    return noise_finds_the_errors(500)

def unlabelled():
    return noise_finds_the_errors(500)[0]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL, encoding="utf-8")
    return "net.py"


def run(*arguments: str) -> tuple[int, str, str]:
    quick = ["--rates", "0.2,0.5", "--passes", "16", "--rivals", "entropy"]
    result = CliRunner().invoke(app, ["tune", *arguments, *quick], env={"COLUMNS": "80"})
    return result.exit_code, result.stdout, result.stderr


def test_one_command_tunes_writes_and_answers(file: str) -> None:
    code, out, _ = run(f"{file}:model", "--data", f"{file}:data", "--out", "found", "--predictor", "shipped")
    assert code == 0
    assert "Verdict: " in out
    assert max(map(len, out.splitlines())) <= 80
    assert {path.name for path in Path("found").iterdir()} >= {"choice.json", "table.csv", "evidence", "judged"}
    assert (Path("shipped") / "predictor.json").exists()
    assert ds.open_choice("found").placement is not None


def test_json_has_everything_and_a_dry_run_writes_nothing(file: str) -> None:
    code, out, _ = run(f"{file}:model", "--data", f"{file}:data", "--dry-run", "--json", "--budget", "100")
    plan = json.loads(out)
    assert code == 0
    assert plan["whole"] is True
    assert plan["seconds"] > 0
    assert not Path("dropscope-tune").exists()
    code, out, _ = run(f"{file}:model", "--data", f"{file}:data", "--json", "--sites", "hidden")
    answer = json.loads(out)
    assert code == 0
    assert answer["verdict"] == "better"
    assert {"table", "differences", "pareto", "judgement", "sizes", "share"} <= set(answer)


@pytest.mark.parametrize(
    ("flag", "arguments"),
    [
        ("--sites", ("--data", "net.py:data", "--sites", "conv9")),
        ("--data", ("--data", "net.py:unlabelled")),
        ("--reserve", ("--data", "net.py:data", "--reserve", "2")),
        ("--budget", ("--data", "net.py:data", "--budget", "0")),
    ],
)
def test_what_cannot_be_used_is_one_line(file: str, flag: str, arguments: tuple[str, ...]) -> None:
    code, _, err = run(f"{file}:model", *arguments)
    assert code == 2
    assert flag in err
    assert not Path("dropscope-tune").exists()
