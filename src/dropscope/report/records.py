"""The record of a study's claims, `claims.json`: verdicts with the numbers behind them, for whoever joins several runs.

Owns the file. See `syntheses` for joining.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dropscope.atomic import atomic_write, read_json
from dropscope.checks import as_record
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.report.claims import Claim

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
        record = as_record(_Content, content)
        claims = tuple(as_record(Claim, {**entry, "published": ""}) for entry in record.claims)
    except ValueError as error:
        received = Phrase(first_line(error))
        raise BadInput(f"{path} must be the record of a study", "folders", received, _REMEDY) from error
    return ClaimsRecord(folder, record.study, record.data, claims)


@dataclass(frozen=True)
class _Content:
    """What the file holds."""

    study: str
    data: str
    claims: tuple[Mapping[str, Any], ...]


def _as_json(value: Any) -> Any:
    """Values that JSON has: NaN is null there."""
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
