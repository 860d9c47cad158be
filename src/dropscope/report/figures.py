"""Figures of rankings, from tables of per-example values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from dropscope.errors import BadInput
from dropscope.report.writing import new_figure
from dropscope.runs import draw_accuracy_curves


def accuracy_curves(examples: Mapping[str, pd.DataFrame], path: str | Path, title: str) -> Path:
    """Accuracy on the most certain share of examples, one line per ranking.

    A dotted line is the accuracy on all examples, which an uncertainty that knows nothing has at every share; there are
    several where rankings have different outcomes.

    Args:
        examples: Name of each ranking → table with the columns `uncertainty` and `correct`.
        path: The file to write; its suffix says the format.
        title: Title of the figure.

    Returns:
        The path.

    Raises:
        BadInput: Where there is no ranking.
    """
    if not examples:
        raise BadInput("examples must hold at least one ranking", "examples", {}, "give a table per ranking")
    figure = new_figure(7.0, 4.4)
    axes = figure.add_subplot()
    draw_accuracy_curves(axes, examples)
    axes.set_xlim(0, 100)
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    target = Path(path)
    figure.savefig(target, dpi=130)
    return target
