"""What docs/extending.md shows is what happens: its blocks run in order, and what they print is what stands below."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = ("A measure", "A score", "A noise", "Passes from elsewhere", "A study")


def test_every_block_runs_and_prints_what_is_shown():
    names: dict[str, object] = {}
    printed, compared = "", 0
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, str(PAGE), "exec"), names)
            printed = out.getvalue()
        else:
            assert language == "text"
            assert printed == text
            compared += 1
    assert compared >= len(SECTIONS)


def test_each_kind_of_extension_has_a_worked_example():
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert tuple(section.partition("\n")[0] for section in sections) == SECTIONS
    for section in sections:
        assert {"python", "text"} <= {language for language, _ in BLOCK.findall(section)}
