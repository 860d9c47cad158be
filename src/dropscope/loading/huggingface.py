"""Hugging Face checkpoints: config, tokenizer, padding token and weights, from a folder, the cache or the Hub.

The one loader. No code comes from the Hub and nothing is unpickled: weights are safetensors or, where the caller allows
it, a state_dict read with `weights_only`. See `inspection` for what is checked before anything is built; what a model
is used for is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dropscope.checks import check_checkpoint, checkpoint_meant
from dropscope.errors import BadInput, CheckpointNotFound, MissingExtra, Phrase, first_line, nearest
from dropscope.loading.inspection import WeightFiles, inspect_config, inspect_tokenizer, inspect_weights
from dropscope.model import random_state_kept

# These number positions from the padding index on, so their tables are longer than the texts they take.
_OFFSET_POSITIONS = (
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "data2vec-text", "esm",
    "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
)  # fmt: skip
_SLACK, _SMALL = 4, 1 << 25  # a model may have so many numbers more than its file: heads, and tables that it ties
_TOGETHER = "put the config, weights and tokenizer of one checkpoint together"
_NUMBERED = re.compile(r"\.\d+\.")
_PATIENCE = 5.0  # seconds that the Hub has to answer
_NO_LIMIT = 100_000  # a tokenizer without a limit says 10³⁰


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


def _hub_answers() -> bool:
    """Whether the Hub can be reached, or a proxy may know: without a network every file would wait for retries."""
    constants = importlib.import_module("huggingface_hub").constants
    if constants.HF_HUB_OFFLINE or urllib.request.getproxies():
        return not constants.HF_HUB_OFFLINE
    hub = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((hub.hostname, hub.port or 443), timeout=_PATIENCE):
            return True
    except OSError:
        return False


def read_checkpoint(name: str, *, local: bool = False) -> Checkpoint:
    """Config and tokenizer; with `local` the Hub is not asked.

    Raises:
        CheckpointNotFound: Where there are no files.
        BadInput: Where they cannot be read, or a text cannot be padded.
    """
    config = _read_config(name, local=local)
    tokenizer, remarks = read_tokenizer(name, config, local=local)
    return Checkpoint(name, config, tokenizer, longest_text(config, tokenizer), remarks)


def read_tokenizer(name: str, config: Any, *, local: bool = False) -> tuple[Any, tuple[str, ...]]:
    """The tokenizer of a checkpoint, padding on the right, and what was changed; `config` gets its padding token."""
    if Path(name).is_dir():
        inspect_tokenizer(Path(name), name)
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
    _check_words(name, config, tokenizer)
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
        weights = inspect_weights(Path(name), name, pickles=state_dicts)
        options["config"] = _read_config(name, local=True) if config is None else config
        _check_fit(name, options["config"], weights, new_head=new_head)
    bars = quiet() if Path(name).is_dir() else contextlib.nullcontext()  # what is here already takes no time to read
    with bars, contextlib.nullcontext() if seed is None else random_state_kept():
        if seed is not None:
            torch.manual_seed(seed)
        model, info = _pretrained("AutoModelForSequenceClassification", name, **options)
    drawn = {key if isinstance(key, str) else key[0] for key in (*info["missing_keys"], *info["mismatched_keys"])}
    _check_layers(name, model, drawn, info["unexpected_keys"])
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


def _read_config(name: str, *, local: bool) -> Any:
    if Path(name).is_dir():
        family = inspect_config(Path(name), name)
        families = import_transformers(f"the checkpoint {name!r}").CONFIG_MAPPING
        if family not in families:
            what = f"model_type in config.json of {name!r} must be a family that transformers itself has"
            raise BadInput(what, name, family, nearest(family, families))
    return _pretrained("AutoConfig", name, local_files_only=local)


def _pretrained(auto: str, name: str, **options: Any) -> Any:
    """What an auto class of transformers reads; what it prints goes to stderr: stdout is for the answer."""
    check_checkpoint(name)
    reader = getattr(import_transformers(f"the checkpoint {name!r}"), auto)
    part = {"AutoConfig": "config", "AutoTokenizer": "tokenizer"}.get(auto, "weights")
    alone = not Path(name).is_dir() and not options.get("local_files_only") and not _hub_answers()
    options |= {"local_files_only": True} if alone else {}
    with _readable(f"{part} of {name!r} must be readable by {auto}", name, findable=part != "weights", alone=alone):
        return reader.from_pretrained(name, trust_remote_code=False, **options)


@contextlib.contextmanager
def _readable(what: str, name: str, *, findable: bool = False, alone: bool = False) -> Iterator[None]:
    """One line for whatever transformers, or the Rust below it, raises over a file that it cannot use.

    `alone` says that the Hub does not answer.
    """
    loggers = [logging.getLogger(each) for each in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)  # what it reports there is refused, or a remark
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        here = Path(name).is_dir()
        absent = not here and isinstance(error, OSError)
        remedy = "name a folder or a Hub checkpoint with config.json, model.safetensors and its tokenizer"
        remedy = (
            "save it again with save_pretrained, or download it again" if here else checkpoint_meant(name) or remedy
        )
        reason = "no such folder here, nothing of it in the cache, and no answer from the Hub" if alone else ""
        kind = CheckpointNotFound if absent and (findable or alone) else BadInput
        raise kind(what, name, Phrase((absent and reason) or _reason(error)), remedy) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """What an error says in one line; the second one where the first only names the field."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__.startswith("StrictDataclass") and len(lines) > 1:
        return lines[1].removeprefix("TypeError: ")[:160]
    named = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
    return named + first_line(error)


