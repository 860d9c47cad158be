"""Pictures of rows and per-example values. Reads tables, never a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dropscope import scores


def accuracy_curves(examples: Mapping[str, pd.DataFrame], path: str | Path, title: str) -> Path:
    """Accuracy on the most certain share of examples, one line per ranking; columns `uncertainty` and `correct`."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    share = np.arange(1, 101)
    for name, table in examples.items():
        u = torch.tensor(table.uncertainty.to_numpy(copy=True))
        right = torch.tensor(table.correct.to_numpy(copy=True))
        axes.plot(share, 100 * scores.accuracy_curve(u, right).numpy(), label=name, linewidth=1.8)
        overall = 100 * float(right.double().mean())
    axes.axhline(overall, color="0.6", linewidth=1, linestyle=":", label="an uncertainty that knows nothing")
    axes.set_xlabel("examples kept, the most certain first (%)")
    axes.set_ylabel("accuracy on the kept examples (%)")
    axes.set_xlim(0, 100)
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    target = Path(path)
    figure.savefig(target, dpi=130)
    return target
