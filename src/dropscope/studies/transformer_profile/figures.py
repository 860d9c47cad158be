"""Figures 1 to 3 (accuracy ± std of the models that lose most, by group) and the map of where noise disturbs what.

Owns the drawing. Every number drawn is in a table.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dropscope.report import new_figure
from dropscope.studies.transformer_profile import published
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.rows import OVERALL, PLAIN, Evaluations, short
from dropscope.studies.transformer_profile.tables import most_degraded

# Okabe and Ito's colours, told apart by everybody; grey for the pass without noise.
COLOURS = ("0.55", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")


def bars(e: Evaluations, levels: pd.DataFrame, group: str) -> Figure:
    """Run-level accuracy ± std over passes of the five most degraded models, a bar per configuration."""
    chosen = most_degraded(e, levels)
    configurations = [PLAIN, *e.stochastic]
    figure = new_figure(max(6.4, 1.9 * len(chosen) + 1.5), 4.4)
    axes = figure.add_subplot()
    width = 0.8 / len(configurations)
    for place, configuration in enumerate(configurations):
        mean = pick(levels, configuration, group).reindex(chosen).to_numpy(float)
        std = pick(levels, configuration, group, "std").reindex(chosen).fillna(0).to_numpy(float)
        x = np.arange(len(chosen)) + (place - (len(configurations) - 1) / 2) * width
        colour = COLOURS[place % len(COLOURS)]
        axes.bar(x, mean, width * 0.92, yerr=std, capsize=2, color=colour, label=_rates(e, configuration),
                 error_kw={"linewidth": 1})  # fmt: skip
        if group == OVERALL and configuration in (PLAIN, e.mc):
            theirs = [_published(short(model), configuration) for model in chosen]
            if not np.isnan(theirs).all():
                axes.plot(x, theirs, "D", markersize=5, markerfacecolor="white", markeredgecolor="black",
                          label="published" if configuration == PLAIN else None)  # fmt: skip
    chance = float(levels[levels["group"] == group].chance.max())
    axes.axhline(chance, color="black", linewidth=1, linestyle=":", label=f"chance ({chance:.2f})")
    axes.set_xticks(range(len(chosen)), [_broken(e.short_names[model]) for model in chosen], fontsize=9)
    axes.set_ylim(0, 1)
    axes.set_ylabel(f"{group} accuracy, mean ± std over passes")
    most = f": the {len(chosen)} models that lose most at {e.mc}" if len(e.names) > 1 else ""
    axes.set_title(f"{group.capitalize()} accuracy{most}", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    entries = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda one: isinstance(one[0], Line2D))
    figure.legend(*zip(*entries, strict=True), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def sensitivity_map(e: Evaluations, model: str) -> Figure:
    """Change of accuracy, in points, when one component of one layer alone gets noise; a panel per group."""
    assert e.sensitivity is not None
    table = e.sensitivity[e.sensitivity.model == model]
    groups = [group for group in e.all_groups if group in set(table["group"])]
    layers = sorted(table.layer.unique(), key=_order)
    kinds = list(dict.fromkeys(zip(table.component, table.rate, strict=True)))
    change = 100 * (table.accuracy - table.deterministic_accuracy)
    limit = max(1.0, float(change.abs().max()))
    figure = new_figure(max(5.5, 0.52 * len(layers) + 2.6), 0.5 + len(groups) * (0.75 + 0.34 * len(kinds)))
    panels = figure.subplots(len(groups), 1, squeeze=False, sharex=True)[:, 0]
    for axes, group in zip(panels, groups, strict=True):
        cells = np.full((len(kinds), len(layers)), np.nan)
        for row in table[table["group"] == group].itertuples(index=False):
            at = kinds.index((row.component, row.rate)), layers.index(row.layer)
            cells[at] = 100 * (row.accuracy - row.deterministic_accuracy)
        image = axes.imshow(cells, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
        for (y, x), value in np.ndenumerate(cells):
            if not np.isnan(value):
                colour = "white" if abs(value) > 0.6 * limit else "black"
                words = f"{value:+.1f}".replace("-0.0", "0.0")
                axes.text(x, y, words, ha="center", va="center", fontsize=7, color=colour)
        axes.set_yticks(range(len(kinds)), [f"{component} {rate:g}" for component, rate in kinds], fontsize=8)
        axes.set_xticks(range(len(layers)), [str(layer) for layer in layers], fontsize=8)
        axes.set_title(group, fontsize=9, loc="left")
    panels[-1].set_xlabel("layer")
    figure.suptitle(f"{e.short_names[model]}: accuracy with noise in one place alone", fontsize=11)
    figure.colorbar(image, ax=list(panels), label="points against one plain pass", fraction=0.05, pad=0.02)
    return figure


def _rates(e: Evaluations, configuration: str) -> str:
    settings = e.configurations[e.configurations.configuration == configuration]
    name = configuration.replace("_", " ")
    return f"{name} {settings.attention_rate.iloc[0]:g}/{settings.ffn_rate.iloc[0]:g}" if len(settings) else name


def _published(name: str, configuration: str) -> float:
    row = published.TABLE_5.get(name)
    if row is not None:
        return row.deterministic if configuration == PLAIN else row.mc
    other = published.TABLE_4.get(name)
    return other.overall if other is not None and configuration != PLAIN else float("nan")


def _broken(name: str, width: int = 16) -> str:
    """A long name on two lines, at the hyphen nearest its middle."""
    cuts = [at for at, letter in enumerate(name) if letter in "-_/"]
    if len(name) <= width or not cuts:
        return name
    at = min(cuts, key=lambda cut: abs(cut - len(name) / 2)) + 1
    return name[:at] + "\n" + name[at:]


def _order(layer: object) -> tuple[int, float, str]:
    """Layers by number where they are numbers, else by name."""
    text = str(layer)
    return (0, float(text), "") if text.replace(".", "", 1).isdigit() else (1, 0.0, text)