def _check_fit(name: str, config: Any, weights: WeightFiles, *, new_head: bool) -> None:
    """Compares the model that a config describes with the weights, before memory is taken for either.

    Raises:
        BadInput: Where the config describes no model, one much larger than its weights, or tensors of other shapes.
    """
    auto: Any = import_transformers(f"the checkpoint {name!r}").AutoModelForSequenceClassification
    if type(config) not in auto._model_mapping:  # noqa: SLF001 - it has no other name for what it can build
        what, remedy = f"family of {name!r} must have a sequence classifier in transformers", "name a text model"
        raise BadInput(what, name, config.model_type, remedy)
    with _readable(f"config of {name!r} must describe a classifier that transformers has", name), torch.device("meta"):
        model = auto.from_config(config, trust_remote_code=False)
    described = sum(value.numel() for value in (*model.parameters(), *model.buffers()))
    if described > _SLACK * weights.numbers + _SMALL:
        got = Phrase(f"{described:,} described, {weights.numbers:,} stored")
        raise BadInput(f"config and weights of {name!r} must be of about as many numbers", name, got, _TOGETHER)
    if getattr(config, "quantization_config", None) is not None:
        return  # several numbers are packed into one, so shapes differ
    for key, value in model.state_dict().items():
        wanted = tuple(value.shape)
        stored = weights.shapes.get(key, weights.shapes.get(_in_body(key, model), wanted))
        if stored != wanted and not (new_head and _in_body(key, model) == key):
            what = f"weights of {name!r} must have the shapes of its config, for {key} {wanted}"
            raise BadInput(what, name, Phrase(str(stored)), _TOGETHER)


def _check_layers(name: str, model: Any, drawn: set[str], unused: Collection[str]) -> None:
    """Refuses weights whose layers are not those of the model: it would run with random ones, or without some.

    A head, or a pooler, that they lack is not refused: callers say that it is untrained.
    """
    body = {key: value for key, value in model.state_dict().items() if _in_body(key, model) != key}
    lacking = sorted(drawn & set(body))
    layers = [key for key in lacking if _NUMBERED.search(key)]
    what = f"weights of {name!r} must be those of a {type(model).__name__}"
    if layers or 2 * sum(body[key].numel() for key in lacking) > sum(value.numel() for value in body.values()):
        got = Phrase(f"none for {(layers or lacking)[0]} and {len(lacking) - 1} more")
        raise BadInput(what, name, got, _TOGETHER)
    kinds = {_NUMBERED.sub(".*.", _in_body(key, model)) for key in body}
    extra = sorted(key for key in unused if "." in key and _NUMBERED.sub(".*.", _in_body(key, model)) in kinds)
    if extra:
        raise BadInput(
            what, name, Phrase(f"{extra[0]} and {len(extra) - 1} more, which it has no place for"), _TOGETHER
        )


def _in_body(key: str, model: Any) -> str:
    """The name of a weight in the pretrained model itself, which some checkpoints hold alone; a head's as it is."""
    return key.removeprefix(f"{model.base_model_prefix}.")


def _check_words(name: str, config: Any, tokenizer: Any) -> None:
    """Refuses a tokenizer that does not work, or numbers words that the model has no row for."""
    limit = tokenizer.model_max_length
    if not isinstance(limit, int | float) or not limit >= 1:
        what, remedy = f"model_max_length of {name!r} must be a number of tokens", "correct it in tokenizer_config.json"
        raise BadInput(what, name, limit, remedy)
    with _readable(f"tokenizer of {name!r} must tokenise a text", name):
        tokens = tokenizer(["a text", "a"], padding=True)["input_ids"]
    rows = getattr(config, "vocab_size", None)
    largest = max((number for text in tokens for number in text), default=0)
    words = max(largest + 1, tokenizer.vocab_size, (tokenizer.pad_token_id or 0) + 1)
    if isinstance(rows, int) and words > rows:
        what = f"tokenizer of {name!r} must number its tokens below the vocab_size of the config, {rows}"
        raise BadInput(what, name, Phrase(f"{words} tokens"), _TOGETHER)


def longest_text(config: Any, tokenizer: Any) -> int:
    """How many tokens of a text the model takes."""
    limits = [_NO_LIMIT, tokenizer.model_max_length]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        limits.append(positions - (config.pad_token_id + 1 if config.model_type in _OFFSET_POSITIONS else 0))
    return int(min(limits))
