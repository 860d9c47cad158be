"""Pixels of image files: headers that are checked before memory is taken, and values as tensors.

Values are read as torchvision's ImageFolder reads them: as stored (an EXIF rotation is not applied), palettes as
colours, alpha left out, the first frame of several. 8 bits and 16 bits (grey) are scaled to [0, 1].
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dropscope.checks import finite_number
from dropscope.errors import BadInput, Phrase, first_line, nearest

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # no decoder that runs other programs
_COLOUR = ("RGB", "RGBA", "RGBX", "RGBa", "P", "PA", "CMYK", "YCbCr")
_MOST_PIXELS = 178_956_970  # Pillow's own limit for a decompression bomb
_SIZE = re.compile(r"([1-9]\d*)(?:x([1-9]\d*))?", re.ASCII)
_ORIENTATION = 0x0112  # the EXIF tag
_KNOWN = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


# --- headers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """What is known of an image before its pixels are read."""

    grey: bool
    width: int
    height: int
    turned: bool  # carries an EXIF rotation


def read_header(path: Path, where: str, name: str) -> Header:
    """The header of an image; `where` is what errors call its place, `name` what they call the image.

    Raises:
        BadInput: If it is no image, holds more pixels than fit, or has values without a known range.
    """
    try:
        with _open(path) as image:
            mode, (width, height) = image.mode, image.size
            deep = _is_deep(image)
            # Asked for more, Pillow would read the pixels of a PNG.
            turned = "exif" in image.info and image.getexif().get(_ORIENTATION, 1) not in (0, 1)
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(where, name) from error
    except Exception as error:  # Pillow raises errors of many kinds for bytes that are no image, or a bomb
        got = Phrase(f"{name!r}: {first_line(error).replace(str(path), name)}")
        remedy = "check its permissions" if isinstance(error, PermissionError) else "convert it to PNG or JPEG"
        raise BadInput(f"{where} must name an image", where, got, remedy) from error
    if width * height > _MOST_PIXELS:
        raise _too_large(where, name)
    grey = deep or mode in ("1", "L", "LA", "La")
    if not grey and mode not in _COLOUR:
        remedy = "convert it to 8 or 16 bits per grey value, or to RGB"
        got = Phrase(f"{name!r} in mode {mode}")
        raise BadInput(f"{where} must name an image whose values have a known range", where, got, remedy)
    return Header(grey, width, height, turned)


def _too_large(where: str, name: str) -> BadInput:
    what = f"{where} must name an image of at most {_MOST_PIXELS:,} pixels"
    return BadInput(what, where, Phrase(f"more in {name!r}"), "cut it into tiles, or make it smaller")


def _open(path: Path) -> Image.Image:
    with warnings.catch_warnings():  # Pillow warns of bombs, and of metadata that it cannot read
        warnings.simplefilter("ignore")
        return Image.open(path, formats=_FORMATS)


def _is_deep(image: Image.Image) -> bool:
    """Whether the image is grey with 16 bits; Pillow 10 calls such a PNG "I"."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reading:
    """How an image file becomes a tensor `[C, H, W]`.

    Attributes:
        colour: Whether it has three channels, not one.
        size: (width, height) to resize to, bilinear with antialiasing; None leaves the size.
        mean: Subtracted, per channel; None leaves values in [0, 1].
        std: What values are then divided by.
        transforms: From the PIL image to the tensor, in place of all the above.
    """

    colour: bool
    size: tuple[int, int] | None = None
    mean: Tensor | None = None
    std: Tensor | None = None
    transforms: Callable[[Any], Any] | None = None

    def __call__(self, path: Path) -> Tensor:
        """The image as a tensor.

        Raises:
            BadInput: If the file is damaged, or the transforms fail on it.
        """
        try:
            with _open(path) as opened, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opened.load()
                image = self._image(opened)
        except MemoryError:
            raise
        except Exception as error:  # of many kinds: a file that is cut or damaged
            what, got = f"image {path.name} must be complete", Phrase(first_line(error))
            raise BadInput(what, str(path), got, "replace it, or leave it out") from error
        if self.transforms is not None:
            return self._transformed(image, path)
        if self.size is not None and image.size != self.size:
            image = image.resize(self.size, Image.Resampling.BILINEAR)
        values = np.array(image, dtype=np.float32) / (1 if image.mode == "F" else 255)
        tensor = torch.from_numpy(values).reshape(*values.shape[:2], -1).permute(2, 0, 1).contiguous()
        if self.colour and len(tensor) == 1:
            tensor = tensor.repeat(3, 1, 1)
        return tensor if self.mean is None or self.std is None else (tensor - self.mean) / self.std

    def _image(self, opened: Image.Image) -> Image.Image:
        """The image in the mode that it is used in; 16 bits as floats in [0, 1], except for transforms."""
        if _is_deep(opened):
            if self.transforms is not None:
                return opened.copy()
            return Image.fromarray(np.asarray(opened).astype(np.float32) / 65535)
        if opened.mode in ("P", "PA"):  # a palette with transparency goes to colours by way of RGBA
            opened = opened.convert("RGBA")
        return opened.convert("RGB" if self.colour else "L")

    def _transformed(self, image: Image.Image, path: Path) -> Tensor:
        assert self.transforms is not None
        try:
            tensor = self.transforms(image)
        except Exception as error:
            what = "transforms must turn every image into a tensor"
            got = Phrase(f"{type(error).__name__}: {first_line(error)} for {path.name}")
            raise BadInput(what, "transforms", got, f"try it on Image.open({path.name!r}).convert('RGB')") from error
        if isinstance(tensor, np.ndarray):
            tensor = torch.from_numpy(tensor)
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            shape = f" of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else ""
            what = "transforms must turn every image into a tensor [C, H, W]"
            got = Phrase(f"{type(tensor).__name__}{shape} for {path.name}")
            raise BadInput(what, "transforms", got, "end with ToTensor(), or with torch.from_numpy(...)")
        return tensor


