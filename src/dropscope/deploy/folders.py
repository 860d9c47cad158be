"""Folders of predictors: JSON that people can read, and the calibration as safetensors. Neither code nor weights.

Every byte is covered by a digest, so that a damaged folder is one clear error.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from dropscope.atomic import atomic_write, output_folder, read_json
from dropscope.deploy.calibration import Calibration, ErrorCurve
from dropscope.deploy.recipes import Recipe
from dropscope.deploy.rules import DeferralRule
from dropscope.errors import BadInput, Phrase
from dropscope.model import digest

_FORMAT, _VERSION = "dropscope predictor", 1
_RECORD, _TENSORS = "predictor.json", "calibration.safetensors"
_RULE = {"format": "dropscope deferral rule", "version": 1}


@dataclass(frozen=True, eq=False)
class Stored:
    """What a folder holds."""

    recipe: Recipe
    calibration: Calibration
    rule: DeferralRule | None
    class_names: tuple[str, ...] | None
    weights: str


def write(
    folder: Path,
    recipe: Recipe,
    calibration: Calibration,
    rule: DeferralRule | None,
    class_names: tuple[str, ...] | None,
    weights: str,
) -> Path:
    """Writes a predictor; the record last, so that a folder with one is whole."""
    spec = recipe.facts()
    path = check_target(folder)
    tensors = save(_tensors(calibration))
    record: dict[str, Any] = {
        "format": _FORMAT, "version": _VERSION, "recipe": spec, "rule": None if rule is None else rule.facts(),
        "class_names": class_names, "weights": weights, "ids": calibration.ids,
        "curve": [calibration.curve.middle, calibration.curve.spread],
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


def read(folder: Path) -> Stored:
    """Reads a predictor.

    Raises:
        BadInput: If the folder holds none, or one that is damaged.
    """
    for name in (_RECORD, _TENSORS):
        if not (folder / name).is_file():
            got = Phrase(f"{str(folder)!r}, without {name}")
            raise BadInput(
                "folder must hold a predictor", "folder", got, "pass a folder that predictor.save(...) wrote"
            )
    record = read_json(folder / _RECORD)
    stated = record.pop("digest", None) if isinstance(record, dict) else None
    if stated is None or record.get("format") != _FORMAT:
        raise _damaged(folder / _RECORD)
    if record.get("version") != _VERSION:
        got = Phrase(f"version {record.get('version')}")
        raise BadInput(f"folder must hold a predictor of version {_VERSION}", "folder", got, "fit and save it again")
    content = (folder / _TENSORS).read_bytes()
    if stated != digest(record):
        raise _damaged(folder / _RECORD)
    if record["calibration"] != hashlib.sha256(content).hexdigest():
        raise _damaged(folder / _TENSORS)
    values = load(content)
    curve = ErrorCurve(values.pop("knots"), values.pop("errors"), *record["curve"])
    values["right"] = values["right"].astype(bool)
    rule = record["rule"]
    return Stored(
        Recipe(**record["recipe"]),
        Calibration(record["ids"], curve=curve, **values),
        None if rule is None else DeferralRule.of({**_RULE, **rule}, _RECORD),
        None if record["class_names"] is None else tuple(record["class_names"]),
        record["weights"],
    )


def _tensors(calibration: Calibration) -> dict[str, np.ndarray]:
    held = {field.name: getattr(calibration, field.name) for field in fields(calibration)}
    arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
    arrays |= {"knots": calibration.curve.knots, "errors": calibration.curve.errors}
    arrays["right"] = arrays["right"].astype(np.uint8)
    return {name: np.ascontiguousarray(value) for name, value in arrays.items()}


def _damaged(path: Path) -> BadInput:
    got = Phrase(f"{str(path)!r}, which was changed")
    remedy = "copy the folder again, or fit and save the predictor again"
    return BadInput("folder must hold a predictor as it was saved", "folder", got, remedy)
