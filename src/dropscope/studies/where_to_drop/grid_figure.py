"""Figure 2: the grid of placements. The network's layers in order, where each can be masked, and at which rates.

Owns this one picture, a scheme: nothing in it is measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from dropscope.report import new_figure, share_legend
from dropscope.studies.where_to_drop.rows import StudyRows

_RULE = "#fff2cc"  # of layers that the paper's rule may mean
_BOX, _HEIGHT, _GAP = 1.5, 0.9, 1.3
_MASKS = {  # position → colour, and where between a layer's box (0) and the next (1) its mask is
    "input": ("#b2182b", -0.12), "before": ("#1f78b4", 0.22), "after": ("#1b9e77", 0.74), "auto": ("#1b9e77", 0.74),
    "output": ("#7570b3", 0.5),
}  # fmt: skip
_WORDS = {"auto": "after the layer's activation", "input": "on the layer's input", "output": "on the layer's output"}


def figure_2(studies: list[StudyRows]) -> Figure | str:
    """A row per task."""
    widest = max(len(study.layers) for study in studies)
    figure = new_figure(1.6 + 2.1 * (widest + 1), 1.7 * len(studies) + 0.7)
    for study, axes in zip(studies, figure.subplots(len(studies), 1, squeeze=False)[:, 0], strict=True):
        _draw(axes, study)
        axes.set_xlim(-0.6, (widest + 1) * (_BOX + _GAP) - _GAP + 0.4)
    share_legend(figure)
    figure.suptitle("The grid of placements: every non-empty subset of the layers, each at its own rate", fontsize=11)
    return figure


def _draw(axes: Axes, study: StudyRows) -> None:
    positions = [str(name) for name in study.every["position"].unique()]
    if study.inputs is not None:
        positions.insert(0, "input")
    for index, layer in enumerate(study.layers):
        left = index * (_BOX + _GAP)
        alone = layer in study.task.penultimate
        _box(axes, left, layer, _RULE if alone else "#f2f2f2")
        axes.annotate("", (left + _BOX + _GAP, 0), (left + _BOX, 0), arrowprops={"arrowstyle": "->", "color": "0.4"})
        if "before" in positions:
            axes.text(left + _BOX + _GAP / 2, 0, "act.", fontsize=7, ha="center", va="center", color="0.3",
                      bbox={"boxstyle": "circle,pad=0.15", "fc": "white", "ec": "0.6", "lw": 0.8})  # fmt: skip
        for position in positions:
            colour, at = _MASKS.get(position, ("0.3", 0.5))
            x = left + _BOX + at * _GAP if at > 0 else left + at * _GAP
            axes.plot([x, x], [-0.45, 0.45], color=colour, linewidth=2.2, solid_capstyle="butt")
    _box(axes, len(study.layers) * (_BOX + _GAP), "classes", "white")
    for position in positions:
        words = _WORDS.get(position, f"{position} the activation")
        axes.plot([], [], color=_MASKS.get(position, ("0.3", 0.5))[0], linewidth=2.2, label=f"mask {words}")
    axes.plot(
        [], [], "s", color="#fff2cc", markeredgecolor="0.4", markersize=8, label="the penultimate layer, by the rule"
    )
    axes.set_title(f"{study.task.name}: {_size(study)}", fontsize=10)
    axes.set_ylim(-0.8, 0.8)
    axes.axis("off")


def _box(axes: Axes, left: float, text: str, colour: str) -> None:
    corner = (left, -_HEIGHT / 2)
    axes.add_patch(
        FancyBboxPatch(corner, _BOX, _HEIGHT, boxstyle="round,pad=0,rounding_size=0.1", fc=colour, ec="0.4", lw=1)
    )
    words = _broken(text)
    axes.text(left + _BOX / 2, 0, words, ha="center", va="center", fontsize=9 if len(text) < 12 else 7)


def _broken(name: str, width: int = 18) -> str:
    """A dotted name on as many lines as a box needs.

    >>> _broken("bert.encoder.layer.5.output.dense").splitlines()
    ['bert.encoder.', 'layer.5.output.', 'dense']
    """
    lines = [""]
    for part in re.findall(r"[^.]+\.?", name):
        lines = [*lines, part] if lines[-1] and len(lines[-1]) + len(part) > width else [*lines[:-1], lines[-1] + part]
    return "\n".join(lines)


def _size(study: StudyRows) -> str:
    rates = _rates(study.every[[f"rate_{layer}" for layer in study.layers]].to_numpy())
    text = f"rates {_listed(rates)}, {study.every['placement'].nunique():,} placements"
    if study.inputs is None:
        return text
    inputs = _rates(study.inputs[[f"rate_{layer}" for layer in study.layers]].to_numpy())
    return f"{text}; on inputs rates {_listed(inputs)}, {study.inputs['placement'].nunique():,} placements"


def _rates(values: np.ndarray) -> list[float]:
    return [float(rate) for rate in np.unique(values.round(6)) if rate > 0]


def _listed(rates: Sequence[float]) -> str:
    if len(rates) > 5:
        return f"{rates[0]:g} to {rates[-1]:g} ({len(rates)})"
    return ", ".join(f"{rate:g}" for rate in rates)
