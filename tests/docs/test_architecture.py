"""What docs/architecture.md says of the code: every room with its modules, the floors as they are checked, the walk."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "dropscope"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| (`\w+`(?: `\w+`)*) \| [^|]* \|(.*?)\|$", TEXT, re.MULTILINE)
MODULES = {
    room: set(re.findall(r"`(\w+)`", modules)) for rooms, modules in LINES for room in re.findall(r"`(\w+)`", rooms)
}


def test_every_room_is_on_the_map():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(MODULES) == rooms | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_every_module_of_a_room_is_on_the_map(room):
    assert MODULES[room] == {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__", "__main__"}


def test_the_floors_are_those_that_are_checked():
    """`(deploy)` in the contract is a room that may come."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    checked = re.findall(r'"([^"]+)"', re.search(r"^layers = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)[1])
    drawn = re.search(r"^## Floors.*?^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[1]
    floors = [re.split(r"\s{3,}", line.strip())[0] for line in drawn.splitlines() if "│" not in line]
    assert floors == [floor for floor in checked if not floor.startswith("(")]


def test_the_walk_leads_through_files_that_are_there():
    walk = re.findall(r"^\d\. \*\*`([\w/]+\.py)`\*\*", TEXT, re.MULTILINE)
    assert len(walk) == 7
    for path in re.findall(r"`(\w+/\w+\.py)`", TEXT):
        assert (PACKAGE / path).exists() or (ROOT / path).exists(), path
