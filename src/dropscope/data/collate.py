"""Forms of data, collated into raw batches: each a call of the model with its labels and named fields.

Owns the forms (tensors, Dataset, DataLoader, iterables, datasets.Dataset), the order of reading, stacking, padding.
See `dataset` for what labels mean and how examples are keyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from dropscope.errors import BadInput, Phrase, first_line, nearest
from dropscope.model import GRAPH_REMEDY, LABEL_KEYS, Call, is_graph

Keys = tuple[str | Sequence[str], str | None]
Fields = Mapping[str, str]  # argument → the field that it names: {"ids": "case", "groups": "patient"}

FORMS = "pass (inputs, labels), a Dataset, a DataLoader, a list of batches, or a datasets.Dataset"
LABEL_PADDING = -100
# Of a tokenised data set's columns, those that go to the model; texts, row numbers and the like do not.
MODEL_COLUMNS = frozenset(
    ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "global_attention_mask", "bbox",
     "pixel_values", "pixel_mask", "input_features", "input_values", "decoder_input_ids", "decoder_attention_mask")
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RawBatch:
    """One batch as it was read.

    Attributes:
        call: A call of the model.
        labels: Labels of any kind, or None.
        fields: The named fields that were asked for.
        place: Where it was found, for errors.
    """

    call: Call
    labels: Any
    fields: dict[str, list[Any]]
    place: str

    @property
    def size(self) -> int:
        return self.call.examples


def raw_batches(
    data: Any,
    *,
    batch_size: int,
    keys: Keys | None,
    fields: Fields,
    pad: int,
    by_index: bool,
    by_position: bool,
) -> list[RawBatch]:
    """Everything in `data`, checked to be calls of one form.

    Args:
        data: A data set of any form.
        batch_size: For what is not in batches yet.
        keys: Names of the input and the label in dicts.
        fields: Other fields to read, by the argument that names them; the model does not get them.
        pad: What `input_ids` are padded with.
        by_index: Whether keys are positions in the data set, which needs its order.
        by_position: Whether the caller has lists that go by position, which need a reproducible order.
    """
    _check_keys(keys)
    ordered = by_index or by_position
    given = _batches(data, batch_size, keys, fields, pad, by_index=by_index, ordered=ordered)
    batches = [_raw_batch(batch, keys, fields, f"batch {i} of data") for i, batch in enumerate(given)]
    if not batches:
        remedy = "pass examples; a generator is used up by its first reading, a list is not"
        raise BadInput("data must hold at least one example", "data", Phrase(f"an empty {type(data).__name__}"), remedy)
    _check_alike(batches)
    return batches


def is_whole(data: Any) -> bool:
    """Whether all examples are in one call, to be cut into batches as views."""
    return isinstance(data, tuple | Tensor | np.ndarray) or _is_mapping(data)


def plain(tensor: Tensor) -> Tensor:
    """The same memory as an ordinary tensor, without what MONAI's MetaTensor and others carry along."""
    tensor = tensor.as_tensor() if hasattr(tensor, "as_tensor") else tensor
    return tensor.detach()


def from_numpy(array: np.ndarray) -> Tensor:
    """The same memory if torch can use it; a copy if it is read-only or runs backwards."""
    return torch.from_numpy(array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy())


