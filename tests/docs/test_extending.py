"""docs/extending.md: a worked example of each kind of extension. `test_examples` runs them."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = ("A measure", "A score", "A noise", "Passes from elsewhere", "A rival", "A study")


def test_each_kind_of_extension_has_a_worked_example():
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert tuple(section.partition("\n")[0] for section in sections) == SECTIONS
    for section in sections:
        assert {"python", "text"} <= {language for language, _ in BLOCK.findall(section)}
