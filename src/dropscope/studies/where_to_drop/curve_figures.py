"""Figures 1, 4 and 5: the accuracy curve of one placement, its monotone correction, and the penalty between the two.

Owns pictures of per-example values. Pictures of rows are in `figures`.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dropscope import scores
from dropscope.report import new_figure, share_legend
from dropscope.studies.where_to_drop.curves import BATCH, MEASURE, curve_pair, values
from dropscope.studies.where_to_drop.rows import StudyRows

_SHARE = np.arange(1, 101)
_CORRECTIONS = {
    "isotonic": (scores.isotonic_correction, "isotonic_penalty"),
    "rearrangement": (scores.rearrangement_correction, "rearrangement_penalty"),
}
_LONG = 45  # characters of a placement that has a line of the legend to itself
_COLOURS = ("#1b7837", "#762a83")


def figure_1(studies: list[StudyRows]) -> Figure | str:
    """A good and a bad curve: those of table 3's two placements, thin lines for networks."""
    drawn = [study for study in studies if curve_pair(study) is not None]
    if not drawn:
        return "no per-example values of the two placements"
    figure = new_figure(6.4 * len(drawn), 5.0)
    for study, axes in zip(drawn, figure.subplots(1, len(drawn), squeeze=False)[0], strict=True):
        for placement, colour, word in zip(
            curve_pair(study) or (), _COLOURS, ("one layer", "several layers"), strict=True
        ):
            curves = np.stack([_curve(*values(study, i, placement)) for i in range(study.networks)])
            if study.networks > 1:
                axes.plot(_SHARE, 100 * curves.T, color=colour, linewidth=0.6, alpha=0.35)
            axes.plot(_SHARE, 100 * curves.mean(0), color=colour, linewidth=2, label=f"{word}: {placement}")
            useless = "a useless measure: the accuracy on all" if colour == _COLOURS[0] else None
            axes.axhline(100 * curves[:, -1].mean(), color=colour, linewidth=1, linestyle=":", label=useless)
        _draw_single_pass(axes, study)
        _dress(axes, study.task.name)
    longest = max(len(placement) for study in drawn for placement in curve_pair(study) or ())
    share_legend(figure, columns=2 if longest < _LONG else 1)
    figure.suptitle("Accuracy as less certain examples are let in (expected entropy)", fontsize=11)
    return figure


def _draw_single_pass(axes: Axes, study: StudyRows) -> None:
    """What one plain pass does, ranked by its entropy; nothing where a study did not keep it."""
    single = [values(study, i, "none", "plain_entropy") for i in range(study.networks)]
    if all(len(correct) for _, correct in single):
        mean = np.stack([_curve(*one) for one in single]).mean(0)
        axes.plot(_SHARE, 100 * mean, color="black", linestyle="--", linewidth=1.4, label="one plain pass, its entropy")


def figure_4(studies: list[StudyRows]) -> Figure | str:
    return _corrected(studies, "isotonic", "Isotonic correction")


def figure_5(studies: list[StudyRows]) -> Figure | str:
    return _corrected(studies, "rearrangement", "Rearrangement correction (values sorted)")


def _corrected(studies: list[StudyRows], kind: str, title: str) -> Figure | str:
    """A column per placement, a row for all examples and one for the first batch of 128, of the first network."""
    study = next((study for study in studies if curve_pair(study) is not None), None)
    if study is None:
        return "no per-example values of the two placements"
    pair = curve_pair(study)
    assert pair is not None
    count = len(values(study, 0, pair[0])[1])
    sizes = [count, *([BATCH] if count > BATCH else [])]
    figure = new_figure(10.5, 3.6 * len(sizes))
    grid = figure.subplots(len(sizes), len(pair), squeeze=False)
    for row, size in enumerate(sizes):
        for axes, placement in zip(grid[row], pair, strict=True):
            uncertainty, correct = values(study, 0, placement)
            _draw(axes, uncertainty[:size], correct[:size], kind)
            what = f"all {size:,} examples" if size == count else f"the first {size} examples"
            axes.set_title(f"{placement}, {what}", fontsize=9)
    figure.suptitle(f"{title}: {MEASURE.replace('_', ' ')}, {study.task.name}, {study.results[0].name}", fontsize=11)
    return figure


def _draw(axes: Axes, uncertainty: torch.Tensor, correct: torch.Tensor, kind: str) -> None:
    correction, name = _CORRECTIONS[kind]
    curve = scores.accuracy_curve(uncertainty, correct)
    corrected = correction(curve)
    penalty = float(scores.TABLE[name].function(uncertainty, correct))
    axes.fill_between(
        _SHARE, 100 * curve, 100 * corrected, color="red", alpha=0.45, linewidth=0, label=f"penalty {penalty:.2g}"
    )
    axes.plot(_SHARE, 100 * curve, color="#2166ac", linewidth=1.4, label="accuracy curve")
    axes.plot(_SHARE, 100 * corrected, color="black", linewidth=1.2, linestyle="--", label=f"{kind} correction")
    _dress(axes, "")
    axes.legend(frameon=False, fontsize=8)


def _curve(uncertainty: torch.Tensor, correct: torch.Tensor) -> np.ndarray:
    return scores.accuracy_curve(uncertainty, correct).numpy()


def _dress(axes: Axes, title: str) -> None:
    axes.set_xlabel("examples kept, the most certain first (%)")
    axes.set_ylabel("accuracy on the kept examples (%)")
    axes.set_xlim(0, 100)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
