"""Figures 3 and 7 to 12: the penalty against what the placement is. Tasks side by side where there are two.

Owns pictures of rows: lines are means over placements, then over networks; bands reach from the 5th to the 95th
percentile of placements within a network (they describe the grid, they are no intervals); thin lines are networks; grey
lines are the levels of a useless and of a truly monotone measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dropscope.analysis import marginal_means, per_layer_rate
from dropscope.report import evidence, new_figure, set_log_scale, share_legend, write_figure
from dropscope.studies.where_to_drop import curve_figures, grid_figure
from dropscope.studies.where_to_drop.rows import BOTH, StudyRows

SCORE = "rearrangement_penalty"
COLOURS = {
    "variation_predicted": "#d95f02", "variation_max": "#e6ab02", "predictive_entropy": "#1f78b4",
    "expected_entropy": "#1b9e77", "bald": "#7570b3",
}  # fmt: skip
_SHORT = {"isotonic_penalty": "isotonic", "rearrangement_penalty": "rearrangement"}
_STYLES = {"isotonic_penalty": "--", "rearrangement_penalty": "-"}
_BAND = "5 to 95 % of placements"
_BAND_ENTRY = {_BAND: Patch(color="0.5", alpha=0.25, linewidth=0)}  # of bands in every colour
_LEVELS = {"random": ("useless measure", ":"), "monotone": ("truly monotone measure", (0, (1, 4)))}
_ENDS = (0.1, 0.9)  # rates marked within each layer
_STEP = 0.05  # width of a step of p_mean
_P_MEAN = "mean rate of the masked layers, p_mean"
_WIDE = 30  # a factor from which on values are drawn on a logarithmic axis
_PLACES = {"before": ("-", 5.0, 0.35), "after": ("--", 1.6, 1.0), "auto": ("-", 2.0, 1.0), "input": (":", 2.0, 1.0)}


def figure_3(studies: list[StudyRows]) -> Figure | str:
    return _per_layer(studies, "first")


def figure_12(studies: list[StudyRows]) -> Figure | str:
    return _per_layer(studies, "last")


def figure_7(studies: list[StudyRows]) -> Figure | str:
    """7a: both entropies (the text says predictive, the caption expected), apart, for they differ by a power of ten;
    7b: variation_predicted. Both penalties."""
    panels = [("a", "predictive_entropy"), ("a", "expected_entropy"), ("b", "variation_predicted")]
    figure = new_figure(4.9 * len(panels), 4.0 * len(studies) + 0.6)
    grid = figure.subplots(len(studies), len(panels), squeeze=False)
    for study, row in zip(studies, grid, strict=True):
        for axes, (letter, name) in zip(row, panels, strict=True):
            rows = _stepped(study.of(name))
            for score in BOTH:
                band = score == SCORE
                _line(axes, rows, "step", COLOURS[name], _SHORT[score], _STYLES[score], score=score, band=band)
                _levels(axes, study, score, ("random",))
            _dress(axes, f"7{letter}: {name}, {study.task.name}", _P_MEAN, "penalty (accuracy, 0 to 1)")
    share_legend(figure, _BAND_ENTRY)
    figure.suptitle(
        "Penalties against p_mean (the paper's text puts one entropy into 7a, its caption the other)", fontsize=11
    )
    return figure


def figure_8(studies: list[StudyRows]) -> Figure | str:
    """Positions within p_mean, predictive entropy, over the rates that all positions have; before and after lie on each
    other where they are one function."""

    def draw(axes: Axes, study: StudyRows, score: str) -> None:
        rows = study.every[study.every["measure"] == "predictive_entropy"]
        inputs = None if study.inputs is None else study.inputs[study.inputs["measure"] == "predictive_entropy"]
        rows, inputs, common = _common_rates(rows, inputs, study.layers)
        for number, (position, part) in enumerate(rows.groupby("position", sort=False)):
            style, width, alpha = _PLACES.get(str(position), ("-.", 1.6, 1.0))
            line = {"style": style, "width": width, "alpha": alpha, "band": number == 0}
            _line(axes, _stepped(part), "step", "#1f78b4", _placed(str(position)), **line)  # type: ignore[arg-type]
        if inputs is not None:
            _line(axes, _stepped(inputs), "step", "#b2182b", "on the layers' inputs")
        _levels(axes, study, score)
        title = f"{study.task.name}, {common}" if common else study.task.name
        _dress(axes, title, _P_MEAN)

    return _side_by_side(studies, draw, "Rearrangement penalty of predictive entropy by position of the mask")


def figure_9(studies: list[StudyRows]) -> Figure | str:
    """The number of masked layers, expected entropy."""

    def draw(axes: Axes, study: StudyRows, _: str) -> None:
        for score, colour in ((SCORE, COLOURS["expected_entropy"]), ("isotonic_penalty", "#666666")):
            rows = study.of("expected_entropy")
            _line(axes, rows, "n_layers", colour, _SHORT[score], _STYLES[score], score=score, marker="o")
            _levels(axes, study, score, ("random",), colour)
        _dress(axes, study.task.name, "number of masked layers", "penalty (accuracy, 0 to 1)")
        axes.set_xticks(range(1, len(study.layers) + 1))

    return _side_by_side(studies, draw, "Penalties of expected entropy by number of masked layers")


def figure_10(studies: list[StudyRows]) -> Figure | str:
    return _scattered(studies, "skewness")


def figure_11(studies: list[StudyRows]) -> Figure | str:
    return _scattered(studies, "kurtosis")


FIGURES: dict[str, tuple[Callable[[list[StudyRows]], Figure | str], tuple[str, ...]]] = {
    "figure-1-curves": (curve_figures.figure_1, ()),
    "figure-2-grid": (grid_figure.figure_2, ()),
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
            write_figure(folder, name, figure, _corner(fit))
    return skipped


def _corner(studies: Sequence[StudyRows]) -> str:
    texts = [evidence(test_examples=s.examples, passes=s.passes, networks=s.networks) for s in studies]
    if len(texts) == 1:
        return texts[0]
    return "; ".join(f"{study.task.name}: {text}" for study, text in zip(studies, texts, strict=True))


def _per_layer(studies: list[StudyRows], which: str) -> Figure | str:
    """Layers as groups along x, within each its rate; a line per measure (eq 23), a row per penalty."""

    def draw(axes: Axes, study: StudyRows, score: str) -> None:
        table = per_layer_rate(study.rows, which, score)  # type: ignore[arg-type]
        for measure in study.measures:
            for index in sorted(table[which].unique()):
                part = table[(table["measure"] == measure) & (table[which] == index)].sort_values(f"{which}_rate")
                x = index + 0.8 * (part[f"{which}_rate"].to_numpy() - 0.5)
                label = measure if index == table[which].min() else None
                colour = COLOURS.get(measure, "0.3")
                axes.fill_between(x, part["q05"], part["q95"], color=colour, alpha=0.12, linewidth=0, label=_BAND)
                axes.plot(x, part["mean"], color=colour, linewidth=1.8, marker=".", markersize=5, label=label)
        _levels(axes, study, score)
        title = study.task.name if score == SCORE else ""
        _dress(axes, title, f"{which} masked layer and its rate", f"{_SHORT[score]} penalty (0 to 1)")
        axes.set_xticks(range(1, len(study.layers) + 1), [f"\n{layer}" for layer in study.layers])
        ends = [layer + 0.8 * (rate - 0.5) for layer in range(1, len(study.layers) + 1) for rate in _ENDS]
        axes.set_xticks(ends, [f"{rate:g}" for rate in _ENDS] * len(study.layers), minor=True, fontsize=7)
        axes.tick_params(axis="x", which="major", length=0)
        axes.set_xlim(0.5, len(study.layers) + 0.5)
        for edge in range(1, len(study.layers)):
            axes.axvline(edge + 0.5, color="0.85", linewidth=0.8)

    title = f"Penalties by {which} masked layer"
    return _side_by_side(studies, draw, title, width=7.6, scores=(SCORE, "isotonic_penalty"))


def _scattered(studies: list[StudyRows], quantity: str) -> Figure | str:
    """A point per placement, mean over networks; the line is the median of equal counts along x."""
    if all(study.of("bald")[quantity].isna().all() for study in studies):
        return f"no placement of two layers or more: {quantity} is undefined for one layer"

    def draw(axes: Axes, study: StudyRows, score: str) -> None:
        columns = ["placement", quantity, "n_layers", score]
        points = study.of("bald")[columns].dropna().groupby("placement", sort=False).mean()
        points = points.sample(frac=1, random_state=0)  # so that no number of layers lies on top of the others
        counts = sorted(points["n_layers"].unique())
        shades = dict(zip(counts, ("#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#e6ab02", "#666666") * 9, strict=False))
        axes.scatter(
            points[quantity], points[score], s=7, c=[shades[n] for n in points["n_layers"]], alpha=0.35, linewidth=0,
            rasterized=True,
        )  # fmt: skip
        for count in counts:
            axes.scatter([], [], s=25, color=shades[count], label=f"{int(count)} layers")
        middle = _medians(points, quantity)
        label = f"median of {len(middle)} parts of equal size"
        axes.plot(middle[quantity], middle[score], color="black", linewidth=2, label=label)
        _levels(axes, study, score)
        positive = points[score][points[score] > 0]
        zeros = len(points) - len(positive)
        title = f"{study.task.name}, {len(points):,} placements" + (
            f", {zeros:,} of penalty 0 not shown" if zeros else ""
        )
        _dress(axes, title, f"{quantity} of the rates over layers", values=positive)

    return _side_by_side(studies, draw, f"Rearrangement penalty of BALD against {quantity}")


def _medians(points: pd.DataFrame, quantity: str, parts: int = 12) -> pd.DataFrame:
    """Medians of consecutive parts of equal size along x."""
    ordered = points.sort_values(quantity, kind="stable").reset_index(drop=True)
    place = np.arange(len(ordered)) * min(parts, len(ordered)) // max(1, len(ordered))
    return ordered.groupby(place)[[quantity, SCORE]].median()


def _side_by_side(
    studies: list[StudyRows],
    draw: Callable[[Axes, StudyRows, str], None],
    title: str,
    width: float = 6.4,
    scores: Sequence[str] = (SCORE,),
) -> Figure:
    """A column per task, a row per penalty."""
    figure = new_figure(width * len(studies), 4.0 * len(scores) + 0.6)
    grid = figure.subplots(len(scores), len(studies), squeeze=False)
    for score, row in zip(scores, grid, strict=True):
        for study, axes in zip(studies, row, strict=True):
            draw(axes, study, score)
    share_legend(figure, _BAND_ENTRY)
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
        axes.fill_between(table[by], table["q05"], table["q95"], color=colour, alpha=0.13, linewidth=0, label=_BAND)
    if rows["network"].nunique() > 1:
        for _, own in rows.groupby("network", observed=True):
            each = marginal_means(own, by, score)
            axes.plot(each[by], each["mean"], color=colour, linewidth=0.6, alpha=0.3)
    axes.plot(table[by], table["mean"], style, color=colour, linewidth=width, alpha=alpha, label=label, marker=marker)


def _stepped(rows: pd.DataFrame) -> pd.DataFrame:
    """p_mean in steps: means of two, three and four rates lie on different grids, and the line would be a saw."""
    return rows.assign(step=(np.round(rows["p_mean"] / _STEP) * _STEP).round(6))


def _common_rates(
    rows: pd.DataFrame, inputs: pd.DataFrame | None, layers: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame | None, str]:
    """Rows of the rate vectors that both tables have, and these rates in words; without them, the rows alone."""
    if inputs is None:
        return rows, None, ""
    columns = [f"rate_{layer}" for layer in layers]
    ours, theirs = (pd.MultiIndex.from_frame(table[columns].round(6)) for table in (rows, inputs))
    both = ours.isin(theirs)
    if not both.any():
        return rows, None, "masks on inputs: no rates in common"
    rates = sorted({float(rate) for rate in np.unique(rows.loc[both, columns]) if rate > 0})
    return rows[both], inputs[theirs.isin(ours)], f"rates {', '.join(f'{rate:g}' for rate in rates)}"


def _levels(
    axes: Axes, study: StudyRows, score: str, kinds: Sequence[str] = tuple(_LEVELS), colour: str = "0.45"
) -> None:
    """Grey lines at what a useless and a truly monotone measure score at this n and the plain pass's accuracy."""
    note = f" ({_SHORT[score]})" if len(kinds) == 1 else ""
    for kind in kinds:
        level, (word, style) = study.level(score, kind), _LEVELS[kind]
        if np.isfinite(level) and level > 0:
            dashes = (0, (1, 2, 3, 2)) if note and score != SCORE else style
            axes.axhline(level, color=colour, linewidth=1.1, linestyle=dashes, label=word + note)


def _placed(position: str) -> str:
    return {"auto": "after the layer's activation"}.get(position, f"{position} the activation")


def _dress(
    axes: Axes, title: str, x: str, y: str = "rearrangement penalty (accuracy, 0 to 1)",
    values: pd.Series | None = None,
) -> None:  # fmt: skip
    """Titles and scale. On a logarithmic axis bands may reach 0, so lines (or the `values` given) say where it ends."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    if x == _P_MEAN:
        axes.set_xlim(0, 1)
    lines = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()] or [np.empty(0)])
    shown = lines if values is None else np.concatenate([lines, values])
    shown = shown[np.isfinite(shown) & (shown > 0)]
    if len(shown) and (values is not None or shown.max() > _WIDE * shown.min()):
        set_log_scale(axes, shown.min() / 1.5, max(axes.get_ylim()[1], 1.5 * shown.max()))
    else:
        axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
