"""Models and data by name: what a name stands for, and one clear error where it stands for nothing.

See `code` for `file.py:callable`, `huggingface` for `hf:CHECKPOINT`, and `files` for tables and image folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from dropscope.data import read_data
from dropscope.errors import BadInput, Phrase
from dropscope.loading.code import call_code, quiet_stdout
from dropscope.loading.files import TABLES, ImageFolder, token_batches
from dropscope.loading.huggingface import import_transformers, load_classifier, read_tokenizer
from dropscope.model import device_of, unwrap

MODEL_FORMS = "write file.py:callable, package.module:callable or hf:CHECKPOINT"
DATA_FORMS = "write file.py:callable, package.module:callable, a .csv, .jsonl or .parquet file, or an image folder"

_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".safetensors")


@dataclass(frozen=True)
class LoadedModel:
    """A model with its name. `checkpoint` is set where a tokenizer lies beside it."""

    name: str
    module: nn.Module
    checkpoint: str | None = None
    remarks: tuple[str, ...] = ()


def load_model(name: str) -> LoadedModel:
    """The model that `name` stands for: `file.py:callable`, `package.module:callable` or `hf:CHECKPOINT`."""
    if name.startswith("hf:"):
        return _load_checkpoint(name)
    if Path(name).suffix in _WEIGHTS:
        what = "model must name the code that builds it, because weights alone do not say how they are used"
        remedy = "write file.py:callable; `dropscope new torch` starts that file, and shows where weights are read"
        raise BadInput(what, "model", name, remedy)
    module = call_code(name, "model", MODEL_FORMS)
    if not isinstance(module, nn.Module):
        what = f"the callable in model={name!r} must return a torch.nn.Module"
        raise BadInput(what, "model", _kind(module), _return_remedy(module, "return the model itself"))
    return LoadedModel(name, module)


def load_data(
    name: str,
    model: LoadedModel,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    labels: str | None = None,
    image_size: str | None = None,
) -> Any:
    """The data that `name` stands for, in one of the forms that `dropscope.data.read_data` takes."""
    path = Path(name)
    options = {"text_column": text_column, "label_column": label_column, "labels": labels, "image_size": image_size}
    if path.suffix in TABLES:
        _refuse(options, ("text_column", "label_column"), name)
        if model.checkpoint is None:
            remedy = "name the model as hf:CHECKPOINT, or tokenise the texts yourself in a file.py:callable for data"
            raise BadInput("model must be a Hugging Face checkpoint to tokenise texts", "model", model.name, remedy)
        with quiet_stdout():
            config: Any = model.module.config
            tokenizer, _ = read_tokenizer(model.checkpoint, config)
            return token_batches(path, tokenizer, config, text_column, label_column)
    if path.is_dir():
        _refuse(options, ("label_column", "labels", "image_size"), name)
        return ImageFolder(path, Path(labels) if labels else path / "labels.csv", label_column, image_size)
    _refuse(options, (), name)
    data = call_code(name, "data", DATA_FORMS)
    if data is None or isinstance(data, nn.Module | str):
        remedy = _return_remedy(data, "return (inputs, labels), a Dataset or a DataLoader")
        raise BadInput(f"the callable in data={name!r} must return data", "data", _kind(data), remedy)
    return data


def few_inputs(data: Any, model: nn.Module, count: int = 8) -> Any:
    """Inputs of the first examples, on the model's device: enough to find sites and to audit, without reading all."""
    batch = read_data(_head(data, count), batch_size=count).batches[0]
    call = batch.call.to(device_of(unwrap(model)))
    return call.kwargs or call.args


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


def _load_checkpoint(name: str) -> LoadedModel:
    checkpoint = name.removeprefix("hf:")
    if not checkpoint:
        raise BadInput("model must name a checkpoint after 'hf:'", "model", name, "write hf:FOLDER or hf:NAME")
    import_transformers(f"{name!r}")
    module, untrained = load_classifier(checkpoint)
    remark = f"{checkpoint} holds no weights for {', '.join(untrained)}: untrained, so its answers mean nothing"
    return LoadedModel(name, module, checkpoint, (remark,) if untrained else ())


def _kind(value: object) -> Phrase | None:
    return None if value is None else Phrase(type(value).__name__)


def _return_remedy(value: object, forms: str) -> str:
    return "end the function with a return" if value is None else forms


def _refuse(options: Mapping[str, str | None], allowed: tuple[str, ...], name: str) -> None:
    for option, value in options.items():
        if value is not None and option not in allowed:
            names = " and ".join(allowed)
            remedy = f"{name!r} takes {names}" if allowed else f"leave {option} out: the callable decides"
            raise BadInput(f"{option} must fit data={name!r}", option, value, remedy)
