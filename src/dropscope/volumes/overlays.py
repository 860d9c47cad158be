"""Pictures of predicted volumes: contours on the image and uncertainty in colour, per case and over all cases.

Owns how a volume is shown: turned upright by its affine, in millimetres, in the radiological convention (the patient's
right on the left), on the slices that hold most uncertainty. Drawn from the files of a case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from dropscope.atomic import atomic_write
from dropscope.volumes.nifti import upright

_CONTOURS = ("#56ccf2", "#a3e635", "#ff7ac6", "#f2f2f2", "#b794f4", "#ff9f43", "#2dd4bf", "#f87171")
_HEAT = colormaps["inferno"]
_GROUND, _TEXT, _FAINT = "#111418", "#f2f2f2", "#9aa4b0"
TILES = 24  # cases on the overview
_TILE_COLUMNS = 6
_MARGIN = 0.35  # of the structure, around it
_LEAST_MM = 12.0


@dataclass(frozen=True, eq=False)
class Picture:
    """What is drawn of one case: volumes on the voxels of the image, and what is said of them."""

    image: np.ndarray  # [*shape], any scale
    prediction: np.ndarray  # [*shape], classes
    uncertainty: np.ndarray  # [*shape]
    label: np.ndarray | None
    affine: np.ndarray
    structures: Sequence[str]  # a line of text for each, such as "anterior 1.52 ml (1.40–1.61)"
    title: str
    measure: str  # "predictive entropy (nats)"
    most: float  # uncertainty that has the brightest colour


@dataclass(frozen=True, eq=False)
class Slice:
    """One plane of a case, its rows from bottom to top."""

    plane: str
    number: int
    layers: dict[str, np.ndarray]
    spacing: tuple[float, float]  # mm along columns and rows
    sides: tuple[str, str, str, str]  # what lies left, right, below and above


_PLANES = (
    ("axial", 2, (0, 1), ("R", "L", "P", "A")),
    ("coronal", 1, (0, 2), ("R", "L", "I", "S")),
    ("sagittal", 0, (1, 2), ("A", "P", "I", "S")),
)


def draw_case(path: Path, picture: Picture, mark: str = "") -> Path:
    """Three planes of a case: the image with contours above, with uncertainty in colour below. `mark` is kept in it."""
    slices = cut_slices(picture)
    widths = [part.layers["image"].shape[1] * part.spacing[0] for part in slices]
    heights = [part.layers["image"].shape[0] * part.spacing[1] for part in slices]
    tall = max(heights)
    width = min(11.0, max(4.6, 2 * 2.9 * sum(widths) / tall * 0.55 + 1.2))
    height = 2 * (width - 1.2) / sum(widths) * tall + 1.1 + 0.2 * len(picture.structures)
    figure = _figure(width, min(height, 14.0))
    grid = figure.add_gridspec(2, len(slices), width_ratios=widths)
    low, high = np.percentile(picture.image, (0.5, 99.5))
    gray = Normalize(low, max(high, low + 1e-6))
    below = []
    for column, part in enumerate(slices):
        for row in range(2):
            axes = figure.add_subplot(grid[row, column])
            _draw_slice(axes, part, gray, picture.most, heat=row == 1, letters=row == 0)
            if row == 0:
                axes.set_title(f"{part.plane} {part.number}", color=_FAINT, fontsize=8)
            else:
                below.append(axes)
    _color_bar(figure, below, picture.most, picture.measure)
    figure.suptitle(picture.title, color=_TEXT, fontsize=10, x=0.01, ha="left")
    _legend(figure, picture.structures, labelled=picture.label is not None)
    return _save(path, figure, mark)


def draw_overview(path: Path, pictures: Sequence[Picture], cases: int) -> Path:
    """One slice of every case with its uncertainty, in the order given; of `cases` in all."""
    columns = min(_TILE_COLUMNS, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    figure = _figure(1.75 * columns + 1.2, 2.0 * rows + 0.8)
    grid = figure.add_gridspec(rows, columns)
    every = []
    cut = [{part.plane: part for part in cut_slices(picture)} for picture in pictures]
    common = set.intersection(*(set(parts) for parts in cut))
    plane = max(sorted(common), key=lambda name: sum(_shown_area(parts[name]) for parts in cut), default=None)
    for number, (picture, parts) in enumerate(zip(pictures, cut, strict=True)):
        part = next(iter(parts.values())) if plane is None else parts[plane]
        axes = figure.add_subplot(grid[number // columns, number % columns])
        low, high = np.percentile(picture.image, (0.5, 99.5))
        _draw_slice(axes, part, Normalize(low, max(high, low + 1e-6)), picture.most, heat=True, letters=False)
        axes.set_title(picture.title, color=_TEXT, fontsize=6.5, pad=3)
        every.append(axes)
    _color_bar(figure, every, max(picture.most for picture in pictures), pictures[0].measure, aspect=22 * rows)
    shown = f"all {cases} cases" if len(pictures) == cases else f"the {len(pictures)} most uncertain of {cases} cases"
    figure.suptitle(f"{shown}, most uncertain first", color=_TEXT, fontsize=10, x=0.01, ha="left")
    return _save(path, figure, "")


def drawn_mark(path: Path) -> str | None:
    """The mark that `draw_case` kept in a picture; None where there is no such picture."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            return str(picture.info.get("Description", ""))
    except (OSError, ValueError, SyntaxError):
        return None


