"""Errors with one form: what must hold, the value received, and what to write instead.

`BadInput` is for the user to fix (exit code 2); `AuditFailed` says that a run would not mean what it claims (exit code
1). Every room raises these; only the command line catches them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_SHOWN = 200  # characters of a received value
_LONGEST = 400  # characters of what must hold, and of a remedy: names of files and sites may have any length
_ALIKE = 0.5  # likeness of a name that may have been meant, from 0 to 1
_AS_CLOSE = 0.05  # how much less alike a second suggestion may be


class DropscopeError(Exception):
    """Base of everything Dropscope raises on purpose."""


class Phrase(str):
    """A received value in words, printed without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class BadInput(DropscopeError, ValueError):
    """An argument that cannot be used.

    Args:
        what: What must hold, as a clause: "rate of 'fc1' must be in [0, 1)".
        name: The argument, as it is written in Python. The command line translates it into its option.
        received: The value. A `Phrase` is printed without quotes.
        remedy: What to write instead: "write fc1=0.9".

    Attributes:
        what: As given.
        name: As given. Tests and callers rely on it, not on the sentence.
        received: As given.
        remedy: As given.

    Examples:
        >>> raise BadInput("rate of 'fc1' must be in [0, 1)", "rate of 'fc1'", 1.0, "write fc1=0.9")
        Traceback (most recent call last):
        dropscope.errors.BadInput: rate of 'fc1' must be in [0, 1), got 1.0. Write fc1=0.9.
    """

    def __init__(self, what: str, name: str, received: object, remedy: str) -> None:
        self.what, self.name, self.received, self.remedy = what, name, received, remedy
        super().__init__(sentence(what, received, remedy))

    def __reduce__(self) -> tuple[type, tuple[str, str, object, str]]:
        return type(self), (self.what, self.name, self.received, self.remedy)


class MissingExtra(BadInput):
    """A feature whose package is not installed.

    Args:
        feature: What was asked for.
        package: The package it needs.
        extra: The extra of Dropscope that installs it.

    Examples:
        >>> str(MissingExtra("reading NIfTI files", "nibabel", "medical"))
        "reading NIfTI files needs the package 'nibabel', got no such package. Run pip install 'dropscope[medical]'."
    """

    def __init__(self, feature: str, package: str, extra: str) -> None:
        what, remedy = f"{feature} needs the package {package!r}", f"run pip install 'dropscope[{extra}]'"
        super().__init__(what, package, Phrase("no such package"), remedy)
        self._arguments = (feature, package, extra)

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:  # type: ignore[override]
        return type(self), self._arguments


class CheckpointNotFound(BadInput):
    """A checkpoint whose files are in no folder, not in the cache, and not on a Hub that can be reached."""


class AuditFailed(DropscopeError, RuntimeError):
    """Noise that did not take effect as a placement asks, or something else that moved."""


class Unfinished(DropscopeError, RuntimeError):
    """A run on several workers of which some parts failed; the others are kept.

    Attributes:
        failed: Parts that failed, of those that were run.
        parts: Parts that were run.
        lacking: Placements that have no rows.
        error: Why the first of them failed.
        folder: Where the others are kept; None where they are not.

    Examples:
        >>> str(Unfinished(1, 8, 90, "ValueError: too deep", "runs/grid")).partition(". ")[0]
        '1 of 8 parts failed, with 90 placements: ValueError: too deep'
    """

    def __init__(self, failed: int, parts: int, lacking: int, error: str, folder: str | None) -> None:
        self.failed, self.parts, self.lacking, self.error, self.folder = failed, parts, lacking, error, folder
        rest = "Give the run a folder (out=), and the others are kept."
        if folder is not None:
            rest = f"The others are kept in {folder}, and the same command does only what is missing."
        said = f"{failed} of {parts} parts failed, with {lacking} placements: {error.rstrip('.')}. {rest}"
        super().__init__(said)


def sentence(what: str, received: object, remedy: str) -> str:
    """The text of an error: what must hold, the value, the remedy.

    >>> sentence("passes must be at least 1", 0, "write passes=100")
    'passes must be at least 1, got 0. Write passes=100.'
    """
    shown = repr(received)
    if isinstance(received, Phrase):
        shown = " ".join(shown.splitlines()).rstrip(".")  # a sentence of another library
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    advice = _shortened(remedy[:1].upper() + remedy[1:])
    return f"{_shortened(what)}, got {shown}. {advice}" + ("" if advice.endswith((".", "?", "!")) else ".")


def _shortened(text: str) -> str:
    """One line of the text, without the middle of a long one."""
    line = " ".join(text.splitlines())
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]}...{line[-half:]}"


def first_line(error: BaseException, length: int = 160) -> str:
    r"""The first line of an exception's message, or the name of its class if it has none.

    >>> first_line(ValueError("two\nlines")), first_line(KeyError())
    ('two', 'KeyError')
    """
    lines = str(error).strip().splitlines()
    return lines[0].rstrip()[:length] if lines else type(error).__name__


def nearest(name: str, valid: Iterable[str]) -> str:
    """A remedy: the valid names closest to what was written. Those that begin with it or hold it as a word come first.

    A second one is named only where it is about as close as the first.

    >>> nearest("cnv1", ["conv1", "conv2", "fc1"]), nearest("conv", ["conv1", "conv2", "fc1"])
    ("did you mean 'conv1'?", "did you mean 'conv1' or 'conv2'?")
    >>> nearest("AUROC", ["aurc", "error_auroc"])
    "did you mean 'error_auroc'?"
    """
    names = list(dict.fromkeys(valid))
    written = name.casefold()
    same = [n for n in names if n.casefold() == written]
    begun = [n for n in names if written and n.casefold().startswith(written)]
    close = same or list(dict.fromkeys(begun + [n for n in names if written in re.split(r"[\W_]", n.casefold())]))
    if not close:
        close = difflib.get_close_matches(name, names, n=2, cutoff=_ALIKE)
        first, *others = [difflib.SequenceMatcher(None, n, name).ratio() for n in close] or [0.0]
        close = close[: 1 + any(other >= first - _AS_CLOSE for other in others)]
    if close:
        return "did you mean " + " or ".join(repr(n) for n in close[:2]) + "?"
    listed = ", ".join(repr(n) for n in names[:8])
    return f"use one of {listed}" + (f" (and {len(names) - 8} more)" if len(names) > 8 else "")
