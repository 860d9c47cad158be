"""Figures of the study, numbered as in the paper, from tables and exhibits alone."""

from __future__ import annotations

from itertools import combinations, cycle, islice
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from dropscope.analysis import win_posterior
from dropscope.report import new_figure
from dropscope.studies.segmentation_measures.evaluation import FOUR
from dropscope.studies.segmentation_measures.rows import LABELS
from dropscope.studies.segmentation_measures.showcase import Exhibits

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
_COLOUR_WORDS = ("blue", "red", "green", "yellow", "cyan", "purple", "grey")
_FEWEST = 5  # values of a box
_NOISE = {"bernoulli": "#4477aa", "gaussian": "#ee6677"}


def maps_figure(exhibits: Exhibits, classes: list[str]) -> Figure:
    """Figure 1: image, prediction, misclassified voxels and the four maps, for cases of low, middling, high Dice."""
    cases = exhibits.about["cases"]
    figure = new_figure(14, 2.05 * len(cases) + 0.5)
    axes = figure.subplots(len(cases), 3 + len(FOUR), squeeze=False)
    columns = ["image, label outlined", "prediction", "misclassified", *(LABELS[name] for name in FOUR)]
    colours = list(islice(cycle(_COLOURS), max(1, len(classes) - 1)))
    palette = ListedColormap(["#000000", *colours])
    for row, case in enumerate(cases):
        image, label, prediction, valid = (
            exhibits.maps[f"{row}/{n}"] for n in ("image", "label", "prediction", "valid")
        )
        wrong = (prediction != label) & valid
        at = _fullest_slice(wrong if bool(wrong.any()) else label > 0)
        box = _box(valid, at)

        def plane(values: Tensor, at: int | None = at, box: Any = box) -> np.ndarray:
            flat = values.float().numpy()
            return (flat if at is None else flat[..., at])[box].T

        _show(axes[row, 0], plane(image[_clearest_channel(exhibits)]), cmap="gray")
        marks = plane(label)
        for number in range(1, len(classes)):
            if (marks == number).any() and not (marks == number).all():
                axes[row, 0].contour(marks == number, [0.5], colors=colours[number - 1], linewidths=0.8)
        _show(axes[row, 1], plane(prediction), cmap=palette, vmin=0, vmax=len(classes) - 1, interpolation="nearest")
        _show(axes[row, 2], plane(wrong), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        for column, name in enumerate(FOUR, 3):
            values = exhibits.maps[f"{row}/{name}"]
            low, high = _limits(values[valid].numpy())
            _show(axes[row, column], plane(values), cmap="inferno", vmin=low, vmax=high)
        axes[row, 0].set_ylabel(f"{case['quality']}\n{case['case']}\nDice {case['dice']:.2f}", fontsize=8)
    for column, title in enumerate(columns):
        axes[0, column].set_title(title, fontsize=9)
    legend = ", ".join(f"{name}: {word}" for name, word in zip(classes[1:], cycle(_COLOUR_WORDS), strict=False))
    figure.suptitle(
        f"{exhibits.about['experiment']}, {exhibits.about['passes']} passes ({legend}); brighter is more uncertain, "
        "each map over its own range",
        fontsize=9,
    )
    return figure


def dice_figure(experiments: pd.DataFrame, classes: list[str]) -> Figure:
    """Figure 3: Dice of each class over the experiments, one box per noise; points are experiments."""
    figure = new_figure(1.6 + 1.7 * len(classes), 4.2)
    axes = figure.add_subplot()
    noises = list(dict.fromkeys(experiments.noise))
    width = 0.7 / len(noises)
    for place, noise in enumerate(noises):
        own = experiments[experiments.noise == noise]
        at = np.arange(len(classes)) + (place - (len(noises) - 1) / 2) * width
        values = [own[f"dice_{c}"].dropna().to_numpy() for c in range(len(classes))]
        _boxes(axes, values, at, 0.85 * width, _NOISE.get(noise, "0.5"))
        axes.plot([], [], color=_NOISE.get(noise, "0.5"), linewidth=6, alpha=0.6, label=f"{noise} dropout")
    axes.set_xticks(range(len(classes)), classes)
    axes.set_ylabel("mean Dice of an experiment on the test cases")
    axes.set_title("Dice per class over experiments", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    _plain(axes)
    return figure


def auprc_figure(means: pd.DataFrame, useless: pd.Series) -> Figure:
    """Figure 4: mean AUC-PR of each measure over the experiments; whiskers reach the 5th and the 95th percentile.

    `useless`: the share of wrong voxels of each experiment, which is the AUC-PR of a measure that knows nothing.
    """
    names = [name for name in means.columns if means[name].notna().any()]
    figure = new_figure(2 + 0.85 * len(names), 4.8)
    axes = figure.add_subplot()
    for place, name in enumerate(names):
        colour = _COLOURS[0] if name in FOUR else _COLOURS[2] if name.startswith("plain") else "0.55"
        _boxes(axes, [means[name].dropna().to_numpy()], [place], 0.6, colour)
    _boxes(axes, [useless.to_numpy()], [len(names)], 0.6, "#222222")
    labels = [*(LABELS.get(name, name) for name in names), "useless measure\n(share of wrong voxels)"]
    axes.axhline(float(useless.mean()), color="0.45", linewidth=1.1, linestyle=":", zorder=0)
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("AUC-PR of misclassified voxels ↑")
    words = "Blue: the paper's four; grey: other measures of passes; green: one plain pass; dotted: a useless measure"
    axes.set_title(words, fontsize=10)
    _plain(axes)
    return figure


def posteriors_figure(means: pd.DataFrame) -> Figure:
    """Figure 5: six Beta posteriors that the first measure beats the second; 95 % shaded, one half marked."""
    figure = new_figure(10, 5.4)
    x = np.linspace(0, 1, 1001)
    for axes, (a, b) in zip(figure.subplots(2, 3, sharex=True).flat, combinations(FOUR, 2), strict=True):
        p = win_posterior(means[a].to_numpy(), means[b].to_numpy())
        colour = _COLOURS[0] if p.significant else "0.5"
        density = p.density(x)
        axes.plot(x, density, color=colour, linewidth=1.6)
        axes.fill_between(x, density, where=(x >= p.low) & (x <= p.high), color=colour, alpha=0.3, linewidth=0)
        axes.axvline(0.5, color="k", linestyle="--", linewidth=1)
        axes.set_title(f"{LABELS[a]} better than {LABELS[b]}", fontsize=9)
        verdict = "excludes one half" if p.significant else "contains one half"
        place, side = (0.03, "left") if p.mean > 0.5 else (0.97, "right")
        axes.text(
            place, 0.95, f"{p.wins:g} of {p.n}\n{p.low:.2f} to {p.high:.2f}\n{verdict}", fontsize=8, va="top", ha=side,
            transform=axes.transAxes,
        )  # fmt: skip
        axes.set_yticks([])
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, 1)
        _plain(axes)
    figure.suptitle("The paper's posteriors, a description: they count experiments that share patients as independent",
                    fontsize=10)  # fmt: skip
    figure.supxlabel("probability of being better in an experiment", fontsize=9)
    figure.supylabel("posterior density", fontsize=9)
    return figure


def _boxes(axes: Any, values: list[np.ndarray], at: Any, width: float, colour: str) -> None:
    """Boxes with whiskers at 5 and 95 %, and the values themselves beside the middle, always in the same places; a few
    values stand alone."""
    drawn = [(place, points) for place, points in zip(at, values, strict=True) if len(points)]
    quantiles = [np.quantile(points, [0.05, 0.25, 0.5, 0.75, 0.95]) for _, points in drawn]
    names = ("whislo", "q1", "med", "q3", "whishi")
    boxed = [at for at, (_, points) in enumerate(drawn) if len(points) >= _FEWEST]
    made = axes.bxp(
        [dict(zip(names, quantiles[at], strict=True)) for at in boxed], positions=[drawn[at][0] for at in boxed],
        widths=width, showfliers=False, patch_artist=True, manage_ticks=False,
    )  # fmt: skip
    for box in made["boxes"]:
        box.set(facecolor=colour, alpha=0.45)
    for line in made["medians"]:
        line.set(color="k", linewidth=1.4)
    for place, points in drawn:
        spread = 0.3 * width * (2 * ((np.arange(len(points)) * 0.618) % 1) - 1)
        axes.plot(place + spread, points, ".", color=colour, markersize=5, markeredgewidth=0, alpha=0.9)


def _fullest_slice(marked: Tensor) -> int | None:
    """The slice with most marked voxels; None for a two-dimensional case."""
    return None if marked.dim() == 2 else int(marked.sum((0, 1)).argmax())


def _box(valid: Tensor, at: int | None) -> tuple[slice, slice]:
    """The part of the plane that is image, not padding."""
    flat = (valid if at is None else valid[..., at]).numpy()
    if not flat.any():
        return slice(None), slice(None)
    rows, columns = np.flatnonzero(flat.any(1)), np.flatnonzero(flat.any(0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _clearest_channel(exhibits: Exhibits) -> int:
    """The channel to show: the one in which foreground and background differ most, by the labels of the cases."""
    gains = []
    for channel in range(len(exhibits.maps["0/image"])):
        image, label = exhibits.maps["0/image"][channel], exhibits.maps["0/label"]
        inside = image[label > 0]
        gains.append(
            abs(float(inside.mean() - image[label == 0].mean())) / max(float(image.std()), 1e-9) if len(inside) else 0
        )
    return int(np.argmax(gains))


def _limits(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [0.02, 0.998])
    return float(low), float(high) if high > low else float(low) + 1e-6


def _show(axes: Any, plane: np.ndarray, **options: Any) -> None:
    axes.imshow(plane, origin="lower", **options)
    axes.set_xticks([])
    axes.set_yticks([])


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
