"""Hugging Face checkpoints: config, tokenizer, padding token and weights, from a folder, the cache or the Hub.

The one loader. No code comes from the Hub and nothing is unpickled: weights are safetensors or, where the caller allows
it, a state_dict read with `weights_only`. What a model is used for is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn

from dropscope.errors import BadInput, MissingExtra, Phrase, first_line
from dropscope.model import random_state_kept

# These number positions from the padding index on, so their tables are longer than the texts they take.
_OFFSET_POSITIONS = (
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "data2vec-text", "esm",
    "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
)  # fmt: skip
_UNREADABLE = (
    safetensors.SafetensorError, OSError, ValueError, KeyError, RuntimeError, ImportError, pickle.UnpicklingError,
)  # fmt: skip
_NO_LIMIT = 100_000  # a tokenizer without a limit says 10³⁰


class CheckpointNotFound(BadInput):
    """A checkpoint whose files are in no folder, not in the cache, and not on a Hub that can be reached."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint before its weights are read.

    Attributes:
        name: A folder, or a name on the Hub.
        config: Its config, with the padding token of the tokenizer.
        tokenizer: Its tokenizer, padding on the right.
        longest: How many tokens the model takes.
        remarks: What was changed so that it can be used.
    """

    name: str
    config: Any
    tokenizer: Any
    longest: int
    remarks: tuple[str, ...]


def import_transformers(feature: str) -> Any:
    """The package; `feature` says what needs it."""
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtra(feature, "transformers", "text") from error


def read_checkpoint(name: str, *, local: bool = False) -> Checkpoint:
    """Config and tokenizer; with `local` the Hub is not asked.

    Raises:
        CheckpointNotFound: Where there are no files.
        BadInput: Where they cannot be read, or a text cannot be padded.
    """
    config = _pretrained("AutoConfig", name, local_files_only=local)
    tokenizer, remarks = read_tokenizer(name, config, local=local)
    return Checkpoint(name, config, tokenizer, longest_text(config, tokenizer), remarks)


def read_tokenizer(name: str, config: Any, *, local: bool = False) -> tuple[Any, tuple[str, ...]]:
    """The tokenizer of a checkpoint, padding on the right, and what was changed; `config` gets its padding token."""
    tokenizer = _pretrained("AutoTokenizer", name, local_files_only=local)
    tokenizer.padding_side = "right"
    remarks: tuple[str, ...] = ()
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            what = f"tokenizer of {name!r} must have a padding token, or an end token to pad with"
            raise BadInput(what, name, Phrase("neither"), "set tokenizer.pad_token and save it beside the checkpoint")
        tokenizer.pad_token = tokenizer.eos_token  # as GPT-2 is commonly trained
        remarks = (f"padded with its end token {tokenizer.eos_token}, masked wherever it pads",)
    if config.pad_token_id != tokenizer.pad_token_id:
        config.pad_token_id = tokenizer.pad_token_id  # a decoder finds the last token of a text by it
    return tokenizer, remarks


def load_classifier(
    name: str,
    config: Any = None,
    *,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    new_head: bool = False,
    state_dicts: bool = False,
) -> tuple[nn.Module, tuple[str, ...]]:
    """A sequence classifier on the CPU in eval mode, and the names of its weights that the checkpoint does not hold.

    Args:
        name: A folder, or a name on the Hub.
        config: What the model is built from; the checkpoint's own where None.
        seed: Of the weights that the checkpoint does not hold; None draws them from the global random state.
        dtype: Of the weights; as stored where None.
        new_head: Whether weights of another shape than the config's are drawn as well, not refused.
        state_dicts: Whether a plain state_dict (`weights_only`) is read where there are no safetensors.

    Raises:
        BadInput: Where the weights cannot be read.
    """
    options: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": new_head}
    options |= {"weights_only": True} if state_dicts else {"use_safetensors": True}
    options |= {} if config is None else {"config": config}
    options |= {} if dtype is None else {"dtype": dtype}
    if Path(name).is_dir():
        options["local_files_only"] = True
    with contextlib.nullcontext() if seed is None else random_state_kept():
        if seed is not None:
            torch.manual_seed(seed)
        model, info = _pretrained("AutoModelForSequenceClassification", name, **options)
    drawn = {key if isinstance(key, str) else key[0] for key in (*info["missing_keys"], *info["mismatched_keys"])}
    return model.eval(), tuple(sorted(drawn))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the bars and log lines of transformers and its downloads, for callers that print their own."""
    words = import_transformers("a checkpoint").utils.logging
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels, bars = [logger.level for logger in loggers], words.is_progress_bar_enabled()
    try:
        words.disable_progress_bar()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            words.enable_progress_bar()


def _pretrained(auto: str, name: str, **options: Any) -> Any:
    """What an auto class of transformers reads; what it prints goes to stderr: stdout is for the answer."""
    reader = getattr(import_transformers(f"the checkpoint {name!r}"), auto)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return reader.from_pretrained(name, trust_remote_code=False, **options)
    except _UNREADABLE as error:
        part = {"AutoConfig": "config", "AutoTokenizer": "tokenizer"}.get(auto, "weights")
        absent = isinstance(error, OSError) and part != "weights"
        remedy = "name a folder or a Hub checkpoint with config.json, model.safetensors and its tokenizer"
        raise (CheckpointNotFound if absent else BadInput)(
            f"{part} of {name!r} must be readable by {auto}", name, Phrase(first_line(error)), remedy
        ) from error


def longest_text(config: Any, tokenizer: Any) -> int:
    """How many tokens of a text the model takes."""
    limits = [_NO_LIMIT, tokenizer.model_max_length]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        limits.append(positions - (config.pad_token_id + 1 if config.model_type in _OFFSET_POSITIONS else 0))
    return int(min(limits))
