"""Folders of predictors: JSON that people can read, and the calibration as safetensors. Neither code nor weights.

Every byte is covered by a digest, so that a damaged folder is one clear error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

from dropscope.atomic import atomic_write, output_folder, read_json
from dropscope.checks import as_record
from dropscope.deploy.rules import DeferralRule
from dropscope.errors import BadInput, Phrase
from dropscope.model import digest, weights_fingerprint

_VERSION = 2
_RECORD, _TENSORS = "predictor.json", "calibration.safetensors"
_RULE = {"format": "dropscope deferral rule", "version": 1}
EXAMPLES, VOLUMES = "dropscope predictor", "dropscope volume predictor"  # formats
_LOADERS = {EXAMPLES: "UncertaintyPredictor", VOLUMES: "VolumePredictor"}


@dataclass(frozen=True, eq=False)
class Stored:
    """What every folder of a predictor holds.

    Attributes:
        rule: When to defer, or None.
        class_names: In the order of the classes, or None.
        weights: Fingerprint of the model's weights.
        record: Everything else, as JSON has it.
        tensors: The calibration.
    """

    rule: DeferralRule | None
    class_names: tuple[str, ...] | None
    weights: str
    record: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def check_weights(self, model: nn.Module) -> None:
        """Refuses a model with other weights.

        Raises:
            BadInput: If they are not those of the predictor.
        """
        if self.weights != weights_fingerprint(model):
            remedy = "load the weights that the predictor was fitted with, or fit it again"
            raise BadInput("model must have the predictor's weights", "model", Phrase("other weights"), remedy)


def write(folder: Path, kind: str, stored: Stored) -> Path:
    """Writes a predictor of a kind; the record last, so that a folder with one is whole."""
    path = check_target(folder)
    tensors = save({name: np.ascontiguousarray(value) for name, value in stored.tensors.items()})
    record: dict[str, Any] = {
        "format": kind, "version": _VERSION, **stored.record, "class_names": stored.class_names,
        "rule": None if stored.rule is None else stored.rule.facts(), "weights": stored.weights,
        "calibration": hashlib.sha256(tensors).hexdigest(),
    }  # fmt: skip
    plain = json.loads(json.dumps(record))
    text = json.dumps({**plain, "digest": digest(plain)}, indent=1)
    (path / _RECORD).unlink(missing_ok=True)
    atomic_write(path / _TENSORS, lambda part: part.write_bytes(tensors))
    atomic_write(path / _RECORD, lambda part: part.write_text(text, encoding="utf-8"))
    return path


def check_target(out: str | Path) -> Path:
    """The folder, if a predictor can be written there. Nothing is made.

    Raises:
        BadInput: If it is a file, or holds something else.
    """
    path = output_folder(out)
    if path.is_dir() and any(path.iterdir()) and not (path / _RECORD).exists():
        raise BadInput("out must be a new folder, or one that holds a predictor", "out", str(out), "choose another")
    return path


def read(folder: Path, kind: str) -> Stored:
    """Reads a predictor of a kind.

    Raises:
        BadInput: If the folder holds none, one of another kind, or one that is damaged.
    """
    for name in (_RECORD, _TENSORS):
        if not (folder / name).is_file():
            got = Phrase(f"{str(folder)!r}, without {name}")
            raise BadInput(
                "folder must hold a predictor", "folder", got, "pass a folder that predictor.save(...) wrote"
            )
    record = read_json(folder / _RECORD)
    stated = record.pop("digest", None) if isinstance(record, dict) else None
    if stated is None or record.get("format") not in _LOADERS:
        raise _damaged(folder / _RECORD)
    if record.get("version") != _VERSION:
        got = Phrase(f"version {record.get('version')}")
        raise BadInput(f"folder must hold a predictor of version {_VERSION}", "folder", got, "fit and save it again")
    content = (folder / _TENSORS).read_bytes()
    if stated != digest(record):
        raise _damaged(folder / _RECORD)
    if record.get("calibration") != hashlib.sha256(content).hexdigest():
        raise _damaged(folder / _TENSORS)
    if record["format"] != kind:
        loader, of = _LOADERS[record["format"]], {EXAMPLES: "examples", VOLUMES: "volumes"}
        got = Phrase(f"one of {of[record['format']]}")
        raise BadInput(f"folder must hold a predictor of {of[kind]}", "folder", got, f"use {loader}.load")
    with as_saved(folder):
        head = as_record(_Head, {name: record.pop(name) for name in ("rule", "class_names", "weights")})
        rule = None if head.rule is None else DeferralRule.of({**_RULE, **head.rule}, _RECORD)
        return Stored(rule, head.class_names, head.weights, record, load(content))


@dataclass(frozen=True)
class _Head:
    """What the record of every kind holds."""

    rule: Mapping[str, Any] | None
    class_names: tuple[str, ...] | None
    weights: str


@contextmanager
def as_saved(folder: Path) -> Iterator[None]:
    """One line where a folder whose digests fit does not hold what a predictor is made from."""
    try:
        yield
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise _damaged(folder) from error


def _damaged(path: Path) -> BadInput:
    got = Phrase(f"{str(path)!r}, which was changed")
    remedy = "copy the folder again, or fit and save the predictor again"
    return BadInput("folder must hold a predictor as it was saved", "folder", got, remedy)
