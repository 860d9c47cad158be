"""The rows of a run, read once from its folder and checked.

Owns the names of tables and columns, which groups and configurations there are, and that all configurations of a model
were evaluated on the same items. See `store` for how the rows are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from dropscope.errors import BadInput, Phrase
from dropscope.studies.transformer_profile.published import LEAST

OVERALL, MEMORY, REASONING = "overall", "memory", "reasoning"
PLAIN, BASELINE, HIGH_ATTENTION, HIGH_FFN, HIGH_BOTH = (
    "deterministic", "baseline", "high_attention", "high_ffn", "high_both",
)  # fmt: skip
LEAST_MODELS = LEAST[0]  # that decide a claim about models

COLUMNS = {
    "models": "model family kind parameters specialised status reason seconds_training learning_rate remarks",
    "configurations": "model configuration attention_rate ffn_rate mode masks protocol placement audit_ok seconds",
    "passes": "model configuration pass group accuracy",
    "items": "model configuration item context group label prediction correct frequency probability "
    "predictive_entropy bald",
    "audits": "model configuration site call asked measured fired",
    "sensitivity": "model layer component group rate accuracy std deterministic_accuracy",
    "surface": "model attention_rate ffn_rate item context group label frequency correct probability",
}
_OPTIONAL = ("sensitivity", "surface")


@dataclass(frozen=True)
class Evaluations:
    """The tables of one folder; `models` are those that were evaluated, `skipped` those that could not be."""

    models: pd.DataFrame
    skipped: pd.DataFrame
    configurations: pd.DataFrame
    passes: pd.DataFrame
    items: pd.DataFrame
    audits: pd.DataFrame
    sensitivity: pd.DataFrame | None
    surface: pd.DataFrame | None = None  # items at every point of the response surface

    @cached_property
    def replicates(self) -> dict[str, str]:
        """What each network counts as in claims about models: its model, whatever the seed, where there are three of
        them; else itself, and the claims are about trainings of a model."""
        counted = dict(zip(self.models.model, self.models.get("counts_as", self.models.model), strict=True))
        return counted if len(set(counted.values())) >= LEAST_MODELS else {name: name for name in counted}

    def replicates_of(self, networks: Iterable[str]) -> set[str]:
        return {self.replicates[name] for name in networks}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Evaluated models, in the order of their table."""
        return tuple(self.models.model)

    @cached_property
    def short_names(self) -> dict[str, str]:
        """What tables and figures call a model: the last part of its name, or all of it where two end alike."""
        ends = [short(name) for name in self.names]
        return {name: end if ends.count(end) == 1 else name for name, end in zip(self.names, ends, strict=True)}

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Memory before reasoning, or the user's groups in order; none where one group is all."""
        names = [name for name in dict.fromkeys(self.passes["group"]) if name != OVERALL]
        if len(names) < 2:
            return ()
        known = [name for name in (MEMORY, REASONING) if name in names]
        return (*known, *(name for name in names if name not in known))

    @property
    def all_groups(self) -> tuple[str, ...]:
        return (OVERALL, *self.groups)

    @property
    def domains(self) -> tuple[str, str] | None:
        """The two groups whose difference is Δ: memory and reasoning, or a user's only two."""
        if {MEMORY, REASONING} <= set(self.groups):
            return MEMORY, REASONING
        return (self.groups[0], self.groups[1]) if len(self.groups) == 2 else None

    @cached_property
    def stochastic(self) -> tuple[str, ...]:
        """Every configuration except the deterministic one, in the order of their table."""
        return tuple(name for name in dict.fromkeys(self.configurations.configuration) if name != PLAIN)

    @property
    def mc(self) -> str | None:
        """The configuration that stands for MC dropout where one is meant: the baseline, as in the paper."""
        return BASELINE if BASELINE in self.stochastic else next(iter(self.stochastic), None)

    def has(self, model: str, *configurations: str) -> bool:
        return all((model, name) in self._items for name in configurations)

    def outcomes(self, model: str, configuration: str, group: str = OVERALL) -> pd.DataFrame:
        """The items of one evaluation and group, in the order of their ids."""
        table = self._items[model, configuration]
        return table if group == OVERALL else table[table["group"] == group]

    def accuracies(self, model: str, configuration: str, group: str = OVERALL) -> np.ndarray:
        """The accuracy of every pass."""
        return self._passes[model, configuration, group]

    def setting(self, model: str, configuration: str) -> pd.Series:
        """The row of `configurations`."""
        return self._settings.loc[(model, configuration)]

    @cached_property
    def _items(self) -> dict[tuple[str, str], pd.DataFrame]:
        ordered = self.items.sort_values("item", kind="stable")
        return dict(iter(ordered.groupby(["model", "configuration"])))

    @cached_property
    def _passes(self) -> dict[tuple[str, str, str], np.ndarray]:
        keys = ["model", "configuration", "group"]
        return {key: table.accuracy.to_numpy(float) for key, table in self.passes.groupby(keys)}

    @cached_property
    def _settings(self) -> pd.DataFrame:
        return self.configurations.set_index(["model", "configuration"], drop=False).sort_index()


def read_rows(folder: Path) -> Evaluations:
    """The tables of a folder.

    Raises:
        BadInput: Where one is absent or lacks a column, or the items of a model differ.
    """
    tables = {name: _table(folder, name) for name in COLUMNS}
    absent = [name for name, table in tables.items() if table is None and name not in _OPTIONAL]
    if absent:
        got = Phrase(f"none for {', '.join(absent)}")
        raise BadInput(f"{folder} must hold the tables of this study", "out", got, "run the study into this folder")
    models, items = tables["models"], tables["items"]
    assert models is not None
    assert items is not None
    evaluated = models[(models.status == "ok") & models.model.isin(set(items.model))]
    left = models[~models.model.isin(set(evaluated.model))]
    rows = Evaluations(
        evaluated.reset_index(drop=True), left.reset_index(drop=True),
        **{name: tables[name] for name in ("configurations", "passes", "items", "audits", *_OPTIONAL)},
    )  # fmt: skip
    for model in rows.names:
        _check_same_items(rows, model)
    return rows


def short(model: str) -> str:
    """The last part of a hub name or folder.

    >>> short("microsoft/deberta-v3-small"), short("/models/all-MiniLM-L6-v2/")
    ('deberta-v3-small', 'all-MiniLM-L6-v2')
    """
    return model.rstrip("/").split("/")[-1]


def _table(folder: Path, name: str) -> pd.DataFrame | None:
    path = folder / f"{name}.parquet"
    if not path.exists():
        return None
    table = pd.read_parquet(path)
    missing = [column for column in COLUMNS[name].split() if column not in table]
    if missing:
        what, got = f"{path.name} must have the columns of this study", Phrase(f"none for {', '.join(missing)}")
        raise BadInput(what, path.name, got, "run the study again")
    return table


def _check_same_items(rows: Evaluations, model: str) -> None:
    known: tuple[str, list[object]] | None = None
    for configuration in (PLAIN, *rows.stochastic):
        if not rows.has(model, configuration):
            continue
        items = list(rows.outcomes(model, configuration).item)
        if known is None:
            known = (configuration, items)
        elif items != known[1]:
            what = f"{configuration!r} of {model!r} must have the same items as {known[0]!r}"
            got = Phrase(f"{len(items)} items")
            raise BadInput(what, configuration, got, "evaluate the model again into a new folder")
