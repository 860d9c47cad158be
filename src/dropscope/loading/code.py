"""Models and data as the command line names them: code by `file.py:callable`, checkpoints by `hf:NAME`, data files.

Owns how a name becomes an object, and the one clear error where it does not. Nothing is ever unpickled: code builds the
model, weights come as the code reads them. What lies in text tables and image folders is `files.py`'s to read.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from dropscope.data import read_data
from dropscope.errors import BadInput, MissingExtra, nearest
from dropscope.loading import files
from dropscope.model import device_of, moved, unwrap

MODEL_FORMS = "write file.py:callable, package.module:callable or hf:CHECKPOINT"
DATA_FORMS = "write file.py:callable, package.module:callable, a .csv, .jsonl or .parquet file, or an image folder"

_EXTRAS = {"transformers": "text", "datasets": "text", "monai": "medical", "nibabel": "medical"}
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".safetensors")


@dataclass(frozen=True)
class LoadedModel:
    """A model with the name it was asked for by; `checkpoint` is set where a tokenizer lies beside it."""

    name: str
    module: nn.Module
    checkpoint: str | None = None
    remarks: tuple[str, ...] = ()


def load_model(name: str) -> LoadedModel:
    """The model that `name` stands for."""
    if name.startswith("hf:"):
        return _checkpoint(name)
    if Path(name).suffix in _WEIGHTS:
        rule = "a model is named by the code that builds it, because weights alone do not say how they are used"
        remedy = "write file.py:callable; `dropscope new torch` starts that file, and shows where weights are read"
        raise BadInput(rule, "MODEL", name, remedy)
    module = _called(name, "MODEL", MODEL_FORMS)
    if not isinstance(module, nn.Module):
        raise BadInput("a model's callable returns a torch.nn.Module", name, _kind(module), _return_remedy(module))
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
    """The data that `name` stands for, in one of the forms `data.read` takes."""
    path = Path(name)
    given = {
        "--text-column": text_column,
        "--label-column": label_column,
        "--labels": labels,
        "--image-size": image_size,
    }
    if path.suffix in files.TABLES:
        _refuse(given, ("--text-column", "--label-column"), name)
        if model.checkpoint is None:
            remedy = "name the model as hf:CHECKPOINT, or tokenise yourself in a file.py:callable for --data"
            raise BadInput(
                "a text file is read with the tokenizer of a Hugging Face checkpoint", "MODEL", model.name, remedy
            )
        with _quiet_stdout():
            tokenizer = _tokenizer(model.checkpoint, model.module)
            return files.tokenised(path, tokenizer, model.module.config, text_column, label_column)
    if path.is_dir():
        _refuse(given, ("--label-column", "--labels", "--image-size"), name)
        return files.ImageFolder(path, Path(labels) if labels else path / "labels.csv", label_column, image_size)
    _refuse(given, (), name)
    found = _called(name, "--data", DATA_FORMS)
    if found is None or isinstance(found, nn.Module | str):
        raise BadInput(
            "a callable for data returns data",
            name,
            _kind(found),
            _return_remedy(found, "return (inputs, labels), a Dataset or a DataLoader"),
        )
    return found


def few_inputs(data: Any, model: nn.Module, count: int = 8) -> Any:
    """Inputs of the first examples, on the model's device: enough to find sites and to audit, without reading all."""
    batch = read_data(_head(data, count), batch_size=count).batches[0]
    args, kwargs = moved(batch.args, batch.kwargs, device_of(unwrap(model)))
    return kwargs or args


def _head(data: Any, count: int) -> Any:
    """The first examples of what would be slow to read whole; what lies in memory already is left as it is."""
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        return DataLoader(_head(data.dataset, count), batch_size=count, collate_fn=data.collate_fn)
    if hasattr(data, "select") and hasattr(data, "column_names"):  # datasets.Dataset
        return data.select(range(min(count, len(data))))
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        return Subset(data, range(min(count, len(data))))
    if isinstance(data, Tensor | Mapping | tuple | list | str) or not isinstance(data, Iterable):
        return data
    return list(islice(data, 1))


# --- code -------------------------------------------------------------------------------------------------------------


def _called(name: str, option: str, forms: str) -> Any:
    """What the callable `name` returns, called without arguments while its folder is importable."""
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        remedy = f"write {name}:callable" if name.endswith(".py") else forms
        raise BadInput("code is named as file.py:callable or package.module:callable", option, name, remedy)
    path = Path(where).resolve() if where.endswith(".py") else None
    folder = path.parent if path else Path.cwd()
    if path is not None and not path.is_file():
        beside = sorted(p.name for p in folder.glob("*.py")) if folder.is_dir() else []
        remedy = nearest(path.name, beside) if beside else "check the path; `dropscope new torch` writes such a file"
        raise BadInput("a file that is named exists", option, where, remedy)
    with _importable(folder), _quiet_stdout():
        module = _run(lambda: _file_module(path) if path else importlib.import_module(where), name, path, where)
        found = _attribute(module, attribute, name)
        return _run(found, name, path, where)


