"""Figures of rankings, from tables of per-example values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dropscope import scores
from dropscope.errors import BadInput
from dropscope.report.writing import new_figure


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
    share = np.arange(1, 101)
    overall: dict[float, None] = {}  # distinct accuracies on all examples, in order
    for name, table in examples.items():
        u = torch.tensor(table.uncertainty.to_numpy(copy=True))
        right = torch.tensor(table.correct.to_numpy(copy=True))
        axes.plot(share, 100 * scores.accuracy_curve(u, right).numpy(), label=name, linewidth=1.8)
        overall[100 * float(right.double().mean())] = None
    for number, accuracy in enumerate(overall):
        label = None if number else "an uncertainty that knows nothing"
        axes.axhline(accuracy, color="0.6", linewidth=1, linestyle=":", label=label)
    axes.set_xlabel("examples kept, the most certain first (%)")
    axes.set_ylabel("accuracy on the kept examples (%)")
    axes.set_xlim(0, 100)
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    target = Path(path)
    figure.savefig(target, dpi=130)
    return target
