"""The rows of all networks of one task as one described table, and the few things every report asks of them.

Owns that table. Twins count once in it, except where before and after are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from dropscope.analysis import with_quantities, without_equivalents
from dropscope.errors import BadInput
from dropscope.studies.where_to_drop.task import NetworkResult, Task

PENALTIES = ("isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty")
JUDGED = ("isotonic_penalty", "rearrangement_penalty", "aurc")
PLAIN = "plain_entropy"  # the one plain pass that everything is compared with

_KEPT = (*PENALTIES, "aurc", "augrc", "error_auroc", "error_auprc", "accuracy", "cost")
_INTERVALS = ("aurc_minus_baseline_low", "aurc_minus_baseline_high")


@dataclass(frozen=True, eq=False)
class Gathered:
    """One task, its networks, and every row of them."""

    task: Task
    results: tuple[NetworkResult, ...]
    every: pd.DataFrame  # described rows of every position, with a column `network`
    inputs: pd.DataFrame | None  # the same with masks on the layers' inputs

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Each computed placement once."""
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


def gather(task: Task, results: Sequence[NetworkResult]) -> Gathered:
    """Checks what came and puts it into one table."""
    if not results:
        raise BadInput("a study reports on at least one network", "results", [], "finish one network first")
    if len({result.name for result in results}) < len(results):
        names = [result.name for result in results]
        raise BadInput("every network has its own name", "results", names, "give each network its seed's name")
    missing = [name for name in task.penultimate if name not in task.layers]
    if missing:
        raise BadInput("the penultimate layer is maskable", "penultimate", missing, "list it in layers too")
    inputs = [(result.name, result.inputs) for result in results if result.inputs is not None]
    return Gathered(
        task,
        tuple(results),
        _joined([(result.name, result.rows) for result in results], task.layers),
        _joined(inputs, task.layers) if inputs else None,
    )


def _joined(parts: Sequence[tuple[str, pd.DataFrame]], layers: Sequence[str]) -> pd.DataFrame:
    frames = []
    for name, rows in parts:
        for column in ("placement", "measure", *JUDGED):
            if column not in rows:
                raise BadInput("rows are a sweep's", f"columns of {name}", list(rows.columns), f"keep {column!r}")
        wanted = ("placement", "measure", "equivalent_to", *_KEPT, *_INTERVALS)
        frames.append(rows[[column for column in wanted if column in rows]].assign(network=name))
    table = pd.concat(frames, ignore_index=True)
    for column in ("network", "measure"):
        table[column] = pd.Categorical(table[column], categories=table[column].unique())
    return with_quantities(table[table["placement"] != "none"], layers)
