"""Preprocessing of a mammogram: the steps of the paper, one function each.

Owns the steps and their order (`steps`). See `mammograms` for the files, `cache` for the results that are kept, and
`preprocessing_figures` for pictures of the steps. Images are grey, uint8 [height, width], until they are standardised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dropscope.errors import BadInput, MissingExtra, Phrase

Grey = NDArray[np.uint8]
Mask = NDArray[np.bool_]

_DEPTHS = (8, 10, 12, 14, 16)  # bits that scanners use


@dataclass(frozen=True)
class Settings:
    """The constants of the pipeline; the defaults are the paper's, except `kernel`, which it does not give."""

    border: int = 30  # pixels cut off on every side
    kernel: int = 3  # side of the square that erosions and dilations use
    erosions: int = 3
    dilations: int = 5
    bright: int = 245  # a marker's pixels are brighter than this …
    marker_share: float = 0.9  # … in more than this share of its component
    whole_breast: bool = True  # find the breast with its faint edge and nothing beside it; False is the paper's text
    projection: float = 0.03  # of the largest row or column sum
    margin: float = 0.08  # of the box's side, on every side
    clip: float = 2.0
    tiles: int = 8
    side: int = 200

    @property
    def smallest(self) -> int:
        """The least height and width an image may have: the border, and a pixel for each tile."""
        return 2 * self.border + self.tiles

    def check(self) -> None:
        if self.side < 8:
            raise BadInput("side must be at least 8 pixels", "side", self.side, "write side=200")


def opencv() -> Any:
    """OpenCV, which comes with an extra and is imported at its first use."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra("the mammography task", "opencv-python-headless", "medical") from error
    return cv2


class Box(NamedTuple):
    """Rows top to bottom and columns left to right, ends excluded."""

    top: int
    bottom: int
    left: int
    right: int

    def cut(self, image: NDArray[Any]) -> NDArray[Any]:
        return image[self.top : self.bottom, self.left : self.right]


@dataclass(frozen=True, eq=False)
class Steps:
    """Every intermediate result of one image, in order."""

    grey: Grey
    inside: Grey  # without the border
    otsu: Mask
    opened: Mask
    unmarked: Mask  # without the components that the paper's rule takes for markers
    kept: Mask  # the breast with its faint edge; where that is not asked for, the same as `unmarked`
    dropped: Mask
    box: Box  # of what is kept, from its projections
    widened: Box
    cropped: Grey  # what was dropped is blackened, the rest cut to the widened box
    equalised: Grey
    standardised: NDArray[np.float32]
    result: NDArray[np.float32]  # [side, side]


def steps(image: NDArray[Any], settings: Settings | None = None, name: str = "image") -> Steps:
    """All steps of one image as it was read: [height, width] or [height, width, channels]. Errors name it `name`."""
    s = settings or Settings()
    plain = grey(image)
    inside = without_border(plain, s.border, name)
    otsu = otsu_mask(inside)
    opened = opened_mask(otsu, s.erosions, s.dilations, s.kernel)
    unmarked = without_markers(inside, opened, s.bright, s.marker_share)
    kept, dropped = unmarked, opened & ~unmarked
    if s.whole_breast:
        visible = opened_mask(inside > faint_threshold(inside), s.erosions, s.dilations, s.kernel)
        kept = breast(unmarked, visible)
        dropped = (opened | visible) & ~kept
    box = projected_box(kept, s.projection, name)
    wide = widened(box, s.margin, inside.shape[:2])
    cropped = wide.cut(blackened(inside, dropped))
    even = equalised(cropped, s.clip, s.tiles)
    standard = standardised(even)
    result = resized(standard, s.side)
    return Steps(plain, inside, otsu, opened, unmarked, kept, dropped, box, wide, cropped, even, standard, result)


def grey(image: NDArray[Any]) -> Grey:
    """One channel of 8 bits: colour by the luminance of ITU-R 601, deeper values by the fewest usual bits they need.

    >>> grey(np.array([[0, 2048, 4095]], dtype=np.uint16)).tolist()
    [[0, 128, 255]]
    """
    if image.ndim == 3:
        image = _luminance(image)
    if image.dtype == np.uint8:
        return image
    if image.dtype == np.bool_:
        return image.astype(np.uint8) * np.uint8(255)
    bits = next((depth for depth in _DEPTHS if image.max(initial=0) < 1 << depth), 16)
    scaled = image.astype(np.float64) * (255 / ((1 << bits) - 1))
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def _luminance(image: NDArray[Any]) -> NDArray[Any]:
    channels = image.shape[2]
    if channels < 3:  # grey, perhaps with a transparency
        return image[:, :, 0]
    values = image[:, :, :3].astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    return np.rint(values).astype(image.dtype)


def without_border(image: Grey, border: int, name: str = "image") -> Grey:
    """Cuts `border` pixels off every side: film edges and scanner frames lie there."""
    if min(image.shape) <= 2 * border:
        what = f"{name} must be larger than the {border} pixels that are cut off on every side"
        got = Phrase(f"{image.shape[1]}x{image.shape[0]} pixels")
        raise BadInput(what, name, got, "leave it out, or use a larger copy")
    return image[border : image.shape[0] - border, border : image.shape[1] - border]


def otsu_threshold(values: NDArray[np.uint8]) -> int:
    """Otsu's threshold: the grey value that best divides these into a dark and a bright class; it is the last dark one.

    >>> otsu_threshold(np.array([10, 12, 11, 200, 205], dtype=np.uint8))
    12
    """
    if values.min() == values.max():
        return int(values.min())  # nothing to divide: all of it is dark
    threshold, _ = opencv().threshold(values.reshape(-1, 1), 0, 1, opencv().THRESH_BINARY | opencv().THRESH_OTSU)
    return int(threshold)


def otsu_mask(image: Grey) -> Mask:
    """What is brighter than Otsu's threshold: the denser part of the breast, the markers, a scanner's frame."""
    return image > otsu_threshold(image)


def faint_threshold(image: Grey) -> int:
    """Otsu's threshold once more, among what the first one left dark: it divides fat and skin from the film."""
    return otsu_threshold(image[image <= otsu_threshold(image)])


