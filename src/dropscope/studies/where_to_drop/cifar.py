"""CIFAR-10 as people have it: the official binary folder, the Hugging Face parquet files, or a name on the hub.

Owns reading and checking; every error names the file. Nothing is unpickled: the "python version" of the data set,
which is a pickle, is refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from dropscope.errors import BadInput, MissingExtra

CLASSES = 10
_RECORD = 1 + 3 * 32 * 32
_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST_FILE = "test_batch.bin"
_HUB = "pass a hub name like uoft-cs/cifar10"


@dataclass(frozen=True, eq=False)
class Cifar:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n], in their original order."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def scaled(images: Tensor) -> Tensor:
    """Pixels as the network wants them: (x/255 − .5)/.5.

    >>> scaled(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-1.,  1.])
    """
    return (images.float() / 255 - 0.5) / 0.5


def read_cifar(data: str | Path) -> Cifar:
    """CIFAR-10 from a folder (`cifar-10-batches-bin`, or one with train*.parquet and test*.parquet) or a hub name."""
    folder = Path(data)
    if not folder.exists():
        return _from_hub(str(data))
    for place in (folder, folder / "cifar-10-batches-bin"):
        if (place / _TEST_FILE).exists() or any((place / name).exists() for name in _TRAIN_FILES):
            return _from_binary(place)
    train, test = sorted(folder.rglob("train*.parquet")), sorted(folder.rglob("test*.parquet"))
    if train and test:
        return Cifar(*_from_parquet(train), *_from_parquet(test))
    if any((place / "data_batch_1").exists() for place in (folder, folder / "cifar-10-batches-py")):
        got = f"{folder} holds the pickled 'python version'"
        raise BadInput("CIFAR-10 is read without unpickling", "--data", got, "fetch the binary version (.bin)")
    got = f"{folder} holds neither {_TEST_FILE} nor train*.parquet and test*.parquet"
    raise BadInput("CIFAR-10 is a folder of its official files", "--data", got, "pass the folder cifar-10-batches-bin")


def _from_binary(folder: Path) -> Cifar:
    sizes = {name: (folder / name).stat().st_size for name in (*_TRAIN_FILES, _TEST_FILE) if (folder / name).exists()}
    short = min(sizes, key=lambda name: sizes[name])
    if sizes[short] < max(sizes.values()):  # cut between two records, a file still looks whole
        rule, got = "the files of CIFAR-10 are of one size", f"{sizes[short]} of {max(sizes.values())} bytes"
        raise BadInput(rule, str(folder / short), got, "the file is truncated: fetch it again")
    train = [_binary(folder / name) for name in _TRAIN_FILES]
    images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
    return Cifar(images, labels, *_binary(folder / _TEST_FILE))


def _binary(path: Path) -> tuple[Tensor, Tensor]:
    if not path.exists():
        raise BadInput("CIFAR-10 has five training files and a test file", str(path), "no such file", "fetch it again")
    raw = np.fromfile(path, np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        rule = f"a CIFAR-10 file is whole records of {_RECORD} bytes"
        raise BadInput(rule, str(path), f"{raw.size} bytes", "the file is truncated: fetch it again")
    records = torch.from_numpy(raw).view(-1, _RECORD)
    labels = _labels(records[:, 0].long(), path)
    return records[:, 1:].reshape(-1, 3, 32, 32).clone(), labels


def _from_parquet(paths: Sequence[Path]) -> tuple[Tensor, Tensor]:
    parts = []
    for path in paths:
        try:
            table = pd.read_parquet(path)
        except Exception as error:
            reason = str(error).splitlines()[0][:120]
            raise BadInput("a parquet file can be read", str(path), reason, "fetch it again") from error
        image = next((name for name in ("img", "image") if name in table), None)
        label = next((name for name in ("label", "labels") if name in table), None)
        if image is None or label is None:
            got = ", ".join(map(str, table.columns))
            raise BadInput("CIFAR-10 parquet has columns img and label", str(path), got, "pass the official files")
        parts.append((_decoded(table[image], path), _labels(torch.tensor(table[label].to_numpy().copy()).long(), path)))
    images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return images, labels


def _decoded(cells: Iterable[Any], path: Path) -> Tensor:
    images = []
    for row, cell in enumerate(cells, start=1):
        raw: Any = cell.get("bytes") if isinstance(cell, dict) else cell
        try:
            array = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))
        except (UnidentifiedImageError, TypeError, OSError) as error:
            raise BadInput("an image decodes", f"row {row} of {path}", str(error)[:80], "fetch it again") from error
        if array.shape != (32, 32, 3):
            raise BadInput("CIFAR-10 images are 32×32", f"row {row} of {path}", array.shape, "fetch it again")
        images.append(torch.from_numpy(array.copy()).permute(2, 0, 1))
    return torch.stack(images)


def _from_hub(name: str) -> Cifar:
    if name != "cifar10" and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
        raise BadInput(
            "a data folder exists", "--data", name, "check the path, or pass a hub name like uoft-cs/cifar10"
        )
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("reading a data set of the hub", "datasets", "text") from error
    try:
        found = datasets.load_dataset(name)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        remedy = "pass the folder cifar-10-batches-bin, or a hub name where there is a network"
        raise BadInput("a data folder exists or is a name on the hub", "--data", f"{name}: {reason}", remedy) from error
    parts = []
    for split in ("train", "test"):
        columns = found[split].column_names if split in found else []
        column = next((one for one in ("img", "image") if one in columns), None)
        if column is None or "label" not in columns:
            got = f"{name}, {split}: {', '.join(columns) or 'no such part'}"
            raise BadInput("CIFAR-10 has parts train and test with columns img and label", "--data", got, _HUB)
        images = np.stack([np.asarray(image.convert("RGB")) for image in found[split][column]])
        if images.shape[1:] != (32, 32, 3):
            raise BadInput("CIFAR-10 images are 32×32", "--data", f"{name}: {images.shape[1:]}", _HUB)
        parts += [
            torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
            _labels(torch.tensor(found[split]["label"]), Path(name)),
        ]
    return Cifar(*parts)


def _labels(labels: Tensor, path: Path) -> Tensor:
    wrong = torch.nonzero((labels < 0) | (labels >= CLASSES))
    if len(wrong):
        record = int(wrong[0])
        rule, where = f"labels are 0 to {CLASSES - 1}", f"record {record + 1} of {path}"
        raise BadInput(rule, where, int(labels[record]), "the file is damaged or is another data set: fetch it again")
    return labels
