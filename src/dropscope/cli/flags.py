"""Library errors in the words of a command: `passes=100` reads `--passes 100` there.

A library error names Python arguments. This module knows how a command spells them, from the command's own parameters,
and rewrites the message; quoted values, calls and names that are no parameter of the command stay as they are.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dropscope.errors import BadInput, Phrase, sentence

_TOKEN = re.compile(
    r"""
      (?P<quoted> (?<!\w) (?:'[^'\n]*'|"[^"\n]*") (?!\w) )
    | (?P<call>   \b[A-Za-z_][\w.]*\([^()]*\) )
    | (?<![\w.@\#-]) (?P<name>[A-Za-z_]\w*) =
      (?P<value> '[^'\n]*' | "[^"\n]*" | \([^()]*\) | \[[^\[\]]*\] | [^\s,;()'"]+ )
    | (?<![\w.@\#-]) (?P<bare>[A-Za-z_]\w*) = (?=[\s,;.]|$)
    | (?<![\w.@\#-]) (?P<word>[A-Za-z_]\w*) (?![\w=(])
    """,
    re.VERBOSE,
)
_LEFT_OUT = re.compile(r"\bleave\s$", re.IGNORECASE)
_AFTER_ARTICLE = re.compile(r"\b(?:a|an|the)\s$", re.IGNORECASE)


@dataclass(frozen=True)
class Flag:
    """How a command spells one parameter.

    Attributes:
        text: "--passes", or the metavar of a positional argument.
        off: What switches it off: "--no-context".
        takes_value: False for a switch.
        positional: Whether the value stands alone, without a flag before it.
    """

    text: str
    off: str | None = None
    takes_value: bool = True
    positional: bool = False


def flags_of(parameters: Iterable[Any]) -> dict[str, Flag]:
    """The flags of a command by the Python name of each parameter, from its click parameters."""
    flags = {}
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            flags[parameter.name] = Flag(parameter.metavar or parameter.name.upper(), positional=True)
        else:
            off = next(iter(parameter.secondary_opts), None)
            flags[parameter.name] = Flag(max(parameter.opts, key=len), off, takes_value=not parameter.is_flag)
    return flags


def in_flags(error: BadInput, flags: Mapping[str, Flag]) -> str:
    """The message of an error, with the arguments it names spelled as the command's flags.

    >>> flags = {"passes": Flag("--passes"), "image_size": Flag("--image-size")}
    >>> in_flags(BadInput("passes must be at least 1", "passes", 0, "write passes=100"), flags)
    '--passes must be at least 1, got 0. Write --passes 100.'
    >>> in_flags(BadInput("image_size must be a side", "image_size", "x", "write image_size='200x320'"), flags)
    "--image-size must be a side, got 'x'. Write --image-size 200x320."
    """
    received = error.received
    if isinstance(received, Phrase):
        received = Phrase(_translate(received, flags))
    return sentence(_translate(error.what, flags, error.name), received, _translate(error.remedy, flags))


def spell(text: str, flags: Mapping[str, Flag]) -> str:
    """A remark of the library, with each `name=value` as a flag.

    >>> spell("pixels are not normalised; pass mean='imagenet'", {"mean": Flag("--mean")})
    'pixels are not normalised; pass --mean imagenet'
    """
    return _translate(text, flags)


def _translate(text: str, flags: Mapping[str, Flag], subject: str | None = None) -> str:
    """The text with every `name=value` as a flag, and with the first mention of `subject` as one."""
    pending = subject

    def spell(token: re.Match[str]) -> str:
        nonlocal pending
        if (name := token["name"] or token["bare"]) in flags:
            pending = None if name == pending else pending
            if token["bare"]:
                return flags[name].text
            called = text[token.end() :].startswith("(")
            return token[0] if called else _assignment(flags[name], token["value"]) or token[0]
        word = token["word"]
        # A name with an underscore is Python wherever it stands; "data" or "model" may be a plain word.
        if word in flags and ("_" in word or _LEFT_OUT.search(text[: token.start()])):
            return flags[word].text
        if word in flags and word == pending and not _AFTER_ARTICLE.search(text[: token.start()]):
            pending = None
            return flags[word].text
        return token[0]

    return _TOKEN.sub(spell, text)


def _assignment(flag: Flag, value: str) -> str | None:
    """`name=value` at the command line; None for a value that cannot be written there."""
    ending = value[len(value.rstrip(".:?!")) :]
    shown = _shell(value.removesuffix(ending))
    if shown is None:
        return None
    if shown == "None":
        return f"no {flag.text}{ending}"
    if not flag.takes_value:
        switch = {"True": flag.text, "False": flag.off}.get(shown)
        return None if switch is None else switch + ending
    return (shown if flag.positional else f"{flag.text} {shown}") + ending


def _shell(value: str) -> str | None:
    """A Python value as one word of a shell; None for code."""
    if value == "lambda":
        return None
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return None if value[0] in "([" else value
    if isinstance(literal, tuple | list):
        if not literal or not all(isinstance(part, str | int | float) for part in literal):
            return None
        literal = ",".join(map(str, literal))
    return shlex.quote(literal) if isinstance(literal, str) else value
