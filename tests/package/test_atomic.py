"""Files that are complete or absent, and folders that hold one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dropscope.atomic import atomic_write, output_folder, read_json, same_spec
from support.errors import refused


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "below" / "a.txt"
    atomic_write(path, lambda part: part.write_text("one"))
    assert atomic_write(path, lambda part: part.write_text("two")) == path
    assert path.read_text() == "two"
    assert [file.name for file in path.parent.iterdir()] == ["a.txt"]


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = atomic_write(tmp_path / "a.txt", lambda part: part.write_text("old"))

    def fail(part: Path) -> None:
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, fail)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(("name", "suffix"), [("a.png", ".png"), ("a.nii.gz", ".nii.gz"), ("a", "")])
def test_the_temporary_file_has_the_same_suffix(name: str, suffix: str, tmp_path: Path) -> None:
    parts: list[Path] = []

    def write(part: Path) -> None:
        parts.append(part)
        part.write_text("x")

    atomic_write(tmp_path / name, write)
    assert parts[0].name.endswith(suffix)
    assert parts[0].parent == tmp_path


def test_the_same_specification_is_accepted_in_values_of_json(tmp_path: Path) -> None:
    same_spec({"seed": 0, "rates": [0.1, 0.5]}, {"rates": (0.1, 0.5), "seed": 0}, tmp_path / "run.json", "write out=x")


@pytest.mark.parametrize(
    ("wanted", "differing"),
    [
        ({"seed": 1, "passes": 10}, "seed"),
        ({"seed": 1, "passes": 20}, "passes, seed"),
        ({"seed": 0}, "passes"),  # missing now
        ({"seed": 0, "passes": 10, "noise": "gaussian"}, "noise"),  # missing then
    ],
)
def test_another_specification_is_refused_and_the_fields_are_named(
    wanted: dict[str, object], differing: str, tmp_path: Path
) -> None:
    record = tmp_path / "run.json"
    with refused("out") as caught:
        same_spec({"seed": 0, "passes": 10}, wanted, record, "write out='another'")
    assert f"for {differing} than" in str(caught.value.received)
    assert str(record) in str(caught.value)
    assert caught.value.remedy == "write out='another'"


def test_json_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = atomic_write(tmp_path / "a.json", lambda part: part.write_text(json.dumps({"µ": [1]}), encoding="utf-8"))
    assert read_json(path) == {"µ": [1]}


@pytest.mark.parametrize("content", [None, b"", b'{"seed": ', b"\xff\xfe\x00", b"[" * 100_000])
def test_json_that_cannot_be_read_is_one_clear_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content)
    with refused(str(path)) as caught:
        read_json(path)
    assert "run.json" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["", " ", "a-file", "a-file/below/it", "a-link-to-itself", "x" * 300])
def test_a_folder_that_cannot_be_made_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    Path("a-link-to-itself").symlink_to("a-link-to-itself")
    with refused("out"):
        output_folder(name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file", "a-link-to-itself"]


def test_a_folder_that_is_there_or_new_is_taken(tmp_path: Path) -> None:
    assert output_folder(str(tmp_path)) == tmp_path
    assert output_folder(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    assert list(tmp_path.iterdir()) == []
