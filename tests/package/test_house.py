"""The house: how many rooms there are, how files are named and how long they are, and what the public surface says."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

import dropscope

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "dropscope"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
MODULES = [path for path in FILES if path.name != "__init__.py"]
PUBLIC = [name for name in dropscope.__all__ if name not in ("__version__", "measures", "rivals", "scores")]
MOST_PACKAGES, MOST_MODULES, MOST_LINES = 17, 8, 400


def shown(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public_names(path: Path) -> set[str]:
    """The functions and classes that a module defines for others."""
    defined = (node for node in tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return {node.name for node in defined if not node.name.startswith("_")}


def parameters(path: Path) -> list[tuple[str, str]]:
    """Every `**name: annotation` of a module's functions."""
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    catching = [(function, function.args.kwarg) for function in functions if function.args.kwarg]
    return [(function.name, caught.arg) for function, caught in catching]


def takes_arguments(thing: object) -> bool:
    try:
        return bool([name for name in inspect.signature(thing).parameters if name != "self"])  # type: ignore[arg-type]
    except ValueError:  # a class without a signature of its own
        return False


def test_rooms_and_modules_can_be_counted():
    modules = sorted(path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__"))
    assert len(ROOMS) <= MOST_PACKAGES, ROOMS
    assert len(modules) <= MOST_MODULES, modules


@pytest.mark.parametrize(
    "room", sorted(path.parent for path in PACKAGE.glob("*/__init__.py")), ids=lambda room: room.name
)
def test_a_room_has_a_door(room):
    """A room lists what others may use, or says in one line that nobody imports from it."""
    door = tree(room / "__init__.py")
    listed = any(
        isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets)
        for node in door.body
    )
    assert ast.get_docstring(door)
    assert listed or not [node for node in door.body if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_a_module_is_not_named_like_what_it_holds(path):
    assert path.stem not in public_names(path)


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_file_is_short_and_says_what_it_owns(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    header = ast.get_docstring(tree(path))
    assert len(lines) <= MOST_LINES
    assert header or not tree(path).body
    assert len((header or "").splitlines()) <= 6


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_parameters_are_explicit(path):
    assert "common" not in [name for _, name in parameters(path)]


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_two_engines_are_one_noun(path):
    """Who runs passes does not ask which engine it has."""
    assert not re.search(r"\bshared is (not )?None\b", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_what_a_comment_cites_is_in_the_project(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b(PITFALLS|PAPERS|HOUSE|STYLE|DESIGN|PEERS)\b(?!\s*=)", text)
    explained = set(re.findall(r"\bR\d+\b", (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")))
    assert set(re.findall(r"(?<![\w#/-])R\d{1,2}\b(?!\w)", text)) <= explained
    for page in re.findall(r"docs/[\w-]+\.md", text):
        assert (ROOT / page).exists(), page


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_how_it_is_used(name):
    thing = getattr(dropscope, name)
    docstring = inspect.getdoc(thing) or ""
    assert re.match(r"[A-Z`]", docstring), "starts with a sentence"
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return  # raised by Dropscope, never built by a user
    sections = set(re.findall(r"^(Args|Attributes|Returns|Yields|Raises|Examples):$", docstring, re.MULTILINE))
    if inspect.isclass(thing):
        assert sections & {"Args", "Attributes"}
    else:
        assert "Args" in sections or not takes_arguments(thing)
        assert sections & {"Returns", "Yields"}


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.islower()])
def test_every_parameter_of_a_public_function_is_described(name):
    function = getattr(dropscope, name)
    described = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(function) or "", re.MULTILINE | re.DOTALL)
    names = re.findall(r"^    \*{0,2}(\w+)(?: \([^)]*\))?:", described[1] if described else "", re.MULTILINE)
    assert sorted(names) == sorted(inspect.signature(function).parameters)


def test_the_version_lives_in_one_place():
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    changes = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert cited
    assert cited[1] == dropscope.__version__ == changes[0]
    assert 'version = { attr = "dropscope.__version__" }' in project
    assert dropscope.__version__ not in project


def test_every_direct_dependency_is_pinned():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needs = re.search(r"^dependencies = \[.*?^\[project\.scripts\]", project, re.MULTILINE | re.DOTALL)
    assert needs
    direct = set(re.findall(r'"([\w-]+)[<>=!]', needs[0]))
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert "torch" in direct
    assert direct == pinned
