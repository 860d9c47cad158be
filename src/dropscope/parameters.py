"""Parameters that many public functions share: described once, shown by `help` for each.

`shares(source)` gives a function the keyword-only parameters of another, in its signature and in its docstring;
`documented(...)` adds sections that sibling functions have in common. Docstrings are in Google style.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_SECTIONS = ("Args", "Returns", "Raises", "Examples")
_ENTRY = re.compile(r"^    (\w+):", re.MULTILINE)


def shares(source: Callable[..., Any], *, without: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Decorates a function whose `**options` are the keyword-only parameters of `source`.

    The function's signature and docstring then list each of them, and unknown ones are refused as for any function.

    >>> def open_file(path, *, encoding="utf-8"):
    ...     '''Opens a file.
    ...
    ...     Args:
    ...         encoding: Of the text.
    ...     '''
    >>> @shares(open_file)
    ... def read(path, **options):
    ...     '''Reads a file.
    ...
    ...     Args:
    ...         path: Where it is.
    ...     '''
    >>> str(inspect.signature(read)), "encoding: Of the text." in read.__doc__
    ("(path, *, encoding='utf-8')", True)
    """
    shared = {
        name: parameter
        for name, parameter in inspect.signature(source).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in without
    }
    texts = entries(source.__doc__ or "", "Args")

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [parameter for name, parameter in shared.items() if name not in own.parameters]
        signature = own.replace(parameters=[*kept, *more])

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            signature.bind(*args, **kwargs)
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = _with_sections(
            function.__doc__, {"Args": {p.name: texts[p.name] for p in more}}, shared_first=False
        )
        return call  # type: ignore[return-value]

    return decorate


def documented(
    args: Mapping[str, str] | None = None, returns: str = "", raises: Mapping[str, str] | None = None
) -> Callable[[Function], Function]:
    """Decorates siblings whose docstrings share parameters, result and errors.

    >>> @documented(args={"x": "A number."}, returns="Another.")
    ... def double(x):
    ...     '''Twice as much.
    ...
    ...     Examples:
    ...         >>> double(2)
    ...         4
    ...     '''
    ...     return 2 * x
    >>> [line.strip() for line in double.__doc__.splitlines() if "number" in line or "Another" in line]
    ['x: A number.', 'Another.']
    """

    def decorate(function: Function) -> Function:
        sections = {"Args": dict(args or {}), "Returns": {"": returns} if returns else {}, "Raises": dict(raises or {})}
        function.__doc__ = _with_sections(function.__doc__, sections, shared_first=True)
        return function

    return decorate


def entries(docstring: str, section: str) -> dict[str, str]:
    r"""name → its text in a section of a docstring, line breaks and deeper indentation kept.

    >>> entries("Opens a file.\n\nArgs:\n    path: Where it is.\n    mode: How.\n", "Args")
    {'path': 'Where it is.', 'mode': 'How.'}
    """
    body = _section(inspect.cleandoc(docstring), section)
    starts = list(_ENTRY.finditer(body))
    ends = [match.start() for match in starts[1:]] + [len(body)]
    return {match.group(1): body[match.end() : end].strip() for match, end in zip(starts, ends, strict=True)}


def _section(doc: str, name: str) -> str:
    """The lines of one section of a docstring, without its title."""
    match = re.search(rf"^{name}:\n((?:    .*\n?|\n)+)", doc, re.MULTILINE)
    return match.group(1).rstrip() if match else ""


def _with_sections(doc: str | None, added: Mapping[str, Mapping[str, str]], *, shared_first: bool) -> str:
    """The docstring with more entries in its sections, before or after its own."""
    clean = inspect.cleandoc(doc or "")
    first = min(
        (m.start() for name in _SECTIONS if (m := re.search(rf"^{name}:$", clean, re.MULTILINE))), default=len(clean)
    )
    parts = [clean[:first].rstrip()]
    for name in _SECTIONS:
        body = _section(clean, name)
        more = "\n".join(f"    {key}: {text}" if key else f"    {text}" for key, text in added.get(name, {}).items())
        body = "\n".join(text for text in ((more, body) if shared_first else (body, more)) if text)
        if body:
            parts.append(f"{name}:\n{body}")
    return "\n\n".join(parts) + "\n"
