"""Cells of the crossed table models × contexts: what claims about models are decided from.

Owns the value of a cell (the mean over the items of a context) and which cells may speak about a loss: those of models
that are above chance on the other half of the contexts, so that no model is chosen and measured by the same items.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import pandas as pd

from dropscope.analysis import Estimate, crossed_difference, crossed_mean, over_networks
from dropscope.studies.transformer_profile.levels import chance_of
from dropscope.studies.transformer_profile.rows import OVERALL, PLAIN, Evaluations

KINDS = ("models", "contexts")
Score = Callable[[pd.DataFrame], "pd.Series[float]"]  # of items


def right(items: pd.DataFrame) -> pd.Series:
    """Share of the passes in which an item is answered correctly."""
    return items.frequency.astype(float)


def brier(items: pd.DataFrame) -> pd.Series:
    """Brier score of the averaged probabilities."""
    p = np.stack(items.probability.to_numpy())
    wanted = np.eye(p.shape[1])[items.label.to_numpy()]
    return pd.Series(((p - wanted) ** 2).sum(1), items.index)


def nll(items: pd.DataFrame) -> pd.Series:
    """Negative log-likelihood of the averaged probabilities."""
    p = np.stack(items.probability.to_numpy())
    return pd.Series(-np.log(np.clip(p[np.arange(len(p)), items.label.to_numpy()], 1e-12, 1)), items.index)


def cell_table(e: Evaluations, configuration: str | None, group: str = OVERALL, score: Score = right) -> pd.DataFrame:
    """A row per model and context: `value`, the mean of the score over the context's items."""
    parts = []
    for model in e.names:
        if configuration is None or not e.has(model, configuration):
            continue
        items = e.outcomes(model, configuration, group)
        keyed = items[["group", "context"]].assign(value=score(items).to_numpy(float))
        parts.append(keyed.groupby(["group", "context"], as_index=False, sort=False).value.mean().assign(model=model))
    columns = ["model", "context", "group", "value"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def differences(
    e: Evaluations, first: str | None, second: str | None, group: str = OVERALL, score: Score = right
) -> pd.DataFrame:
    """Cells of the first configuration minus those of the second, where a model has both."""
    keys = ["model", "context", "group"]
    one, other = (cell_table(e, name, group, score).set_index(keys).value for name in (first, second))
    return (one.astype(float) - other.astype(float)).dropna().rename("value").reset_index()


def halves(e: Evaluations, group: str) -> dict[str, int]:
    """The half of each context of a group: every other one in the order of their names."""
    names = sorted({str(c) for name in e.names if e.has(name, PLAIN) for c in e.outcomes(name, PLAIN, group).context})
    return {name: number % 2 for number, name in enumerate(names)}


def above_chance(e: Evaluations, group: str) -> set[tuple[str, int]]:
    """Models and halves: a model is above chance without dropout on the contexts of that half."""
    half, found = halves(e, group), set()
    for model in e.names:
        if not e.has(model, PLAIN):
            continue
        items = e.outcomes(model, PLAIN, group)
        chance, _ = chance_of(items)
        means = right(items).groupby(items.context.to_numpy()).mean()
        side = means.index.map(lambda context: half[str(context)])
        for part in (0, 1):
            if over_networks(means[side == part].tolist()).low > chance:  # contexts here, by the same t
                found.add((model, part))
    return found


def able_cells(e: Evaluations, cells: pd.DataFrame, *groups: str) -> pd.DataFrame:
    """Cells of these groups whose model is above chance in all of them, on the half that the cell is not in."""
    if not groups or cells.empty:
        return cells.iloc[:0]
    able, half = {group: above_chance(e, group) for group in groups}, {group: halves(e, group) for group in groups}
    kept = [
        group in able
        and all((model, 1 - half[group][str(context)]) in able[other] for other in groups)
        for model, context, group in zip(cells.model, cells.context, cells["group"], strict=True)
    ]  # fmt: skip
    return cells[np.array(kept, bool)]


def mean_of(cells: pd.DataFrame) -> Estimate:
    """Mean over cells."""
    return crossed_mean(cells.value.to_numpy(float), cells.model.to_numpy(), cells.context.to_numpy(), kinds=KINDS)


def between_models(cells: pd.DataFrame, first: set[str]) -> Estimate:
    """Mean over some models minus that over the others."""
    side = cells.model.isin(first).to_numpy()
    return crossed_difference(
        cells.value.to_numpy(float), cells.model.to_numpy(), cells.context.to_numpy(), side, {True: 1, False: -1},
        kinds=KINDS,
    )  # fmt: skip


def between_groups(cells: pd.DataFrame, first: str, second: str) -> Estimate:
    """Mean over the contexts of one group minus that over those of another."""
    part = cells[cells["group"].isin((first, second))]
    return crossed_difference(
        part.value.to_numpy(float), part.model.to_numpy(), part.context.to_numpy(), part["group"].to_numpy(),
        {first: 1, second: -1}, kinds=KINDS,
    )  # fmt: skip


def gap_between_models(cells: pd.DataFrame, members: set[str], first: str, second: str) -> Estimate:
    """Difference of two groups in some models minus the same difference in the others."""
    part = cells[cells["group"].isin((first, second))]
    sides = list(zip(part.model.isin(members), part["group"], strict=True))
    signs: dict[Hashable, float] = {(True, first): 1, (True, second): -1, (False, first): -1, (False, second): 1}
    return crossed_difference(
        part.value.to_numpy(float), part.model.to_numpy(), part.context.to_numpy(), sides, signs, kinds=KINDS
    )
