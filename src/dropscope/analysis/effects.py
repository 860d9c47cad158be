"""Effects of what a placement is on its score: slopes, rank correlations, contrasts and paired differences.

Each number is computed within a network and then taken over networks, the only replicates there are for such a
question; a p-value over placements describes the grid and is named so. Families of tests carry Holm's p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dropscope.analysis.contrasts import finite_pairs, spearman
from dropscope.analysis.inference import Estimate, holm, over_networks
from dropscope.errors import BadInput

Statistic = Callable[[pd.DataFrame], float]
Choice = Callable[[pd.DataFrame], "pd.Series[bool]"]


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """Least-squares slope of y on x; NaN where x does not vary. Pairs with a NaN are left out.

    >>> round(slope([1, 2, 3], [2.0, 4.0, 6.0]), 6)
    2.0
    """
    a, b = finite_pairs(x, y)
    if len(a) < 2 or np.ptp(a) == 0:
        return float("nan")
    centred = a - a.mean()
    return float((centred * (b - b.mean())).sum() / (centred**2).sum())


def effect_over_networks(rows: pd.DataFrame, statistic: Statistic, null: float = 0.0) -> Estimate:
    """A statistic of each network's own rows: its mean over networks with a t interval; p is of "it is `null`".

    Rows without a column `network` are one network, for which the interval is undefined.

    >>> rows = pd.DataFrame({"network": ["a", "a", "b", "b"], "aurc": [1.0, 3.0, 2.0, 6.0]})
    >>> e = effect_over_networks(rows, lambda part: float(part["aurc"].mean()), null=1.0); e.value, e.n
    (3.0, 2)
    """
    return _over([statistic(own) for own in _networks(rows)], null)


def trends(rows: pd.DataFrame, by: Sequence[str], scores: Sequence[str]) -> pd.DataFrame:
    """For each quantity of `by`, score and measure: slope and rank correlation, each over networks.

    One line each, `statistic` = "slope" (of the score per unit of the quantity) or "rank correlation" (Spearman).
    `p_holm` is adjusted within the family of one quantity and statistic. `descriptive_p` is the largest over networks
    of the rank correlation's p over placements: a description of the grid, not an inference.
    """
    lines = []
    for measure, part in _measures(rows):
        networks = _networks(part)
        for quantity, score in product(by, scores):
            pairs = [(own[quantity].to_numpy(float), own[score].to_numpy(float)) for own in networks]
            ranks = [spearman(x, y) for x, y in pairs]
            numbers = {"slope": [slope(x, y) for x, y in pairs], "rank correlation": [rho for rho, _ in ranks]}
            largest = max((p for _, p in ranks if p == p), default=float("nan"))
            for name, values in numbers.items():
                line = {"effect": quantity, "statistic": name, "measure": measure, "score": score}
                lines.append(line | asdict(_over(values)) | {"descriptive_p": largest})
    return adjusted(pd.DataFrame(lines), ["effect", "statistic"])


def pairwise_contrasts(
    rows: pd.DataFrame, pairs: Mapping[str, tuple[Choice, Choice]], scores: Sequence[str]
) -> pd.DataFrame:
    """For each named pair of kinds of placements: mean of the first minus mean of the second, and first over second.

    A pair is two functions from rows (as `with_quantities` returns them) to a mask of them. `statistic` = "difference"
    (p of "it is 0"), "ratio" (p of "it is 1") or "best minus best": least against least score within each kind, which
    favours the larger kind and is selected on these very examples. `p_holm` is adjusted within one pair and statistic.
    A pair of which one kind has no rows has no lines.
    """
    lines = []
    for measure, part in _measures(rows):
        networks = _networks(part)
        for name, (first, second) in pairs.items():
            kinds = [(own[first(own)], own[second(own)]) for own in networks]
            if any(one.empty or other.empty for one, other in kinds):
                continue
            for score in scores:
                means = [(one[score].mean(), other[score].mean()) for one, other in kinds]
                least = [(one[score].min(), other[score].min()) for one, other in kinds]
                estimates = {
                    "difference": _over([a - b for a, b in means]),
                    "ratio": _over([a / b if b else float("nan") for a, b in means], 1.0),
                    "best minus best": _over([a - b for a, b in least]),
                }
                for statistic, estimate in estimates.items():
                    line = {"effect": name, "statistic": statistic, "measure": measure, "score": score}
                    lines.append(line | asdict(estimate))
    return adjusted(pd.DataFrame(lines), ["effect", "statistic"])


def paired_differences(one: pd.DataFrame, other: pd.DataFrame, name: str, scores: Sequence[str]) -> pd.DataFrame:
    """Scores of `one` minus those of `other`, paired by measure and rates of all layers (`rate_…`), within a network.

    `largest` is the largest absolute difference of any pair: exactly 0 where the two are the same function. `relative`
    is the mean difference over the mean of `other`.
    """
    keys = [column for column in one.columns if column.startswith("rate_")]
    if not keys or any(key not in other for key in keys):
        raise BadInput("paired rows are described over the same layers", "columns", keys, "call described on both")
    keys = [*keys, "measure", *(["network"] if "network" in one else [])]
    both = one[[*keys, *scores]].merge(other[[*keys, *scores]], on=keys, suffixes=("", "_other"))
    lines = []
    for measure, part in _measures(both):
        for score in scores:
            gaps = part.assign(gap=part[score] - part[f"{score}_other"])
            estimate = effect_over_networks(gaps, lambda own: float(own["gap"].mean()))
            facts = {"largest": float(gaps["gap"].abs().max()), "pairs": len(gaps)}
            facts["relative"] = estimate.value / float(part[f"{score}_other"].mean() or np.nan)
            line = {"effect": name, "statistic": "paired difference", "measure": measure, "score": score}
            lines.append(line | asdict(estimate) | facts)
    return adjusted(pd.DataFrame(lines), ["effect", "statistic"])


def adjusted(table: pd.DataFrame, family: Sequence[str]) -> pd.DataFrame:
    """The table with `p_holm`, adjusted within each family."""
    if table.empty:
        return table
    return table.assign(p_holm=table.groupby(list(family), sort=False)["p"].transform(lambda p: holm(p.tolist())))


def _measures(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(name), part) for name, part in rows.groupby("measure", sort=False, observed=True)]


def _networks(rows: pd.DataFrame) -> list[pd.DataFrame]:
    if "network" not in rows:
        return [rows]
    return [part for _, part in rows.groupby("network", sort=False, observed=True)]


def _over(values: Sequence[float], null: float = 0.0) -> Estimate:
    """Over networks, against a null other than 0 where asked."""
    moved = over_networks([float(value) - null for value in values])
    return replace(moved, value=moved.value + null, low=moved.low + null, high=moved.high + null)
