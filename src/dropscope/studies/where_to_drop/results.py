"""What was found out about one network, as files: written once its work is done, read by every report thereafter."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from dropscope.atomic import atomic_write
from dropscope.report import write_text
from dropscope.studies.where_to_drop.task import NetworkResult

_TABLES = ("rows", "baseline", "curves", "inputs", "chosen")
_FACTS = "result.json"  # written last: a result is there once this is


def save_result(folder: Path, result: NetworkResult) -> None:
    for name in _TABLES:
        table = getattr(result, name)
        if table is not None:
            atomic_write(folder / f"{name}.parquet", lambda part, table=table: table.to_parquet(part, index=False))  # type: ignore[misc]
    facts = {"name": result.name, "accuracy": result.accuracy, "levels": result.levels}
    write_text(folder / _FACTS, json.dumps(facts, indent=2) + "\n")


def load_result(folder: Path) -> NetworkResult | None:
    """The result in a folder; None where its work is not done."""
    if not (folder / _FACTS).exists():
        return None
    facts = json.loads((folder / _FACTS).read_text())
    tables = {
        name: pd.read_parquet(folder / f"{name}.parquet") if (folder / f"{name}.parquet").exists() else None
        for name in _TABLES
    }
    return NetworkResult(**facts, **tables)  # type: ignore[arg-type]


def load_results(folder: Path) -> list[NetworkResult]:
    """Every finished network of a study's folder, by name."""
    found = (load_result(path.parent) for path in sorted((folder / "results").glob(f"*/{_FACTS}")))
    return [result for result in found if result is not None]
