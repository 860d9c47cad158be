"""Figures 3 and 7 to 12: the penalty against what the placement is. Tasks side by side where there are two.

Owns pictures of rows: lines are means over placements, then over networks; bands are the std over placements within a
network (they describe the grid, they are no intervals); thin lines are networks; grey lines are reference levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from dropscope.analysis import marginal_means, per_layer_rate
from dropscope.report import new_figure, write_figure
from dropscope.studies.where_to_drop import curve_figures
from dropscope.studies.where_to_drop.rows import StudyRows

SCORE = "rearrangement_penalty"
COLOURS = {
    "variation_predicted": "#d95f02", "variation_max": "#e6ab02", "predictive_entropy": "#1f78b4",
    "expected_entropy": "#1b9e77", "bald": "#7570b3",
}  # fmt: skip
_ENDS = (0.1, 0.9)  # rates marked within each layer
_STEP = 0.05  # width of a step of p_mean
_PLACES = {"before": ("-", 5.0, 0.35), "after": ("--", 1.6, 1.0), "auto": ("-", 2.0, 1.0), "input": (":", 2.0, 1.0)}


def figure_3(studies: list[StudyRows]) -> Figure | str:
    return _per_layer(studies, "first")


def figure_12(studies: list[StudyRows]) -> Figure | str:
    return _per_layer(studies, "last")


def figure_7(studies: list[StudyRows]) -> Figure | str:
    """7a: both entropies (the text says predictive, the caption expected), apart, for they differ by a power of ten;
    7b: variation_predicted."""
    panels = [("a (text)", "predictive_entropy"), ("a (caption)", "expected_entropy"), ("b", "variation_predicted")]
    figure = new_figure(5.2 * len(panels), 4.2 * len(studies))
    grid = figure.subplots(len(studies), len(panels), squeeze=False)
    for study, row in zip(studies, grid, strict=True):
        for axes, (letter, name) in zip(row, panels, strict=True):
            _line(axes, _stepped(study.of(name)), "step", COLOURS[name], name)
            _levels(axes, study)
            _dress(axes, f"7{letter}: {study.task.name}", "mean rate of the masked layers, p_mean")
    figure.suptitle("Rearrangement penalty against p_mean", fontsize=11)
    return figure


def figure_8(studies: list[StudyRows]) -> Figure | str:
    """Positions within p_mean, predictive entropy; before and after lie on each other where they are one function."""

    def draw(axes: Axes, study: StudyRows) -> None:
        rows = study.every[study.every["measure"] == "predictive_entropy"]
        for position, part in rows.groupby("position", sort=False):
            style, width, alpha = _PLACES.get(str(position), ("-.", 1.6, 1.0))
            _line(axes, _stepped(part), "step", "#1f78b4", _placed(str(position)), style, width, alpha, band=False)
        _band(
            axes, marginal_means(_stepped(rows[rows["position"] == rows["position"].iloc[0]]), "step", SCORE), "#1f78b4"
        )
        if study.inputs is not None:
            part = study.inputs[study.inputs["measure"] == "predictive_entropy"]
            _line(axes, _stepped(part), "step", "#b2182b", "on the layers' inputs")
        _levels(axes, study)
        _dress(axes, study.task.name, "mean rate of the masked layers, p_mean")

    return _side_by_side(studies, draw, "Rearrangement penalty of predictive entropy by position of the mask")


def figure_9(studies: list[StudyRows]) -> Figure | str:
    """The number of masked layers, expected entropy."""

    def draw(axes: Axes, study: StudyRows) -> None:
        for score, colour in ((SCORE, "#1b9e77"), ("isotonic_penalty", "#666666")):
            _line(
                axes, study.of("expected_entropy"), "n_layers", colour, score.replace("_", " "), score=score, marker="o"
            )
        _levels(axes, study, " (rearrangement)")
        _dress(axes, study.task.name, "number of masked layers", "penalty (accuracy, 0 to 1)")
        axes.set_xticks(range(1, len(study.layers) + 1))

    return _side_by_side(studies, draw, "Penalty of expected entropy by number of masked layers")


def figure_10(studies: list[StudyRows]) -> Figure | str:
    return _scattered(studies, "skewness")


def figure_11(studies: list[StudyRows]) -> Figure | str:
    return _scattered(studies, "kurtosis")


FIGURES: dict[str, tuple[Callable[[list[StudyRows]], Figure | str], tuple[str, ...]]] = {
    "figure-1-curves": (curve_figures.figure_1, ()),
    "figure-3-first-layer": (figure_3, ()),
    "figure-4-isotonic": (curve_figures.figure_4, ()),
    "figure-5-rearrangement": (curve_figures.figure_5, ()),
    "figure-7-p-mean": (figure_7, ("predictive_entropy", "expected_entropy", "variation_predicted")),
    "figure-8-position": (figure_8, ("predictive_entropy",)),
    "figure-9-number-of-layers": (figure_9, ("expected_entropy",)),
    "figure-10-skewness": (figure_10, ("bald",)),
    "figure-11-kurtosis": (figure_11, ("bald",)),
    "figure-12-last-layer": (figure_12, ()),
}


def write_figures(folder: Path, studies: Sequence[StudyRows]) -> dict[str, str]:
    """Draws every figure; returns why, for those that have no data."""
    skipped = {}
    for name, (draw, needed) in FIGURES.items():
        fit = [study for study in studies if all(measure in study.measures for measure in needed)]
        figure = draw(fit) if fit else f"no rows of {', '.join(needed)}"
        if isinstance(figure, str):
            skipped[name] = figure
        else:
            write_figure(folder, name, figure)
    return skipped


def _per_layer(studies: list[StudyRows], which: str) -> Figure | str:
    """Layers as groups along x, within each its rate; a line per measure (eq 23)."""

    def draw(axes: Axes, study: StudyRows) -> None:
        table = per_layer_rate(study.rows, which, SCORE)  # type: ignore[arg-type]
        lowest = float(table.loc[table["mean"] > 0, "mean"].min()) / 3
        for measure in study.measures:
            for index in sorted(table[which].unique()):
                part = table[(table["measure"] == measure) & (table[which] == index)].sort_values(f"{which}_rate")
                x = index + 0.8 * (part[f"{which}_rate"].to_numpy() - 0.5)
                label = measure if index == table[which].min() else None
                colour = COLOURS.get(measure, "0.3")
                axes.plot(x, part["mean"], color=colour, linewidth=1.8, marker=".", markersize=5, label=label)
                low = np.maximum(part["mean"] - part["std"], lowest)
                axes.fill_between(x, low, part["mean"] + part["std"], color=colour, alpha=0.12, linewidth=0)
        if float(table["mean"].max()) > 30 * lowest:  # means over more than a decade, as on CIFAR-10
            axes.set_yscale("log")
            axes.set_ylim(bottom=lowest)
        for edge in range(1, len(study.layers)):
            axes.axvline(edge + 0.5, color="0.85", linewidth=0.8)
        axes.set_xlim(0.5, len(study.layers) + 0.5)
        _levels(axes, study)
        _dress(axes, study.task.name, f"{which} masked layer and its rate")
        axes.set_xticks(range(1, len(study.layers) + 1), [f"\n{layer}" for layer in study.layers])
        ends = [layer + 0.8 * (rate - 0.5) for layer in range(1, len(study.layers) + 1) for rate in _ENDS]
        axes.set_xticks(ends, [f"{rate:g}" for rate in _ENDS] * len(study.layers), minor=True, fontsize=7)
        axes.tick_params(axis="x", which="major", length=0)

    return _side_by_side(studies, draw, f"Rearrangement penalty by {which} masked layer", width=7.6, shared_legend=True)


def _scattered(studies: list[StudyRows], quantity: str) -> Figure | str:
    """A point per placement, mean over networks; the line is the median of equal counts along x."""
    if all(study.of("bald")[quantity].isna().all() for study in studies):
        return f"no placement of two layers or more: {quantity} is undefined for one layer"

    def draw(axes: Axes, study: StudyRows) -> None:
        columns = ["placement", quantity, "n_layers", SCORE]
        points = study.of("bald")[columns].dropna().groupby("placement", sort=False).mean()
        points = points.sample(frac=1, random_state=0)  # so that no number of layers lies on top of the others
        counts = sorted(points["n_layers"].unique())
        shades = dict(zip(counts, ("#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#e6ab02", "#666666") * 9, strict=False))
        axes.scatter(
            points[quantity], points[SCORE], s=7, c=[shades[n] for n in points["n_layers"]], alpha=0.35, linewidth=0,
            rasterized=True,
        )  # fmt: skip
        for count in counts:
            axes.scatter([], [], s=25, color=shades[count], label=f"{int(count)} layers")
        middle = _medians(points, quantity)
        axes.plot(middle[quantity], middle[SCORE], color="black", linewidth=2, label="median")
        axes.set_yscale("log")
        _levels(axes, study)
        _dress(axes, study.task.name, f"{quantity} of the rates over layers")

    return _side_by_side(studies, draw, f"Rearrangement penalty of BALD against {quantity}", shared_legend=True)


def _medians(points: pd.DataFrame, quantity: str, parts: int = 12) -> pd.DataFrame:
    """Medians of consecutive parts of equal size along x."""
    ordered = points.sort_values(quantity, kind="stable").reset_index(drop=True)
    place = np.arange(len(ordered)) * min(parts, len(ordered)) // max(1, len(ordered))
    return ordered.groupby(place)[[quantity, SCORE]].median()


def _side_by_side(
    studies: list[StudyRows],
    draw: Callable[[Axes, StudyRows], None],
    title: str,
    width: float = 6.4,
    *,
    shared_legend: bool = False,
) -> Figure:
    figure = new_figure(width * len(studies), 4.6)
    for study, axes in zip(studies, figure.subplots(1, len(studies), squeeze=False)[0], strict=True):
        draw(axes, study)
    if shared_legend:  # many entries, the same for every task: below all of them
        entries: dict[str, Artist] = {}
        for axes in figure.axes:
            handles, labels = axes.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))
            if (own := axes.get_legend()) is not None:
                own.remove()
        figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )
    figure.suptitle(title, fontsize=11)
    return figure


def _line(
    axes: Axes, rows: pd.DataFrame, by: str, colour: str, label: str, style: str = "-", width: float = 2.0,
    alpha: float = 1.0, score: str = SCORE, marker: str = "", *, band: bool = True,
) -> None:  # fmt: skip
    """The mean over networks with its band, and a thin line for each network."""
    table = marginal_means(rows, by, score)
    marker = marker or ("o" if len(table) == 1 else "")  # a line of one point would not be seen
    if band:
        _band(axes, table, colour, by)
    if rows["network"].nunique() > 1:
        for _, own in rows.groupby("network", observed=True):
            each = marginal_means(own, by, score)
            axes.plot(each[by], each["mean"], color=colour, linewidth=0.6, alpha=0.3)
    axes.plot(table[by], table["mean"], style, color=colour, linewidth=width, alpha=alpha, label=label, marker=marker)


def _band(axes: Axes, table: pd.DataFrame, colour: str, by: str = "step") -> None:
    low, high = (table["mean"] - table["std"]).clip(lower=0), table["mean"] + table["std"]
    axes.fill_between(table[by], low, high, color=colour, alpha=0.13, linewidth=0)


def _stepped(rows: pd.DataFrame) -> pd.DataFrame:
    """p_mean in steps: means of two, three and four rates lie on different grids, and the line would be a saw."""
    return rows.assign(step=(np.round(rows["p_mean"] / _STEP) * _STEP).round(6))


def _levels(axes: Axes, study: StudyRows, note: str = "") -> None:
    for kind, style in (("random", ":"), ("monotone", (0, (1, 4)))):
        level = study.level(SCORE, kind)
        if np.isfinite(level) and level > 0:
            axes.axhline(level, color="0.45", linewidth=1.1, linestyle=style, label=f"a {kind} measure{note}")


def _placed(position: str) -> str:
    return {"auto": "after the layer's activation"}.get(position, f"{position} the activation")


def _dress(axes: Axes, title: str, x: str, y: str = "rearrangement penalty (accuracy, 0 to 1)") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
