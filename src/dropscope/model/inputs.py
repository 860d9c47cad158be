"""What is passed to a model: tensors in a tuple or a dict, example by example along dimension 0.

Owns how a batch of inputs is sliced, moved and fingerprinted; where batches come from is `data.py`'s.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope.errors import BadInput, DropscopeError

LABEL_KEYS = ("labels", "label")
PADDING_MASKS = ("attention_mask", "decoder_attention_mask")
_SEQUENCES = (tuple, list)
_CONTAINERS = (tuple, list, dict)


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of the model's call: a tensor or a tuple is positional, a mapping goes by name without labels."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    if hasattr(inputs, "keys") and hasattr(inputs, "__getitem__"):  # dict, and Hugging Face's BatchEncoding
        return (), {key: inputs[key] for key in inputs.keys() if key not in LABEL_KEYS}  # noqa: SIM118
    raise BadInput(
        "inputs are a tensor, a tuple of tensors or a dict of tensors",
        "inputs",
        type(inputs).__name__,
        "pass what you call the model with",
    )


def count_examples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many examples the first tensor holds along dimension 0."""
    first = next(iter(tensors((args, kwargs))), None)
    if first is None:
        raise BadInput(
            "inputs hold at least one tensor", "inputs", (args, kwargs), "pass a tensor, a tuple or a dict of tensors"
        )
    if first.dim() == 0 or first.shape[0] == 0:
        raise BadInput(
            "inputs hold at least one example along dimension 0",
            "shape",
            tuple(first.shape),
            "pass a batch: x[None] for one",
        )
    return first.shape[0]


def mapped(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`function` on every tensor, in the same places."""

    def walk(part: Any) -> Any:
        if isinstance(part, Tensor):
            return function(part)
        if isinstance(part, tuple | list):
            walked = [walk(p) for p in part]
            return type(part)(*walked) if hasattr(part, "_fields") else type(part)(walked)
        if isinstance(part, dict):
            return {key: walk(p) for key, p in part.items()}
        return part

    return walk(args), walk(kwargs)


def take(
    args: tuple[Any, ...], kwargs: dict[str, Any], indices: Sequence[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Some examples of a batch. Tensors whose first dimension is not the batch are shared by all examples."""
    size = count_examples(args, kwargs)
    chosen = torch.as_tensor(list(indices), dtype=torch.long)
    return mapped(lambda t: t[chosen.to(t.device)] if t.dim() > 0 and t.shape[0] == size else t, args, kwargs)


def with_second_example(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One example and a different one made from it (reversed), to tell examples apart where only one was given."""
    return mapped(
        lambda t: torch.cat([t, t.flip(tuple(range(1, t.dim())))]) if t.dim() > 0 and t.shape[0] == 1 else t,
        args,
        kwargs,
    )


def moved(
    args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return mapped(lambda t: t.to(device), args, kwargs)


def copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """For a call of a model that may write into what it is given: an activation in place, a normalisation."""
    return mapped(torch.clone, args, kwargs)


@contextmanager
def taken(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """A model that does not take its inputs is one clear error, with what they are."""
    try:
        yield
    except (torch.OutOfMemoryError, DropscopeError):
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        got = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:160]}"
        given = ", ".join(f"{tuple(t.shape)} {str(t.dtype)[6:]}" for t in tensors((args, kwargs)))
        remedy = f"call it yourself first; the first inputs are {given}"
        raise BadInput("the model takes the data as they are", "a forward of some examples", got, remedy) from error


def flat(output: Any) -> list[Tensor]:
    """Every tensor of a model's output."""
    if dataclasses.is_dataclass(output) and not hasattr(output, "keys"):
        return tensors([getattr(output, field.name) for field in dataclasses.fields(output)])
    return tensors(dict(output) if hasattr(output, "keys") else output)


def example_keys(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A key per example: 64 bits of the hash of its own raw input values.

    Labels are left out, and so is padding, as an attention mask marks it. A tensor whose first dimension is not the
    batch belongs to no example; in a batch of one example, `[1, ...]` counts as that example's own.

    >>> a = {"input_ids": torch.tensor([[5, 6, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])}
    >>> b = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.tensor([[1, 1]])}
    >>> torch.equal(example_keys((), a), example_keys((), b))
    True
    """
    size = count_examples(args, kwargs)
    masks = {
        name: mask.cpu().bool()
        for name in PADDING_MASKS
        if isinstance(mask := kwargs.get(name), Tensor) and mask.dim() == 2
    }
    named = sorted((name, part) for name, part in kwargs.items() if name not in (*PADDING_MASKS, *LABEL_KEYS))
    batched = [
        # A decoder's tokens have a mask of their own, even where both happen to be padded to one length.
        (name, t.detach().cpu().resolve_conj().contiguous(), masks.get(PADDING_MASKS[name.startswith("decoder_")]))
        for name, part in [(str(i), part) for i, part in enumerate(args)] + named
        for t in tensors(part)
        if t.dim() > 0 and t.shape[0] == size
    ]
    keys = np.empty(size, dtype=np.int64)
    for i in range(size):
        digest = hashlib.blake2b(digest_size=8)
        for name, tensor, mask in batched:
            one = tensor[i]
            if mask is not None and tensor.shape[:2] == mask.shape:
                one = one[mask[i]]
            digest.update(f"{name if len(batched) > 1 else ''}|{one.dtype}|{tuple(one.shape)}|".encode())
            digest.update(one.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if one.numel() else b"")
        keys[i] = int.from_bytes(digest.digest(), "little", signed=True)
    return torch.from_numpy(keys)


def id_keys(ids: Sequence[Any] | Tensor) -> Tensor:
    """A key per example from the ids a user gave: whole numbers as they are, anything else by the hash of its text."""
    keys = np.empty(len(ids), dtype=np.int64)
    for i, value in enumerate(ids):
        number = value.item() if isinstance(value, Tensor | np.generic) else value
        if isinstance(number, int) and not isinstance(number, bool) and -(2**63) <= number < 2**63:
            keys[i] = number
        else:
            digest = hashlib.blake2b(str(number).encode(), digest_size=8).digest()
            keys[i] = int.from_bytes(digest, "little", signed=True)
    return torch.from_numpy(keys)


def tensors(structure: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(structure, Tensor):
        return [structure]
    if isinstance(structure, dict):
        structure = structure.values()
    elif not isinstance(structure, _SEQUENCES):
        return []
    found: list[Tensor] = []
    for part in structure:
        if isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, _CONTAINERS):
            found += tensors(part)
    return found


def replaced(structure: Any, old: Tensor, new: Tensor) -> Any:
    """The nested structure with one tensor in the place of another; only containers on the way to it are rebuilt."""
    if structure is old:
        return new
    if isinstance(structure, tuple):
        parts = [replaced(part, old, new) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    if isinstance(structure, list):
        return [replaced(part, old, new) for part in structure]
    if isinstance(structure, dict) and type(structure) is dict:
        return {key: replaced(part, old, new) for key, part in structure.items()}
    return structure
