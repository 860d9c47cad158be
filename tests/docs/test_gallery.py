"""The examples of the gallery: each runs, is short, and stands in the list and on the site."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot

ROOT = Path(__file__).parents[2]
LISTED = re.findall(r"^\| \[`(\w+)\.py`\]", (ROOT / "examples" / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
PRINTS = {  # a word that an example is about
    "cnn": "Verdict: ",
    "residual_net": "BatchNorm moved: 1.bn1",
    "text_classifier": "SILENT: called with dropout off",
    "named_entities": "Paris/",
    "monai_unet": "dice_disc",
    "own_measure": "disagreement",
    "deferral": "drift    alarm",
}


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    pyplot.close("all")


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_runs_and_shows_what_it_is_about(name, in_an_empty_folder, capsys):
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert PRINTS[name] in capsys.readouterr().out
    assert [path.suffix for path in in_an_empty_folder.iterdir()] == ([".png"] if name == "monai_unet" else [])


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_is_shorter_than_sixty_lines_and_says_what_it_is(name):
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    title, _, about = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    assert title.endswith(("?", "."))
    assert about
    assert len(text.splitlines()) < 60


def test_every_example_is_in_the_list_and_on_the_site():
    gallery = (ROOT / "docs" / "gallery.py").read_text(encoding="utf-8")
    shown = re.findall(r'"(\w+)"', re.search(r"^SHOWN = \((.*?)\)$", gallery, re.MULTILINE | re.DOTALL)[1])
    navigation = re.findall(r"examples/(\w+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert LISTED == shown == list(PRINTS) == [name for name in navigation if name != "index"]
    others = {path.stem for path in (ROOT / "examples").glob("*.py")} - set(LISTED)
    assert others == {"server", "transformer_profile"}
