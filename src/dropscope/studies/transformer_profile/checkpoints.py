"""The checkpoints of a run: which can be loaded, what kind they are, and their classifiers with the study's dropout.

See `dropscope.loading` for how a checkpoint is read, and `published` for those of the paper.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dropscope import loading
from dropscope.errors import BadInput, CheckpointNotFound, Phrase, first_line
from dropscope.injection import FIELDS, with_rates
from dropscope.model import random_state_kept
from dropscope.studies.transformer_profile.own_models import FAMILY, OwnCheckpoint, fingerprint_of, is_code, read_own
from dropscope.studies.transformer_profile.published import published_checkpoint


def read_checkpoints(names: Sequence[str]) -> tuple[dict[str, loading.Checkpoint], dict[str, str]]:
    """Config and tokenizer of every checkpoint that can be loaded, and for each of the others the reason.

    Files in a folder or in the cache are used from there. Once the Hub cannot be reached it is not asked again.
    """
    loading.import_transformers("the study of transformers")
    checkpoints: dict[str, loading.Checkpoint] = {}
    missing: dict[str, str] = {}
    unreachable = False
    for name in names:
        try:
            if is_code(name):
                checkpoints[name] = read_own(name)
                continue
            with loading.quiet():
                try:
                    checkpoints[name] = loading.read_checkpoint(name, local=True)
                except CheckpointNotFound:
                    if unreachable or Path(name).is_dir() or name.startswith((".", "/", "~")):
                        raise
                    checkpoints[name] = loading.read_checkpoint(name)
        except CheckpointNotFound as error:
            reason = first_line(error.__cause__ or error)
            unreachable = unreachable or "connect" in reason
            missing[name] = f"it cannot be loaded: {reason}"
        except BadInput as error:
            missing[name] = str(error)
    return checkpoints, missing


def load_network(
    checkpoint: loading.Checkpoint, classes: int, seed: int, rates: dict[str, float] | None = None,
    layers: int | None = None, *, scratch: bool = False,
) -> nn.Module:  # fmt: skip
    """The sequence classifier in float32 on the CPU; a head that the checkpoint lacks is drawn from `seed`.

    With `rates` (of `attention`, `hidden`, `head`) the model is built from a config with those in its family's fields.
    With `layers` it has the first so many of its layers, with `scratch` all its weights are drawn from `seed`.
    """
    if isinstance(checkpoint, OwnCheckpoint):
        return _own_network(checkpoint, classes, seed, rates, layers, scratch=scratch)
    config = copy.deepcopy(checkpoint.config) if rates is None else with_rates(checkpoint.config, **rates)
    config.num_labels = classes
    if scratch:
        auto = loading.import_transformers("the study of transformers").AutoModelForSequenceClassification
        with loading.quiet(), random_state_kept():
            torch.manual_seed(seed)
            model = auto.from_config(config, trust_remote_code=False).float().eval()
    else:
        model = _load(checkpoint.name, config, seed)[0]
    if layers is not None:
        _cut(model, checkpoint.name, layers)
    return model


def _own_network(
    checkpoint: OwnCheckpoint, classes: int, seed: int, rates: dict[str, float] | None, layers: int | None, *,
    scratch: bool,
) -> nn.Module:  # fmt: skip
    """A model by code, as the code returns it: it has no config to build others from."""
    if rates is not None or layers is not None or scratch:
        what = f"{checkpoint.name} must be taken as it comes: it has no config to build others from"
        got = Phrase("other rates, layers or weights")
        raise BadInput(what, "models", got, "write train='once' or train='none', without layers or scratch")
    if checkpoint.config.num_labels != classes:
        what = f"{checkpoint.name} must have {classes} classes, as the data has"
        raise BadInput(what, "models", checkpoint.config.num_labels, f"return a model with {classes} outputs")
    return read_own(checkpoint.name, seed).build()


def _cut(model: Any, name: str, layers: int) -> None:
    """Keeps the first so many layers. A family whose layers share their weights has a count and no list."""
    depth = int(getattr(model.config, "num_hidden_layers", 0))
    if layers > depth:
        remedy = f"write layers={depth}"
        raise BadInput(f"layers must be at most those of {name}", "layers", layers, remedy)
    lists = [(parent, key) for parent in model.modules() for key, child in parent.named_children()
             if isinstance(child, nn.ModuleList) and len(child) == depth]  # fmt: skip
    if len(lists) != 1 and model.config.model_type != "albert":
        raise BadInput(f"layers must be left out for {name}, whose layers are no one list", "layers", layers,
                       "leave layers out")  # fmt: skip
    for parent, key in lists:
        setattr(parent, key, getattr(parent, key)[:layers])
    model.config.num_hidden_layers = layers


def head_is_trained(checkpoint: loading.Checkpoint, classes: int) -> bool:
    """Whether the checkpoint holds weights of a classifier for so many classes."""
    if isinstance(checkpoint, OwnCheckpoint):
        return bool(checkpoint.config.num_labels == classes)
    if checkpoint.config.num_labels != classes:
        return False
    return not _load(checkpoint.name, copy.deepcopy(checkpoint.config), 0)[1]


def _load(name: str, config: Any, seed: int) -> tuple[nn.Module, tuple[str, ...]]:
    with loading.quiet():
        return loading.load_classifier(name, config, seed=seed, dtype=torch.float32, new_head=True, state_dicts=True)


def kind_of(config: Any) -> str:
    """ "decoder" or "encoder": a decoder writes texts and fills no gaps; XLNet writes them, but reads both ways."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    family = config.model_type
    writes = family in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    fills = family in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES or family == "xlnet"
    encodes = bool(getattr(config, "is_encoder_decoder", False))
    decoder = (writes and not fills and not encodes) or bool(getattr(config, "is_decoder", False))
    return "decoder" if decoder else "encoder"


def is_specialised(name: str) -> bool:
    """Whether the paper counts the checkpoint among those made for one task or one field of texts."""
    published = published_checkpoint(name)
    return published is not None and published.specialised


def remarks_on(checkpoint: loading.Checkpoint) -> list[str]:
    """What a reader must know of a checkpoint before any number of it."""
    family = checkpoint.config.model_type
    if family == FAMILY:
        return [*checkpoint.remarks, "a model by code: its dropouts follow the rate of what they serve"]
    unknown = f"no dropout fields are known for the family {family!r}: dropouts follow the rate of what they serve"
    return [*checkpoint.remarks, *([unknown] if family not in FIELDS else [])]


def fingerprint(checkpoint: loading.Checkpoint) -> str:
    """16 hexadecimal digits of the config and weights in a folder; of a Hub checkpoint, its commit."""
    if isinstance(checkpoint, OwnCheckpoint):
        return fingerprint_of(checkpoint)
    folder = Path(checkpoint.name)
    if not folder.is_dir():
        return str(getattr(checkpoint.config, "_commit_hash", None) or "")[:16]
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("config.json", "*.safetensors", "*.bin") for path in folder.glob(kind)):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()[:16]
