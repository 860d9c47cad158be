"""Labelled cases that a predictor of volumes knows, and what it reads from a table of cases."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dropscope.analysis import group_numbers
from dropscope.deploy.bounds import Floats
from dropscope.deploy.calibration import LEAST, ErrorCurve
from dropscope.deploy.drift import Seen
from dropscope.errors import BadInput, Phrase
from dropscope.volumes import find_cases, rising

LOSSES = {"dice": "Dice", "volume_error": "1 − volume error"}  # column → what 1 − loss is called
Groups = Mapping[str, Hashable] | Sequence[Hashable] | None


@dataclass(frozen=True, eq=False)
class KnownCases:
    """Labelled cases that a predictor knows: not their images, only what came of them.

    Attributes:
        ids: Their names.
        uncertainty: What ranks them; infinity where nothing is found.
        right: 1 − loss of each.
        volumes: Millilitres of each structure, `[n, structures]`.
        disagreement: 1 − the Dice between passes.
        unit: The patient of each as a number.
        curve: The loss to expect at an uncertainty.
    """

    ids: list[str]
    uncertainty: Floats
    right: Floats
    volumes: Floats
    disagreement: Floats
    unit: NDArray[np.int64]
    curve: ErrorCurve

    def seen(self, deferred: NDArray[np.bool_] | None) -> Seen:
        return Seen(self.uncertainty, self.volumes, self.disagreement, deferred, self.unit)


def learned(
    table: pd.DataFrame, measure: str, loss: str, groups: dict[str, Hashable] | None
) -> tuple[KnownCases, list[Hashable] | None]:
    """What labelled cases teach, in the order of their names; and their patients."""
    table = table[table[loss].notna()].sort_values("case", kind="stable")
    if len(table) < LEAST:
        got = Phrase(f"{len(table)}")
        raise BadInput(f"labels must hold at least {LEAST} cases with a structure", "labels", got, "pass more")
    ids, right = table.case.tolist(), right_shares(table, loss)
    u, volumes, apart = looks(table, measure)
    if not np.isfinite(u).any():
        raise BadInput(
            "model must find something in some case", "model", Phrase("background alone"), "look at the maps"
        )
    curve = ErrorCurve.fit(np.where(np.isfinite(u), u, u[np.isfinite(u)].max()), right)
    unit = units(table, groups)
    own = np.arange(len(ids)) if unit is None else unit
    return KnownCases(ids, u, right, volumes, apart, own, curve), listed(table, groups)


def right_shares(table: pd.DataFrame, loss: str) -> Floats:
    values = table[loss].to_numpy(float)
    return values if loss == "dice" else 1 - values


def case_uncertainty(table: pd.DataFrame, measure: str) -> Floats:
    """Infinity where nothing is found: such a case is always deferred."""
    values = rising(table, measure).to_numpy(float)
    return np.where(np.isnan(values), np.inf, values)


def looks(table: pd.DataFrame, measure: str) -> tuple[Floats, Floats, Floats]:
    structures = [name for name in table if name.startswith("ml_") and f"{name}_low" in table]
    return case_uncertainty(table, measure), table[structures].to_numpy(float), 1 - table.pairwise_dice.to_numpy(float)


def by_case(values: Groups, name: str, images: Iterable[str | Path]) -> dict[str, Hashable] | None:
    """Case → its value, checked before any work."""
    if values is None:
        return None
    cases = [case.name for case in find_cases([images] if isinstance(images, str | Path) else images)]
    if not isinstance(values, Mapping):
        if len(values) != len(cases):
            got = Phrase(f"{len(values)} for {len(cases)} cases")
            raise BadInput(f"{name} must be one per case", name, got, "pass {case: value}")
        return dict(zip(cases, values, strict=True))
    lost = next((case for case in cases if case not in values), None)
    if lost is not None:
        raise BadInput(f"{name} must have every case", name, Phrase(f"none for {lost!r}"), "add it")
    return dict(values)


def listed(table: pd.DataFrame, values: dict[str, Hashable] | None) -> list[Hashable] | None:
    return None if values is None else [values[case] for case in table.case]


def units(table: pd.DataFrame, groups: dict[str, Hashable] | None) -> NDArray[np.int64] | None:
    members = listed(table, groups)
    return None if members is None else group_numbers(members)
