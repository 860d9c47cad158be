"""Data of every kind that a user has: names of code, tables and image folders, texts, frames, and data in memory.

Owns `load_data` and what it returns. See `tables`, `texts` and `images` for what is read, the data room for batches.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from dropscope.checks import check_checkpoint
from dropscope.data import Keys, first_call
from dropscope.errors import BadInput, Phrase
from dropscope.loading.classes import as_class_names, class_names_of_data, class_names_of_model, read_labels
from dropscope.loading.code import call_code, check_code, load_transforms, quiet_stdout
from dropscope.loading.huggingface import read_tokenizer
from dropscope.loading.images import ImageFiles, Listing, list_images
from dropscope.loading.names import LoadedModel, kind_of, return_remedy
from dropscope.loading.pixels import SUFFIXES, Reading, parse_normalisation, parse_size
from dropscope.loading.tables import LABEL_COLUMNS, TABLES, check_rows, find_column, not_found, read_table, written
from dropscope.loading.texts import TokenBatches, as_tokenizer, token_limit
from dropscope.model import device_of, unwrap

FORMS = "write file.py:callable, package.module:callable, a .csv, .jsonl or .parquet file, or an image folder"
_UNNORMALISED = (
    "pixels are in [0, 1], not normalised; if the model was trained on normalised images, pass mean and std, "
    "as in mean='imagenet'"
)
_OF_TEXTS = ("tokenizer", "text_column", "label_column")
_ALLOWED: dict[str, tuple[str, ...]] = {
    "images": ("label_column", "labels", "image_size", "mean", "std", "transforms"),
    "table": _OF_TEXTS,
    "frame": _OF_TEXTS,
    "dataset": _OF_TEXTS,
    "texts": ("tokenizer",),
    "code": ("keys",),
    "memory": ("keys",),
}


@dataclass(frozen=True, eq=False)
class LoadedData:
    """Data that every function of Dropscope takes, with what is known about it.

    Attributes:
        dataset: The examples, in one of the forms that `uncertainty` and `sweep` take.
        names: What a user calls each example, in order: its file, relative to the folder, or its text. None for data
            that code made.
        class_names: In the order of the class numbers, where they are known.
        remarks: What was guessed or left out, a sentence each.
        keys: Of dicts: the names of input and label.
    """

    dataset: Any
    names: list[str] | None = None
    class_names: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()
    keys: Keys | None = None

    def __repr__(self) -> str:
        known = [f"{len(self.names):,} examples from {self.names[0]!r} on"] if self.names else []
        known += [f"{len(self.class_names)} classes"] if self.class_names else []
        return f"LoadedData({', '.join([type(self.dataset).__name__, *known])})"

    def first_inputs(self, count: int = 8) -> Any:
        """Inputs of the first examples, as the model is called with them: what `find_sites` and `audit` take.

        Args:
            count: How many examples.

        Returns:
            A tuple of inputs by position, or a dict of inputs by name.
        """
        call = first_call(self.dataset, count, self.keys)
        return call.kwargs or call.args


def load_data(
    source: Any,
    model: nn.Module | LoadedModel | None = None,
    *,
    keys: Keys | Sequence[str] | None = None,
    tokenizer: Any = None,
    text_column: str | None = None,
    label_column: str | None = None,
    labels: str | Path | None = None,
    image_size: int | str | tuple[int, int] | None = None,
    mean: float | str | Sequence[float] | None = None,
    std: float | str | Sequence[float] | None = None,
    transforms: Callable[[Any], Any] | str | None = None,
    class_names: Sequence[str] | str | None = None,
    labelled: bool = True,
) -> LoadedData:
    """Loads data that needs more than a path: columns, a tokenizer, a size, a normalisation.

    Every function that takes `data` takes what this returns. An image folder has a sub-folder per class (numbered in
    the order of their names, or as the model's classes are, where those are known), or a table of labels, or images
    alone. Images are read as torchvision's ImageFolder reads them: as stored, without EXIF rotation; palettes as
    colours; alpha left out; 8 and 16 bits scaled to [0, 1]; grey ones as one channel, or three where any is coloured.

    Args:
        source: An image folder or one image; a `.csv`, `.jsonl` or `.parquet` of texts; `file.py:callable`; a list or
            Series of texts, or `(texts, labels)`; a DataFrame or `datasets.Dataset` with a column of texts; or data in
            any form that `uncertainty` takes.
        model: The model that the data is for. Its class names tell which label is which output.
        keys: For dicts: the names of input and label, such as ("image", "label").
        tokenizer: For texts: the tokenizer, or the name of its checkpoint.
        text_column: Column of the texts; "text" where None.
        label_column: Column of the labels; "label" or "labels", if there is one, where None.
        labels: For an image folder: a table with columns `file` and `label`; `labels.csv` in the folder where None.
        image_size: Resize images: a side, (height, width) or "HEIGHTxWIDTH".
        mean: Subtracted from images in [0, 1]: a number, one per channel, "imagenet" or "cifar10".
        std: What images are divided by after that.
        transforms: From a PIL image to a tensor, in place of `image_size`, `mean` and `std`; or `file.py:callable`.
        class_names: In the order of the model's outputs: a sequence, a text with commas, or a file with one per line.
        labelled: False leaves labels unread.

    Returns:
        A `LoadedData`.

    Raises:
        BadInput: If there is no such data, or it cannot be read, before it takes memory.

    Examples:
        >>> data = load_data((torch.zeros(2, 4), [0, 1]), class_names=["cat", "dog"])
        >>> data.class_names, data.names
        (('cat', 'dog'), None)
    """
    if isinstance(source, LoadedData):
        return source if class_names is None else replace(source, class_names=as_class_names(class_names))
    owner = model if isinstance(model, LoadedModel) or model is None else LoadedModel("", unwrap(model))
    opened = open_data(
        source, class_names=class_names, labelled=labelled, keys=keys, tokenizer=tokenizer, text_column=text_column,
        label_column=label_column, labels=labels, image_size=image_size, mean=mean, std=std, transforms=transforms,
    )  # fmt: skip
    return opened(owner)


Opened = Callable[[LoadedModel | None], LoadedData]


def open_data(
    source: Any, *, class_names: Sequence[str] | str | None = None, labelled: bool = True, **options: Any
) -> Opened:
    """Data as `load_data` takes it, read and checked as far as that is cheap and needs no model.

    Args:
        source: As `load_data` takes it.
        class_names: As `load_data` takes them.
        labelled: False leaves labels unread.
        **options: The others that `load_data` takes, None where they are not given.

    Returns:
        A function from the model to the data.
    """
    kind = _kind(source, options["tokenizer"])
    if kind == "code":
        _check_code(str(source))
    _refuse(options, kind, source)
    asked = as_class_names(class_names)
    if kind == "images":
        return _open_images(Path(source), options, asked, labelled=labelled)
    if kind in ("code", "memory"):
        keys = options["keys"]
        fields = None if keys is None else (keys[0], keys[1] if len(keys) > 1 else None)

        def of_code(owner: LoadedModel | None) -> LoadedData:
            dataset = _by_code(str(source)) if kind == "code" else source
            return LoadedData(dataset, None, asked or class_names_of_data(dataset), keys=fields)

        return of_code
    return _open_texts(source, kind, options, asked, labelled=labelled)


# --- kinds of sources -------------------------------------------------------------------------------------------------


def _kind(source: Any, tokenizer: Any) -> str:
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if os.path.isdir(path) or path.suffix.lower() in SUFFIXES:
            return "images"
        return "table" if path.suffix.lower() in TABLES else "code"
    if isinstance(source, pd.DataFrame):
        return "frame"
    if _are_texts(source) or (isinstance(source, tuple | list) and len(source) == 2 and _are_texts(source[0])):
        return "texts"
    columns = getattr(source, "column_names", None)
    if tokenizer is not None and isinstance(columns, list) and "input_ids" not in columns:
        return "dataset"
    return "memory"


def _are_texts(values: Any) -> bool:
    if isinstance(values, np.ndarray | pd.Series | pd.api.extensions.ExtensionArray):
        values = values.tolist()
    return isinstance(values, tuple | list) and len(values) > 0 and isinstance(values[0], str)


def _frame(source: Any, kind: str, text_column: str | None, label_column: str | None) -> pd.DataFrame:
    """A frame with the texts, and with the labels if there are any."""
    if kind == "frame":
        return source
    if kind == "dataset":  # a datasets.Dataset: images and the like in other columns stay where they are
        wanted = (text_column, "text") + ((label_column,) if label_column else LABEL_COLUMNS)
        return pd.DataFrame({name: list(source[name]) for name in source.column_names if name in wanted})
    texts, labels = (source, None) if _are_texts(source) else source
    if labels is not None and len(labels) != len(texts):
        got = Phrase(f"{len(labels)} for {len(texts)} texts")
        raise BadInput("labels must be as many as the texts", "labels", got, "pass one label per text")
    columns = {"text": list(texts)} | ({} if labels is None else {"label": list(labels)})
    return pd.DataFrame(columns, dtype=object)


def _check_code(name: str) -> None:
    """Refuses a name that can be no code, before anything is said of options that code does not take."""
    where, colon, attribute = name.rpartition(":")
    if os.path.isfile(name) and not name.endswith(".py"):
        what = "data must be a table of texts, an image or a folder of images"
        raise BadInput(what, "data", name, FORMS)
    if not name.endswith(".py") and not (colon and where and attribute):
        raise not_found(Path(name), "data")
    check_code(name, "data", FORMS)


def _by_code(name: str) -> Any:
    data = call_code(name, "data", FORMS)
    if data is None or isinstance(data, nn.Module | str):
        remedy = return_remedy(data, "return (inputs, labels), a Dataset or a DataLoader")
        raise BadInput(f"the callable in data={name!r} must return data", "data", kind_of(data), remedy)
    return data


# --- texts ------------------------------------------------------------------------------------------------------------


def _open_texts(
    source: Any, kind: str, options: Mapping[str, Any], asked: tuple[str, ...] | None, *, labelled: bool
) -> Opened:
    text_column, label_column, tokenizer = (options[name] for name in ("text_column", "label_column", "tokenizer"))
    if isinstance(tokenizer, str):
        check_checkpoint(tokenizer)
    path = Path(source) if kind == "table" else Path("data")
    table = read_table(path) if kind == "table" else check_rows(_frame(source, kind, text_column, label_column), path)
    texts = written(table, find_column(table, path, text_column, ("text",), "text_column"), path)
    if labelled and label_column is not None:
        find_column(table, path, label_column, LABEL_COLUMNS, "label_column")

    def of_texts(owner: LoadedModel | None) -> LoadedData:
        found, limit = _tokenizer(tokenizer, owner)
        of_data = class_names_of_data(source) if kind == "dataset" else None
        names = asked or of_data or class_names_of_model(None if owner is None else owner.module)
        numbers = read_labels(table, label_column, path, names) if labelled else None
        batches = TokenBatches(texts, numbers, found, limit)
        return LoadedData(batches, texts, names, batches.cut_remarks() if labelled else ())

    return of_texts


def _tokenizer(tokenizer: Any, owner: LoadedModel | None) -> tuple[Any, int | None]:
    """The tokenizer, and how many tokens the model takes where the tokenizer does not know."""
    config: Any = getattr(None if owner is None else owner.module, "config", None)
    if tokenizer is not None:
        found = as_tokenizer(tokenizer)
    elif owner is not None and owner.checkpoint is not None:
        with quiet_stdout():
            found, _ = read_tokenizer(owner.checkpoint, config)
    elif owner is not None and owner.name:
        remedy = "name the model as hf:CHECKPOINT, or pass the checkpoint of its tokenizer, tokenizer=CHECKPOINT"
        raise BadInput("model must be a Hugging Face checkpoint to tokenise texts", "model", owner.name, remedy)
    else:
        remedy = "pass tokenizer=AutoTokenizer.from_pretrained(...), or the name of its checkpoint"
        raise BadInput("tokenizer must be given for texts", "tokenizer", None, remedy)
    return found, token_limit(found, config)


# --- images -----------------------------------------------------------------------------------------------------------


def _open_images(path: Path, options: Mapping[str, Any], asked: tuple[str, ...] | None, *, labelled: bool) -> Opened:
    transforms, mean, std = (options[name] for name in ("transforms", "mean", "std"))
    if not os.path.exists(path):
        raise not_found(path, "data")
    table = None if options["labels"] is None else Path(options["labels"])
    if table is not None and not os.path.exists(table):
        raise not_found(table, "labels", TABLES)
    size, normalisation = parse_size(options["image_size"]), parse_normalisation(mean, std)
    given = {"image_size": size, "mean": normalisation}
    if transforms is not None and (twice := [name for name, value in given.items() if value is not None]):
        what = f"{twice[0]} must not be given with transforms, which decide it"
        raise BadInput(what, twice[0], given[twice[0]], f"leave {twice[0]} out")
    if isinstance(transforms, str):
        transforms = load_transforms(transforms)

    def of_images(owner: LoadedModel | None) -> LoadedData:
        of_model = class_names_of_model(None if owner is None else owner.module)
        listing = list_images(path, table, options["label_column"], asked, of_model, labelled=labelled)
        loaded = _images(listing, owner, size, normalisation, transforms)
        if labelled and mean is std is transforms is None:
            loaded = replace(loaded, remarks=(*loaded.remarks, _UNNORMALISED))
        return loaded

    return of_images


def _images(
    listing: Listing,
    owner: LoadedModel | None,
    size: tuple[int, int] | None,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None,
    transforms: Callable[[Any], Any] | None,
) -> LoadedData:
    headers = listing.headers()
    if transforms is None and size is None:
        listing.check_sizes(headers)
    remarks = list(listing.remarks)
    grey = all(header.grey for header in headers)
    channels = {len(values) for values in normalisation or ()}
    takes = _channels_taken(owner)
    if grey and takes == 3:
        remarks.append("images are grey: each is repeated for the three channels that the model takes")
    elif not grey and any(header.grey for header in headers):
        remarks.append("some images are grey: each of those is repeated for three channels")
    colour = not grey or takes == 3 or 3 in channels
    if turned := sum(header.turned for header in headers):
        remarks.append(f"{turned} of {len(headers)} images carry an EXIF rotation, which is not applied")
    mean, std = (None, None) if normalisation is None else (torch.tensor(v)[:, None, None] for v in normalisation)
    reading = Reading(colour, size, mean, std, transforms)
    dataset = ImageFiles(listing.paths, listing.labels, reading)
    return LoadedData(dataset, listing.names, listing.class_names, tuple(remarks))


def _channels_taken(owner: LoadedModel | None) -> int | None:
    """How many channels the first convolution takes, where there is one."""
    modules = () if owner is None else owner.module.modules()
    return next((module.in_channels for module in modules if isinstance(module, nn.Conv2d)), None)


# --- for other rooms --------------------------------------------------------------------------------------------------


def as_loaded(
    data: Any, model: nn.Module, tokenizer: Any = None, class_names: Sequence[str] | str | None = None
) -> LoadedData:
    """Data of any kind with its class names, as far as it has any; what was guessed about files is warned of.

    Raises:
        BadInput: If there is no such data, or images do not fit into memory.
    """
    try:
        loaded = load_data(data, model, tokenizer=tokenizer, class_names=class_names)
    except BadInput as error:
        if error.name not in ("text_column", "image_size"):
            raise
        remedy = f"{error.remedy.rstrip('?')}: pass what load_data(..., {error.name}=...) returns"
        raise BadInput(error.what, error.name, error.received, remedy) from error
    images = isinstance(loaded.dataset, ImageFiles)
    if loaded.remarks and not isinstance(data, LoadedData):
        how = "; load_data takes all this, and what it returns is data" if images else ""
        warnings.warn("; ".join(loaded.remarks) + how, stacklevel=2)
    if images:
        loaded.dataset.check_memory()
    return loaded


def few_inputs(data: Any, model: nn.Module, count: int = 8) -> Any:
    """Inputs of the first examples, on the model's device: enough to find sites and to audit, without reading all."""
    data = data if isinstance(data, LoadedData) else LoadedData(data)
    call = first_call(data.dataset, count, data.keys).to(device_of(unwrap(model)))
    return call.kwargs or call.args


def _refuse(options: Mapping[str, Any], kind: str, source: Any) -> None:
    """Refuses options that a source of this kind does not take."""
    allowed = _ALLOWED[kind]
    for option, value in options.items():
        if value is not None and option not in allowed:
            name = repr(source) if isinstance(source, str) else type(source).__name__
            listed = " and ".join(", ".join(f"{each}=" for each in allowed).rsplit(", ", 1))
            remedy = f"leave {option} out: {name} takes {listed}"
            fit = f"data={name}" if isinstance(source, str) else "the data"
            raise BadInput(f"{option} must fit {fit}", option, value, remedy)
