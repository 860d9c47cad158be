"""Reader of data sets of any form: `read_data`.

Owns the keys, ids, groups and labels of examples, and the check of labels against the number of classes. See `collate`
for the forms of data, `batches` for the result.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from dropscope.checks import check_count
from dropscope.data import collate
from dropscope.data.batches import Batch, Data, fingerprint_of
from dropscope.data.collate import Keys, RawBatch
from dropscope.errors import BadInput, Phrase
from dropscope.model import Call, id_keys, random_state_kept


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

    A DataLoader that shuffles or drops the last batch is read whole, in the order of its data set, so that ids and
    groups belong to the right examples. One with its own sampler is read as it comes, and takes only fields as ids and
    groups. Float labels that are whole numbers count as such; `[N, 1]` is read as `[N]`, and a label map with one
    channel, as MONAI has it, without that channel.

    Args:
        data: The data set.
        ids: None keys an example by its own inputs; a sequence gives one id per example; `"index"` uses the position
            in the data set; any other text names a field of dict batches that holds the ids.
        groups: One per example (patient, volume), or the name of a field.
        batch_size: For what is not in batches yet; the batches of a DataLoader or an iterable stay as they are.
        keys: `("image", "label")` names the input and the label of dicts; a label of None means unlabelled. One name
            is passed to the model by position, a tuple of names by name.
        pad_token_id: What `input_ids` of different lengths are padded with, on the right. Other inputs get 0.

    Returns:
        The `Data`.

    Raises:
        BadInput: If the data cannot be read, or `ids`, `groups` or labels do not fit it.

    Examples:
        >>> data = read_data((torch.zeros(3, 4), [0, 1, 1]), batch_size=2)
        >>> data.n, [tuple(batch.call.args[0].shape) for batch in data.batches], data.labels.tolist()
        (3, [(2, 4), (1, 4)], [0, 1, 1])
    """
    check_count(batch_size, "batch_size", 256)
    by_index = isinstance(ids, str) and ids == "index"
    named = {"ids": None if by_index else ids, "groups": groups}
    data = data.tensors if isinstance(data, TensorDataset) else data
    with random_state_kept():
        raw = collate.raw_batches(
            data,
            batch_size=batch_size,
            keys=keys,
            fields={argument: field for argument, field in named.items() if isinstance(field, str)},
            pad=pad_token_id,
            by_index=by_index,
            by_position=any(value is not None and not isinstance(value, str) for value in named.values()),
        )
    labels = _class_indices(raw)
    n = sum(one.size for one in raw)
    given = None if by_index else _one_each("ids", ids, raw, n)
    grouped = _one_each("groups", groups, raw, n)
    numbered = torch.arange(n) if given is None else _unique_keys(given)
    batches, start = [], 0
    for one, own in zip(raw, labels, strict=True):
        part = slice(start, start + one.size)
        shown = list(range(n)[part]) if given is None else given[part]
        own_groups = None if grouped is None else grouped[part]
        batches.append(Batch(one.call, own, numbered[part], shown, own_groups))
        start += one.size
    if collate.is_whole(data):
        batches = [batches[0].cut(start, start + batch_size) for start in range(0, n, batch_size)]
    if ids is None:
        batches = [replace(batch, keys=batch.call.keys()) for batch in batches]
    keyed_by = "fingerprint" if ids is None else "index" if by_index else "ids"
    return Data(tuple(batches), keyed_by, fingerprint_of(batches))


def first_call(data: Any, count: int = 8, keys: Keys | None = None) -> Call:
    """A call on the first examples of data of any form, as far as possible without reading the rest.

    Labels are not looked at.
    """
    few = _head(data.tensors if isinstance(data, TensorDataset) else data, count)
    with random_state_kept():
        raw = collate.raw_batches(
            few, batch_size=count, keys=keys, fields={}, pad=0, by_index=False, by_position=False
        )  # fmt: skip
    return raw[0].call.take(range(min(count, raw[0].size)))


def _head(data: Any, count: int) -> Any:
    """The first examples of data that is slow to read whole; data in memory is returned as it is."""
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        return DataLoader(_head(data.dataset, count), batch_size=count, collate_fn=data.collate_fn)
    if hasattr(data, "select") and hasattr(data, "column_names"):  # datasets.Dataset
        return data.select(range(min(count, len(data))))
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return Subset(data, range(min(count, len(data))))
    if isinstance(data, Tensor | Mapping | tuple | list | str) or not isinstance(data, Iterable):
        return data
    return list(islice(data, 1))


def check_labels(labels: Tensor, classes: int, ignore_label: int | None = None) -> None:
    """Refuses labels that are no class.

    Args:
        labels: `[N, *spatial]`.
        classes: How many classes the model has.
        ignore_label: What marks the unlabelled.

    Raises:
        BadInput: If a label is neither 0 … classes−1 nor `ignore_label`.
    """
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
    what = f"the labels must be 0 to {classes - 1} for a model of {classes} classes"
    raise BadInput(what, "labels", Phrase(f"{value} ({count} such of {labels.numel()})"), remedy)


