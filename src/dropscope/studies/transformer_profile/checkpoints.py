"""The 19 checkpoints of the paper, and how any sequence classifier is had: by Hub name or folder, with its tokenizer.

Owns names, families and what a decoder lacks (a pad token). Nothing is unpickled: weights are safetensors, or a
state_dict read with `weights_only`; no code comes from the Hub. What is done with a model is not decided here.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import logging
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn

from dropscope.errors import BadInput, MissingExtra
from dropscope.injection import FIELDS, with_rates
from dropscope.model import random_state_kept


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint. `millions` of parameters, as published; `specialised` for a task or a field of texts."""

    name: str
    family: str
    kind: str  # "encoder" or "decoder"
    millions: float
    specialised: bool = False


CHECKPOINTS = (
    Checkpoint("bert-base-uncased", "bert", "encoder", 110),
    Checkpoint("bert-large-uncased", "bert", "encoder", 336),
    Checkpoint("prajjwal1/bert-tiny", "bert", "encoder", 4.4),
    Checkpoint("roberta-base", "roberta", "encoder", 125),
    Checkpoint("distilroberta-base", "roberta", "encoder", 82),
    Checkpoint("deepset/roberta-base-squad2", "roberta", "encoder", 124, specialised=True),
    Checkpoint("microsoft/deberta-v3-base", "deberta-v2", "encoder", 184),
    Checkpoint("microsoft/deberta-v3-small", "deberta-v2", "encoder", 141),
    Checkpoint("albert-base-v2", "albert", "encoder", 11.7),
    Checkpoint("google/electra-base-discriminator", "electra", "encoder", 109),
    Checkpoint("distilbert-base-uncased", "distilbert", "encoder", 66),
    Checkpoint("SpanBERT/spanbert-base-cased", "bert", "encoder", 108, specialised=True),
    Checkpoint("allenai/scibert_scivocab_uncased", "bert", "encoder", 110, specialised=True),
    Checkpoint("sentence-transformers/all-MiniLM-L6-v2", "bert", "encoder", 22.7, specialised=True),
    Checkpoint("gpt2", "gpt2", "decoder", 124),
    Checkpoint("openai-community/gpt2-medium", "gpt2", "decoder", 355),
    Checkpoint("distilgpt2", "gpt2", "decoder", 82),
    Checkpoint("sshleifer/tiny-gpt2", "gpt2", "decoder", 0.1),
    Checkpoint("EleutherAI/gpt-neo-125m", "gpt_neo", "decoder", 125),
)

# These number positions from the padding index on, so that their tables are longer than the texts they take.
_OFFSET_POSITIONS = (
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "data2vec-text", "esm",
    "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
)  # fmt: skip
_UNREADABLE = (
    safetensors.SafetensorError, OSError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError,
)  # fmt: skip
_NO_LIMIT = 100_000  # a tokenizer that knows no limit says 10³⁰


@dataclass(frozen=True, eq=False)
class Described:
    """What is known of a checkpoint before its weights are read."""

    name: str
    config: Any
    tokenizer: Any
    longest: int  # tokens that the model takes
    remarks: tuple[str, ...]

    @property
    def family(self) -> str:
        return str(self.config.model_type)

    @property
    def kind(self) -> str:
        """A decoder writes texts and fills no gaps; XLNet writes them, but reads both ways."""
        auto = importlib.import_module("transformers.models.auto.modeling_auto")
        writes = self.family in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        fills = self.family in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES or self.family == "xlnet"
        two_parts = bool(getattr(self.config, "is_encoder_decoder", False))
        decoder = (writes and not fills and not two_parts) or bool(getattr(self.config, "is_decoder", False))
        return "decoder" if decoder else "encoder"

    @property
    def specialised(self) -> bool:
        found = published(self.name)
        return found is not None and found.specialised


def published(name: str) -> Checkpoint | None:
    """The checkpoint of the paper that a Hub name or a folder stands for, told by the last part of its name.

    >>> published("models/all-MiniLM-L6-v2").name, published("my-model")
    ('sentence-transformers/all-MiniLM-L6-v2', None)
    """
    last = name.rstrip("/").rpartition("/")[2]
    return next((c for c in CHECKPOINTS if c.name == name or c.name.rpartition("/")[2] == last), None)


