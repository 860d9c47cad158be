"""Models of the user's own, by code: `file.py:callable` that returns an `nn.Module` and its tokenizer.

The module is called with `input_ids` and `attention_mask` by name and returns logits, alone or as `logits` of its
output. The tokenizer is one of transformers, or a function from a text to its token ids, which pads with 0. See
`checkpoints` for checkpoints of transformers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.errors import BadInput, Phrase, first_line
from dropscope.loading import Checkpoint, call_code
from dropscope.model import code_fingerprint, digest, random_state_kept, weights_fingerprint

FORMS = "write file.py:callable, which takes no arguments and returns (model, tokenizer)"
FAMILY = "own"
_LONGEST = 100_000  # tokens, of a tokenizer that says none


@dataclass(frozen=True)
class OwnCheckpoint(Checkpoint):
    """A model by code: `build` returns it anew."""

    build: Callable[[], nn.Module]


def is_code(name: str) -> bool:
    """Whether a name is that of code, which names of checkpoints are not.

    >>> is_code("mine.py:model"), is_code("prajjwal1/bert-tiny"), is_code("package.models:small")
    (True, False, True)
    """
    return (":" in name and not name.startswith(("hf:", "/"))) or ".py:" in name


def read_own(name: str, seed: int = 0) -> OwnCheckpoint:
    """The model and the tokenizer that code returns; weights that it draws are those of a seed.

    Raises:
        BadInput: Where the code fails, or returns something else.
    """

    def call() -> tuple[nn.Module, Any]:
        with random_state_kept():
            torch.manual_seed(seed)
            made = call_code(name, "models", FORMS)
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module) or not callable(made[1]):
            got = Phrase(type(made).__name__ if not isinstance(made, tuple) else str([type(m).__name__ for m in made]))
            raise BadInput(f"the callable in {name!r} must return a model and its tokenizer", "models", got, FORMS)
        return made[0].float().eval(), made[1]

    model, tokenizer = call()
    reader = tokenizer if hasattr(tokenizer, "pad_token_id") else _Function(tokenizer)
    if reader.pad_token_id is None:
        what = f"the tokenizer of {name!r} must have a padding token"
        raise BadInput(what, "models", None, "set tokenizer.pad_token")
    config = _config(model, reader, name)
    longest = min(int(getattr(reader, "model_max_length", _LONGEST)), _LONGEST)
    longest = min(longest, int(getattr(config, "max_position_embeddings", None) or longest))
    return OwnCheckpoint(name, config, reader, longest, (), lambda: call()[0])


class _Function:
    """A function from a text to token ids, as a tokenizer."""

    pad_token_id = 0

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function

    def __call__(self, texts: Sequence[str], *, max_length: int | None = None, **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(token) for token in self._function(text)][:max_length] for text in texts]}


def _config(model: nn.Module, tokenizer: Any, name: str) -> Any:
    """The model's config, or as much of one as the study reads; how many classes there are is found by running it."""
    ids = torch.tensor([tokenizer(["one text"])["input_ids"][0]])
    try:
        with torch.no_grad(), random_state_kept():
            classes = logits_of(model(input_ids=ids, attention_mask=torch.ones_like(ids))).shape[-1]
    except BadInput:
        raise
    except Exception as error:
        got = Phrase(f"{type(error).__name__}: {first_line(error)}")
        what = f"the model in {name!r} must take input_ids and attention_mask by name"
        raise BadInput(what, "models", got, "wrap it in a module that does") from error
    config = copy.deepcopy(getattr(model, "config", None)) or SimpleNamespace(model_type=FAMILY, label2id=None)
    config.num_labels = int(classes)
    return config


def logits_of(output: Any) -> Tensor:
    """Logits `[N, classes]` of what a model returns."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if found is None and isinstance(output, dict):
        found = output.get("logits")
    if not isinstance(found, Tensor) or found.dim() != 2:
        got = Phrase(type(output).__name__ if not isinstance(found, Tensor) else f"logits of {tuple(found.shape)}")
        raise BadInput("a model must return logits [texts, classes]", "models", got, "return them, or a dict of logits")
    return found


def fingerprint_of(checkpoint: OwnCheckpoint) -> str:
    """16 hexadecimal digits of weights and code."""
    model = checkpoint.build()
    return digest([weights_fingerprint(model), code_fingerprint(model)])[:16]
