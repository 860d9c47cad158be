"""The folder of a run: a part per model and configuration, complete or absent, and the tables made of them.

Owns names and formats, so that a killed run continues where it stopped. It runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope.atomic import atomic_write, read_json
from dropscope.errors import BadInput, Phrase
from dropscope.report import write_text
from dropscope.studies.transformer_profile.configurations import CONFIGURATIONS, Configuration

_OF_A_CONFIGURATION = ("passes", "items", "audits")
_MODEL = ("model", "family", "kind", "parameters", "specialised", "status", "reason", "seconds_training",
          "learning_rate", "remarks", "counts_as")  # fmt: skip


def slug(name: str) -> str:
    """A file name for a model: readable, and different for different names.

    >>> slug("prajjwal1/bert-tiny")
    'prajjwal1-bert-tiny-3fe9a8'
    """
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[-60:]
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


class ModelParts:
    """The parts of one model."""

    def __init__(
        self, folder: Path, name: str, configurations: Sequence[Configuration] = CONFIGURATIONS,
        surface: Sequence[Configuration] = (),
    ) -> None:  # fmt: skip
        self.name, self._configurations, self._surface = name, configurations, surface
        self._at = folder / "parts" / slug(name)
        self._folder = folder

    def weights(self, configuration: str | None) -> Path:
        return self._folder / "weights" / f"{slug(self.name)}{f'-{configuration}' if configuration else ''}.safetensors"

    def has(self, configuration: str) -> bool:
        return (self._at / configuration / "configuration.json").exists()

    @property
    def has_sensitivity(self) -> bool:
        return (self._at / "sensitivity.parquet").exists()

    @property
    def complete(self) -> bool:
        return (
            (self._at / "model.json").exists()
            and all(self.has(c.name) for c in self._configurations)
            and self.has_sensitivity
            and all(self.has_point(c) for c in self._surface)
        )

    def has_point(self, point: Configuration) -> bool:
        return self._point(point).exists()

    def write_point(self, point: Configuration, table: pd.DataFrame) -> None:
        """Items at one point of the response surface."""
        facts = {"model": self.name, "attention_rate": point.attention, "ffn_rate": point.ffn}
        _write(self._point(point), table.assign(**facts)[[*facts, *table.columns]])

    def _point(self, point: Configuration) -> Path:
        return self._at / "surface" / f"{point.name}.parquet"

    def check(self, checkpoint: str) -> None:
        """Parts of one model come from one checkpoint."""
        record = self._at / "model.json"
        before = read_json(record).get("checkpoint") if record.exists() else None
        if before is not None and before != checkpoint:
            what, got = f"out must hold results of {self.name} as it is", Phrase("results of other files than its own")
            raise BadInput(what, "out", got, "choose another folder")

    def write_model(self, row: Mapping[str, Any]) -> None:
        write_text(self._at / "model.json", json.dumps(row, indent=2) + "\n")

    def write_configuration(self, row: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> None:
        """`row` is written last: with it, the part is complete."""
        at = self._at / str(row["configuration"])
        for name in _OF_A_CONFIGURATION:
            table = tables[name].copy()
            table.insert(0, "configuration", row["configuration"])
            table.insert(0, "model", self.name)
            _write(at / f"{name}.parquet", table)
        write_text(at / "configuration.json", json.dumps(row, indent=2) + "\n")

    def write_sensitivity(self, table: pd.DataFrame) -> None:
        _write(self._at / "sensitivity.parquet", table.assign(model=self.name)[["model", *table.columns]])

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the configurations that are complete, in the order of the paper."""
        at = [self._at / c.name / "configuration.json" for c in self._configurations if self.has(c.name)]
        return [read_json(path) for path in at]

    def tables(self, name: str) -> list[pd.DataFrame]:
        if name == "sensitivity":
            return [pd.read_parquet(self._at / "sensitivity.parquet")] if self.has_sensitivity else []
        if name == "surface":
            return [pd.read_parquet(self._point(point)) for point in self._surface if self.has_point(point)]
        return [
            pd.read_parquet(self._at / c.name / f"{name}.parquet") for c in self._configurations if self.has(c.name)
        ]

    def model_row(self, learning_rate: float, reason: str | None) -> dict[str, Any]:
        """The model's row: facts as far as they are known, `skipped` where there is a reason."""
        record = self._at / "model.json"
        facts = read_json(record) if record.exists() else {}
        rows = self.rows()
        heard = (text for row in rows for text in row["remarks"])
        remarks = dict.fromkeys([*facts.get("remarks", []), *heard, *_on_precision(rows)])
        timed = sorted((self._folder / "weights").glob(f"{slug(self.name)}*.seconds.json"))
        return {
            "model": self.name, "family": facts.get("family", ""), "kind": facts.get("kind", ""),
            "parameters": facts.get("parameters", 0), "specialised": facts.get("specialised", False),
            "status": "ok" if reason is None else "skipped", "reason": reason or "",
            "seconds_training": float(sum(read_json(path)["seconds"] for path in timed)),
            "learning_rate": learning_rate, "remarks": "; ".join(remarks),
            "counts_as": facts.get("counts_as", self.name),
        }  # fmt: skip


def _on_precision(rows: list[dict[str, Any]]) -> list[str]:
    means = [row["bf16_difference_mean"] for row in rows if row["precision"] == "bf16"]
    if not means:
        return []
    largest = max(row["bf16_difference_largest"] for row in rows)
    spread = f"{min(means):.4f} to {max(means):.4f} on average in a configuration, {largest:.3f} at most"
    return [f"probabilities in bf16 differ from fp32 under the same masks by {spread}"]


def write_tables(
    folder: Path, models: Mapping[str, str | None], learning_rate: float,
    configurations: Sequence[Configuration] = CONFIGURATIONS, surface: Sequence[Configuration] = (),
) -> pd.DataFrame:  # fmt: skip
    """Writes the tables of these models (each with the reason why it was skipped, or None); returns that of models.

    Parts of a skipped model stay out of the other tables.
    """
    parts = {name: ModelParts(folder, name, configurations, surface) for name in models}
    evaluated = [parts[name] for name, reason in models.items() if reason is None]
    listed = pd.DataFrame(
        [parts[n].model_row(learning_rate, reason) for n, reason in models.items()], columns=list(_MODEL)
    )
    _write(folder / "models.parquet", listed)
    rows = pd.DataFrame([row for part in evaluated for row in part.rows()])
    _write(folder / "configurations.parquet", rows.drop(columns="remarks", errors="ignore"))
    for name in (*_OF_A_CONFIGURATION, "sensitivity", "surface"):
        tables = [table for part in evaluated for table in part.tables(name) if len(table)]
        if name == "surface" and not tables:
            (folder / "surface.parquet").unlink(missing_ok=True)  # of a run that asked for one
        if tables:
            _write(folder / f"{name}.parquet", pd.concat(tables, ignore_index=True))
    return listed


def _write(path: Path, table: pd.DataFrame) -> Path:
    return atomic_write(path, lambda part: table.to_parquet(part, index=False))
