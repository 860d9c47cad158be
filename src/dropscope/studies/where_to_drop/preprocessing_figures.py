"""Figures of preprocessing: every step for one mammogram (the paper's figure 6), and a contact sheet of many.

Owns the drawings; the steps come from `preprocessing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from dropscope.report import evidence, new_figure, write_figure
from dropscope.studies.where_to_drop.mammograms import Mammogram, read_bytes, read_image
from dropscope.studies.where_to_drop.preprocessing import Box, Mask, Settings, Steps, steps

_BREAST, _DROPPED, _BOX, _WIDE = "tab:green", "tab:red", "tab:cyan", "gold"


def write_preprocessing(
    folder: Path, images: Sequence[Mammogram], settings: Settings | None = None, many: int = 24
) -> list[Path]:
    """`figures/preprocessing-sheet` of `many` mammograms, evenly chosen; `figures/figure-6-preprocessing` of the first
    of them from which something was dropped."""
    chosen = [images[i] for i in np.unique(np.linspace(0, len(images) - 1, many).round().astype(int))]
    followed = [
        (one.path.stem, steps(read_image(read_bytes(one.path), one.path), settings, str(one.path))) for one in chosen
    ]
    name, telling = next((pair for pair in followed if pair[1].dropped.any()), followed[0])
    one, shown = (f"{evidence(mammograms=count)} of {len(images):,}; no network" for count in (1, len(followed)))
    return [
        *write_figure(folder, "figure-6-preprocessing", steps_figure(telling, settings, name), one),
        *write_figure(folder, "preprocessing-sheet", contact_sheet(followed), shown),
    ]


def steps_figure(traced: Steps, settings: Settings | None = None, title: str = "") -> Figure:
    """Ten panels in the order of the work, the last two steps, z-score and resizing, in one."""
    s = settings or Settings()
    figure = new_figure(13, 6.2)
    panels = figure.subplots(2, 5).ravel()
    figure.suptitle(f"Preprocessing, step by step: {title}" if title else "Preprocessing, step by step")
    _image(panels[0], traced.grey, f"a) grey, {traced.grey.shape[1]}×{traced.grey.shape[0]}")
    _image(panels[1], traced.inside, f"b) {s.border} pixels of border cut")
    _image(panels[2], traced.otsu, "c) brighter than Otsu's threshold")
    _image(panels[3], traced.opened, f"d) {s.erosions} erosions, {s.dilations} dilations")
    _outlines(panels[4], traced)
    panels[4].set_title("e) kept (green), dropped (red)", fontsize=9)
    _projections(panels[5], traced, s)
    _image(panels[6], traced.inside, f"g) box (cyan), {s.margin:.0%} wider (yellow)")
    _box(panels[6], traced.box, _BOX)
    _box(panels[6], traced.widened, _WIDE)
    _image(panels[7], traced.cropped, "h) cut to the box")
    _image(panels[8], traced.equalised, f"i) CLAHE, clip {s.clip:g}, {s.tiles}×{s.tiles} tiles")
    _image(panels[9], traced.result, f"j) z-score, resized to {s.side}×{s.side}")
    panels[9].set_xlabel(f"values {traced.result.min():.1f} to {traced.result.max():.1f}", fontsize=8)
    return figure


def contact_sheet(many: Sequence[tuple[str, Steps]], columns: int = 8) -> Figure:
    """Each mammogram brightened in the dark, with what was kept and dropped and its box; its result below it."""
    rows = max(1, -(-len(many) // columns))
    figure = new_figure(1.6 * columns, 3.4 * rows)
    axes = figure.subplots(2 * rows, columns, squeeze=False)
    for panel in axes.ravel():
        panel.axis("off")
    for index, (name, traced) in enumerate(many):
        row, column = divmod(index, columns)
        _outlines(axes[2 * row, column], traced)
        _box(axes[2 * row, column], traced.widened, _WIDE)
        axes[2 * row, column].set_title(name, fontsize=7)
        _image(axes[2 * row + 1, column], traced.result, "")
    return figure


def _image(panel: Axes, values: NDArray[np.generic], title: str) -> None:
    panel.imshow(values, cmap="gray", interpolation="antialiased")
    panel.set_title(title, fontsize=9)
    panel.set_xticks([])
    panel.set_yticks([])


def _outlines(panel: Axes, traced: Steps) -> None:
    _image(panel, (traced.inside / 255.0) ** 0.45, "")  # the faint edge of the breast is hardly seen otherwise
    for mask, colour in ((traced.kept, _BREAST), (traced.dropped, _DROPPED)):
        _outline(panel, mask, colour)


def _outline(panel: Axes, mask: Mask, colour: str) -> None:
    if mask.any() and not mask.all():
        panel.contour(mask, levels=[0.5], colors=[colour], linewidths=0.8)


def _box(panel: Axes, box: Box, colour: str) -> None:
    corner, width, height = (box.left - 0.5, box.top - 0.5), box.right - box.left, box.bottom - box.top
    panel.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=1.2))


def _projections(panel: Axes, traced: Steps, s: Settings) -> None:
    for axis, name in ((1, "rows"), (0, "columns")):
        sums = traced.kept.sum(axis)
        panel.plot(sums / max(1, int(sums.max())), label=name, linewidth=1)
    panel.axhline(s.projection, color="black", linestyle=":", linewidth=1, label=f"{s.projection:.0%} of the largest")
    panel.set_title("f) projections of what is kept", fontsize=9)
    panel.set_xlabel("row or column (pixels)", fontsize=8)
    panel.set_ylabel("share of the largest sum", fontsize=8)
    panel.tick_params(labelsize=7)
    panel.legend(fontsize=7)
