"""Pictures of a run: `run.plot` draws rankings beside one plain pass, and what each site does at each rate.

Owns what is drawn from the tables of a run. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import scores
from dropscope.checks import check_choice
from dropscope.display import fold, natural
from dropscope.errors import BadInput, Phrase
from dropscope.parameters import documented
from dropscope.placement import Placement
from dropscope.runs.finalists import AGAINST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLAIN = {"color": "black", "linestyle": "--", "linewidth": 1.4}
_ANNOTATED = 120  # cells of a heat map in which numbers can still be read
_LABEL = 40
_SETTLED = 0.1  # coverage from which on a risk is more than the luck of a few examples


_curve_docs = documented(
    {
        "rows": 'Rows to draw, such as `run.best("augrc", 5)`; None takes the `count` of least AURC.',
        "count": "How many rows, where none are given.",
        "ax": "Axes to draw in; None makes a figure.",
    },
    "The Axes.",
    {"BadInput": "For rows of which the run keeps no per-example values."},
)


@dataclass(frozen=True, eq=False)
class RunPlots:
    """Draws a run. Each method takes `ax`, or makes a figure, and returns the matplotlib Axes it drew in."""

    rows: pd.DataFrame
    baseline: pd.DataFrame
    examples: pd.DataFrame
    directions: Mapping[str, str]  # score → "lower" or "higher"

    def __call__(self, *, count: int = 3, ax: Axes | None = None) -> Axes:
        """Risk against coverage of the best rows: `run.plot()` is `run.plot.risk_coverage()`.

        Args:
            count: How many rows.
            ax: Axes to draw in; None makes a figure.

        Returns:
            The Axes.
        """
        return self.risk_coverage(count=count, ax=ax)

    @_curve_docs
    def risk_coverage(self, rows: pd.DataFrame | None = None, *, count: int = 3, ax: Axes | None = None) -> Axes:
        """Error rate among the most certain examples, one line per row and a dashed one for one plain pass."""
        axes = _axes(ax, 6.4, 4.2)
        highest = 0.0
        for name, table in self._rankings(rows, count).items():
            coverage, risk = scores.risk_coverage_curve(*_tensors(table))
            axes.plot(100 * coverage, 100 * risk, **_style(name, f": {float(risk.mean()):.4f}"))
            highest = max(highest, 100 * float(risk[coverage >= _SETTLED].max()))
        axes.set_ylim(0, 1.1 * highest + 1)
        axes.set(xlabel="coverage: examples kept, the most certain first (%)", ylabel="risk: errors among them (%)")
        return _finished(axes, "AURC")

    @_curve_docs
    def accuracy_curves(self, rows: pd.DataFrame | None = None, *, count: int = 3, ax: Axes | None = None) -> Axes:
        """Accuracy on the most certain share of examples, one line per row and a dashed one for one plain pass."""
        return accuracy_axes(self._rankings(rows, count), ax)

    def sites(self, score: str = "aurc", *, measure: str | None = None, ax: Axes | None = None) -> Axes:
        """What each site does at each rate: the difference to one plain pass, averaged over placements that have it.

        Blue is better than one plain pass, red is worse.

        Args:
            score: The score to compare by.
            measure: The measure; None takes that of the best row.
            ax: Axes to draw in; None makes a figure.

        Returns:
            The Axes.

        Raises:
            BadInput: For a score or measure that the rows do not have, or placements that name no site.
        """
        check_choice(score, "score", self.directions)
        lower = self.directions[score] == "lower"
        if measure is None:
            best = self.rows[score].idxmin() if lower else self.rows[score].idxmax()
            measure = str(self.rows.measure[best])
        check_choice(measure, "measure", list(self.rows.measure.unique()))
        effect = self._effect(score, measure)
        labels = ["\n".join(fold(site, _LABEL)) for site in effect.index]
        wide = 0.08 * max(min(len(site), _LABEL) for site in effect.index)
        high = sum(0.22 + 0.16 * (1 + label.count("\n")) for label in labels)
        axes = _axes(ax, max(4.2, 1.8 + wide + 0.55 * len(effect.columns)), 1.5 + high)
        largest = max(float(np.nanmax(np.abs(effect.to_numpy()))), 1e-12)
        colours = "RdBu_r" if lower else "RdBu"
        image = axes.imshow(effect, cmap=colours, vmin=-largest, vmax=largest, aspect="auto")
        axes.set_xticks(range(len(effect.columns)), [f"{rate:g}" for rate in effect.columns])
        axes.set_yticks(range(len(effect)), labels)
        axes.set(xlabel="rate", title=f"{score} less that of one plain pass\n{measure}, mean over placements")
        axes.title.set_fontsize(10)
        bar = axes.figure.colorbar(image, ax=axes)
        bar.set_label(("below 0" if lower else "above 0") + ": better", fontsize=8)
        if effect.size <= _ANNOTATED:
            for (row, column), value in np.ndenumerate(effect.to_numpy()):
                if np.isfinite(value):
                    colour = "white" if abs(value) > 0.6 * largest else "black"
                    axes.text(column, row, f"{value:+.3f}", ha="center", va="center", fontsize=7, color=colour)
        return axes

    def _rankings(self, rows: pd.DataFrame | None, count: int) -> dict[str, pd.DataFrame]:
        """Per-example values of the rows, and of one plain pass."""
        kept = dict(iter(self.examples.groupby(["placement", "measure"], sort=False)))
        if rows is None:
            pairs = pd.MultiIndex.from_frame(self.rows[["placement", "measure"]])
            score = next(name for name in ("aurc", "augrc", *self.directions) if name in self.rows)
            rising = self.directions[score] == "lower"
            rows = self.rows[pairs.isin(list(kept))].sort_values(score, ascending=rising, kind="stable").head(count)
        tables = {}
        for row in rows.to_dict("records"):
            computed = row["placement"] if pd.isna(row.get("equivalent_to")) else row["equivalent_to"]
            if (computed, row["measure"]) not in kept:
                received = Phrase(f"{row['placement']}, {row['measure']}, of which no examples are kept")
                raise BadInput("rows must be finalists", "rows", received, "sweep with keep='all'")
            tables[f"{row['placement']}, {row['measure']}"] = kept[computed, row["measure"]]
        if not tables:
            remedy = "sweep with keep='top:50'"
            raise BadInput("a run must keep examples to draw their rankings", "keep", Phrase("none"), remedy)
        return tables | {f"one plain pass, {AGAINST}": kept["none", AGAINST]}

    def _effect(self, score: str, measure: str) -> pd.DataFrame:
        """A row per site, a column per rate: the mean difference to one plain pass over placements with that term."""
        plain = float(self.baseline[score][self.baseline.measure == AGAINST].iloc[0])
        rows = self.rows[self.rows.measure == measure]
        found = [
            (site, rate, value - plain)
            for text, value in zip(rows.placement, rows[score], strict=True)
            for site, rate in _terms(str(text))
        ]
        if not found:
            texts = Phrase(", ".join(map(str, rows.placement.unique()[:3])))
            remedy = "sweep placements such as fc1=0.5, or a PlacementGrid"
            raise BadInput("placements must name sites with rates", "placements", texts, remedy)
        table = pd.DataFrame(found, columns=["site", "rate", "difference"])
        if table.rate.nunique() > 12:
            table["rate"] = table.rate.round(1)
        effect = table.pivot_table(index="site", columns="rate", values="difference", aggfunc="mean")
        return effect.loc[sorted(effect.index, key=natural)]


def accuracy_axes(examples: Mapping[str, pd.DataFrame], ax: Axes | None = None) -> Axes:
    """Accuracy curves with axes and legend, in `ax` or in a figure of their own."""
    axes = _axes(ax, 6.4, 4.2)
    draw_accuracy_curves(axes, examples)
    return _finished(axes)


def draw_accuracy_curves(axes: Axes, examples: Mapping[str, pd.DataFrame]) -> None:
    """A line per ranking, and a dotted one per accuracy on all examples: what an uncertainty that knows nothing has."""
    share = np.arange(1, 101)
    overall: dict[float, None] = {}  # distinct accuracies on all examples, in order
    for name, table in examples.items():
        uncertainty, right = _tensors(table)
        axes.plot(share, 100 * scores.accuracy_curve(uncertainty, right).numpy(), **_style(name))
        overall[100 * float(right.double().mean())] = None
    for number, accuracy in enumerate(overall):
        label = None if number else "an uncertainty that knows nothing"
        axes.axhline(accuracy, color="0.6", linewidth=1, linestyle=":", label=label)
    axes.set(xlabel="examples kept, the most certain first (%)", ylabel="accuracy on the kept examples (%)")


def _terms(text: str) -> Iterator[tuple[str, float]]:
    placement = Placement.parse(text)
    yield from ((term.address, round(term.rate, 4)) for term in placement.terms if term.rate > 0)


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def _style(name: str, value: str = "") -> dict[str, Any]:
    label = "\n".join(fold(name, _LABEL)) + value
    return {"label": label, **(_PLAIN if name.startswith("one plain pass") else {"linewidth": 1.8})}


def _finished(axes: Axes, title: str | None = None) -> Axes:
    axes.set_xlim(0, 100)
    axes.legend(frameon=False, fontsize=8, title=title, title_fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _tensors(table: pd.DataFrame) -> tuple[Tensor, Tensor]:
    return torch.tensor(table.uncertainty.to_numpy(copy=True)), torch.tensor(table.correct.to_numpy(copy=True))
