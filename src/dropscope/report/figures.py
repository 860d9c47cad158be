"""What figures of studies share: evidence in words, ticks that can be read, one legend; and figures of rankings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from dropscope.errors import BadInput
from dropscope.report.writing import new_figure
from dropscope.runs import draw_accuracy_curves

_ROUND = (1.0, 2.0, 5.0)  # ticks within a decade


def evidence(**counts: int | None) -> str:
    """What a figure is drawn from, for its corner: counts by their plural, the first as n; unknown ones are left out.

    >>> evidence(test_images=10_000, passes=100, networks=1)
    'n = 10,000 test images, 100 passes, 1 network'
    """
    texts = [f"{count:,} {_counted(name, count)}" for name, count in counts.items() if count is not None]
    return f"n = {', '.join(texts)}" if texts else ""


def _counted(name: str, count: int) -> str:
    plural = name.replace("_", " ")
    if count != 1:
        return plural
    return plural.removesuffix("es") if plural.endswith("sses") else plural.removesuffix("s")


def set_log_scale(axes: Axes, low: float, high: float) -> None:
    """A logarithmic y axis from `low` to `high` that shows at least two numbers, however little it spans."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    decades = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
    axes.yaxis.set_minor_formatter(NullFormatter())
    if decades >= 2:
        axes.yaxis.set_major_locator(LogLocator(numticks=9))
        return
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    first = math.floor(math.log10(low))
    ticks = [n * 10.0 ** (first + k) for k in range(3) for n in _ROUND if low <= n * 10.0 ** (first + k) <= high]
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=_ROUND) if len(ticks) >= 2 else MaxNLocator(4))


def share_legend(figure: Figure, instead: Mapping[str, Artist] | None = None, *, columns: int = 4) -> None:
    """One legend below all panels, each entry once; a line that has several colours is black in it.

    Args:
        figure: With panels whose artists have labels.
        instead: What stands for the entries of these labels, at the end.
        columns: Of the legend.
    """
    entries: dict[str, Artist] = {}
    instead = instead or {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known = entries.setdefault(label, handle)
            if isinstance(known, Line2D) and isinstance(handle, Line2D) and known.get_color() != handle.get_color():
                entries[label] = Line2D([], [], color="black", linestyle=known.get_linestyle())
    shown = {label: handle for label, handle in entries.items() if label not in instead}
    shown |= {label: handle for label, handle in instead.items() if label in entries}
    figure.legend(
        list(shown.values()), list(shown), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def accuracy_curves(examples: Mapping[str, pd.DataFrame], path: str | Path, title: str) -> Path:
    """Accuracy on the most certain share of examples, one line per ranking.

    A dotted line is the accuracy on all examples, which an uncertainty that knows nothing has at every share; there are
    several where rankings have different outcomes.

    Args:
        examples: Name of each ranking → table with the columns `uncertainty` and `correct`.
        path: The file to write; its suffix says the format.
        title: Title of the figure.

    Returns:
        The path.

    Raises:
        BadInput: Where there is no ranking.
    """
    if not examples:
        raise BadInput("examples must hold at least one ranking", "examples", {}, "give a table per ranking")
    figure = new_figure(7.0, 4.4)
    axes = figure.add_subplot()
    draw_accuracy_curves(axes, examples)
    axes.set_xlim(0, 100)
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    target = Path(path)
    figure.savefig(target, dpi=130)
    return target
