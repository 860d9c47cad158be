"""Inspection of a checkpoint's files before anything is built from them: JSON, headers of weights, sizes that fit.

Owns what a folder must hold. A header or a config can claim any size, so nothing is allocated, and no layer built,
until the two agree with each other and with the length of the file. See `huggingface` for what is then read.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dropscope.device import free_bytes
from dropscope.errors import BadInput, Phrase, first_line

_AGAIN = "download the checkpoint again, or save it again with save_pretrained"
_LARGEST_TEXT = 1 << 28  # bytes of a JSON file: a tokenizer of 250,000 words takes 20 MB
_LARGEST_HEADER = 100_000_000  # bytes, as safetensors itself allows
_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
_JSON_WORDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
_PACKED = 8  # numbers of four bits in one of 32

# Fields of a config by what they count. Each module has a tensor, each extent is one of some tensor.
_MODULES = re.compile(r"layer|block|expert|stage|depth|group")
_NO_MODULES = re.compile(r"size|dim|id$|index|indices|norm|type|multiplier|factor|capacity")
_EXTENTS = frozenset(
    {"vocab_size", "hidden_size", "intermediate_size", "embedding_size", "type_vocab_size", "num_attention_heads"}
    | {"n_embd", "n_head", "n_heads", "num_heads", "dim", "hidden_dim", "d_model", "d_ff", "n_inner", "d_inner"}
)
_AT_LEAST_ONE = (_EXTENTS - {"type_vocab_size"}) | {"num_hidden_layers", "n_layer", "n_layers", "num_layers"}
_SINUSOIDS = ("sinusoidal_pos_embds", "sinusoidal_embeddings")  # tables that are computed number by number
_FEW_MODULES, _FEW_NUMBERS = 128, 1 << 20
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "*.spm", "*.bpe.model",
               "*.tiktoken", "tekken.json", "tokenizer_config.json")  # fmt: skip


@dataclass(frozen=True)
class WeightFiles:
    """What the weights of a checkpoint hold, from their headers.

    Attributes:
        tensors: How many.
        numbers: How many numbers at most, in all of them.
        extent: The largest dimension of a tensor.
        shapes: Of each tensor, where the header tells.
    """

    tensors: int
    numbers: int
    extent: int
    shapes: Mapping[str, tuple[int, ...]]


_UNSEEN = WeightFiles(1 << 14, 1 << 40, 1 << 24, {})  # where a folder holds no weights


def read_object(path: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of the checkpoint `name`."""
    what = f"{path.name} of {name!r} must be a JSON object"
    try:
        if path.stat().st_size > _LARGEST_TEXT:
            raise BadInput(what, name, Phrase(f"{path.stat().st_size:,} bytes"), _AGAIN)
        value = json.loads(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else first_line(error)
        raise BadInput(what, name, Phrase(reason), _AGAIN) from error
    if not isinstance(value, dict):
        raise BadInput(what, name, Phrase(_JSON_WORDS.get(type(value), "a number")), _AGAIN)
    return value


def inspect_weights(folder: Path, name: str, *, pickles: bool = False) -> WeightFiles:
    """What the weights in a folder hold, every header checked; with `pickles` a state_dict will do.

    Raises:
        BadInput: Where there are none, or a header cannot be true.
    """
    paths = _shards(folder, name, "model.safetensors")
    if paths:
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for path in paths:
            with _sound(path, name):
                found |= check_safetensors(path)
        shapes = {key: shape for key, (_, shape) in found.items()}
        numbers = sum(math.prod(shape) * (1 if "F" in dtype else _PACKED) for dtype, shape in found.values())
        extent = max((size for shape in shapes.values() for size in shape), default=0)
        if numbers:
            return WeightFiles(len(shapes), numbers, extent, shapes)
    pickled = _shards(folder, name, "pytorch_model.bin")
    if pickles and pickled and not paths:
        size = tensors = 0
        for path in pickled:
            with _sound(path, name):
                size, tensors = size + path.stat().st_size, tensors + check_archive(path)
        return WeightFiles(tensors, size, size, {})
    got = "no tensors" if paths else ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "an empty folder"
    got = "pytorch_model.bin, which may run code" if pickled and not paths else got
    remedy = "save the model with save_pretrained, which writes model.safetensors"
    raise BadInput(f"folder {name!r} must hold its weights in model.safetensors", name, Phrase(got), remedy)


def inspect_config(folder: Path, name: str) -> str:
    """The family of the config in a folder, which is checked against the weights before anything is built from it.

    Raises:
        BadInput: Where it cannot be read, or claims sizes that the weights do not have.
    """
    if not (folder / "config.json").is_file():
        got = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "an empty folder"
        remedy = "name the folder that save_pretrained wrote"
        raise BadInput(f"folder {name!r} must hold a config.json", name, Phrase(got), remedy)
    config = read_object(folder / "config.json", name)
    if not isinstance(config.get("model_type"), str):
        what, remedy = f"config.json of {name!r} must name its family as model_type", 'write "model_type": "bert"'
        raise BadInput(what, name, config.get("model_type"), remedy)
    kernel = config.get("attn_implementation", config.get("_attn_implementation"))
    if isinstance(kernel, str) and "/" in kernel:
        what = f"config.json of {name!r} must not ask for code from the Hub"
        raise BadInput(what, name, kernel, "remove attn_implementation from it")
    present = any(folder.glob("*.safetensors*")) or any(folder.glob("pytorch_model*"))
    weights = inspect_weights(folder, name, pickles=True) if present else _UNSEEN
    computed = any(config.get(flag) for flag in _SINUSOIDS)
    for field, value in _numbers(config):
        if "drop" in field and not 0 <= value <= 1:
            what = f"{field} in config.json of {name!r} must be a rate in [0, 1]"
            raise BadInput(what, name, value, "write the rate that the model was trained with")
        least, most = _limits(field, weights, computed=computed)
        if isinstance(value, int) and not least <= value <= most:
            fits = f"fit its weights, {weights.numbers:,} numbers in {weights.tensors:,} tensors"
            what = f"{field} in config.json of {name!r} must {'be at least 1' if 0 >= value >= -most else fits}"
            shown = value if abs(value) < 1 << 80 else Phrase("a number of many digits")
            raise BadInput(what, name, shown, f"put the right {field} there, or the weights that belong to it")
    return str(config["model_type"])


def inspect_tokenizer(folder: Path, name: str) -> None:
    """Checks that a tokenizer is there, and that what it is read from is JSON.

    Raises:
        BadInput: Where it is not.
    """
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        remedy = "save it there with tokenizer.save_pretrained"
        raise BadInput(
            f"folder {name!r} must hold a tokenizer", name, Phrase("no tokenizer.json or vocabulary"), remedy
        )
    for path in (folder / f"{part}.json" for part in ("tokenizer", "tokenizer_config", "special_tokens_map", "vocab")):
        if path.exists():
            read_object(path, name)


def _limits(field: str, weights: WeightFiles, *, computed: bool) -> tuple[int, int]:
    """The least and the most that a field may say: each layer has a tensor, each size is in some tensor's shape."""
    least = 1 if field in _AT_LEAST_ONE else -_FEW_NUMBERS
    if field in _EXTENTS or (computed and "position" in field):
        return least, _PACKED * weights.extent
    if _MODULES.search(field) and not _NO_MODULES.search(field):
        return least, max(weights.tensors, _FEW_MODULES)
    return least, _FEW_NUMBERS if field == "num_labels" else max(weights.numbers, _FEW_NUMBERS)


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number in a config, also in lists and in configs within it, under the name of its field."""
    waiting: list[tuple[str, Any]] = list(config.items())
    while waiting:
        field, value = waiting.pop()
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield field, value
        elif isinstance(value, dict) and field not in ("id2label", "label2id"):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(field, one) for one in value]


def _shards(folder: Path, name: str, file: str) -> list[Path]:
    """The files that hold the weights: one, or those that an index names; none where there is neither."""
    whole, index = folder / file, folder / f"{file}.index.json"
    if whole.exists():
        return [whole]
    if not index.exists():
        return []
    parts = read_object(index, name).get("weight_map")
    what = f"weight_map in {index.name} of {name!r} must give a file for each tensor"
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise BadInput(what, name, Phrase(_JSON_WORDS.get(type(parts), "a number")), _AGAIN)
    suffix = Path(file).suffix
    for part in sorted(set(parts.values())):
        if Path(part).name != part or not part.endswith(suffix) or not (folder / part).is_file():
            raise BadInput(f"{index.name} of {name!r} must name {suffix} files beside it", name, part, _AGAIN)
    return [folder / part for part in sorted(set(parts.values()))]


def check_archive(path: Path) -> int:
    """How many tensors a state_dict in a file may hold; `torch.save` writes them into an archive without compression.

    Raises:
        ValueError: Where it would unpack to more than its own length.
    """
    size = path.stat().st_size
    if not zipfile.is_zipfile(path):
        return size // 64
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile as error:
        raise ValueError(first_line(error)) from error
    if (held := sum(entry.file_size for entry in entries)) > size:
        raise ValueError(f"{size:,} bytes that unpack to {held:,}")
    return len(entries)


def check_unpacked(path: Path) -> None:
    """Checks that an archive of NumPy arrays fits into memory when it is unpacked.

    Raises:
        ValueError: Where it does not.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        held = sum(entry.file_size for entry in archive.infolist())
    if held > (free := free_bytes(torch.device("cpu"))):
        raise ValueError(f"{path.stat().st_size:,} bytes that unpack to {held:,}, and {free:,} are free")


def check_safetensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and shape of every tensor in a safetensors file, from a header that fits the file's length.

    Raises:
        ValueError: Where it does not.
    """
    try:
        with path.open("rb") as file:
            header, left = _header(file, path.stat().st_size)
    except RecursionError as error:
        raise ValueError("a header nested too deeply") from error
    return _tensors(header, left)


@contextlib.contextmanager
def _sound(path: Path, name: str) -> Iterator[None]:
    """One line for a file of weights that cannot be what it claims."""
    try:
        yield
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        kind, reason = "state_dict" if path.suffix == ".bin" else "safetensors file", first_line(error)
        remedy = "run git lfs pull" if "git-lfs" in reason else _AGAIN
        raise BadInput(f"{path.name} of {name!r} must be a sound {kind}", name, Phrase(reason), remedy) from error


def _header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The header, and how many bytes come after it."""
    start = file.read(8)
    if start.startswith(b"version "):
        raise ValueError("a pointer of git-lfs")
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if length > min(size - 8, _LARGEST_HEADER):
        raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
    header = json.loads(file.read(length).decode(), object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    return header, size - 8 - length


def _tensors(header: dict[str, Any], left: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    spans = []
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        described = _described(entry)
        if described is None:
            raise ValueError(f"a wrong entry for {key[:80]!r}")
        dtype, shape, begin, end = described
        if math.prod(shape) * _BITS[dtype] != 8 * (end - begin):
            raise ValueError(f"{key[:80]!r} of shape {shape} and type {dtype} in {end - begin:,} bytes")
        found[key] = dtype, shape
        spans.append((begin, end))
    place = 0
    for begin, end in sorted(spans):
        if begin != place:
            raise ValueError("tensors that overlap or leave gaps")
        place = end
    if place != left:
        raise ValueError(f"{left:,} bytes of tensors where the header has {place:,}")
    return found


def _described(entry: object) -> tuple[str, tuple[int, ...], int, int] | None:
    """Type, shape, begin and end of a tensor; None where the header's entry is not of that form."""
    if not isinstance(entry, dict):
        return None
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS or not isinstance(shape, list) or not isinstance(offsets, list):
        return None
    if len(offsets) != 2 or len(shape) > 64:
        return None
    if any(type(number) is not int or not 0 <= number < 1 << 63 for number in (*shape, *offsets)):
        return None
    return dtype, tuple(shape), offsets[0], offsets[1]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that stands in the header twice")
    return found
