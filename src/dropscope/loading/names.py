"""Models by name: what a name stands for, and one clear error where it stands for nothing.

See `code` for `file.py:callable`, `huggingface` for `hf:CHECKPOINT`, and `sources` for data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from dropscope.checks import check_checkpoint
from dropscope.errors import BadInput, Phrase
from dropscope.loading.code import call_code, run_code
from dropscope.loading.huggingface import import_transformers, load_classifier

MODEL_FORMS = "write file.py:callable, package.module:callable or hf:CHECKPOINT"

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
        raise BadInput(what, "model", kind_of(module), return_remedy(module, "return the model itself"))
    if any(parameter.is_meta for parameter in module.parameters()):
        received, remedy = Phrase("parameters on the device meta"), "load its weights onto cpu or cuda first"
        raise BadInput(f"the callable in model={name!r} must return a model with weights", "model", received, remedy)
    return LoadedModel(name, module)


def run_model_code(name: str) -> None:
    """Runs the code that a model is named by, short of building it: it may register a noise."""
    if not name.startswith("hf:"):
        run_code(name, "model", MODEL_FORMS)


def _load_checkpoint(name: str) -> LoadedModel:
    checkpoint = name.removeprefix("hf:")
    if not checkpoint:
        raise BadInput("model must name a checkpoint after 'hf:'", "model", name, "write hf:FOLDER or hf:NAME")
    checkpoint = check_checkpoint(checkpoint)
    import_transformers(f"{name!r}")
    module, untrained = load_classifier(checkpoint)
    remark = f"{checkpoint} holds no weights for {', '.join(untrained)}: untrained, so its answers mean nothing"
    return LoadedModel(name, module, checkpoint, (remark,) if untrained else ())


def kind_of(value: object) -> Phrase | None:
    return None if value is None else Phrase(type(value).__name__)


def return_remedy(value: object, forms: str) -> str:
    return "end the function with a return" if value is None else forms
