"""Tables of the command line: all columns where they fit, fewer where they do not, names that stay whole."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from dropscope.cli.console import print_examples, print_rows, print_table
from dropscope.display import Column

TABLE = [
    Column("placement", ["encoder.layer.0.attention=0.1,fc1=0.5", "none"], breaks=20),
    Column("score", ["0.1234", "0.5000"], right=True),
    Column("cost", ["10.0×", "1.0×"], right=True, rank=1),
    Column("remark", ["a long remark here", ""], rank=2),
]


def printed(columns: int | None, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    print_table(TABLE)
    return capsys.readouterr().out.splitlines()


def test_nothing_wraps_where_there_is_no_terminal(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(None, capsys, monkeypatch)
    assert len(lines) == 3
    assert lines[1].split()[0] == "encoder.layer.0.attention=0.1,fc1=0.5"


@pytest.mark.parametrize(("columns", "left_out"), [(80, []), (50, ["remark"]), (30, ["cost", "remark"])])
def test_fewer_columns_in_a_narrow_terminal(
    columns: int, left_out: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(columns, capsys, monkeypatch)
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == [c.title for c in TABLE if c.title not in left_out]
    below = " ".join(lines).partition(f"not shown in {columns} columns: ")[2]
    assert below == ", ".join(left_out)


def test_levels_are_those_of_the_penalties_that_are_shown(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"placement": "fc1=0.5", "measure": "predictive_entropy", "accuracy": 0.9, "minus_single_pass": 0.1}
    row |= {"minus_single_pass_low": 0.05, "minus_single_pass_high": 0.2, "errors": 40, "picked_from": 9}
    scores = {"aurc": 0.1, "error_auroc": 0.8, "isotonic_penalty": 0.3, "rearrangement_penalty": 0.2}
    levels = {name: {"random": 0.5, "monotone": 0.1} for name in ("isotonic_penalty", "rearrangement_penalty")}
    table = pd.DataFrame([row | scores | {"cost": 10.0}])

    def told(columns: int, objective: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        print_rows(table, objective, levels)
        return [line.split()[0] for line in capsys.readouterr().out.splitlines() if "random measure" in line]

    assert told(80, "aurc") == []
    assert told(200, "aurc") == ["isotonic_penalty"]
    assert told(80, "rearrangement_penalty") == ["rearrangement_penalty"]


def test_examples_are_cut_to_one_line_each(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = {"id": ["a long text " * 20, "short\nand broken"], "true_class": ["a" * 40, "dog"]}
    rows |= {"predicted_class": ["cat", "dog"], "correct": [False, True], "probability": [0.5, 0.75]}
    table = pd.DataFrame(rows | {"bald": [0.2, 0.1]})
    print_examples(table, "bald")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "cat ✗" in lines[1]
    assert lines[2].split() == ["short", "and", "broken", "dog", "dog", "0.750", "0.1"]
    print_examples(table[["id", "bald"]].assign(dice=0.5), "bald")
    assert capsys.readouterr().out.splitlines()[0].split() == ["example", "dice", "bald"]
