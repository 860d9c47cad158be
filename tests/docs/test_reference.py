"""The reference is complete: every public name has its place in it."""

import re
from pathlib import Path

import dropscope

TEXT = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference_once():
    shown = re.findall(r"^::: dropscope\.(\w+)$", TEXT, re.MULTILINE)
    assert sorted(shown) == sorted(set(dropscope.__all__) - {"__version__"})