def opened_mask(mask: Mask, erosions: int, dilations: int, kernel: int) -> Mask:
    """Erosions cut thin bridges and specks off, dilations give the breast its edge back and a little more."""
    square = np.ones((kernel, kernel), np.uint8)
    smaller = opencv().erode(mask.astype(np.uint8), square, iterations=erosions)
    return opencv().dilate(smaller, square, iterations=dilations).astype(np.bool_)


def without_markers(image: Grey, mask: Mask, bright: int, share: float) -> Mask:
    """The mask without those connected components of which more than `share` is brighter than `bright`."""
    labels, sizes = _components(mask)
    shining = np.bincount(labels.ravel(), weights=(image > bright).ravel(), minlength=len(sizes))
    marker = shining > share * sizes
    marker[0] = True  # the background
    return ~marker[labels]


def breast(unmarked: Mask, visible: Mask) -> Mask:
    """The component of `visible` that holds most of the largest component of `unmarked`: the breast to its skin line.

    The paper has no such step. Its rule for markers misses those with dark letters or a grey frame, and the box then
    reaches out to them; and Otsu's threshold cuts off skin, fat and at times the tissue towards the armpit.
    """
    labels, sizes = _components(unmarked)
    if len(sizes) == 1:
        return unmarked  # nothing there: the next step says so
    core = labels == 1 + int(np.argmax(sizes[1:]))
    regions, counted = _components(visible | core)
    inside = np.bincount(regions[core], minlength=len(counted))
    return regions == int(np.argmax(inside))


def _components(mask: Mask) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The number of each pixel's component, 0 for the background, and the sizes."""
    count, labels = opencv().connectedComponents(mask.astype(np.uint8), connectivity=8)
    return labels, np.bincount(labels.ravel(), minlength=count)


def projected_box(mask: Mask, threshold: float, name: str = "image") -> Box:
    """The rows and columns whose sums exceed `threshold` of the largest sum, from the first to the last."""
    if not mask.any():
        what = f"{name} must show a breast that is brighter than its background"
        remedy = "leave the image out, or check that it is not blank or inverted"
        raise BadInput(what, name, Phrase("no such region"), remedy)
    (top, bottom), (left, right) = (_extent(mask.sum(axis), threshold) for axis in (1, 0))
    return Box(top, bottom, left, right)


def _extent(sums: NDArray[Any], threshold: float) -> tuple[int, int]:
    above = np.flatnonzero(sums > threshold * sums.max())
    return int(above[0]), int(above[-1]) + 1


def widened(box: Box, margin: float, shape: tuple[int, int]) -> Box:
    """The box with `margin` of its height above and below and of its width left and right, inside the image.

    >>> widened(Box(10, 110, 0, 50), 0.08, (115, 200))
    Box(top=2, bottom=115, left=0, right=54)
    """
    rows, columns = round(margin * (box.bottom - box.top)), round(margin * (box.right - box.left))
    return Box(
        max(0, box.top - rows),
        min(shape[0], box.bottom + rows),
        max(0, box.left - columns),
        min(shape[1], box.right + columns),
    )


def blackened(image: Grey, where: Mask) -> Grey:
    """The image with these pixels at 0: a marker that lies inside the box must not be seen."""
    return np.where(where, np.uint8(0), image)


def equalised(image: Grey, clip: float, tiles: int) -> Grey:
    """Contrast-limited adaptive histogram equalisation over `tiles` × `tiles` regions."""
    return opencv().createCLAHE(clipLimit=clip, tileGridSize=(tiles, tiles)).apply(np.ascontiguousarray(image))


def standardised(image: Grey) -> NDArray[np.float32]:
    """Mean 0 and standard deviation 1 over the image; a constant image becomes 0."""
    values = image.astype(np.float64)
    spread = values.std()
    return ((values - values.mean()) / (spread if spread > 0 else 1.0)).astype(np.float32)


def resized(image: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """The image as `side` × `side` pixels, each the mean of the area it stands for."""
    smaller = max(image.shape) >= side
    kind = opencv().INTER_AREA if smaller else opencv().INTER_LINEAR
    return opencv().resize(image, (side, side), interpolation=kind)
