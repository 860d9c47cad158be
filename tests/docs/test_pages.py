"""Pages of the site: each has its place in the navigation, and none is without an example."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
FROM_DOCSTRINGS = {"reference.md"}  # every public name there has an example: tests/package/test_house.py


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_an_example_and_a_place_in_the_navigation(page):
    text = page.read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(rf"[ :]{re.escape(page.name)}$", navigation, re.MULTILINE)
    assert page.name in FROM_DOCSTRINGS or re.search(r"^```|^ {4}\S", text, re.MULTILINE)
