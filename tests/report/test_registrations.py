"""Preregistration: what is written before a run, and what a run's summary says of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dropscope.report import Claim, ClaimRule, Registration, registration_words
from dropscope.report import claims as some_code
from support.errors import refused

RULES = (ClaimRule("a-*", "A is larger", "t at .05", "± 0.1"), ClaimRule("b", "B", "t at .05"))


@dataclass(frozen=True)
class Options:
    data: str = "here"
    passes: int = 100
    rates: tuple[float, ...] = (0.1, 0.2)
    out: str | Path = "folder"
    preregister: str | None = None


def record(**changes: Any) -> Registration:
    setting = {"data": "fingerprint", "split": [1, 2]} | changes.pop("setting", {})
    options = replace(Options(), **changes.pop("options", {}))
    return Registration.of("one", options, setting, changes.pop("seeds", [0]), RULES, (some_code,), files=("data",))


def claim(name: str, margin: str = "± 0.1") -> Claim:
    return Claim(name, "A", "", "", "supported", "t", margin=margin)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    record().write(tmp_path / "plan.json", tmp_path / "folder")
    return tmp_path / "plan.json"


def said(file: Path, folder: Path, now: Registration, *claims: Claim) -> str:
    now.check(file, folder)
    words = registration_words(folder, claims or [claim("a-1"), claim("b", "")])
    assert words is not None
    return words


def test_the_same_run_is_as_registered_wherever_its_folder_and_data_are(file: Path, tmp_path: Path) -> None:
    digest = json.loads(file.read_text())["hash"]
    words = said(file, tmp_path, record(options={"out": "elsewhere", "data": "there"}))
    assert digest in words
    assert "not as registered" not in words


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"options": {"passes": 20}}, "passes 20, registered 100"),
        ({"options": {"rates": (0.5,)}}, "rates [0.5], registered [0.1, 0.2]"),
        ({"seeds": [0, 1]}, "seeds [0, 1], registered [0]"),
        ({"setting": {"data": "other"}}, "setting.data"),
    ],
)
def test_what_differs_is_named(file: Path, tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    words = said(file, tmp_path, record(**changes))
    assert "not as registered" in words
    assert named in words


def test_other_claims_margins_and_rules_are_named(file: Path, tmp_path: Path) -> None:
    assert "the claim c was not registered" in said(file, tmp_path, record(), claim("c"))
    assert "margin of a-2" in said(file, tmp_path, record(), claim("a-2", "± 0.5"))
    assert "code of the rules" in said(file, tmp_path, Registration({**record().record, "rules": "0"}))


def test_a_file_that_was_changed_and_a_run_that_was_first_are_named(file: Path, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    content = json.loads(file.read_text())
    content["registered"] = "2999-01-01T00:00:00+00:00"
    file.write_text(json.dumps(content))
    words = said(file, tmp_path, record())
    assert "the file itself" in words
    assert "before it was registered" in words


def test_without_a_registration_nothing_is_said_and_an_earlier_one_is_forgotten(file: Path, tmp_path: Path) -> None:
    said(file, tmp_path, record())
    record().check(None, tmp_path)
    assert registration_words(tmp_path, []) is None


def test_what_cannot_be_registered_is_refused(file: Path, tmp_path: Path) -> None:
    with refused("preregister"):
        record().write(file, tmp_path / "folder")
    (tmp_path / "study.json").write_text("{}")
    with refused("preregister"):
        record().write(tmp_path / "late.json", tmp_path)
    (tmp_path / "other.json").write_text('{"a": 1}')
    for wrong in (tmp_path / "none.json", tmp_path / "other.json", tmp_path / "study.json", tmp_path):
        with refused("preregister"):
            record().check(wrong, tmp_path)
    with refused("preregister"):
        Registration({**record().record, "study": "two"}).check(file, tmp_path)
