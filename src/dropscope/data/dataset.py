"""A data set as a list of batches that a model can be called on, each example with its key, whatever form it came in.

Owns the keys, ids, groups and labels of examples. The forms of data are `sources.py`'s, slicing and fingerprinting of
one batch `inputs.py`'s; labels are checked against the number of classes once the model has shown it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from dropscope.data import collate
from dropscope.data.collate import Keys, Part
from dropscope.errors import BadInput
from dropscope.model import example_keys, id_keys, mapped, random_state_kept, tensors


@dataclass(frozen=True, eq=False)
class Batch:
    """Some examples: `model(*args, **kwargs)` is the call. A user sees `ids`, noise is keyed by `keys`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Tensor | None  # int64 [n] or [n, *spatial], on the CPU
    keys: Tensor  # int64 [n], on the CPU
    ids: list[Any]
    groups: list[Any] | None

    @property
    def n(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Data:
    """Every example, in order. `fingerprint` is of their keys and labels in that order, however batched."""

    batches: tuple[Batch, ...]
    keyed_by: str  # "fingerprint" | "ids" | "index"
    fingerprint: str

    @property
    def n(self) -> int:
        return sum(batch.n for batch in self.batches)

    @property
    def labels(self) -> Tensor | None:
        """`[n, *spatial]`, or None without labels."""
        parts = [batch.labels for batch in self.batches if batch.labels is not None]
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) > 1:
            rule = "labels of one shape can be joined"
            raise BadInput(rule, "shapes of the labels", sorted(shapes), "go batch by batch, or resample to one shape")
        return torch.cat(parts) if parts else None

    @property
    def keys(self) -> Tensor:
        return torch.cat([batch.keys for batch in self.batches])

    @property
    def ids(self) -> list[Any]:
        return [value for batch in self.batches for value in batch.ids]

    @property
    def groups(self) -> list[Any] | None:
        if self.batches[0].groups is None:
            return None
        return [value for batch in self.batches for value in batch.groups or []]

    def rebatched(self, batch_size: int) -> Data:
        """The same examples in batches of at most `batch_size`; neighbours join where their shapes agree."""
        _check_batch_size(batch_size)
        joined: list[list[Batch]] = []
        room = 0
        for batch in self.batches:
            start = 0
            while start < batch.n:
                if room == 0 or _layout(joined[-1][0]) != _layout(batch):
                    joined.append([])
                    room = batch_size
                joined[-1].append(_cut(batch, start, start + room))
                start += joined[-1][-1].n
                room -= joined[-1][-1].n
        return replace(self, batches=tuple(_join(some) for some in joined))


def read_data(
    data: Any,
    *,
    ids: Sequence[Any] | str | None = None,
    groups: Sequence[Hashable] | str | None = None,
    batch_size: int = 256,
    keys: Keys | None = None,
    pad_token_id: int = 0,
) -> Data:
    """Reads a data set of any form into batches; a generator is used up, global random state is left as it was.

    `data` is `(inputs, labels)`; inputs alone (a tensor, or a dict that may hold `labels`); a Dataset whose items are
    `x`, `(x, y)` or dicts; a DataLoader; an iterable of batches `(x, y)` or dicts; or a tokenised `datasets.Dataset`.
    Inputs are a tensor, a tuple of tensors (positional) or a dict of tensors (by name).

    - `ids`: None keys an example by its own inputs; a sequence gives one id per example; `"index"` uses the position in
      the data set; any other text names a field of dict batches that holds the ids.
    - `groups`: one per example (patient, volume), or the name of a field.
    - `batch_size`: for what is not in batches yet; a DataLoader's or an iterable's batches stay as they are.
    - `keys`: `("image", "label")` names the input and the label of dicts (label None: unlabelled). One name is passed
      to the model by position, a tuple of names by name.
    - `pad_token_id`: what `input_ids` of different lengths are padded with, on the right; anything else gets 0.

    A DataLoader that shuffles or drops the last batch is read whole, in the order of its data set, so that ids and
    groups belong to the right examples. One with its own sampler is read as it comes, and takes only fields as ids and
    groups. Float labels that are whole numbers count as such; `[N, 1]` is read as `[N]`, and a label map with one
    channel, as MONAI has it, without that channel.

    >>> some = read_data((torch.zeros(3, 4), [0, 1, 1]), batch_size=2)
    >>> some.n, [tuple(batch.args[0].shape) for batch in some.batches], some.labels.tolist()
    (3, [(2, 4), (1, 4)], [0, 1, 1])
    """
    _check_batch_size(batch_size)
    by_index = isinstance(ids, str) and ids == "index"
    names = (None if by_index else ids, groups)
    data = data.tensors if isinstance(data, TensorDataset) else data
    with random_state_kept():
        parts = collate.parts(
            data,
            batch_size=batch_size,
            keys=keys,
            fields=tuple(name for name in names if isinstance(name, str)),
            pad=pad_token_id,
            by_index=by_index,
            by_position=any(name is not None and not isinstance(name, str) for name in names),
        )
    labels = _class_indices(parts)
    n = sum(part.size for part in parts)
    given = None if by_index else _one_each("ids", ids, parts, n)
    grouped = _one_each("groups", groups, parts, n)
    numbered = torch.arange(n) if given is None else _unique_keys(given)
    batches, start = [], 0
    for part, own in zip(parts, labels, strict=True):
        some = slice(start, start + part.size)
        shown = list(range(n)[some]) if given is None else given[some]
        own_groups = None if grouped is None else grouped[some]
        batches.append(Batch(part.args, part.kwargs, own, numbered[some], shown, own_groups))
        start += part.size
    if collate.is_whole(data):
        batches = [_cut(batches[0], start, start + batch_size) for start in range(0, n, batch_size)]
    if ids is None:
        batches = [replace(batch, keys=example_keys(batch.args, batch.kwargs)) for batch in batches]
    keyed_by = "fingerprint" if ids is None else "index" if by_index else "ids"
    return Data(tuple(batches), keyed_by, _fingerprint(batches))