def cut_slices(picture: Picture) -> list[Slice]:
    """The planes of a volume, each through most uncertainty, cut to the structures; one for a single slice."""
    layers = {"image": picture.image, "prediction": picture.prediction, "uncertainty": picture.uncertainty}
    if picture.label is not None:
        layers["label"] = picture.label
    turned = {name: upright(values, picture.affine) for name, values in layers.items()}
    spacing = turned["image"][1]
    volumes = {name: values for name, (values, _) in turned.items()}
    inside = volumes["prediction"] > 0
    if "label" in volumes:
        inside = inside | (volumes["label"] > 0)
    weight = volumes["uncertainty"] * inside if inside.any() else volumes["uncertainty"]
    weight = weight if weight.any() else np.ones_like(weight)
    box = _box(inside, spacing)
    found = []
    for plane, across, (x, y), sides in _PLANES:
        if min(inside.shape[x], inside.shape[y]) == 1:
            continue  # a single slice is shown in its own plane
        number = int(weight.sum(axis=(x, y)).argmax())
        parts = {name: np.take(values, number, across)[box[x], box[y]] for name, values in volumes.items()}
        # Columns run to the patient's left, and in sagittal planes to the back: the radiological convention.
        shown = {name: part[::-1].T for name, part in parts.items()}
        found.append(Slice(plane, number, shown, (spacing[x], spacing[y]), sides))
    return found


def _box(inside: np.ndarray, spacing: Sequence[float]) -> list[slice]:
    """The part of the volume that is shown: the structures and some margin; everything where there are none."""
    if not inside.any():
        return [slice(0, n) for n in inside.shape]
    box = []
    for axis, n in enumerate(inside.shape):
        where = np.flatnonzero(inside.any(axis=tuple(other for other in range(inside.ndim) if other != axis)))
        first, last = int(where[0]), int(where[-1]) + 1
        margin = math.ceil(max(_MARGIN * (last - first), _LEAST_MM / spacing[axis]))
        box.append(slice(max(0, first - margin), min(n, last + margin)))
    return box


def _shown_area(part: Slice) -> float:
    return float((part.layers["prediction"] > 0).sum()) * part.spacing[0] * part.spacing[1]


def _draw_slice(axes: Any, part: Slice, gray: Normalize, most: float, *, heat: bool, letters: bool) -> None:
    layers = part.layers
    rows, columns = layers["image"].shape
    aspect = part.spacing[1] / part.spacing[0]
    axes.imshow(layers["image"], cmap="gray", norm=gray, origin="lower", aspect=aspect, interpolation="nearest")
    if heat:
        share = np.clip(layers["uncertainty"] / most, 0, 1)
        colors = _HEAT(0.25 + 0.75 * share)
        colors[..., 3] = np.clip(share / 0.3, 0, 1) * 0.85
        axes.imshow(colors, origin="lower", aspect=aspect, interpolation="nearest")
    for name, style, width in (("label", "--", 0.9), ("prediction", "-", 0.7 if heat else 1.3)):
        if name not in layers or (heat and name == "label"):
            continue
        for c in range(1, int(layers[name].max()) + 1):
            member = np.pad(layers[name] == c, 1).astype(float)
            if member.any() and rows > 1 and columns > 1:
                x, y = np.arange(-1, columns + 1), np.arange(-1, rows + 1)
                color = _CONTOURS[(c - 1) % len(_CONTOURS)]
                axes.contour(x, y, member, levels=[0.5], colors=[color], linewidths=width, linestyles=style)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.axis("off")
    if letters:
        beside = [(0.02, 0.5, "left", "center"), (0.98, 0.5, "right", "center")]
        places = [*beside, (0.5, 0.02, "center", "bottom"), (0.5, 0.98, "center", "top")]
        for letter, (x_at, y_at, ha, va) in zip(part.sides, places, strict=True):
            shown = axes.text(x_at, y_at, letter, transform=axes.transAxes, ha=ha, va=va, color=_TEXT, fontsize=7)
            shown.set_path_effects([withStroke(linewidth=1.6, foreground=_GROUND)])


def _color_bar(figure: Figure, axes: Sequence[Any], most: float, measure: str, aspect: int = 22) -> None:
    shown = ListedColormap(_HEAT(np.linspace(0.25, 1, 256)))
    scale = ScalarMappable(Normalize(0, most), shown)
    bar = figure.colorbar(scale, ax=list(axes), fraction=0.05, pad=0.02, aspect=aspect)
    bar.set_label(measure, color=_TEXT, fontsize=8)
    bar.ax.tick_params(colors=_TEXT, labelsize=7)
    bar.outline.set_visible(False)


def _legend(figure: Figure, structures: Sequence[str], *, labelled: bool) -> None:
    lines = [
        Line2D([], [], color=_CONTOURS[i % len(_CONTOURS)], label=text, linewidth=1.8)
        for i, text in enumerate(structures)
    ]
    if labelled:
        lines.append(Line2D([], [], color=_TEXT, linestyle="--", linewidth=1, label="dashed: the label"))
    figure.legend(handles=lines, loc="outside lower left", frameon=False, labelcolor=_TEXT, fontsize=8, ncols=1)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=_GROUND)
    FigureCanvasAgg(figure)
    return figure


def _save(path: Path, figure: Figure, mark: str) -> Path:
    metadata = {"Description": mark, "Software": None}
    return atomic_write(path, lambda part: figure.savefig(part, dpi=110, facecolor=_GROUND, metadata=metadata))
