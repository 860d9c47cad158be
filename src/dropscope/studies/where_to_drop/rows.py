"""Rows of the study: what was measured on each network, its files, and one table of all networks of a task.

Owns that table and what reports ask of it. A placement that equals another by mathematics counts once in it, except
where before and after the activation are compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from dropscope.analysis import with_quantities, without_equivalents
from dropscope.atomic import atomic_write, read_json
from dropscope.errors import BadInput, Phrase
from dropscope.report import write_text
from dropscope.runs import Run
from dropscope.studies.where_to_drop.tasks import Task

PENALTIES = ("isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty")
BOTH = ("isotonic_penalty", "rearrangement_penalty")  # the penalties that the paper defines
JUDGED = (*BOTH, "aurc")
PLAIN = "plain_entropy"  # the one plain pass that everything is compared with

_KEPT = (*PENALTIES, "aurc", "augrc", "error_auroc", "error_auprc", "accuracy", "cost")
_INTERVALS = ("aurc_minus_baseline_low", "aurc_minus_baseline_high")
_TABLES = ("rows", "baseline", "curves", "inputs", "chosen")
_TASK = "task.json"
_FACTS = "result.json"  # written last: a result is complete once this is there


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """Everything that reports read of one network."""

    name: str  # "seed 0"
    accuracy: float  # of one plain pass on the test set
    rows: pd.DataFrame  # of the sweep of the whole grid on the test set
    baseline: pd.DataFrame  # rows of one plain pass
    levels: dict[str, dict[str, float]]  # penalty → level of a random and of a monotone measure
    curves: pd.DataFrame  # placement, measure, example, uncertainty, correct: for table 3 and figures 1, 4, 5
    inputs: pd.DataFrame | None = None  # rows of the sweep with masks on the layers' inputs, as in the authors' code
    chosen: pd.DataFrame | None = None  # the best placements on validation examples, on test examples


@dataclass(frozen=True, eq=False)
class StudyRows:
    """One task, its networks, and every row of them."""

    task: Task
    results: tuple[NetworkResult, ...]
    every: pd.DataFrame  # rows of every position, with the quantities of their placements and a column `network`
    inputs: pd.DataFrame | None  # the same with masks on the layers' inputs
    passes: int | None = None

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Each placement once: of equal ones the one that was computed."""
        return without_equivalents(self.every)

    @property
    def layers(self) -> tuple[str, ...]:
        return self.task.layers

    @property
    def networks(self) -> int:
        return len(self.results)

    @property
    def measures(self) -> list[str]:
        return [str(name) for name in self.every["measure"].unique()]

    @property
    def examples(self) -> int:
        return len(self.task.test[1])

    @cached_property
    def baseline(self) -> pd.DataFrame:
        """One-pass rows of every network."""
        return pd.concat([result.baseline.assign(network=result.name) for result in self.results], ignore_index=True)

    def level(self, penalty: str, kind: str) -> float:
        """What a random, or a truly monotone, measure scores here: mean over networks."""
        return float(np.mean([result.levels.get(penalty, {}).get(kind, np.nan) for result in self.results]))

    def of(self, measure: str) -> pd.DataFrame:
        return self.rows[self.rows["measure"] == measure]

    def only(self, layer: str, rows: pd.DataFrame | None = None) -> pd.Series:
        """Which rows mask this layer and no other."""
        table = self.rows if rows is None else rows
        return (table["n_layers"] == 1) & (table[f"rate_{layer}"] > 0)


def with_aurc_intervals(run: Run) -> pd.DataFrame:
    """Rows of a sweep, those of the finalists with the interval of their AURC's difference to one plain pass."""
    ends = ["minus_single_pass_low", "minus_single_pass_high"]
    return run.rows.assign(**dict(zip(_INTERVALS, run.with_intervals(run.rows)[ends].to_numpy().T, strict=True)))