# --- ids and groups --------------------------------------------------------------------------------------------------


def _one_each(what: str, given: Any, raw: list[RawBatch], n: int) -> list[Any] | None:
    """One id, or one group, per example; from a sequence, or from the field of that name."""
    if given is None:
        return None
    rule = f"{what} must hold one entry per example"
    if isinstance(given, str):
        for one in raw:
            if (count := len(one.fields[given])) != one.size:
                got = Phrase(f"{count} for {one.size} examples from {given!r} in {one.place}")
                raise BadInput(rule, what, got, f"pass {what} as a list")
        values = [value for one in raw for value in one.fields[given]]
    else:
        values = collate.listing(given, what)
    if len(values) != n:
        raise BadInput(rule, what, Phrase(f"{len(values)} for {n} examples"), f"pass {n} {what}")
    for value in values:
        if what == "groups" and not isinstance(value, Hashable):
            raise BadInput("groups must be names or numbers", what, value, "pass one text or number per example")
    return values


def _unique_keys(ids: list[Any]) -> Tensor:
    keys = id_keys(ids)
    seen: dict[int, int] = {}
    for i, key in enumerate(keys.tolist()):
        if (first := seen.setdefault(key, i)) != i:
            remedy = "number the examples, or leave ids out: then equal inputs share their noise"
            got = Phrase(f"{ids[i]!r} for examples {first} and {i}")
            raise BadInput("ids must be unique", "ids", got, remedy)
    return keys


# --- labels -----------------------------------------------------------------------------------------------------------


def _class_indices(raw: list[RawBatch]) -> list[Tensor] | list[None]:
    """int64 `[n, *spatial]` per batch. A single column or channel is dropped, one-hot labels are refused."""
    if raw[0].labels is None:
        return [None for _ in raw]
    given = [_numbers(one) for one in raw]
    shown = [_image_of(one) for one in raw]
    pairs = list(zip(given, shown, strict=True))
    if all(y.dim() > 1 and y.shape[1] == 1 and y.dim() in (2, x.dim()) for y, x in pairs):
        given = [y[:, 0] for y in given]
    elif all(_is_one_hot(y, x) for y, x in pairs):
        remedy = "pass labels.argmax(1); yes-or-no answers per label or pixel that only look so, as labels.bool()"
        got = Phrase(f"one-hot rows of shape {tuple(given[0].shape)}")
        raise BadInput("the labels must be class indices", "labels", got, remedy)
    return [y.long() for y in given]


def _numbers(one: RawBatch) -> Tensor:
    labels = one.labels
    if not isinstance(labels, Tensor):
        try:
            array = np.asarray(labels)
        except (ValueError, TypeError, RuntimeError):
            array = np.empty(0, dtype=object)
        if array.dtype.kind not in "biuf":
            got = labels[0] if isinstance(labels, list) and labels else type(labels).__name__
            remedy = "number the classes from 0; for two inputs and no labels write ((x1, x2), None)"
            raise BadInput(f"the labels in {one.place} must be whole numbers, one per example", "labels", got, remedy)
        labels = collate.from_numpy(array)
    labels = collate.plain(labels).cpu()
    if labels.dim() == 0 or len(labels) != one.size:
        got = Phrase(f"{len(labels) if labels.dim() else 'one number'} for {one.size} inputs")
        remedy = "pass one label per example, along dimension 0; single examples go into a DataLoader first"
        raise BadInput(f"the labels in {one.place} must be as many as the inputs", "labels", got, remedy)
    whole = not labels.is_floating_point() or bool((labels.isfinite() & (labels == labels.round())).all())
    if labels.is_complex() or not whole:
        remedy = "pass class indices: regression is not supported yet (for two inputs write ((x1, x2), None))"
        if labels.dim() > 1 and labels.shape[1] > 1:
            remedy = "pass class indices (of probabilities, labels.argmax(1)); for two inputs write ((x1, x2), None)"
        shown = labels.flatten()[:5].tolist()
        raise BadInput(f"the labels in {one.place} must be whole numbers", "labels", shown, remedy)
    return labels


def _image_of(one: RawBatch) -> Tensor:
    return next(t for t in one.call.tensors if t.dim() > 0)


def _is_one_hot(labels: Tensor, image: Tensor) -> bool:
    if labels.dtype == torch.bool or labels.dim() < 2 or labels.shape[1] < 2 or labels.dim() not in (2, image.dim()):
        return False
    if labels.shape == image.shape and not image.is_floating_point():  # a label per token
        return False
    return bool((labels.amin() >= 0) & (labels.amax() <= 1) & (labels.sum(1) == 1).all())


# --- batches ----------------------------------------------------------------------------------------------------------
