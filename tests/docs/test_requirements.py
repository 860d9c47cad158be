"""What docs/requirements.md says: all requirements in order, and tests that exist under the names it gives."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
ITEMS = re.findall(r"^- \*\*(R\d+)\. (.*?)(?=^- \*\*R|^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
CITED = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")


def names_in(path: Path) -> set[str]:
    """The tests of a file as pytest names them, without parameters."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef):
            found |= {f"::{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_all_requirements_are_there_in_order():
    assert [number for number, _ in ITEMS] == [f"R{number}" for number in range(1, 39)]


@pytest.mark.parametrize(("number", "text"), ITEMS, ids=[number for number, _ in ITEMS])
def test_a_requirement_names_tests_that_exist_or_its_limit(number, text):
    cited = CITED.findall(text)
    assert cited or "Limit:" in text
    for path, name in cited:
        assert (ROOT / path).exists(), path
        assert name in names_in(ROOT / path), f"{path}{name}"