def check_labels(labels: Tensor, classes: int, ignore_label: int | None = None) -> None:
    """Refuses labels `[N, *spatial]` that are no class 0 … classes−1; `ignore_label` marks what has no label."""
    wrong = (labels < 0) | (labels >= classes)
    if ignore_label is not None:
        wrong &= labels != ignore_label
    if not bool(wrong.any()):
        return
    value, count = int(labels[wrong][0]), int(wrong.sum())
    if value == classes and not bool((labels == 0).any()):
        remedy = "count classes from 0: labels - 1"
    elif value < 0 or value == 255:
        remedy = f"pass ignore_label={value} if that marks what has no label, or leave those examples out"
    else:
        remedy = "check that these labels and the model's classes are the same set"
    rule = f"labels are 0 to {classes - 1} for a model of {classes} classes"
    raise BadInput(rule, f"labels ({count} such of {labels.numel()})", value, remedy)


# --- ids and groups --------------------------------------------------------------------------------------------------


def _check_batch_size(batch_size: object) -> None:
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise BadInput("a batch has at least one example", "batch_size", batch_size, "write batch_size=256")


def _one_each(what: str, given: Any, parts: list[Part], n: int) -> list[Any] | None:
    """One id, or one group, per example; from a sequence, or from the field of that name."""
    if given is None:
        return None
    rule = f"there is one of {what} per example"
    if isinstance(given, str):
        for part in parts:
            if (count := len(part.fields[given])) != part.size:
                got = f"{count} for {part.size} examples"
                raise BadInput(rule, f"{given!r} in {part.place}", got, f"pass {what} as a list")
        values = [value for part in parts for value in part.fields[given]]
    else:
        values = collate.listing(given, what)
    if len(values) != n:
        raise BadInput(rule, what, f"{len(values)} for {n} examples", f"pass {n} {what}")
    for value in values:
        if what == "groups" and not isinstance(value, Hashable):
            raise BadInput("a group is a name or a number", what, value, "pass one text or number per example")
    return values


def _unique_keys(ids: list[Any]) -> Tensor:
    keys = id_keys(ids)
    seen: dict[int, int] = {}
    for i, key in enumerate(keys.tolist()):
        if (first := seen.setdefault(key, i)) != i:
            remedy = "number the examples, or leave ids out: then equal inputs share their noise"
            raise BadInput("ids are unique", f"ids of examples {first} and {i}", ids[i], remedy)
    return keys


# --- labels -----------------------------------------------------------------------------------------------------------


def _class_indices(parts: list[Part]) -> list[Tensor] | list[None]:
    """int64 `[n, *spatial]` per batch: a lone column or channel is dropped, one-hot labels are refused."""
    if parts[0].labels is None:
        return [None for _ in parts]
    given = [_numbers(part) for part in parts]
    shown = [_image_of(part) for part in parts]
    pairs = list(zip(given, shown, strict=True))
    if all(y.dim() > 1 and y.shape[1] == 1 and y.dim() in (2, x.dim()) for y, x in pairs):
        given = [y[:, 0] for y in given]
    elif all(_is_one_hot(y, x) for y, x in pairs):
        remedy = "pass labels.argmax(1); yes-or-no answers per label or pixel that only look so, as labels.bool()"
        raise BadInput("labels are class indices, not one-hot rows", "shape of labels", tuple(given[0].shape), remedy)
    return [y.long() for y in given]


