"""The record of a study's claims, `claims.json`: verdicts with the numbers behind them, for whoever joins several runs.

Owns the file. See `syntheses` for joining.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dropscope.analysis import Estimate
from dropscope.atomic import atomic_write, read_json
from dropscope.errors import BadInput, Phrase
from dropscope.report.claims import Claim, Evidence

RECORD = "claims.json"
_REMEDY = "run the study's command again: what is finished is kept, and the file is written"


@dataclass(frozen=True, eq=False)
class ClaimsRecord:
    """What a run of a study says about each claim.

    Attributes:
        folder: Of the run.
        study: Name of the study.
        data: Fingerprint of the data it ran on.
        claims: The judged claims; fields that only its own summary shows are empty.
    """

    folder: Path
    study: str
    data: str
    claims: tuple[Claim, ...]


def write_claims(folder: Path, study: str, data: str, claims: Sequence[Claim]) -> Path:
    """Writes the record of a run into its folder."""
    listed = [
        {
            "name": claim.name, "statement": claim.statement, "ours": claim.ours, "verdict": claim.verdict,
            "how": claim.how, "estimand": claim.estimand, "margin": claim.margin, "arithmetic": claim.arithmetic,
            "one_is_enough": claim.one_is_enough, "evidence": [_as_json(asdict(e)) for e in claim.evidence],
        }
        for claim in claims
    ]  # fmt: skip
    text = json.dumps({"study": study, "data": data, "claims": listed}, indent=2, ensure_ascii=False)
    return atomic_write(folder / RECORD, lambda part: part.write_text(text + "\n", encoding="utf-8"))


def read_claims(folder: Path) -> ClaimsRecord:
    """The record in a folder.

    Raises:
        BadInput: Where the folder holds none, or one that cannot be used.
    """
    path = folder / RECORD
    if not path.exists():
        got = f"no {RECORD} in {folder}" if folder.is_dir() else f"no folder {folder}"
        raise BadInput("folders must hold finished studies", "folders", Phrase(got), _REMEDY)
    content = read_json(path)
    try:
        claims = tuple(_claim(entry) for entry in content["claims"])
        return ClaimsRecord(folder, str(content["study"]), str(content["data"]), claims)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} must be the record of a study", "folders", Phrase(f"{error!r}"), _REMEDY) from error


def _claim(entry: dict[str, Any]) -> Claim:
    evidence = tuple(_evidence(dict(part)) for part in entry["evidence"])
    return Claim(**{**entry, "published": "", "evidence": evidence})


def _evidence(entry: dict[str, Any]) -> Evidence:
    numbers = entry.pop("estimate")
    known: dict[str, Any] = {name: math.nan if value is None else value for name, value in numbers.items()}
    margin = tuple(entry["margin"]) if isinstance(entry["margin"], list) else entry["margin"]
    return Evidence(**{**entry, "estimate": Estimate(**known), "margin": margin})


def _as_json(value: Any) -> Any:
    """Values that JSON has: NaN is null there."""
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
