"""Batches of examples with their keys, and the data set they make up: `Batch` and `Data`.

Owns how examples are cut, joined and sorted by length. See `dataset` for where they come from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dropscope.checks import check_count
from dropscope.errors import BadInput, Phrase
from dropscope.model import Call

PADDING = 0.05  # share of padding among all tokens that is accepted: less of it needs more forwards


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples of a data set as one call of a model.

    Attributes:
        call: The inputs.
        labels: int64 `[n]` or `[n, *spatial]` on the CPU; None without labels.
        keys: int64 `[n]`, what the noise of an example is a function of.
        ids: What the user calls each example.
        groups: The group of each example (patient, volume), or None.
        rows: int64 `[n]` on the CPU: positions in the data set; None where batches are in its order.
    """

    call: Call
    labels: Tensor | None
    keys: Tensor
    ids: list[Any]
    groups: list[Any] | None
    rows: Tensor | None = None

    @property
    def n(self) -> int:
        """How many examples it holds."""
        return len(self.ids)

    def take(self, numbers: Sequence[int]) -> Batch:
        """Chosen examples, copied."""
        where = torch.tensor(list(numbers))
        return Batch(
            self.call.take(numbers),
            None if self.labels is None else self.labels[where.to(self.labels.device)],
            self.keys[where.to(self.keys.device)],
            [self.ids[i] for i in numbers],
            None if self.groups is None else [self.groups[i] for i in numbers],
            None if self.rows is None else self.rows[where],
        )

    def cut(self, start: int, stop: int) -> Batch:
        """The examples from `start` to `stop`, as views."""
        part = slice(start, stop)
        return Batch(
            self.call.map(lambda t: t[part] if t.dim() > 0 else t),
            None if self.labels is None else self.labels[part],
            self.keys[part],
            self.ids[part],
            None if self.groups is None else self.groups[part],
            None if self.rows is None else self.rows[part],
        )

    def first_two(self) -> Batch:
        """The first example and the first that differs from it. Equal ones would hide what one does to the other."""
        other = torch.zeros(self.n, dtype=torch.bool)
        for tensor in self.call.tensors:
            if tensor.dim() > 0 and len(tensor) == self.n:
                different = tensor != tensor[:1]
                other |= (different.flatten(1).any(1) if tensor.dim() > 1 else different).cpu()
        differs = other.nonzero().flatten().tolist()
        return self.take([0, *(differs[:1] or range(1, self.n)[:1])])

    @property
    def signature(self) -> str:
        """Shapes and types of one example: batches that share it can run through one graph."""
        shapes = self.call.map(lambda t: (tuple(t.shape[1:]), t.dtype))
        return repr((shapes.args, sorted(shapes.kwargs.items())))

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Tokens of each example, where an attention mask pads them on the right; None elsewhere."""
        mask = self.call.kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.dim() != 2 or "input_ids" not in self.call.kwargs:
            return None
        tokens = mask.cpu().long()
        if not bool((tokens[:, 1:] <= tokens[:, :-1]).all()) or not bool(tokens[:, 0].all()):
            return None
        return tokens.sum(1).numpy()


@dataclass(frozen=True, eq=False)
class Data:
    """Every example of a data set.

    Attributes:
        batches: The examples.
        keyed_by: Where their keys come from: "fingerprint", "ids" or "index".
        fingerprint: A hash of all keys and labels in order, independent of the batches.
    """

    batches: tuple[Batch, ...]
    keyed_by: str
    fingerprint: str

    @property
    def n(self) -> int:
        """How many examples it holds."""
        return sum(batch.n for batch in self.batches)

    @property
    def labels(self) -> Tensor | None:
        """`[n, *spatial]` in the order of the batches, or None without labels."""
        parts = [batch.labels for batch in self.batches if batch.labels is not None]
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) > 1:
            received = Phrase(f"shapes {', '.join(map(str, sorted(shapes)))}")
            raise BadInput("labels must have one shape", "labels", received, "go batch by batch, or resample to one")
        return torch.cat(parts) if parts else None

    @property
    def keys(self) -> Tensor:
        """int64 `[n]` in the order of the batches."""
        return torch.cat([batch.keys for batch in self.batches])

    @property
    def ids(self) -> list[Any]:
        """One per example, in the order of the batches."""
        return [value for batch in self.batches for value in batch.ids]

    @property
    def groups(self) -> list[Any] | None:
        """One per example in the order of the batches, or None."""
        if self.batches[0].groups is None:
            return None
        return [value for batch in self.batches for value in batch.groups or []]

    @property
    def order(self) -> Tensor | None:
        """The position in the data set of each example of the batches; None if they are in its order."""
        rows = [batch.rows for batch in self.batches]
        return None if rows[0] is None else torch.cat([row for row in rows if row is not None])

    @property
    def padding(self) -> float:
        """The share of padding among all tokens; every batch must have `lengths`."""
        lengths = [batch.lengths for batch in self.batches]
        real = sum(int(each.sum()) for each in lengths if each is not None)
        return 1 - real / sum(batch.call.kwargs["attention_mask"].numel() for batch in self.batches)

    def on(self, device: torch.device) -> Data:
        """The same batches with inputs and keys on a device, sent at once: each transfer waits for queued work."""
        moved = (replace(b, call=b.call.to(device), keys=b.keys.to(device)) for b in self.batches)
        return replace(self, batches=tuple(moved))

    def named(self, names: Sequence[Any]) -> Data:
        """The same examples under other ids, one each in the order of the batches. Their noise stays as it is."""
        starts = np.cumsum([0, *(batch.n for batch in self.batches)]).tolist()
        renamed = (
            replace(batch, ids=list(names[start : start + batch.n]))
            for batch, start in zip(self.batches, starts, strict=False)
        )
        return replace(self, batches=tuple(renamed))

    def part(self, numbers: Sequence[int]) -> Data:
        """The examples at these positions, rising, as a data set of their own."""
        chosen, start, batches = np.asarray(numbers, dtype=np.int64), 0, []
        for batch in self.batches:
            inside = chosen[(chosen >= start) & (chosen < start + batch.n)] - start
            if len(inside):
                batches.append(batch.take(inside.tolist()))
            start += batch.n
        return Data(tuple(batches), self.keyed_by, fingerprint_of(batches))

    def rebatched(self, batch_size: int) -> Data:
        """The same examples in batches of at most `batch_size`. Neighbours are joined if their shapes agree."""
        check_count(batch_size, "batch_size", 256)
        joined: list[list[Batch]] = []
        room = 0
        for batch in self.batches:
            start = 0
            while start < batch.n:
                if room == 0 or _layout(joined[-1][0]) != _layout(batch):
                    joined.append([])
                    room = batch_size
                joined[-1].append(batch.cut(start, start + room))
                start += joined[-1][-1].n
                room -= joined[-1][-1].n
        return replace(self, batches=tuple(_join(neighbours) for neighbours in joined))

    def length_sorted(self, at_most: Callable[[int], int] | None = None) -> Data:
        """Token batches in order of length, each cut to its longest text: the fewest batches with little padding.

        Data without right-padded tokens, or with more than one label per example, is returned as it is.

        Args:
            at_most: From the length of a batch to how many examples it may hold. None sets no limit.

        Returns:
            The same examples, with their positions in the data set as `rows`.
        """
        lengths = [batch.lengths for batch in self.batches]
        known = [each for each in lengths if each is not None]
        if len(known) < len(lengths) or any(b.labels is not None and b.labels.dim() > 1 for b in self.batches):
            return self
        every = np.concatenate(known)
        order = np.argsort(every, kind="stable")
        ends = fewest_batches(every[order])
        places = [(number, i) for number, each in enumerate(known) for i in range(len(each))]
        batches = []
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            size = end - begin if at_most is None else at_most(int(every[order[end - 1]]))
            for first in range(begin, end, size):
                chosen = order[first : min(first + size, end)]
                batches.append(self._gather(chosen, places, int(every[chosen].max())))
        return replace(self, batches=tuple(batches))

    def padded(self, length: int) -> Data:
        """Texts at this length: only padding is cut away or added.

        Raises:
            BadInput: If these are no right-padded texts, or one of them is longer.
        """
        longest = [None if batch.lengths is None else int(batch.lengths.max()) for batch in self.batches]
        if None in longest:
            remedy = "leave length out"
            raise BadInput("length must be left to data that are no right-padded texts", "length", length, remedy)
        if length < max(known for known in longest if known is not None):
            remedy = f"write length={max(known for known in longest if known is not None)}"
            raise BadInput("length must be at least that of the longest text", "length", length, remedy)
        return replace(self, batches=tuple(_at_length(batch, length) for batch in self.batches))

    def _gather(self, chosen: NDArray[np.int64], places: Sequence[tuple[int, int]], longest: int) -> Batch:
        """The examples `chosen`, each from the batch that `places` names, cut to `longest` tokens."""

        def cut(batch: Batch, i: int) -> Batch:
            return _at_length(batch.cut(i, i + 1), longest)

        joined = _join([cut(self.batches[places[i][0]], places[i][1]) for i in chosen])
        old = self.order
        rows = torch.from_numpy(chosen) if old is None else old[torch.from_numpy(chosen)]
        return replace(joined, rows=rows)


def fingerprint_of(batches: Sequence[Batch]) -> str:
    """A hash of all keys and labels in order, independent of the batches."""
    digest = hashlib.blake2b(digest_size=16)
    for batch in batches:
        digest.update(batch.keys.cpu().numpy().tobytes())
    for batch in batches:
        for label in () if batch.labels is None else batch.labels.numpy():
            digest.update(f"{label.shape}".encode() + label.tobytes())
    return digest.hexdigest()


def fewest_batches(rising: NDArray[np.int64]) -> list[int]:
    """The end of each batch, if lengths in rising order are cut into the fewest batches with little padding.

    >>> fewest_batches(np.array([10, 10, 30, 31])), fewest_batches(np.array([20, 20, 20, 21]))
    ([2, 4], [4])
    """
    sizes, counts = np.unique(rising, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    # tokens[i, j]: computed where the sizes i to j − 1 are one batch
    tokens = np.triu((below[None, :] - below[:, None]) * np.concatenate([[0], sizes])[None, :]).astype(float)
    tokens[np.tril_indices(len(below))] = np.inf
    best, cuts = tokens[0], [np.zeros(len(below), dtype=np.int64)]
    while best[-1] * (1 - PADDING) > rising.sum() and len(cuts) < len(sizes):
        through = best[:, None] + tokens
        cuts.append(through.argmin(0))
        best = through.min(0)
    ends = [len(sizes)]
    for last in reversed(cuts[1:]):
        ends.append(int(last[ends[-1]]))
    return [int(below[end]) for end in reversed(ends)]


def _at_length(batch: Batch, length: int) -> Batch:
    """The batch with everything that counts tokens as its attention mask does at this length."""
    width = batch.call.kwargs["attention_mask"].shape[1]

    def fit(t: Tensor) -> Tensor:
        return _fitted(t, length) if t.dim() > 1 and t.shape[1] == width else t

    return replace(batch, call=batch.call.map(fit))


def _fitted(tokens: Tensor, longest: int) -> Tensor:
    """`[n, width, …]` at the width `longest`; only padding is cut away or added."""
    if tokens.shape[1] >= longest:
        return tokens[:, :longest]
    return torch.cat([tokens, tokens.new_zeros(len(tokens), longest - tokens.shape[1], *tokens.shape[2:])], 1)


def _layout(batch: Batch) -> Any:
    """What two batches must share for their tensors to be joined."""

    def form(t: Tensor) -> Any:
        return (t.dtype, t.device, t.shape[1:]) if t.dim() > 0 else t.item()

    forms = batch.call.map(form)
    return forms.args, forms.kwargs, None if batch.labels is None else form(batch.labels)


def _join(batches: Sequence[Batch]) -> Batch:
    """Several batches of one layout as one."""
    first = batches[0]
    if len(batches) == 1:
        return first

    def joined(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Tensor) and values[0].dim() > 0:
            return _cat(values)
        if isinstance(values[0], tuple):
            return tuple(joined(column) for column in zip(*values, strict=True))
        if isinstance(values[0], dict):
            return {name: joined([value[name] for value in values]) for name in values[0]}
        return values[0]

    return Batch(
        Call(joined([batch.call.args for batch in batches]), joined([batch.call.kwargs for batch in batches])),
        joined([batch.labels for batch in batches]),
        _cat([batch.keys for batch in batches]),
        [value for batch in batches for value in batch.ids],
        None if first.groups is None else [value for batch in batches for value in batch.groups or []],
        None if first.rows is None else torch.cat([batch.rows for batch in batches if batch.rows is not None]),
    )


def _cat(parts: Sequence[Tensor]) -> Tensor:
    """The tensors joined. Neighbouring slices of one tensor become one slice again, without a copy."""
    first = parts[0]
    end = first.storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.stride() != first.stride() or part.storage_offset() != end:
            return torch.cat(list(parts))
        end += len(part) * part.stride(0)
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride(), first.storage_offset())