def _numbers(part: Part) -> Tensor:
    labels, name = part.labels, f"labels in {part.place}"
    if not isinstance(labels, Tensor):
        try:
            array = np.asarray(labels)
        except (ValueError, TypeError, RuntimeError):
            array = np.empty(0, dtype=object)
        if array.dtype.kind not in "biuf":
            got = labels[0] if isinstance(labels, list) and labels else type(labels).__name__
            remedy = "number the classes from 0; for two inputs and no labels write ((x1, x2), None)"
            raise BadInput("labels are whole numbers, one per example", name, got, remedy)
        labels = collate.from_numpy(array)
    labels = collate.plain(labels).cpu()
    if labels.dim() == 0 or len(labels) != part.size:
        got = f"{len(labels) if labels.dim() else 'one number'} for {part.size} inputs"
        remedy = "pass one label per example, along dimension 0; single examples go into a DataLoader first"
        raise BadInput("there are as many labels as inputs", name, got, remedy)
    whole = not labels.is_floating_point() or bool((labels.isfinite() & (labels == labels.round())).all())
    if labels.is_complex() or not whole:
        remedy = "pass class indices (of probabilities, labels.argmax(1)); for two inputs write ((x1, x2), None)"
        raise BadInput("labels are whole numbers", name, labels.flatten()[:5].tolist(), remedy)
    return labels


def _image_of(part: Part) -> Tensor:
    return next(t for t in tensors((part.args, part.kwargs)) if t.dim() > 0)


def _is_one_hot(labels: Tensor, image: Tensor) -> bool:
    if labels.dtype == torch.bool or labels.dim() < 2 or labels.shape[1] < 2 or labels.dim() not in (2, image.dim()):
        return False
    if labels.shape == image.shape and not image.is_floating_point():  # a label per token
        return False
    return bool((labels.amin() >= 0) & (labels.amax() <= 1) & (labels.sum(1) == 1).all())


# --- batches ----------------------------------------------------------------------------------------------------------


def _fingerprint(batches: Iterable[Batch]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for batch in batches:
        digest.update(batch.keys.numpy().tobytes())
    for batch in batches:
        for label in () if batch.labels is None else batch.labels.numpy():
            digest.update(f"{label.shape}".encode() + label.tobytes())
    return digest.hexdigest()


def _cut(batch: Batch, start: int, stop: int) -> Batch:
    """Some neighbouring examples, as views."""
    some = slice(start, stop)
    args, kwargs = mapped(lambda t: t[some] if t.dim() > 0 else t, batch.args, batch.kwargs)
    labels = None if batch.labels is None else batch.labels[some]
    groups = None if batch.groups is None else batch.groups[some]
    return Batch(args, kwargs, labels, batch.keys[some], batch.ids[some], groups)


def _layout(batch: Batch) -> Any:
    """What two batches share if their tensors can be joined."""

    def form(t: Tensor) -> Any:
        return (t.dtype, t.device, t.shape[1:]) if t.dim() > 0 else t.item()

    return *mapped(form, batch.args, batch.kwargs), None if batch.labels is None else form(batch.labels)


def _join(batches: Sequence[Batch]) -> Batch:
    """Several batches of one layout as one."""
    first = batches[0]
    if len(batches) == 1:
        return first

    def joined(parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], Tensor) and parts[0].dim() > 0:
            return _cat(parts)
        if isinstance(parts[0], tuple):
            return tuple(joined(column) for column in zip(*parts, strict=True))
        if isinstance(parts[0], dict):
            return {name: joined([part[name] for part in parts]) for name in parts[0]}
        return parts[0]

    return Batch(
        joined([batch.args for batch in batches]),
        joined([batch.kwargs for batch in batches]),
        joined([batch.labels for batch in batches]),
        _cat([batch.keys for batch in batches]),
        [value for batch in batches for value in batch.ids],
        None if first.groups is None else [value for batch in batches for value in batch.groups or []],
    )


def _cat(parts: Sequence[Tensor]) -> Tensor:
    """One after the other; neighbouring slices of one tensor become one slice again, without a copy."""
    first = parts[0]
    end = first.storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.stride() != first.stride() or part.storage_offset() != end:
            return torch.cat(list(parts))
        end += len(part) * part.stride(0)
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride(), first.storage_offset())