def _file_module(path: Path) -> ModuleType:
    """The module of a file, run once however often it is named, under a name that hides no installed module."""
    name = f"_dropscope_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and data loader workers look classes up by their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _attribute(module: ModuleType, attribute: str, name: str) -> Callable[[], Any]:
    found = getattr(module, attribute, None)
    if found is None:
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")]
        remedy = nearest(attribute, functions) if functions else f"define {attribute}() there"
        raise BadInput("a callable that is named exists in its file", name, attribute, remedy)
    if isinstance(found, nn.Module) or not callable(found):
        remedy = f"wrap it in a function without arguments that returns {attribute}, and name that"
        raise BadInput("code is named by a callable without arguments", name, _kind(found), remedy)
    try:
        inspect.signature(found).bind()
    except TypeError:
        remedy = "give every argument a default, or name a function that calls it"
        raise BadInput(
            "a callable is called without arguments", name, f"{attribute}{inspect.signature(found)}", remedy
        ) from None
    except ValueError:
        pass  # a callable written in C, without a signature to look at
    return found


def _run(function: Callable[[], Any], name: str, path: Path | None, where: str) -> Any:
    """What the user's own code returns; what it raises instead becomes one line that says where."""
    try:
        return function()
    except (Exception, SystemExit) as error:
        package = (
            (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        )
        if package in _EXTRAS:
            raise MissingExtra(f"{name!r}", package, _EXTRAS[package]) from error
        if isinstance(error, ModuleNotFoundError) and path is None and f"{where}.".startswith(f"{error.name}."):
            remedy = "check its spelling; modules are looked for in the current folder and among installed packages"
            raise BadInput("a module that is named can be imported", name, where, remedy) from error
        remedy = f"mend it there, until {name.rpartition(':')[2]}() runs by itself"
        raise BadInput("code that is named runs without an error", name, _one_line(error, path), remedy) from error


def _one_line(error: BaseException, path: Path | None) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = [f for f in frames if path is not None and Path(f.filename) == path] or frames
    file, line = place[-1].filename, place[-1].lineno
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{Path(file).name}:{line}: {type(error).__name__}: {text}"


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have taken it out
            sys.path.remove(entry)


def _quiet_stdout() -> contextlib.AbstractContextManager[Any]:
    """What other people's code prints goes to stderr: stdout is for the answer, which may be JSON."""
    return contextlib.redirect_stdout(sys.stderr)


def _kind(value: object) -> str | None:
    return None if value is None else type(value).__name__


def _return_remedy(value: object, forms: str = "return the model itself") -> str:
    return "end the function with a return" if value is None else forms


def _refuse(given: Mapping[str, str | None], allowed: tuple[str, ...], name: str) -> None:
    for option, value in given.items():
        if value is not None and option not in allowed:
            remedy = (
                f"{name!r} takes {' and '.join(allowed)}" if allowed else f"leave {option} out: the callable decides"
            )
            raise BadInput("an option fits the data that is named", option, value, remedy)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def _transformers(feature: str) -> Any:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtra(feature, "transformers", "text") from error


def _checkpoint(name: str) -> LoadedModel:
    """A sequence classifier: a local folder or a name on the Hub, weights as safetensors, no code from the Hub."""
    checkpoint = name.removeprefix("hf:")
    if not checkpoint:
        raise BadInput("a checkpoint has a name", "MODEL", name, "write hf:FOLDER or hf:NAME")
    transformers = _transformers(f"{name!r}")
    with _quiet_stdout():
        module, info = _pretrained(
            transformers.AutoModelForSequenceClassification,
            checkpoint,
            use_safetensors=True,
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    remarks = (
        [f"{checkpoint} holds no weights for {', '.join(missing)}: untrained, so its answers mean nothing"]
        if missing
        else []
    )
    return LoadedModel(name, module.eval(), checkpoint, tuple(remarks))


def _tokenizer(checkpoint: str, model: nn.Module) -> Any:
    tokenizer = _pretrained(_transformers("tokenised text").AutoTokenizer, checkpoint)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            remedy = "set tokenizer.pad_token and save it beside the checkpoint"
            raise BadInput("a tokenizer has a padding token", checkpoint, None, remedy)
        tokenizer.pad_token = tokenizer.eos_token  # as GPT-2 is commonly trained; masked wherever it pads
    config: Any = model.config
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id  # a decoder finds the last token of a text by it
    return tokenizer


def _pretrained(auto: Any, checkpoint: str, **options: Any) -> Any:
    try:
        return auto.from_pretrained(checkpoint, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        said = " ".join(str(error).split())
        remedy = "name a folder or a Hub checkpoint with config.json, model.safetensors and its tokenizer"
        raise BadInput(f"a checkpoint can be read by {auto.__name__}", f"hf:{checkpoint}", said, remedy) from error