def join_results(task: Task, results: Sequence[NetworkResult], passes: int | None = None) -> StudyRows:
    """One table of the rows of all networks; `passes` is for the corner of figures.

    Raises:
        BadInput: Where there is no network, two have one name, or a column is missing.
    """
    if not results:
        raise BadInput("results must hold at least one network", "results", [], "finish one network first")
    if len({result.name for result in results}) < len(results):
        names = [result.name for result in results]
        raise BadInput("results must have different names", "results", names, "name each network by its seed")
    missing = [name for name in task.penultimate if name not in task.layers]
    if missing:
        raise BadInput("penultimate must be among layers", "penultimate", missing, "list it in layers too")
    inputs = [(result.name, result.inputs) for result in results if result.inputs is not None]
    return StudyRows(
        task,
        tuple(results),
        _join([(result.name, result.rows) for result in results], task.layers),
        _join(inputs, task.layers) if inputs else None,
        passes,
    )


def _join(parts: Sequence[tuple[str, pd.DataFrame]], layers: Sequence[str]) -> pd.DataFrame:
    frames = []
    for name, rows in parts:
        for column in ("placement", "measure", *JUDGED):
            if column not in rows:
                got = Phrase(", ".join(map(str, rows.columns)))
                raise BadInput(f"rows of {name} must have a column {column!r}", "rows", got, "pass rows of a sweep")
        wanted = ("placement", "measure", "equivalent_to", *_KEPT, *_INTERVALS)
        frames.append(rows[[column for column in wanted if column in rows]].assign(network=name))
    table = pd.concat(frames, ignore_index=True)
    for column in ("network", "measure"):
        table[column] = pd.Categorical(table[column], categories=table[column].unique())
    return with_quantities(table[table["placement"] != "none"], layers)


# --- files of one network ---------------------------------------------------------------------------------------------


def save_result(folder: Path, result: NetworkResult) -> None:
    for name in _TABLES:
        table = getattr(result, name)
        if table is not None:
            atomic_write(folder / f"{name}.parquet", lambda part, table=table: table.to_parquet(part, index=False))  # type: ignore[misc]
    facts = {"name": result.name, "accuracy": result.accuracy, "levels": result.levels}
    write_text(folder / _FACTS, json.dumps(facts, indent=2) + "\n")


def load_result(folder: Path) -> NetworkResult | None:
    """The result in a folder; None where it is not complete."""
    if not (folder / _FACTS).exists():
        return None
    facts = read_json(folder / _FACTS)
    tables = {
        name: pd.read_parquet(folder / f"{name}.parquet") if (folder / f"{name}.parquet").exists() else None
        for name in _TABLES
    }
    return NetworkResult(**facts, **tables)  # type: ignore[arg-type]


def save_task(folder: Path, task: Task, passes: int) -> None:
    """What reports need to know of a task beside its rows, so that they can do without its data."""
    facts = {"name": task.name, "layers": task.layers, "penultimate": task.penultimate, "passes": passes}
    labels = task.test[1]
    counts = {"examples": len(labels), "classes": int(labels.unique().numel())}
    write_text(folder / _TASK, json.dumps({**facts, **counts}, indent=2) + "\n")


def load_study(folder: Path) -> StudyRows:
    """The rows of a finished run, from its folder alone: enough for figures.

    Raises:
        BadInput: Where the folder holds no such run.
    """
    results = load_results(folder)
    if not results or not (folder / _TASK).exists():
        what = "beside must be the folder of a finished where-to-drop run"
        raise BadInput(what, "beside", str(folder), "run that task first, or its command again: that only redraws")
    facts = read_json(folder / _TASK)
    labels = torch.arange(facts["examples"]) % max(1, facts["classes"])
    layers, penultimate = tuple(facts["layers"]), tuple(facts["penultimate"])
    data = labels, labels
    task = Task(facts["name"], layers, penultimate, nn.Identity, train=None, validation=data, test=data)
    return join_results(task, results, facts["passes"])


def load_results(folder: Path) -> list[NetworkResult]:
    """Every finished network of a study's folder, by name."""
    results = (load_result(path.parent) for path in sorted((folder / "results").glob(f"*/{_FACTS}")))
    return [result for result in results if result is not None]
