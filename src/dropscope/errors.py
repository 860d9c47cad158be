"""What Dropscope raises. One form everywhere: the rule, the value received with its name, what to write instead.

`BadInput` is the user's to mend (exit code 2); `AuditFailed` says that a run would not mean what it claims (exit code
1). Every other module raises these; none of them catches them but the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DropscopeError(Exception):
    """Base of everything Dropscope raises on purpose."""


class BadInput(DropscopeError, ValueError):
    """A rule was broken by something the caller passed in.

    >>> raise BadInput("a rate is at least 0 and below 1", "rate of 'fc1'", 1.0, "write fc1=0.9")
    Traceback (most recent call last):
    dropscope.errors.BadInput: a rate is at least 0 and below 1; got 1.0 for rate of 'fc1'. Instead: write fc1=0.9
    """

    def __init__(self, rule: str, name: str, received: object, remedy: str) -> None:
        self.rule, self.name, self.received, self.remedy = rule, name, received, remedy
        shown = repr(received)
        shown = shown if len(shown) <= 200 else shown[:197] + "..."
        super().__init__(f"{rule}; got {shown} for {name}. Instead: {remedy}")

    def __reduce__(self) -> tuple[type, tuple[str, str, object, str]]:
        return type(self), (self.rule, self.name, self.received, self.remedy)


class MissingExtra(BadInput):
    """A feature needs a package that is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}", "import", None, f"pip install 'dropscope[{extra}]'"
        )
        self._arguments = (feature, package, extra)

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:  # type: ignore[override]
        return type(self), self._arguments


class AuditFailed(DropscopeError, RuntimeError):
    """Noise that was asked for did not take effect as asked, or something else moved."""


def nearest(name: str, valid: Iterable[str], count: int = 3) -> str:
    """Words for the remedy: the valid names closest to what was written.

    >>> nearest("cnv1", ["conv1", "conv2", "fc1"])
    "did you mean 'conv1' or 'conv2'?"
    """
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=count, cutoff=0.4)
    if close:
        return "did you mean " + " or ".join(repr(n) for n in close[:2]) + "?"
    listed = ", ".join(repr(n) for n in names[:8])
    return f"use one of {listed}" + (f" (and {len(names) - 8} more)" if len(names) > 8 else "")
