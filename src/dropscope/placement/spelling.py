"""Repairs of texts that are almost placements, as remedies: `fc1:0.5`, `fc1=50%`, `fc1=0,5`, `{"fc1": 0.5}`.

Nothing here is accepted silently. See `placement` for the form, which decides whether a repaired text is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_RATE = r"(?:\d+\.?\d*|\.\d+)"
_END = r"(?=\s*(?:[,;|&+/\n]|\s[^\s=]+=|$))"  # of a term

_Change = str | Callable[[re.Match[str]], str]
_REPAIRS: tuple[tuple[str, _Change], ...] = (
    (r"[\[\]{}()\"'`]+", " "),  # a dict, a list, a call or quotes around it
    (r"\s*(?:==+|:=|->|=>|→|:\s*=)\s*", "="),
    (rf"\s*:\s*(?={_RATE}%?{_END})", "="),
    (rf"(?<![\s=,;|&+/])\s+(?={_RATE}%?{_END})", "="),
    (rf"(?<==)\s*0?,(\d+){_END}", r"0.\1"),  # a decimal comma
    (rf"(?<==)\s*({_RATE})\s*%", lambda m: f"{float(m[1]) / 100:g}"),
    (rf"(?<==)\s*([2-9]|[1-9]\d)(?:\.0*)?{_END}", lambda m: f"{float(m[1]) / 100:g}"),
    (r"\s*[;|&+\n]\s*|(?<=\d)\s*/\s*", ","),
    (r"(?<=\d)\s+(?=[^\s=,]+\s*=)(?!(?:noise|mask)\s*=)", ","),
    (r",(?:\s*,)+", ","),
    (r"^[\s,]+|[\s,]+$", ""),
)


def repaired(text: str) -> str:
    """What a text probably means, written as a placement; it may still be none.

    >>> repaired("fc1:0.5; conv2=20%"), repaired("fc1=0,5"), repaired('{"fc1": 0.5}')
    ('fc1=0.5,conv2=0.2', 'fc1=0.5', 'fc1=0.5')
    """
    for pattern, change in _REPAIRS:
        text = re.sub(pattern, change, text)
    return text
