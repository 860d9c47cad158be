"""Code by name: what `file.py:callable` and `package.module:callable` return.

The user's code runs while its folder is importable, and what it prints goes to stderr. What it raises becomes one line
that says where.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from dropscope.errors import BadInput, MissingExtra, Phrase, nearest

_EXTRAS = {"transformers": "text", "datasets": "text", "monai": "medical", "nibabel": "medical"}


@dataclass(frozen=True)
class _Name:
    """A name in its parts; `path` is None for a module, `argument` is what the name was given as."""

    text: str
    where: str
    attribute: str
    path: Path | None
    argument: str


def call_code(name: str, argument: str, forms: str) -> Any:
    """What the callable `name` returns, called without arguments.

    Args:
        name: `file.py:callable` or `package.module:callable`.
        argument: What errors call it, such as "model".
        forms: The remedy for a name of another form.
    """
    parsed = _parse(name, argument, forms)
    folder = parsed.path.parent if parsed.path else Path.cwd()
    with _importable(folder), quiet_stdout():
        module = _run(lambda: _module(parsed), parsed)
        return _run(_callable(module, parsed), parsed)


def check_code(name: str, argument: str, forms: str) -> None:
    """Refuses a name of another form, or of a file that is not there; runs nothing."""
    _parse(name, argument, forms)


def run_code(name: str, argument: str, forms: str) -> None:
    """Runs the module of `name`, which may register something, without calling anything of it."""
    parsed = _parse(name, argument, forms)
    with _importable(parsed.path.parent if parsed.path else Path.cwd()), quiet_stdout():
        _run(lambda: _module(parsed), parsed)


def load_transforms(name: str) -> Callable[[Any], Any]:
    """The function of an image that `name` stands for, or that the callable `name` returns without arguments."""
    parsed = _parse(name, "transforms", "write file.py:callable, a function of an image")
    with _importable(parsed.path.parent if parsed.path else Path.cwd()), quiet_stdout():
        module = _run(lambda: _module(parsed), parsed)
        value = _attribute(module, parsed)
        if callable(value) and _takes(value, 0):
            value = _run(value, parsed)
    if not callable(value) or not _takes(value, 1):
        remedy = "name a function of one image, or one without arguments that returns such a function"
        what = f"transforms={name!r} must name a function of one image"
        raise BadInput(what, "transforms", Phrase(type(value).__name__), remedy)
    return value


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Sends what other people's code prints to stderr: stdout is for the answer, which may be JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _parse(name: str, argument: str, forms: str) -> _Name:
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        remedy = f"write {name}:callable" if name.endswith(".py") else forms
        raise BadInput(f"{argument} must be file.py:callable or package.module:callable", argument, name, remedy)
    path = Path(where).resolve() if where.endswith(".py") else None
    if path is not None and not os.path.isfile(path):
        beside = sorted(p.name for p in path.parent.glob("*.py")) if os.path.isdir(path.parent) else []
        remedy = nearest(path.name, beside) if beside else "check the path; `dropscope new torch` writes such a file"
        raise BadInput(f"the file in {argument} must exist", argument, where, remedy)
    return _Name(name, where, attribute, path, argument)


def _module(name: _Name) -> ModuleType:
    return importlib.import_module(name.where) if name.path is None else _file_module(name.path)


def _file_module(path: Path) -> ModuleType:
    """The module of a file, run once however often it is named, under a name that hides no installed module."""
    name = f"_dropscope_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and data loader workers look classes up by their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _attribute(module: ModuleType, name: _Name) -> Any:
    value = getattr(module, name.attribute, None)
    if value is None:
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")]
        remedy = nearest(name.attribute, functions) if functions else f"define {name.attribute}() there"
        raise BadInput(f"{name.where} must define the callable in {name.argument}", name.argument, name.attribute,
                       remedy)  # fmt: skip
    return value


def _callable(module: ModuleType, name: _Name) -> Callable[[], Any]:
    value = _attribute(module, name)
    what = f"{name.argument}={name.text!r} must name a callable without arguments"
    if isinstance(value, nn.Module) or not callable(value):
        remedy = f"wrap it in a function without arguments that returns {name.attribute}, and name that function"
        raise BadInput(what, name.argument, Phrase(type(value).__name__), remedy)
    if not _takes(value, 0):
        remedy = "give every argument a default, or name a function that calls it"
        raise BadInput(what, name.argument, Phrase(f"{name.attribute}{inspect.signature(value)}"), remedy)
    return value


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a call with so many arguments fits. A callable written in C has no signature to look at, and may."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _run(function: Callable[[], Any], name: _Name) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        package = missing.partition(".")[0]
        if package in _EXTRAS:
            raise MissingExtra(f"{name.text!r}", package, _EXTRAS[package]) from error
        if missing and name.path is None and f"{name.where}.".startswith(f"{missing}."):
            what = f"{name.argument} must name a module that can be imported"
            remedy = "check its spelling; modules are looked for in the current folder and among installed packages"
            raise BadInput(what, name.argument, name.where, remedy) from error
        what = f"the code in {name.argument}={name.text!r} must run without an error"
        remedy = f"fix it there, until {name.attribute}() runs by itself"
        raise BadInput(what, name.argument, Phrase(_place_and_text(error, name.path)), remedy) from error


def _place_and_text(error: BaseException, path: Path | None) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    places = [f for f in frames if path is not None and Path(f.filename) == path] or frames
    file, line = places[-1].filename, places[-1].lineno
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{Path(file).name}:{line}: {type(error).__name__}: {text}"


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(entry)
