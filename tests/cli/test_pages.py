"""`dropscope report`: the page, its twin, its gates and exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dropscope.cli import app
from support.reported_runs import stored_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return stored_run(tmp_path / "run")


def report(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["report", *arguments])
    return answer.exit_code, answer.stdout


def test_a_page_is_written(folder):
    code, said = report("run")
    assert (code, Path("report.html").exists()) == (0, True)
    assert "report.html" in said
    code, said = report("run", "--json", "--title", "Mine")
    assert (code, json.loads(said)["title"]) == (0, "Mine")
    code, said = report("run", "--dry-run", "--out", "other.html")
    assert (code, Path("other.html").exists()) == (0, False)


def test_requirements_decide_the_exit_code(folder):
    assert report("run", "--require", "accuracy>0", "--junit", "gates.xml")[0] == 0
    assert report("run", "--require", "accuracy>0", "--require", "accuracy>1", "--junit", "gates.xml")[0] == 1
    assert 'failures="1"' in Path("gates.xml").read_text(encoding="utf-8")


def test_what_cannot_be_used_is_refused(folder):
    for arguments in (("none",), ("run", "--require", "high"), ("run", "--out", "page.txt"), ("run", "--junit", "a.b")):
        assert report(*arguments)[0] == 2