# --- options ----------------------------------------------------------------------------------------------------------


def parse_size(given: Any) -> tuple[int, int] | None:
    """(width, height), as Pillow has it, from a side, "HEIGHTxWIDTH" or (height, width).

    >>> parse_size("224"), parse_size("200x320"), parse_size((200, 320))
    ((224, 224), (320, 200), (320, 200))
    """
    if given is None:
        return None
    text = "x".join(map(str, given)) if isinstance(given, tuple | list) else str(given)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BadInput("image_size must be a side or HEIGHTxWIDTH", "image_size", given, "write 224 or 200x320")
    height = int(match[1][:20])
    width = int((match[2] or match[1])[:20])
    if height * width > _MOST_PIXELS:
        what = f"image_size must be at most {math.isqrt(_MOST_PIXELS)} on a side"
        raise BadInput(what, "image_size", given, "write 224 or 200x320")
    return width, height


def parse_normalisation(mean: Any, std: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation per channel, from numbers, a text with commas, or the name of a data set.

    One name is enough for both.

    >>> parse_normalisation("imagenet", None) == parse_normalisation("0.485,0.456,0.406", (0.229, 0.224, 0.225))
    True
    """
    if mean is None and std is None:
        return None
    word = mean if std is None else std if mean is None else None
    if isinstance(word, str) and word.strip().lower() in _KNOWN:
        return _KNOWN[word.strip().lower()]
    if mean is None or std is None:
        absent, given = ("mean", "std") if mean is None else ("std", "mean")
        _per_channel(std if mean is None else mean, given)  # a mistake in it comes first
        remedy = f"write {absent}=0.5 as well, or {given}='imagenet' for both"
        raise BadInput(f"{absent} must be given with {given}", absent, None, remedy)
    centre, width = _per_channel(mean, "mean"), _per_channel(std, "std")
    if len(centre) != len(width):
        got = Phrase(f"{len(width)} for {len(centre)}")
        raise BadInput("std must have as many values as the mean", "std", got, "write one per channel")
    if min(width) <= 0:
        raise BadInput("std must be positive", "std", std, "write std=0.25, or one per channel")
    return centre, width


def _per_channel(given: Any, name: str) -> tuple[float, ...]:
    if isinstance(given, str):
        word = given.strip().lower()
        if word in _KNOWN:
            return _KNOWN[word][name == "std"]
        parts: Sequence[Any] = [_float(part) for part in given.split(",")]
    else:
        parts = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
        parts = parts if isinstance(parts, tuple | list) else [parts]
    numbers = [finite_number(part) for part in parts]
    if len(numbers) not in (1, 3) or any(number is None for number in numbers):
        remedy = f"write {name}=0.5, {name}=(0.485, 0.456, 0.406) or {name}='imagenet'"
        if isinstance(given, str) and given.strip().isalnum():
            remedy = nearest(given, _KNOWN)
        what = f"{name} must be one number, or one per colour, or {' or '.join(_KNOWN)}"
        raise BadInput(what, name, given, remedy)
    return tuple(number for number in numbers if number is not None)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
