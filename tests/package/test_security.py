"""The source runs no code that files bring along: every call that could is looked for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dropscope

SOURCE = Path(dropscope.__file__).parent
# Modules that unpickle, or run what a text says.
FORBIDDEN = {
    "pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
    "subprocess",
    "pty",
    "code",
    "codeop",
}
BUILT_IN = {"eval", "exec", "compile", "__import__"}
NEVER = {"extractall", "unpack_archive", "system", "popen", "execv", "spawnv", "run_path"}
# Where such a name is right: what is imported or checked there is a constant of ours.
RIGHT = {
    ("deploy/formats.py", "__import__"),  # the packages of an extra, named there
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call, by the whole name of what is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def value(call: ast.Call, name: str) -> object:
    """A keyword's constant; None where it is not given."""
    found = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_unpickles_or_runs_what_a_file_says(path: Path) -> None:
    here = path.relative_to(SOURCE).as_posix()
    tree = ast.parse(path.read_text())
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {
        node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not imported & FORBIDDEN
    for name, call in calls(path):
        last = name.rpartition(".")[2]
        assert (name not in BUILT_IN and last not in NEVER) or (here, last) in RIGHT, f"line {call.lineno}: {name}"
        if name == "torch.load":
            assert value(call, "weights_only") is True, f"line {call.lineno}"
        if name in ("np.load", "numpy.load", "np.save"):
            assert value(call, "allow_pickle") is False, f"line {call.lineno}"
        if last in ("from_pretrained", "from_config", "load_dataset"):
            assert value(call, "trust_remote_code") in (False, None), f"line {call.lineno}"
        assert not value(call, "shell"), f"line {call.lineno}: a shell"


def test_a_call_that_unpickles_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("torch.load(x)\nnp.load(x, allow_pickle=True)\nos.system(x)\n")
    found = dict(calls(path))
    assert value(found["torch.load"], "weights_only") is None
    assert value(found["np.load"], "allow_pickle") is True
    assert "os.system" in found
