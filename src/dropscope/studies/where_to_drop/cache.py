"""Cache of preprocessed mammograms: every file is checked first, then each is preprocessed once.

Owns a .npy file per image, named by the file's content and the settings, so that nothing stale is read and a run that
was stopped continues where it was. `preprocessing` has the steps.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dropscope.atomic import atomic_write
from dropscope.progress import track
from dropscope.studies.where_to_drop.mammograms import Mammogram, check_image, read_bytes, read_image
from dropscope.studies.where_to_drop.preprocessing import Settings, steps

_PIPELINE = 1  # counts up when the same settings come to mean something else
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def check_files(
    mammograms: Sequence[Mammogram], settings: Settings, cache: Path | None = None, *, show: bool | None = None
) -> list[str]:
    """A digest of each file's content. Every file that is not in the cache is checked; nothing is written."""

    def check(one: Mammogram) -> str:
        data = read_bytes(one.path)
        content = hashlib.blake2b(data, digest_size=16).hexdigest()
        if cache is None or not _place(cache, content, settings).exists():
            check_image(data, one.path, settings.smallest)
        return content

    return list(_in_threads("checking mammograms", check, mammograms, show=show))


def preprocess(
    mammograms: Sequence[Mammogram],
    contents: Sequence[str],
    settings: Settings,
    cache: Path | None = None,
    *,
    show: bool | None = None,
) -> NDArray[np.float32]:
    """The images after all steps, [n, side, side], from the cache where it has them and else put there."""

    def load_or_make(item: tuple[Mammogram, str]) -> NDArray[np.float32]:
        one, content = item
        place = None if cache is None else _place(cache, content, settings)
        cached = None if place is None else _load(place, settings.side)
        if cached is not None:
            return cached
        result = steps(read_image(read_bytes(one.path), one.path), settings, str(one.path)).result
        if place is not None:
            atomic_write(place, lambda part: np.save(part, result, allow_pickle=False))
        return result

    images = np.empty((len(mammograms), settings.side, settings.side), np.float32)
    items = list(zip(mammograms, contents, strict=True))
    for index, image in enumerate(_in_threads("preparing mammograms", load_or_make, items, show=show)):
        images[index] = image
    return images


def _place(cache: Path, content: str, settings: Settings) -> Path:
    words = f"{_PIPELINE} {content} {sorted(asdict(settings).items())}"
    return cache / f"{hashlib.blake2b(words.encode(), digest_size=16).hexdigest()}.npy"


def _load(place: Path, side: int) -> NDArray[np.float32] | None:
    """A cached image; None where there is none, or none that can be used."""
    try:
        cached = np.load(place, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return cached if cached.shape == (side, side) and cached.dtype == np.float32 else None


def _in_threads(
    what: str, work: Callable[[_Item], _Result], items: Sequence[_Item], *, show: bool | None
) -> Iterator[_Result]:
    """Results in order, several at a time: Pillow and OpenCV leave the interpreter free while they work."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool, track(what, len(items), "images", show=show) as tick:
        try:
            for result in pool.map(work, items):
                tick(1)
                yield result
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