def listing(values: Any, name: str) -> list[Any]:
    """One entry per example as Python values."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        got = Phrase(type(values).__name__)
        raise BadInput(f"{name} must hold one entry per example", name, got, "pass a list, one per example")
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)


# --- a form of data → raw batches -------------------------------------------------------------------------------------


def _is_mapping(value: Any) -> bool:
    return hasattr(value, "keys") and hasattr(value, "__getitem__")  # dict, and Hugging Face's BatchEncoding


def _batches(
    data: Any, batch_size: int, keys: Keys | None, fields: Fields, pad: int, *, by_index: bool, ordered: bool
) -> Iterator[Any]:
    if isinstance(data, DataLoader):
        yield from _in_order(data, ordered=ordered)
    elif is_whole(data):
        yield data
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list | str | bytes):
        tokenised = hasattr(data, "column_names") and hasattr(data, "features")  # a datasets.Dataset
        for start in range(0, len(data), batch_size):
            some = range(start, min(start + batch_size, len(data)))
            if tokenised:
                yield _columns(data[some.start : some.stop], keys, fields, pad)
            else:
                yield _collated([data[i] for i in some], "data", pad)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        if by_index:
            remedy = "pass ids=[...], one per example in that order, ids='field' of dict batches, or leave ids out"
            raise BadInput("ids must not be 'index' for an iterable, which has none", "ids", "index", remedy)
        yield from DataLoader(data, batch_size=batch_size) if isinstance(data, IterableDataset) else data
    else:
        raise BadInput("data must be a data set", "data", Phrase(type(data).__name__), FORMS)


def _in_order(loader: DataLoader[Any], *, ordered: bool) -> Iterator[Any]:
    """Every batch of a loader; in the order of its data set if it covers all of it, shuffled or not."""
    sampler = loader.sampler
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    whole = (shuffles or type(sampler) is SequentialSampler) and type(loader.batch_sampler) is BatchSampler
    if not whole or type(loader).__iter__ is not DataLoader.__iter__:
        if ordered:
            kind = type(loader.dataset if isinstance(loader.dataset, IterableDataset) else sampler).__name__
            what = "data must be a DataLoader over a whole data set where ids or groups go by position"
            remedy = "name a field of its dict batches (ids='field'), pass the Dataset itself, or leave them out"
            raise BadInput(what, "data", Phrase(f"one with {kind}"), remedy)
        yield from loader
    elif shuffles or loader.drop_last:
        yield from DataLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
        )
    else:
        yield from loader


def _columns(rows: Any, keys: Keys | None, fields: Fields, pad: int) -> dict[str, Any]:
    """The columns of a `datasets.Dataset` that matter: model inputs, labels and the named fields."""
    if keys is None:
        wanted = [name for name in rows if name in MODEL_COLUMNS or name in LABEL_KEYS]
        if not MODEL_COLUMNS.intersection(wanted):
            remedy = "tokenise it first (dataset.map), or name the columns: keys=('input', 'label')"
            raise BadInput("data must have columns that a model takes", "data", list(rows), remedy)
    else:
        wanted = [*([keys[0]] if isinstance(keys[0], str) else keys[0]), *([] if keys[1] is None else [keys[1]])]
    argument_of = {**dict.fromkeys(wanted, "keys"), **{field: argument for argument, field in fields.items()}}
    columns = {name: list(_field(rows, name, "data", argument)) for name, argument in argument_of.items()}
    masked = "attention_mask" in columns
    return {name: _collated(column, name, pad, masked=masked) for name, column in columns.items()}


def _collated(values: list[Any], name: str, pad: int, *, masked: bool = False) -> Any:
    try:
        return _stacked(values, name, pad, masked=masked)
    except BadInput:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        remedy = "make every item alike, or pass DataLoader(dataset, collate_fn=...)"
        raise BadInput(f"{name} must have one form", name, Phrase(first_line(error)), remedy) from error


def _stacked(values: list[Any], name: str, pad: int, *, masked: bool = False) -> Any:
    """One batch of many items: tensors and numbers stacked, dicts and tuples part by part, anything else as a list."""
    first = values[0]
    if _is_mapping(first):
        masked = "attention_mask" in first
        columns = {key: [value[key] for value in values] for key in first.keys()}  # noqa: SIM118
        return {key: _stacked(column, key, pad, masked=masked) for key, column in columns.items()}
    if isinstance(first, tuple) or (isinstance(first, list) and any(_is_input(part) for part in first)):
        return tuple(_stacked(list(column), name, pad) for column in zip(*values, strict=True))
    if not isinstance(first, Tensor | np.ndarray | np.number | np.bool_ | int | float | list):
        return values
    if isinstance(first, list) and isinstance(next(iter(first), None), str):
        return values
    rows = [_row(value) for value in values]
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) == 1:
        return torch.stack(rows)
    if not masked or any(len(shape) == 0 for shape in shapes) or len({shape[1:] for shape in shapes}) > 1:
        remedy = "to have sequences padded, keep their attention_mask; else pass DataLoader(dataset, collate_fn=...)"
        got = Phrase(f"shapes {', '.join(map(str, sorted(shapes)))}")
        raise BadInput(f"{name} must have one shape in all examples of a batch", name, got, remedy)
    fill = pad if name == "input_ids" else LABEL_PADDING if name in LABEL_KEYS else 0
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)


def _is_input(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray) or _is_mapping(value)


def _row(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return plain(value)
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray | np.generic) else torch.tensor(value)


# --- one raw batch → what the model is called with --------------------------------------------------------------------


def _raw_batch(batch: Any, keys: Keys | None, fields: Fields, place: str) -> RawBatch:
    given, labels = batch, None
    if isinstance(batch, tuple | list):
        if len(batch) not in (1, 2):
            remedy = "write (inputs, labels); several inputs are one tuple: ((x1, x2), labels), or ((x1, x2), None)"
            got = Phrase(f"a tuple of {len(batch)} in {place}")
            raise BadInput("data must be (inputs, labels)", "data", got, remedy)
        given, labels = batch[0], batch[1] if len(batch) == 2 else None
    listed: dict[str, list[Any]] = {}
    if _is_mapping(given):
        listed = {name: listing(_field(given, name, place, argument), name) for argument, name in fields.items()}
        given, own = _named(given, keys, fields, place)
        labels = own if labels is None else labels
    elif keys is not None or fields:
        name, value = ("keys", keys) if keys is not None else next(iter(fields.items()))
        remedy = "pass ids and groups as sequences, and (inputs, labels) without keys"
        raise BadInput(f"{name} must not name fields of data that is no dict", name, value, remedy)
    if _is_mapping(given):
        call = Call((), {name: _leaf(given[name], f"{name!r} in {place}") for name in given})
    else:
        each = given if isinstance(given, tuple | list) else (given,)
        call = Call(tuple(_leaf(value, f"inputs in {place}") for value in each))
    raw = RawBatch(call, labels, listed, place)
    _check_examples(raw)
    return raw


def _named(batch: Any, keys: Keys | None, fields: Fields, place: str) -> tuple[Any, Any]:
    """(inputs, labels) of a dict: as `keys` names them, else labels by their usual names and the rest except texts."""
    if keys is not None:
        chosen, label = keys
        labels = None if label is None else _field(batch, label, place, "keys")
        if isinstance(chosen, str):
            return _field(batch, chosen, place, "keys"), labels
        return {name: _field(batch, name, place, "keys") for name in chosen}, labels
    names = list(batch.keys())
    labels = next((batch[name] for name in LABEL_KEYS if name in names), None)
    rest = [name for name in names if name not in LABEL_KEYS and name not in fields.values()]
    return {name: batch[name] for name in rest if not _is_text(batch[name])}, labels


def _field(batch: Any, name: str, place: str, argument: str) -> Any:
    names = [str(key) for key in batch.keys()]  # noqa: SIM118
    if name not in names:
        raise BadInput(f"{argument} must name fields of {place}", argument, name, nearest(name, names))
    return batch[name]


def _is_text(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "US"
    return isinstance(value, str) or (isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], str))


def _leaf(value: Any, place: str) -> Any:
    if isinstance(value, Tensor):
        return plain(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return from_numpy(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple):
        return tuple(_leaf(part, place) for part in value)
    kind = f" of {type(value[0]).__name__}" if isinstance(value, list) and value else ""
    remedy = "pass a tensor (return_tensors='pt', a transform), or name the fields that are: keys=('image', 'label')"
    what = f"{place} must be tensors with examples along dimension 0"
    raise BadInput(what, "data", Phrase(f"{type(value).__name__}{kind}"), remedy)


def _check_keys(keys: object) -> None:
    if keys is None:
        return
    ok = isinstance(keys, tuple | list) and len(keys) == 2 and isinstance(keys[0], str | tuple | list)
    if not (ok and (keys[1] is None or isinstance(keys[1], str))):  # type: ignore[index]
        remedy = "write keys=('image', 'label'), or ('image', None) without labels"
        raise BadInput("keys must name the input and the label", "keys", keys, remedy)


def _check_examples(raw: RawBatch) -> None:
    batched = [t for t in raw.call.tensors if raw.call.examples and t.dim() > 0]
    if len({t.shape[0] for t in batched}) > 1:
        got = Phrase(f"shapes {', '.join(str(tuple(t.shape)) for t in batched)}")
        what = f"inputs in {raw.place} must have the same number of examples"
        remedy = GRAPH_REMEDY if is_graph(raw.call) else "give every input one row per example"
        raise BadInput(what, "data", got, remedy)
    devices = sorted({str(t.device) for t in batched})
    if len(devices) > 1:
        raise BadInput(f"inputs in {raw.place} must be on one device", "data", devices, "move them: x.to(device)")


def _check_alike(batches: list[RawBatch]) -> None:
    """Refuses batches of different forms: [x, y] in the place of (x, y) would otherwise count as two batches."""

    def form(raw: RawBatch) -> Any:
        kinds = raw.call.map(lambda t: (t.dtype, t.dim()))
        return kinds.args, kinds.kwargs, raw.labels is not None

    for raw in batches[1:]:
        if form(raw) != form(batches[0]):
            remedy = "make all batches alike; inputs with their labels are a tuple (inputs, labels), not a list"
            got = Phrase(f"{form(raw)} after {form(batches[0])}")
            raise BadInput(f"{raw.place} must have the inputs, types and dimensions of batch 0", "data", got, remedy)
