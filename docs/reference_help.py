"""The reference as `help` shows it: shared parameters filled in, doctests outside an Examples section fenced."""

from __future__ import annotations

import importlib
import inspect
from operator import attrgetter
from typing import Any

import griffe


class AsHelpShowsIt(griffe.Extension):
    """Reads what decorators of `dropscope.parameters` did to a function, which the source alone does not show."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if not any("parameters" in str(decorator.callable_path) for decorator in func.decorators):
            return
        within = func.path.removeprefix(f"{func.module.path}.")
        real = attrgetter(within)(importlib.import_module(func.module.path))
        func.parameters = griffe.Parameters(*map(_parameter, inspect.signature(real).parameters.values()))
        func.docstring = griffe.Docstring(inspect.getdoc(real) or "", parent=func)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and not obj.is_alias:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with every paragraph that starts with `>>>` in a fence; indented ones belong to a section."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in paragraphs)


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    absent = inspect.Parameter.empty
    return griffe.Parameter(
        parameter.name,
        annotation=None if parameter.annotation is absent else str(parameter.annotation),
        kind=griffe.ParameterKind(parameter.kind.description),
        default=None if parameter.default is absent else repr(parameter.default),
    )
