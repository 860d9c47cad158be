"""Pictures of a comparison: risk against coverage with bands, cost against AURC, paired differences.

Owns what is drawn from a comparison's tables. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from dropscope.deploy.rivals.rows import Judged, risk_bands
from dropscope.display import cut
from dropscope.errors import BadInput, nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any colour vision tell apart.
_COLOURS = {
    "one pass": "#0072B2", "last layer": "#009E73", "several forwards": "#CC79A7", "dropout": "#D55E00",
    "stored": "#56B4E9", "own": "#E69F00",
}  # fmt: skip
_REFERENCE: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.4}
_NAME = 34  # characters of a name in a picture
_POINTS = 200
_SETTLED = 0.05  # coverage from which on a risk is more than the luck of a few examples
_FAR = 1.6  # of the reference's AURC, beyond which a row is only marked
_ALIKE, _APART = 1.15, 1.06  # costs that stand side by side, and how far apart
_LINES = ("-", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


@dataclass(frozen=True, eq=False)
class ComparisonPlots:
    """Draws a comparison. Each method takes `ax`, or makes a figure, and returns the matplotlib Axes it drew in."""

    table: pd.DataFrame
    differences: pd.DataFrame
    rows: dict[str, Judged]
    groups: Sequence[Any] | None
    against: str

    def __call__(self, names: Sequence[str] | None = None, *, ax: Axes | None = None) -> Axes:
        """Risk against coverage: `comparison.plot()` is `comparison.plot.risk_coverage()`.

        Args:
            names: Rows to draw beside the reference; None takes the best of each kind.
            ax: Axes to draw in; None makes a figure.

        Returns:
            The Axes.
        """
        return self.risk_coverage(names, ax=ax)

    def risk_coverage(self, names: Sequence[str] | None = None, *, ax: Axes | None = None) -> Axes:
        """Errors among the most certain examples. The reference is dashed; it and the first row have 95 % bands.

        A band holds at each coverage alone.

        Args:
            names: Rows to draw beside the reference; None takes the best of each kind, the best of all first.
            ax: Axes to draw in; None makes a figure.

        Returns:
            The Axes.

        Raises:
            BadInput: For a name that is no row.
        """
        axes = _axes(ax, 6.4, 4.4)
        chosen = self._best_of_kinds() if names is None else list(names)
        for name in chosen:
            if name not in self.rows:
                raise BadInput("names must be rows of the table", "names", name, nearest(name, self.rows))
        kinds = self.table.set_index("name").kind
        used: list[str] = []
        highest, coverages = 0.0, torch.linspace(1 / _POINTS, 1, _POINTS)
        for name in dict.fromkeys([self.against, *chosen]):
            risk, low, high = (100 * part for part in risk_bands(self.rows[name], coverages, self.groups))
            shown = coverages >= _SETTLED
            x = 100 * coverages[shown]
            style = _REFERENCE if name == self.against else self._style(kinds[name], used)
            area = float(self.table.set_index("name").aurc[name])
            if name in (self.against, chosen[0] if chosen else None):
                axes.fill_between(x, low[shown], high[shown], color=style["color"], alpha=0.14, linewidth=0)
                highest = max(highest, float(high[shown].max()))
            above = 3 if name == self.against else 2
            axes.plot(x, risk[shown], label=f"{cut(name, _NAME)}: {area:.4f}", zorder=above, **style)
            highest = max(highest, float(risk[shown].max()))
        axes.set(xlabel="coverage: examples kept, the most certain first (%)", ylabel="risk: errors among them (%)")
        axes.set_ylim(0, 1.02 * highest)
        axes.set_xlim(0, 100)
        axes.legend(frameon=False, fontsize=8, title="AURC", title_fontsize=8, loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
        return axes

    def costs(self, *, ax: Axes | None = None) -> Axes:
        """AURC against cost per example, with the interval of each difference to the reference, the dashed line.

        A grey line joins the rows that no other beats in both cost and AURC. Those have names, and so has the best
        placement of dropout. Rows of one cost stand side by side; what is far worse is marked at the upper edge.

        Args:
            ax: Axes to draw in; None makes a figure.

        Returns:
            The Axes.
        """
        axes = _axes(ax, 6.4, 4.4)
        gaps = self.differences[self.differences.score == "aurc"].set_index("name").loc[self.table.name]
        level = float(gaps.value[self.against])
        ends = level + gaps[["difference_low", "difference_high"]].to_numpy(float)
        area, cost = self.table.aurc.to_numpy(float), self.table.cost.to_numpy(float)
        ends = np.where(np.isnan(ends), area[:, None], ends)
        inside = area <= _FAR * level
        top = float(ends[inside, 1].max()) + 0.1 * (float(ends[inside, 1].max()) - float(ends[:, 0].min()))
        bottom = float(ends[:, 0].min()) - 0.12 * (top - float(ends[:, 0].min()))
        placed = _side_by_side(cost)
        axes.axhline(level, **{**_REFERENCE, "linewidth": 1.0}, zorder=1)
        front = _frontier(cost, area)
        axes.plot(placed[front], area[front], color="0.6", linewidth=1, zorder=1)
        for kind, colour in _COLOURS.items():
            chosen = (self.table.kind == kind).to_numpy() & inside
            if (self.table.kind == kind).any():
                bars = np.abs(ends[chosen].T - area[chosen])
                axes.errorbar(placed[chosen], area[chosen], bars, fmt="none", ecolor=colour, alpha=0.45, linewidth=1.2)
                axes.scatter(placed[chosen], area[chosen], s=32, color=colour, label=kind, edgecolor="white", zorder=3)
        for place in np.flatnonzero(~inside):
            colour = _COLOURS[self.table.kind.iloc[place]]
            axes.plot(placed[place], top, "^", color=colour, clip_on=False, markersize=6)
            _name(axes, f"{self.table.name.iloc[place]} {area[place]:.2f}", placed[place], top, placed, below=True)
        placements = np.flatnonzero((self.table.kind == "dropout").to_numpy())
        taken: list[float] = []  # costs that have a name below
        for place in dict.fromkeys([*front, *placements[:1]]):
            below = not any(1 / _ALIKE <= cost[place] / other <= _ALIKE for other in taken)
            taken += [float(cost[place])] * below
            at = ends[place, 0] if below else ends[place, 1]
            _name(axes, self.table.name.iloc[place], placed[place], at, placed, below=below)
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(placed.min() / 1.25, placed.max() * 1.25)
        axes.set_ylim(bottom, top)
        axes.set(xlabel="cost per example (plain passes)")
        axes.set_ylabel("AURC (bars: difference to the reference, 95 %)")
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, 1.11), ncols=6, handletextpad=0.1,
                    columnspacing=0.9, borderaxespad=0)  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)
        return axes

    def gains(self, score: str = "aurc", *, ax: Axes | None = None) -> Axes:
        """The difference of each row to the reference, with intervals that hold for all of them at once.

        Args:
            score: One of the table's scores.
            ax: Axes to draw in; None makes a figure.

        Returns:
            The Axes.

        Raises:
            BadInput: For another score.
        """
        of_score = self.differences[self.differences.score == score]
        if not len(of_score):
            known = list(self.differences.score.unique())
            raise BadInput("score must be one of the table's", "score", score, nearest(score, known))
        rows = of_score[of_score.name != self.against].sort_values("difference", ascending=False)
        axes = _axes(ax, 6.4, 1.1 + 0.24 * len(rows))
        kinds = self.table.set_index("name").kind
        for place, row in enumerate(rows.itertuples()):
            colour = _COLOURS[kinds[row.name]]
            axes.plot([row.difference_low, row.difference_high], [place, place], color=colour, linewidth=1.6)
            axes.plot(row.difference, place, "o", color=colour, markersize=5)
        axes.axvline(0, **{**_REFERENCE, "linewidth": 1.0})
        axes.set_yticks(range(len(rows)), [cut(name, _NAME) for name in rows.name], fontsize=8)
        axes.set_xlabel(f"{score} less that of {self.against}, 95 % intervals for all rows at once")
        axes.spines[["top", "right"]].set_visible(False)
        return axes

    def figure(self) -> Figure:
        """Risk against coverage and cost against AURC side by side, for a paper.

        Returns:
            A matplotlib figure.
        """
        from dropscope.report import new_figure

        figure = new_figure(11.0, 4.4)
        left, right = figure.subplots(1, 2)
        self.risk_coverage(ax=left)
        self.costs(ax=right)
        return figure

    def _best_of_kinds(self) -> list[str]:
        level = float(self.table.set_index("name").aurc[self.against])
        others = self.table[self.table.aurc != level].sort_values("aurc", kind="stable")  # not those that rank alike
        return [str(name) for name in others.groupby("kind", sort=False).name.first()][:4]

    def _style(self, kind: str, used: list[str]) -> dict[str, Any]:
        used.append(kind)
        return {"color": _COLOURS[kind], "linestyle": _LINES[(used.count(kind) - 1) % len(_LINES)], "linewidth": 1.8}


def _side_by_side(costs: np.ndarray) -> np.ndarray:
    """Costs, those that are nearly equal a little apart, so that their points can be told apart."""
    placed = costs.astype(float).copy()
    order = np.argsort(costs, kind="stable")
    start = 0
    while start < len(order):
        first = costs[order[start]]
        same = order[start:][costs[order[start:]] <= first * _ALIKE]
        middle = float(np.exp(np.log(costs[same]).mean()))
        offsets = np.arange(len(same)) - (len(same) - 1) / 2
        placed[np.sort(same)] = middle * _APART**offsets
        start += len(same)
    return placed


def _frontier(cost: np.ndarray, area: np.ndarray) -> list[int]:
    """Places of the rows that no other beats in both, by cost."""
    front: list[int] = []
    for place in np.lexsort((area, np.round(cost, 1))):
        if not front or area[place] < area[front[-1]]:
            front.append(int(place))
    return front


def _name(axes: Axes, text: str, x: float, y: float, placed: np.ndarray, *, below: bool) -> None:
    """A name beside the end of a bar, towards the middle of the picture."""
    right = np.log(x) > np.log(placed).mean() and x > np.median(placed)
    axes.annotate(
        cut(text, _NAME), (x, y), xytext=(4 if right else -2, -3 if below else 3), textcoords="offset points",
        ha="right" if right else "left", va="top" if below else "bottom", fontsize=7.5,
    )  # fmt: skip


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]
