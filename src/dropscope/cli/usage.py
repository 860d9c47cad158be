"""Mistakes in the arguments of a command, in the form of every other error: what must hold, what was written, a remedy.

Click finds them, with words that differ between its versions. See `flags` for errors that the library finds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from dropscope.cli.flags import flags_of
from dropscope.errors import BadInput, Phrase, nearest

_CHOICE = re.compile(r"(?P<value>'.*'|\".*\") is not one of (?P<choices>'.*')\.?$", re.DOTALL)
_NUMBER = re.compile(r"valid (?P<kind>integer|int|number|float)\b")
_EXTRA = re.compile(r"extra arguments?(?:\(s\))? \((?P<extra>.*)\)", re.DOTALL)


def in_our_voice(error: Any, arguments: Sequence[str]) -> BadInput:
    """A usage error of click as an error of Dropscope.

    Args:
        error: The usage error.
        arguments: What was written at the command line.
    """
    path = error.ctx.command_path if error.ctx is not None else "dropscope"
    if getattr(error, "param", None) is not None:
        return _parameter_error(error, arguments, path)
    option = getattr(error, "option_name", None)
    if option is None:
        extra = _EXTRA.search(error.message)
        what = f"arguments must be those of {path}" if extra else "a command must be given"
        return BadInput(what, "arguments", Phrase(extra["extra"] if extra else "nothing"), f"see {path} --help")
    if hasattr(error, "possibilities"):
        known = [flag for each in error.ctx.command.params for flag in (*each.opts, *each.secondary_opts)]
        flags = [flag for flag in known if flag.startswith("-")]
        return BadInput(f"options must be those of {path}", "options", option, nearest(option, [*flags, "--help"]))
    if "not take" in error.message:
        return BadInput(f"{option} must stand alone", option, _written((option,), arguments), f"write {option}")
    return BadInput(f"{option} must have a value", option, Phrase("none"), f"write {option} VALUE")


def _parameter_error(error: Any, arguments: Sequence[str], path: str) -> BadInput:
    parameter = error.param
    ((name, flag),) = flags_of([parameter]).items()
    if type(error).__name__ == "MissingParameter":
        return BadInput(f"{flag.text} must be given", name, Phrase("nothing"), parameter.help or f"see {path} --help")
    written = _written(parameter.opts, arguments)
    if choice := _CHOICE.search(error.message):
        choices = re.findall(r"'([^']*)'", choice["choices"])
        value = _unquoted(choice["value"])
        remedy = nearest(value, choices)
        if not remedy.startswith("did you mean"):
            remedy = f"write {choices[0] if flag.positional else f'{flag.text} {choices[0]}'}"
        return BadInput(f"{flag.text} must be one of {', '.join(choices)}", name, value, remedy)
    if number := _NUMBER.search(error.message):
        noun, example = ("whole number", 1) if number["kind"].startswith("int") else ("number", 0.5)
        example = example if parameter.default is None else parameter.default
        return BadInput(f"{flag.text} must be a {noun}", name, written, f"write {flag.text} {example}")
    return BadInput(f"{flag.text} must be a value that can be read", name, written, error.message)


def _unquoted(text: str) -> str:
    """A value that stands in a message as Python writes it, or between quotes as it is."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text[1:-1]


def _written(flags: Sequence[str], arguments: Sequence[str]) -> str:
    """The value that was written last for an option."""
    found = ""
    for index, argument in enumerate(arguments):
        head, equals, value = argument.partition("=")
        if head in flags and equals:
            found = value
        elif head in flags:
            found = arguments[index + 1] if index + 1 < len(arguments) else ""
    return found
