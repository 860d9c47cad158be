"""Cells of the crossed table models × contexts: what claims about models are decided from.

Owns the value of a cell (the mean over the items of a context) and which cells may speak about a loss: those of models
that are above chance on the other half of the contexts, so that no model is chosen and measured by the same items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

from dropscope.analysis import Estimate, crossed_difference, crossed_mean, over_networks
from dropscope.report import ALPHA, Verdict
from dropscope.studies.transformer_profile.levels import chance_of
from dropscope.studies.transformer_profile.published import CHANCE_MARGIN, LEAST, TESTS_OF_A_FAMILY
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
    """A row per model and context: `value`, the mean of the score over the context's items and the model's seeds."""
    parts = []
    for model in e.names:
        if configuration is None or not e.has(model, configuration):
            continue
        items = e.outcomes(model, configuration, group)
        parts.append(_keyed(e, model, items, score))
    if not parts:
        return pd.DataFrame(columns=["model", "context", "group", "value"])
    keys = ["model", "context", "group"]
    return pd.concat(parts, ignore_index=True).groupby(keys, as_index=False, sort=False).value.mean()


def _keyed(e: Evaluations, model: str, items: pd.DataFrame, score: Score) -> pd.DataFrame:
    return items[["group", "context"]].assign(model=e.replicates[model], value=score(items).to_numpy(float))


def surface_cells(e: Evaluations, group: str, score: Score = right) -> dict[tuple[float, float], pd.DataFrame]:
    """Cells as in `cell_table` at every point (attention rate, FFN rate) of the response surface."""
    if e.surface is None:
        return {}
    part = e.surface if group == OVERALL else e.surface[e.surface["group"] == group]
    keys, found = ["model", "context", "group"], {}
    for point, items in part.groupby(["attention_rate", "ffn_rate"]):
        keyed = [_keyed(e, str(model), own, score) for model, own in items.groupby("model", sort=False)
                 if model in e.replicates]  # fmt: skip
        if keyed:
            found[float(point[0]), float(point[1])] = (
                pd.concat(keyed, ignore_index=True).groupby(keys, as_index=False, sort=False).value.mean()
            )
    return found


def differences(
    e: Evaluations, first: str | None, second: str | None, group: str = OVERALL, score: Score = right
) -> pd.DataFrame:
    """Cells of the first configuration minus those of the second, where a model has both."""
    keys = ["model", "context", "group"]
    one, other = (cell_table(e, name, group, score).set_index(keys).value for name in (first, second))
    return (one.astype(float) - other.astype(float)).dropna().rename("value").reset_index()


def halves(e: Evaluations, group: str) -> dict[str, int]:
    """The half of each context of a group: every other one in the order of their names."""
    found = (e.outcomes(name, PLAIN, group).context.unique() for name in e.names if e.has(name, PLAIN))
    names = sorted({str(context) for contexts in found for context in contexts})
    return {name: number % 2 for number, name in enumerate(names)}


def above_chance(e: Evaluations, group: str) -> set[tuple[str, int]]:
    """Models and halves: a model is above chance without dropout on the contexts of that half."""
    half, found = halves(e, group), set()
    for model in dict.fromkeys(e.replicates[name] for name in e.names if e.has(name, PLAIN)):
        networks = (name for name in e.names if e.replicates[name] == model and e.has(name, PLAIN))
        items = pd.concat([e.outcomes(name, PLAIN, group) for name in networks])
        chance, _ = chance_of(items)
        means = right(items).groupby(items.context.to_numpy()).mean()
        side = means.index.map(lambda context: half[str(context)])
        for part in (0, 1):
            found_here = over_networks(means[side == part].tolist())  # contexts here, by the same t
            alike = found_here.n > 1 and math.isnan(found_here.low)  # such as all of them right
            if (found_here.value if alike else found_here.low) > chance:
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


def slope_on(cells: pd.DataFrame, x: Mapping[str, float]) -> Estimate:
    """Slope of the cells on a number of their model, such as the logarithm of its parameters.

    Errors are divided by √(1 − leverage) of their model, so that one far from the others does not look certain.
    """
    known = cells[cells.model.map(x).notna()]
    at, value = known.model.map(x).to_numpy(float), known.value.to_numpy(float)
    models = known.model.drop_duplicates()
    place = models.map(x).to_numpy(float)
    if len(models) < 3 or np.ptp(place) == 0:
        return _sum_of(known.iloc[:0], math.nan, np.empty(0))
    centred = at - at.mean()
    slope = float((centred * value).sum() / (centred**2).sum())
    leverage = 1 / len(models) + (at - place.mean()) ** 2 / ((place - place.mean()) ** 2).sum()
    residual = (value - value.mean() - slope * centred) / np.sqrt(np.maximum(1 - leverage, 1e-9))
    return _sum_of(known, slope, centred * residual / (centred**2).sum())


def steadiest_minus_least(e: Evaluations, configuration: str | None, group: str, level: float = 0.95) -> Estimate:
    """Accuracy of the steadiest quarter of the models minus that of the least steady one.

    A model's spread is that of items that flip independently, from the half of the contexts on which its accuracy is
    not measured. Fewer than nine models have no quarters of three.
    """
    table = cell_table(e, configuration, group)
    flips = cell_table(e, configuration, group, _flips)
    size = math.ceil(table.model.nunique() / 4)
    if size < 3:
        return _sum_of(table.iloc[:0], math.nan, np.empty(0))
    half = halves(e, group)
    place = table.context.map(lambda context: half.get(str(context), -1)).to_numpy(int)
    side = np.zeros(len(table), int)
    for part in (0, 1):
        order = flips[place == 1 - part].groupby("model", sort=False).value.mean().sort_values(kind="stable").index
        for sign, quarter in ((1, order[:size]), (-1, order[-size:])):
            side[(place == part) & table.model.isin(quarter).to_numpy()] = sign
    kept, sign = table[side != 0], side[side != 0]
    value, steady = kept.value.to_numpy(float), sign > 0
    if steady.all() or not steady.any():
        return _sum_of(table.iloc[:0], math.nan, np.empty(0))
    means = np.where(steady, value[steady].mean(), value[~steady].mean())
    models = kept.model.nunique()
    freedom = math.sqrt(size / (size - 1) * (models - 1) / models)  # each quarter has a mean of its own
    influence = freedom * sign * (value - means) / np.where(steady, steady.sum(), (~steady).sum())
    return _sum_of(kept, float(value[steady].mean() - value[~steady].mean()), influence, level)


def _flips(items: pd.DataFrame) -> pd.Series:
    """Variance over passes of whether an item is right."""
    return right(items) * (1 - right(items))


def _sum_of(cells: pd.DataFrame, value: float, influence: np.ndarray, level: float = 0.95) -> Estimate:
    """A weighted sum of cells, from what each contributes to its error: the crossed mean of pseudo-values."""
    pseudo = value + len(cells) * (influence - influence.mean()) if len(cells) else influence
    return crossed_mean(pseudo, cells.model.to_numpy(), cells.context.to_numpy(), kinds=KINDS, least=LEAST, level=level)


def collapsed(e: Evaluations, model: str, configuration: str | None, models: int) -> bool:
    """Whether a model's accuracy falls beyond .05/15 (the paper's level), and lies below chance plus the margin at a
    level that holds for as many models at once."""
    if configuration is None:
        return False
    items = e.outcomes(model, configuration, OVERALL)
    means, before = (_by_context(e.outcomes(model, name, OVERALL)) for name in (configuration, PLAIN))
    fell = over_networks((means - before).tolist())
    level = over_networks(means.tolist(), 1 - 2 * ALPHA / max(models, 1))  # one side
    return fell.value < 0 and fell.p < ALPHA / TESTS_OF_A_FAMILY and level.high < chance_of(items)[0] + CHANCE_MARGIN


def collapse_verdict(fallen: Sequence[str]) -> Verdict:
    """That some models are down at chance: one is enough, and any number of others that are not is no refutation."""
    return "supported" if fallen else "undecided"


def _by_context(items: pd.DataFrame) -> pd.Series:
    return right(items).groupby(items.context.to_numpy()).mean()


def mean_of(cells: pd.DataFrame) -> Estimate:
    """Mean over cells."""
    return crossed_mean(
        cells.value.to_numpy(float), cells.model.to_numpy(), cells.context.to_numpy(), kinds=KINDS, least=LEAST
    )


def between_models(cells: pd.DataFrame, first: set[str]) -> Estimate:
    """Mean over some models minus that over the others."""
    side = cells.model.isin(first).to_numpy()
    return crossed_difference(
        cells.value.to_numpy(float), cells.model.to_numpy(), cells.context.to_numpy(), side, {True: 1, False: -1},
        kinds=KINDS, least=LEAST,
    )  # fmt: skip


def between_groups(cells: pd.DataFrame, first: str, second: str) -> Estimate:
    """Mean over the contexts of one group minus that over those of another."""
    part = cells[cells["group"].isin((first, second))]
    return crossed_difference(
        part.value.to_numpy(float), part.model.to_numpy(), part.context.to_numpy(), part["group"].to_numpy(),
        {first: 1, second: -1}, kinds=KINDS, least=LEAST,
    )  # fmt: skip


def gap_between_models(cells: pd.DataFrame, members: set[str], first: str, second: str) -> Estimate:
    """Difference of two groups in some models minus the same difference in the others."""
    part = cells[cells["group"].isin((first, second))]
    sides = list(zip(part.model.isin(members), part["group"], strict=True))
    signs: dict[Hashable, float] = {(True, first): 1, (True, second): -1, (False, first): -1, (False, second): 1}
    return crossed_difference(
        part.value.to_numpy(float),
        part.model.to_numpy(),
        part.context.to_numpy(),
        sides,
        signs,
        kinds=KINDS,
        least=LEAST,
    )
