"""Command line: it reads the arguments, calls the library and prints the answer. No command computes anything itself.

Exit codes: 0 done, 1 an audit failed, 2 bad input, 130 interrupted, 141 nobody reads the answer. What the user can fix
is one message on stderr; any other exception is a bug and keeps its traceback. Answers go to stdout, remarks to stderr.
Commands import what they run when they run, so that help and a mistyped option do not wait for torch.
"""

from __future__ import annotations

from dropscope.cli import (  # noqa: F401 - importing them adds their commands
    answers,
    comparisons,
    decisions,
    export,
    model,
    pages,
    pooling,
    predict,
    predictors,
    scoring,
    start,
    tuning,
)
from dropscope.cli.app import app
from dropscope.cli.studies import (  # noqa: F401 - likewise
    group,
    segmentation_measures,
    transformer_profile,
    where_to_drop,
)

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command that the arguments name, and exits."""
    app(prog_name="dropscope")
