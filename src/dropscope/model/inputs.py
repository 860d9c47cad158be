"""One call of a model: `Call`, and the key of each example in it.

Owns how inputs are sliced, moved, copied and fingerprinted. See the data room for where they come from.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope.errors import BadInput, DropscopeError, Phrase, first_line

LABEL_KEYS = ("labels", "label")
PADDING_MASKS = ("attention_mask", "decoder_attention_mask")
GRAPH_REMEDY = "make a whole graph one example: see Graphs in docs/data.md"
_SEQUENCES = (tuple, list)
_CONTAINERS = (tuple, list, dict)


@dataclass(frozen=True, eq=False)
class Call:
    """`model(*args, **kwargs)` on a batch: examples lie along dimension 0 of its tensors.

    Attributes:
        args: Inputs by position.
        kwargs: Inputs by name.

    Examples:
        >>> call = Call.of({"x": torch.arange(6).reshape(3, 2), "labels": torch.zeros(3)})
        >>> call.examples, call.take([2]).kwargs
        (3, {'x': tensor([[4, 5]])})
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Any, name: str = "inputs") -> Call:
        """A tensor or a tuple goes by position, a mapping by name and without its labels.

        Args:
            inputs: What the model is called with.
            name: What the caller calls them, for the error.
        """
        if isinstance(inputs, Call):
            return inputs
        if hasattr(inputs, "first_inputs"):  # data that was loaded
            inputs = inputs.first_inputs()
        if isinstance(inputs, Tensor):
            return cls((inputs,))
        if isinstance(inputs, tuple | list):
            return cls(tuple(inputs))
        if hasattr(inputs, "keys") and hasattr(inputs, "__getitem__"):  # dict, and Hugging Face's BatchEncoding
            return cls((), {key: inputs[key] for key in inputs.keys() if key not in LABEL_KEYS})  # noqa: SIM118
        remedy = "pass what you call the model with; for files and texts, what load_data returns"
        what = f"{name} must be a tensor, a tuple of tensors or a dict of tensors"
        raise BadInput(what, name, Phrase(type(inputs).__name__), remedy)

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor, those by position first."""
        return tensors((self.args, self.kwargs))

    @property
    def examples(self) -> int:
        """How many examples the first tensor holds."""
        first = next(iter(self.tensors), None)
        if first is None:
            remedy = "pass a tensor, a tuple or a dict of tensors"
            raise BadInput("inputs must hold at least one tensor", "inputs", (self.args, self.kwargs), remedy)
        if first.dim() == 0 or first.shape[0] == 0:
            what, remedy = "inputs must hold at least one example along dimension 0", "pass a batch: x[None] for one"
            raise BadInput(what, "inputs", Phrase(f"a tensor of shape {tuple(first.shape)}"), remedy)
        return first.shape[0]

    def map(self, function: Callable[[Tensor], Any]) -> Call:
        """`function` on every tensor, in the same places."""
        return Call(map_tensors(self.args, function), map_tensors(self.kwargs, function))

    def take(self, indices: Sequence[int]) -> Call:
        """Some of the examples. Tensors whose first dimension is not the batch are shared by all examples."""
        size = self.examples
        chosen = torch.as_tensor(list(indices), dtype=torch.long)
        return self.map(lambda t: t[chosen.to(t.device)] if t.dim() > 0 and t.shape[0] == size else t)

    def repeat(self, copies: int) -> Call:
        """The examples `copies` times, one whole batch after the other."""
        size = self.examples
        return self.map(lambda t: t.repeat(copies, *[1] * (t.dim() - 1)) if t.dim() > 0 and t.shape[0] == size else t)

    def with_second_example(self) -> Call:
        """One example and its reversal, to distinguish examples where only one was given."""
        return self.map(
            lambda t: torch.cat([t, t.flip(tuple(range(1, t.dim())))]) if t.dim() > 0 and t.shape[0] == 1 else t
        )

    @property
    def tokens(self) -> Tensor | None:
        """A tensor whose last dimension counts tokens: the attention mask, or the ids; None for other inputs."""
        first = self.kwargs.get("attention_mask", next(iter(self.tensors), None))
        known = isinstance(first, Tensor) and first.dim() >= 2 and not first.is_floating_point()
        return first if known else None

    def without_token(self, index: int) -> Call:
        """The same texts with one token fewer; what does not count tokens as `tokens` does stays as it is."""
        tokens = self.tokens
        assert tokens is not None
        dim, shape = tokens.dim() - 1, tokens.shape
        kept = torch.tensor([i for i in range(shape[-1]) if i != index])
        return self.map(lambda t: t.index_select(dim, kept.to(t.device)) if t.shape[: dim + 1] == shape else t)

    def to(self, device: torch.device) -> Call:
        """The same call with its tensors on a device."""
        return self.map(lambda t: t.to(device))

    def run(self, model: Callable[..., Any]) -> Any:
        """What the model returns for a copy of these inputs: a forward may write into what it is given."""
        own = self.map(torch.clone)
        return model(*own.args, **own.kwargs)

    def keys(self) -> Tensor:
        """A key per example: 64 bits of the hash of its own raw input values.

        Labels are left out, and so is padding, as an attention mask marks it. A tensor whose first dimension is not the
        batch belongs to no example; in a batch of one example, `[1, ...]` counts as that example's own.

        >>> a = Call.of({"input_ids": torch.tensor([[5, 6, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])})
        >>> b = Call.of({"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.tensor([[1, 1]])})
        >>> torch.equal(a.keys(), b.keys())
        True
        """
        size = self.examples
        masks = {
            name: mask.cpu().bool()
            for name in PADDING_MASKS
            if isinstance(mask := self.kwargs.get(name), Tensor) and mask.dim() >= 2
        }
        named = sorted((name, part) for name, part in self.kwargs.items() if name not in (*PADDING_MASKS, *LABEL_KEYS))
        batched = [
            # A decoder's tokens have a mask of their own, even where both happen to be padded to one length.
            (name, t.detach().cpu().resolve_conj().contiguous(), masks.get(PADDING_MASKS[name.startswith("decoder_")]))
            for name, part in [(str(i), part) for i, part in enumerate(self.args)] + named
            for t in tensors(part)
            if t.dim() > 0 and t.shape[0] == size
        ]
        keys = np.empty(size, dtype=np.int64)
        for i in range(size):
            digest = hashlib.blake2b(digest_size=8)
            for name, tensor, mask in batched:
                one = tensor[i]
                if mask is not None and tensor.shape[: mask.dim()] == mask.shape:
                    one = one[mask[i]]
                    if mask.dim() > 2:  # several texts in an example, as in multiple choice: where each of them ends
                        digest.update(f"{mask[i].sum(-1).tolist()}".encode())
                digest.update(f"{name if len(batched) > 1 else ''}|{one.dtype}|{tuple(one.shape)}|".encode())
                digest.update(one.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if one.numel() else b"")
            keys[i] = int.from_bytes(digest.digest(), "little", signed=True)
        return torch.from_numpy(keys)


@contextmanager
def accepted(call: Call, name: str = "data") -> Iterator[None]:
    """Turns the failure of a model on its inputs into one clear error that describes them.

    Args:
        call: The inputs.
        name: The argument that they come from.

    Raises:
        BadInput: If the model raises anything but an error of ours or a lack of memory.
    """
    try:
        yield
    except (torch.OutOfMemoryError, DropscopeError):
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        shapes = ", ".join(f"{tuple(t.shape)} {str(t.dtype)[6:]}" for t in call.tensors)
        received = Phrase(f"{type(error).__name__}: {first_line(error)}")
        advice = _keys_remedy(call, name) if _is_misnamed(call, error) else "call the model on them yourself first"
        advice = GRAPH_REMEDY if is_graph(call) else advice
        remedy = f"{advice}; the first inputs are {shapes}"
        raise BadInput(f"{name} must be what the model takes", name, received, remedy) from error


def is_graph(call: Call) -> bool:
    """Whether inputs are nodes and, as pairs of their numbers, the edges between them: their rows are no examples."""
    first, *others = call.tensors
    pairs = [t for t in others if t.dim() == 2 and t.shape[0] == 2 and not t.is_floating_point()]
    return "edge_index" in call.kwargs or (first.dim() == 2 and first.shape[0] != 2 and bool(pairs))


def _is_misnamed(call: Call, error: Exception) -> bool:
    """Whether the names of a dict are not those of the model's arguments."""
    said = str(error)
    return bool(call.kwargs) and isinstance(error, TypeError) and ("keyword" in said or "positional argument" in said)


def _keys_remedy(call: Call, name: str) -> str:
    names = list(call.kwargs)
    chosen = next((key for key in names if key in ("image", "inputs", "x")), names[0])
    if name != "data":
        return f"pass the input itself: {name}[{chosen!r}]"
    label = next((key for key in names if key in ("mask", "seg", "target", "y") and key != chosen), LABEL_KEYS[1])
    return f"say which field is the input and which the label: keys=({chosen!r}, {label!r})"


def id_keys(ids: Sequence[Any] | Tensor) -> Tensor:
    """A key per example from the user's ids: whole numbers as they are, anything else by the hash of its text."""
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
    """Every tensor in nested tuples, lists and dicts. Every function of a forward calls it, so it is written out."""
    if isinstance(structure, Tensor):
        return [structure]
    if isinstance(structure, dict):
        structure = structure.values()
    elif not isinstance(structure, _SEQUENCES):
        return []
    leaves: list[Tensor] = []
    for part in structure:
        if isinstance(part, Tensor):
            leaves.append(part)
        elif isinstance(part, _CONTAINERS):
            leaves += tensors(part)
    return leaves


def map_tensors(structure: Any, function: Callable[[Tensor], Any]) -> Any:
    """The structure with `function` of each tensor in its place: nested tuples, lists, dicts and dataclasses."""
    if isinstance(structure, Tensor):
        return function(structure)
    if isinstance(structure, tuple | list):
        parts = [map_tensors(part, function) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else type(structure)(parts)
    if isinstance(structure, dict):
        parts_by_key = {key: map_tensors(part, function) for key, part in structure.items()}
        if type(structure) is dict:
            return parts_by_key
        same_kind = copy.copy(structure)  # as an encoder's output, which has its fields as attributes and by number
        for key, value in parts_by_key.items():
            same_kind[key] = value
        return same_kind
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        alike: Any = copy.copy(structure)
        for item in dataclasses.fields(structure):
            object.__setattr__(alike, item.name, map_tensors(getattr(structure, item.name), function))
        return alike
    return structure


def output_tensors(output: Any) -> list[Tensor]:
    """Every tensor of a model's output."""
    if dataclasses.is_dataclass(output) and not hasattr(output, "keys"):
        return tensors([getattr(output, f.name) for f in dataclasses.fields(output)])
    return tensors(dict(output) if hasattr(output, "keys") else output)


def main_tensor(output: Any) -> Tensor | None:
    """The tensor that a module returns, or the first of several; None if that is no tensor."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def replace_tensor(structure: Any, old: Tensor, new: Tensor) -> Any:
    """The nested structure with one tensor in the place of another; only containers on the way to it are rebuilt."""
    if structure is old:
        return new
    if isinstance(structure, tuple):
        parts = [replace_tensor(part, old, new) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    if isinstance(structure, list):
        return [replace_tensor(part, old, new) for part in structure]
    if isinstance(structure, dict) and type(structure) is dict:
        return {key: replace_tensor(part, old, new) for key, part in structure.items()}
    return structure
