"""`dropscope compare`: one table from one command, its files, and one message for what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dropscope.cli import app
from support.rival_data import CLASSES, picture_net, pictures

MODEL = """
from support.rival_data import picture_net, pictures

def model():
    return picture_net()

def data():
    return pictures(120)

def shifted():
    return pictures(60, noise=1.5)

def unlabelled():
    return pictures(60)[0]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL, encoding="utf-8")
    return "net.py"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "80"})
    return result.exit_code, result.stdout, result.stderr


def test_one_command_compares_writes_and_answers(file: str):
    torch.save(picture_net(seed=4).state_dict(), "other.pt")
    np.savez("elsewhere.npz", data=np.full((2, 120, CLASSES), 1 / CLASSES), shifted=np.full((60, CLASSES), 1 / CLASSES))
    code, out, _ = run(
        f"{file}:model", "--data", f"{file}:data", "--shifted", f"{file}:shifted", "--rivals", "entropy,laplace",
        "--placements", "last=0.3;last=0.5", "--probabilities", "elsewhere.npz", "--checkpoints", "other.pt,other.pt",
        "--passes", "5", "--out", "result",
    )  # fmt: skip
    assert code == 0
    for name in ("max_probability", "entropy", "laplace", "last=0.3", "last=0.5", "elsewhere", "ensemble of 2"):
        assert f"\n{name} " in out
    assert "Verdict: " in out
    assert max(map(len, out.splitlines())) <= 80
    assert {path.name for path in Path("result").iterdir()} >= {"table.csv", "table.md", "table.tex", "comparison.json"}


def test_json_holds_the_whole_comparison(file: str):
    code, out, _ = run(f"{file}:model", "--data", f"{file}:data", "--placements", "none", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["folder"] == "dropscope-compare"
    assert "mahalanobis" in [row["name"] for row in answer["table"]]
    assert answer["verdict"]["dropout"] is None
    assert answer["judged_on"] == answer["fitted_on"] == 60


def test_a_dry_run_says_who_would_be_compared_and_writes_nothing(file: str):
    code, out, _ = run(f"{file}:model", "--data", f"{file}:data", "--dry-run")
    assert code == 0
    assert "mahalanobis" in out
    assert "last=0.5" in out
    code, out, _ = run(f"{file}:model", "--data", f"{file}:data", "--rivals", "none", "--dry-run", "--json")
    assert [kind for _, kind in json.loads(out)["rivals"]].count("one pass") == 1
    assert not Path("dropscope-compare").exists()


def test_what_cannot_be_compared_is_one_line_and_leaves_nothing(file: str):
    np.save("short.npy", np.full((2, 119, CLASSES), 1 / CLASSES))
    np.save("sums.npy", np.full((2, 120, CLASSES), 0.5))
    wrong = {
        ("--rivals", "entropie"): "--rivals",
        ("--probabilities", "short.npy"): "short.npy",
        ("--probabilities", "sums.npy"): "sums.npy",
        ("--probabilities", "gone.npz"): "--probabilities",
        ("--checkpoints", "gone.pt"): "--checkpoints",
        ("--placements", "nowhere=0.5"): "--placements",
        ("--against", "nobody"): "--against",
        ("--measure", "entropy"): "--measure",
        ("--shifted", f"{file}:unlabelled"): "--shifted",
        ("--passes", "0"): "--passes",
    }
    for options, said in wrong.items():
        code, out, err = run(f"{file}:model", "--data", f"{file}:data", *options)
        assert code == 2, options
        assert not out
        assert said in err, err
        assert len(err.strip().splitlines()) == 1, err
    assert not Path("dropscope-compare").exists()


def test_the_data_of_pictures_have_errors_to_rank():
    x, y = pictures(120)
    with torch.no_grad():
        assert 10 < int((picture_net()(x).argmax(1) != y).sum()) < 60
