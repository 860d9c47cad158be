"""Placements of a command line: texts, files with comments, and the line of a mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dropscope.cli.placements import PlacementOptions, read_placements
from support.errors import refused


def test_texts_divided_by_semicolons() -> None:
    assert [str(placement) for placement in read_placements("own; own*2;fc1=0.5,conv1=.2;")] == [
        "own",
        "own*2",
        "conv1=0.2,fc1=0.5",
    ]


def test_a_file_with_comments_and_calls(tmp_path: Path) -> None:
    file = tmp_path / "placements.txt"
    file.write_text("# all of them\n\nown  # as trained\nfc1#2=0.5\n  last=0.5 noise=gaussian\n")
    assert [str(placement) for placement in read_placements(str(file))] == [
        "own",
        "fc1#2=0.5",
        "last=0.5 noise=gaussian",
    ]


def test_a_mistake_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "placements.txt"
    file.write_text("own\n# a comment\nfc1=1.5\n")
    with refused("placements") as caught:
        read_placements(str(file))
    assert "line 3" in str(caught.value)
    with refused("placements") as caught:
        read_placements("own;fc1=x")
    assert "number 2 of 2" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff\xfe\x00"])
def test_files_without_placements_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "placements.txt"
    file.write_bytes(content)
    with refused("placements"):
        read_placements(str(file))


def test_a_file_that_is_missing_is_refused() -> None:
    with refused("placements"):
        read_placements("missing.txt")


def test_named_placements_come_before_the_grid() -> None:
    chosen = PlacementOptions(sites=("fc1",), placements="own", rates=(0.5,)).chosen()
    assert [str(placement) for placement in chosen] == ["own", "fc1=0.5"]
    with refused("sites"):
        PlacementOptions().chosen()


def test_many_placements_are_no_name_of_a_file() -> None:
    assert len(read_placements(";".join(f"fc1=0.{i}" for i in range(100, 200)))) == 100


@pytest.mark.parametrize("option", [{"rates": (0.2,)}, {"positions": ("input",)}, {"noise": ("gaussian",)}])
def test_what_makes_a_grid_goes_with_sites(option: dict[str, Any]) -> None:
    (name,) = option
    assert list(PlacementOptions(sites=("fc1",), **option).chosen())
    with refused(name):
        PlacementOptions(placements="own", **option).chosen()
