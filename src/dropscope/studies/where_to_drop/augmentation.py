"""Augmentation of training images as in the paper: one function per change, and one that draws them all.

Owns the changes and their order. A draw is a function of (seed, epoch, image), so neither the order of the images nor
their batches move it. `mammography` decides which images are varied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dropscope.studies.where_to_drop.preprocessing import opencv

Image = NDArray[np.float32]  # [height, width]; the changes of brightness take it to lie in [0, 1]


@dataclass(frozen=True)
class Amounts:
    """The paper's constants. It gives the blur's kernel as 5 in one place and 3 in another; sigma, as torchvision's."""

    rotation: float = 15.0  # degrees, either way
    least_area: float = 0.9  # of a random crop
    most_stretched: float = 4 / 3  # aspect ratio of a random crop, either way
    flip: float = 0.5
    jitter: float = 0.1  # of brightness and of contrast, either way
    blur: float = 0.3
    blur_kernel: int = 5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    sharpen: float = 0.3
    sharpness: float = 1.5


def augment(image: Image, draw: np.random.Generator, amounts: Amounts | None = None) -> Image:
    """The image, varied. Its own least and greatest value stand for black and white, whatever scale it is on.

    >>> image = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    >>> once, again = (augment(image, np.random.default_rng([0, 3, 17])) for _ in range(2))
    >>> bool((once == again).all()), bool((once == image).all()), once.shape
    (True, False, (8, 8))
    """
    a = amounts or Amounts()
    black, white = float(image.min()), float(image.max())
    if white == black:
        return image.copy()
    varied = (image - np.float32(black)) / np.float32(white - black)
    # Everything is drawn, used or not, so that one change does not move the draws of the next.
    angle, area = draw.uniform(-a.rotation, a.rotation), draw.uniform(a.least_area, 1.0)
    stretch, across, down, mirrored = draw.uniform(-1, 1), draw.random(), draw.random(), draw.random() < a.flip
    bright, contrast = draw.uniform(1 - a.jitter, 1 + a.jitter, 2)
    blurs, sigma, sharpens = draw.random() < a.blur, draw.uniform(*a.blur_sigma), draw.random() < a.sharpen
    varied = rotate(varied, angle)
    varied = crop(varied, area, stretch * min(math.log(a.most_stretched), -math.log(area)), across, down)
    varied = flip(varied) if mirrored else varied
    varied = change_contrast(brighten(varied, bright), contrast)
    varied = blur(varied, a.blur_kernel, sigma) if blurs else varied
    varied = sharpen(varied, a.sharpness) if sharpens else varied
    return (varied * np.float32(white - black) + np.float32(black)).astype(np.float32)


def rotate(image: Image, degrees: float) -> Image:
    """Turned counterclockwise about the centre; black comes in at the corners."""
    height, width = image.shape
    turn = opencv().getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    return opencv().warpAffine(image, turn, (width, height), flags=opencv().INTER_LINEAR, borderValue=0.0)


def crop(image: Image, area: float, log_ratio: float, across: float, down: float) -> Image:
    """A part of `area` of the image, width to height as exp(log_ratio), stretched to the whole; `across` and `down`, in
    [0, 1], say where it lies. |log_ratio| is at most −log(area), or the part would not fit."""
    height, width = image.shape
    columns = min(width, max(1, round(width * math.sqrt(area * math.exp(log_ratio)))))
    rows = min(height, max(1, round(height * math.sqrt(area / math.exp(log_ratio)))))
    left, top = round(across * (width - columns)), round(down * (height - rows))
    part = image[top : top + rows, left : left + columns]
    return opencv().resize(part, (width, height), interpolation=opencv().INTER_LINEAR)


def flip(image: Image) -> Image:
    """Left and right exchanged."""
    return np.ascontiguousarray(image[:, ::-1])


def brighten(image: Image, factor: float) -> Image:
    """Every value times the factor, kept in [0, 1]."""
    return np.clip(image * np.float32(factor), 0, 1)


def change_contrast(image: Image, factor: float) -> Image:
    """Every difference from the mean times the factor, kept in [0, 1]."""
    mean = image.mean(dtype=np.float64).astype(np.float32)
    return np.clip(mean + (image - mean) * np.float32(factor), 0, 1)


def blur(image: Image, kernel: int, sigma: float) -> Image:
    """Convolved with a Gaussian of `kernel` × `kernel` pixels; the border is mirrored."""
    return opencv().GaussianBlur(image, (kernel, kernel), sigma, borderType=opencv().BORDER_REFLECT_101)


def sharpen(image: Image, factor: float) -> Image:
    """Differences from the smoothed image (3×3, centre weight 5 of 13) times the factor; the border stays as it is."""
    weights = np.ones((3, 3), np.float32)
    weights[1, 1] = 5
    smooth = image.copy()
    smooth[1:-1, 1:-1] = opencv().filter2D(image, -1, weights / 13)[1:-1, 1:-1]
    return np.clip(smooth + (image - smooth) * np.float32(factor), 0, 1)
