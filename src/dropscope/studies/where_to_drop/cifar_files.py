"""Files of CIFAR-10: the official binary folder, the Hugging Face parquet files, or a name on the hub.

Owns reading and checking; every error names the file. Nothing is unpickled: the "python version" of the data set,
which is a pickle, is refused.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dropscope.errors import BadInput, MissingExtra, Phrase, first_line
from dropscope.loading import LABEL_COLUMNS, find_column, read_labels, read_table

CLASSES = 10
_RECORD = 1 + 3 * 32 * 32
_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST_FILE = "test_batch.bin"
_HUB = "pass a hub name like uoft-cs/cifar10"
_FETCH = "fetch the file again"
_SIZE, _IMAGES = (32, 32), ("PNG", "JPEG")


@dataclass(frozen=True, eq=False)
class CifarImages:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n], in their original order."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def scale_pixels(images: Tensor) -> Tensor:
    """Pixels as the network wants them: (x/255 − .5)/.5.

    >>> scale_pixels(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-1.,  1.])
    """
    return (images.float() / 255 - 0.5) / 0.5


def read_cifar(data: str | Path) -> CifarImages:
    """CIFAR-10 from a folder (`cifar-10-batches-bin`, or one with train*.parquet and test*.parquet) or a hub name."""
    folder = Path(data)
    if not folder.exists():
        return _from_hub(str(data))
    for place in (folder, folder / "cifar-10-batches-bin"):
        if (place / _TEST_FILE).exists() or any((place / name).exists() for name in _TRAIN_FILES):
            return _from_binary(place)
    train, test = sorted(folder.rglob("train*.parquet")), sorted(folder.rglob("test*.parquet"))
    if train and test:
        return CifarImages(*_from_parquet(train), *_from_parquet(test))
    if any((place / "data_batch_1").exists() for place in (folder, folder / "cifar-10-batches-py")):
        got = Phrase(f"the pickled 'python version' in {folder}")
        remedy = "fetch the binary version (.bin): pickles are not read"
        raise BadInput("data must be the binary or the parquet version of CIFAR-10", "data", got, remedy)
    got = Phrase(f"{folder}, without {_TEST_FILE} and without train*.parquet and test*.parquet")
    remedy = "pass the folder cifar-10-batches-bin"
    raise BadInput("data must be a folder with the official files of CIFAR-10", "data", got, remedy)


def _from_binary(folder: Path) -> CifarImages:
    sizes = {name: (folder / name).stat().st_size for name in (*_TRAIN_FILES, _TEST_FILE) if (folder / name).exists()}
    short = min(sizes, key=lambda name: sizes[name])
    if sizes[short] < max(sizes.values()):  # cut between two records, a file still looks whole
        got = Phrase(f"{sizes[short]} of {max(sizes.values())} bytes, so it is truncated")
        raise BadInput(f"{folder / short} must be as large as the other files", str(folder / short), got, _FETCH)
    train = [_binary(folder / name) for name in _TRAIN_FILES]
    images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
    return CifarImages(images, labels, *_binary(folder / _TEST_FILE))


def _binary(path: Path) -> tuple[Tensor, Tensor]:
    if not path.exists():
        what = "CIFAR-10 must have five training files and a test file"
        raise BadInput(what, str(path), Phrase(f"no file {path}"), "fetch it")
    raw = np.fromfile(path, np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        what = f"{path} must consist of records of {_RECORD} bytes"
        raise BadInput(what, str(path), Phrase(f"{raw.size} bytes, so it is truncated"), _FETCH)
    records = torch.from_numpy(raw).view(-1, _RECORD)
    labels = _labels(records[:, 0].long(), path)
    return records[:, 1:].reshape(-1, 3, 32, 32).clone(), labels


def _from_parquet(paths: Sequence[Path]) -> tuple[Tensor, Tensor]:
    parts = []
    for path in paths:
        table = read_table(path)
        image = find_column(table, path, None, ("img", "image"), "img")
        label = find_column(table, path, None, LABEL_COLUMNS, "label")
        numbers = read_labels(table, label, path, None)
        assert numbers is not None
        parts.append((_decoded(table[image], path), _labels(numbers, path)))
    images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return images, labels


def _decoded(cells: Iterable[Any], path: Path) -> Tensor:
    images = []
    for row, cell in enumerate(cells, start=1):
        raw: Any = cell.get("bytes") if isinstance(cell, dict) else cell
        where = f"row {row} of {path}"
        try:
            with warnings.catch_warnings(), Image.open(io.BytesIO(raw), formats=_IMAGES) as image:
                warnings.simplefilter("ignore")
                size = image.size  # from the header, before memory is taken for pixels
                array = np.asarray(image.convert("RGB")) if size == _SIZE else None
        except MemoryError:
            raise
        except Exception as error:  # Pillow raises errors of many kinds for bytes that are no image
            raise BadInput(f"{where} must hold an image", where, Phrase(first_line(error, 80)), _FETCH) from error
        if array is None:
            raise BadInput(f"the image in {where} must be 32×32", where, size, _FETCH)
        images.append(torch.from_numpy(array.copy()).permute(2, 0, 1))
    return torch.stack(images)


def _from_hub(name: str) -> CifarImages:
    if name != "cifar10" and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
        raise BadInput("data must be an existing folder", "data", name, f"check the path, or {_HUB}")
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("reading a data set of the hub", "datasets", "text") from error
    try:
        splits = datasets.load_dataset(name)
    except Exception as error:
        got = Phrase(f"{name!r} ({first_line(error)})")
        remedy = "pass the folder cifar-10-batches-bin, or a hub name where there is a network"
        raise BadInput("data must be an existing folder or a name on the hub", "data", got, remedy) from error
    parts = []
    for split in ("train", "test"):
        columns = splits[split].column_names if split in splits else []
        column = next((one for one in ("img", "image") if one in columns), None)
        if column is None or "label" not in columns:
            got = Phrase(f"{', '.join(columns) or 'nothing'} in {split} of {name}")
            raise BadInput("data must have splits train and test with columns img and label", "data", got, _HUB)
        images = np.stack([np.asarray(image.convert("RGB")) for image in splits[split][column]])
        if images.shape[1:] != (32, 32, 3):
            raise BadInput(f"the images of {name} must be 32×32", "data", images.shape[1:3], _HUB)
        parts += [
            torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
            _labels(torch.tensor(splits[split]["label"]), Path(name)),
        ]
    return CifarImages(*parts)


def _labels(labels: Tensor, path: Path) -> Tensor:
    wrong = torch.nonzero((labels < 0) | (labels >= CLASSES))
    if len(wrong):
        record = int(wrong[0])
        where = f"record {record + 1} of {path}"
        what, remedy = f"the label in {where} must be 0 to {CLASSES - 1}", "fetch the file again, if it is CIFAR-10's"
        raise BadInput(what, where, int(labels[record]), remedy)
    return labels
