"""Tables of the command line: all columns where they fit, fewer where they do not, names that stay whole."""

from __future__ import annotations

from typing import Any

import pytest

from dropscope.cli.console import Column, broken, print_table

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


def test_a_name_is_broken_at_commas_and_dots_and_nothing_is_lost() -> None:
    for text in ("conv2=0.3,layer.0.dense@weights=0.5", "x" * 50, "a,b", ""):
        for width in (6, 12, 40):
            lines = broken(text, width)
            assert max(map(len, lines)) <= width
            assert "".join(line.strip() for line in lines) == text
