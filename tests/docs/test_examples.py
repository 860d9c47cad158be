"""What a page shows is what happens: its blocks run in order, and what they print is what stands below."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "at_least"), [("choosing.md", 5), ("concepts.md", 8), ("extending.md", 4), ("notebook.md", 5)]
)
def test_every_block_runs_and_prints_what_is_shown(page: str, at_least: int) -> None:
    mpl.use("Agg")
    names: dict[str, object] = {}
    printed, compared = "", 0
    for language, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, page, "exec"), names)
            printed = out.getvalue()
        else:
            assert language == "text"
            assert printed == text
            compared += 1
    pyplot.close("all")
    assert compared >= at_least