def describe(names: Sequence[str]) -> tuple[dict[str, Described], dict[str, str]]:
    """Config and tokenizer of every checkpoint that can be had, and for each of the others the reason.

    What lies in a folder or in the cache is taken from there. Once the Hub proved out of reach it is not asked again.
    """
    auto = _transformers()
    found: dict[str, Described] = {}
    missing: dict[str, str] = {}
    unreachable = False
    for name in names:
        try:
            try:
                found[name] = _described(auto, name, local=True)
            except _NotThere:
                if unreachable or Path(name).is_dir() or name.startswith((".", "/", "~")):
                    raise
                found[name] = _described(auto, name, local=False)
        except _NotThere as error:
            unreachable = unreachable or "connect" in str(error)
            missing[name] = f"it cannot be had: {error}"
        except BadInput as error:
            missing[name] = str(error)
    return found, missing


def load(described: Described, classes: int, seed: int, rates: dict[str, float] | None = None) -> nn.Module:
    """The sequence classifier in float32 on the CPU; a head that the checkpoint lacks is drawn from `seed`.

    With `rates` (of `attention`, `hidden`, `head`) the model is built from a config with those in its family's fields.
    """
    config = copy.deepcopy(described.config) if rates is None else with_rates(described.config, **rates)
    config.num_labels = classes
    return _pretrained(described.name, config, seed)[0]


def head_is_trained(described: Described, classes: int) -> bool:
    """Whether the checkpoint holds weights of a classifier for so many classes."""
    if described.config.num_labels != classes:
        return False
    _, info = _pretrained(described.name, copy.deepcopy(described.config), 0)
    return not info["missing_keys"] and not info["mismatched_keys"]


def fingerprint(described: Described) -> str:
    """16 hexadecimal digits of the config and weights in a folder; of a Hub checkpoint, its commit."""
    folder = Path(described.name)
    if not folder.is_dir():
        return str(getattr(described.config, "_commit_hash", None) or "")[:16]
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("config.json", "*.safetensors", "*.bin") for path in folder.glob(kind)):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while some := file.read(1 << 22):
                digest.update(some)
    return digest.hexdigest()[:16]


def _pretrained(name: str, config: Any, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    auto = _transformers().AutoModelForSequenceClassification
    with random_state_kept(), _quiet():
        torch.manual_seed(seed)
        try:
            model, info = auto.from_pretrained(
                name, config=config, dtype=torch.float32, trust_remote_code=False, weights_only=True,
                ignore_mismatched_sizes=True, local_files_only=Path(name).is_dir(), output_loading_info=True,
            )  # fmt: skip
        except _UNREADABLE as error:
            remedy = "name a checkpoint with model.safetensors, or a state_dict that needs no unpickling"
            raise BadInput("the weights of a checkpoint can be read", name, _line(error), remedy) from error
    return model.eval(), info


class _NotThere(Exception):
    pass


def _described(auto: Any, name: str, local: bool) -> Described:
    options = {"trust_remote_code": False, "local_files_only": local}
    with _quiet():
        try:
            config = auto.AutoConfig.from_pretrained(name, **options)
            tokenizer = auto.AutoTokenizer.from_pretrained(name, **options)
        except OSError as error:
            raise _NotThere(_line(error)) from error
        except (ValueError, KeyError, ImportError) as error:
            remedy = "name a folder or a Hub checkpoint with config.json and its tokenizer"
            raise BadInput("config and tokenizer of a checkpoint can be read", name, _line(error), remedy) from error
    remarks = []
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            remedy = "set tokenizer.pad_token and save it beside the checkpoint"
            raise BadInput("a tokenizer has a padding token, or an end token to stand in", name, None, remedy)
        tokenizer.pad_token = tokenizer.eos_token
        remarks.append(f"padded with its end token {tokenizer.eos_token}, masked wherever it pads")
    if config.pad_token_id != tokenizer.pad_token_id:
        # A decoder finds the last token of a text by it.
        config.pad_token_id = tokenizer.pad_token_id
    if config.model_type not in FIELDS:
        remarks.append(
            f"no dropout fields are known for the family {config.model_type!r}: told apart by what they serve"
        )
    return Described(name, config, tokenizer, _longest(config, tokenizer), tuple(remarks))


def _longest(config: Any, tokenizer: Any) -> int:
    limits = [_NO_LIMIT, tokenizer.model_max_length]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        limits.append(positions - (config.pad_token_id + 1 if config.model_type in _OFFSET_POSITIONS else 0))
    return int(min(limits))


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtra("the study of transformers", "transformers", "text") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Which weights are newly drawn is ours to say; retries and bars would hide our own lines."""
    words = _transformers().utils.logging
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels, bars = [logger.level for logger in loggers], words.is_progress_bar_enabled()
    try:
        words.disable_progress_bar()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            words.enable_progress_bar()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]
