"""Reliability of P(error): what the curves of the validation cases promise against what the test cases hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dropscope.report import new_figure
from dropscope.studies.segmentation_measures.calibration import (
    AS_IT_IS,
    RAW,
    bin_sums,
    expected_calibration_error,
)
from dropscope.studies.segmentation_measures.evaluation import FOUR
from dropscope.studies.segmentation_measures.rows import LABELS

_FEWEST = 100  # voxels of a bin that is shown
_SHOWN = (*FOUR, "predictive_entropy", "plain_entropy")


def reliability_figure(rows: pd.DataFrame) -> Figure:
    """Observed share of wrong voxels against P(error), a panel per measure: every experiment a thin line, all of them
    together a thick one. 1 − max probability of one plain pass, as it is, is the last."""
    known = rows[rows["brier"].notna()]
    panels = [(name, "") for name in _SHOWN] + [(AS_IT_IS, "raw_")]
    figure = new_figure(11.0, 5.8)
    axes = figure.subplots(2, 4, sharex=True, sharey=True).ravel()
    for panel, (name, prefix) in zip(axes, panels, strict=False):
        own = known[known.measure == name]
        panel.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--", zorder=1)
        for _, part in own.groupby("experiment"):
            panel.plot(*_line(part, prefix), color="0.6", linewidth=0.7, alpha=0.7, zorder=2)
        panel.plot(*_line(own, prefix), color="#2f6db0", linewidth=2, marker="o", markersize=3.5, zorder=3)
        title = LABELS[name].replace(" of one plain pass", ",\none plain pass") + (RAW if prefix else "")
        panel.set_title(title, fontsize=9)
        ece = np.mean([expected_calibration_error(part, prefix) for _, part in own.groupby("experiment")])
        panel.text(0.04, 0.94, f"ECE {ece:.4f}", transform=panel.transAxes, fontsize=8, va="top")
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xticks([0, 0.5, 1])
        panel.tick_params(labelbottom=True)
        panel.set_xlabel("1 − max probability" if prefix else "P(error), fitted", fontsize=8)
    last = axes[len(panels)]
    last.axis("off")
    last.text(
        0.05,
        0.5,
        f"thin: an experiment\nthick: all of them\nbins of {_FEWEST} voxels and more",
        fontsize=9,
        va="center",
    )
    figure.suptitle("How often voxels are wrong against P(error) by the curves of the validation cases", fontsize=11)
    figure.supylabel("share of wrong voxels in the test cases", fontsize=10)
    return figure


def _line(rows: pd.DataFrame, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    voxels, predicted, errors = bin_sums(rows, prefix)
    kept = voxels >= _FEWEST
    return predicted[kept] / voxels[kept], errors[kept] / voxels[kept]
