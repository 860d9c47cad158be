"""Forest plots: what each study says, and what they say together."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dropscope.report.writing import new_figure

if TYPE_CHECKING:
    from dropscope.report.claims import Evidence
    from dropscope.report.syntheses import Part, PooledClaim

_ROW, _EDGE = 0.27, 1.05  # inches
_BLUE, _BAND = "#2f6db0", "#e9e2d0"


def forest(claim: PooledClaim) -> Figure:
    """A line per study (square by weight, 95 % interval), the pooled number as a diamond, and the interval of a further
    study as a bar below it; the bound is dashed, the margin shaded. A panel for each number of the claim."""
    rows = [len(part.evidence) + 2 for part in claim.parts]
    panels = len(claim.parts)
    figure = new_figure(8.2, 0.9 + sum(_ROW * count + _EDGE for count in rows))
    axes = figure.subplots(panels, 1, squeeze=False, height_ratios=[_ROW * count + _EDGE for count in rows])[:, 0]
    for panel, part in zip(axes, claim.parts, strict=True):
        _draw(panel, part)
    title = "\n".join(textwrap.wrap(claim.claim.statement, 80))
    figure.suptitle(f"{title}\n{claim.verdict}", fontsize=10)
    return figure


def _draw(panel: Any, part: Part) -> None:
    assert part.pooled is not None
    studies = list(part.evidence)
    first = next(iter(part.evidence.values()))
    height = len(studies) + 1
    _shade(panel, first)
    texts = []
    for row, (name, weight) in enumerate(zip(studies, part.pooled.weights, strict=True)):
        e, at = part.evidence[name].estimate, height - row
        panel.plot([e.low, e.high], [at, at], color="0.35", linewidth=1.2, zorder=3)
        panel.scatter([e.value], [at], marker="s", s=12 + 110 * weight, color=_BLUE, zorder=4)
        texts.append((at, f"{e.value:.3g} ({e.low:.3g} to {e.high:.3g})  {100 * weight:.0f} %"))
    e = part.estimate
    diamond = [(e.low, 1), (e.value, 1.3), (e.high, 1), (e.value, 0.7)]
    panel.add_patch(Polygon(diamond, closed=True, color="0.1", zorder=4))
    panel.autoscale_view()
    texts.append((1, f"{e.value:.3g} ({e.low:.3g} to {e.high:.3g})"))
    low, high = part.predicted
    if not math.isnan(low):
        panel.plot([low, high], [0, 0], color="0.1", linewidth=3, solid_capstyle="butt", zorder=3)
        texts.append((0, f"{low:.3g} to {high:.3g}"))
    ticks = {**{height - row: name for row, name in enumerate(studies)}, 1: "together", 0: "a further study"}
    panel.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    panel.set_ylim(-0.7, height + 0.7)
    if first.scale == "log":
        panel.set_xscale("log")
        for axis in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
            axis(FuncFormatter(lambda value, _: f"{value:.3g}"))
        panel.tick_params(axis="x", which="both", labelsize=8)
    else:
        panel.xaxis.set_major_locator(MaxNLocator(6))
    beside = panel.secondary_yaxis("right")
    beside.set_yticks([at for at, _ in texts], [text for _, text in texts], fontsize=8)
    for axis in (panel, beside):
        axis.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    beside.spines["right"].set_visible(False)
    pooled = part.pooled
    words = f"k = {pooled.studies}, τ² = {pooled.tau2:.2g}, I² = {100 * pooled.i2:.0f} %, Q = {pooled.q:.3g} "
    panel.set_xlabel(f"{part.name + ';  ' if part.name else ''}{words}(p = {pooled.p_q:.2g})", fontsize=8)


def _shade(panel: Any, one: Evidence) -> None:
    """The bound, and the margin around it."""
    if one.scale != "log" or one.bound > 0:
        panel.axvline(one.bound, color="0.5", linewidth=1, linestyle="--", zorder=2)
    if one.margin is not None:
        down, up = one.margin if isinstance(one.margin, tuple) else (one.margin, one.margin)
        panel.axvspan(one.bound - down, one.bound + up, color=_BAND, zorder=1)
