"""Accuracy of every evaluation by group: run-level mean and std, that of the averaged probabilities, chance, stability.

Owns the descriptive numbers and two checks of them (chance floor, consistency of stds). See `comparisons` for tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from dropscope.analysis import over_clusters
from dropscope.errors import BadInput, Phrase
from dropscope.studies.transformer_profile import published
from dropscope.studies.transformer_profile.rows import OVERALL, PLAIN, Evaluations, short

REPLICATES = 2_000  # for intervals; tests use more


def run_levels(e: Evaluations) -> pd.DataFrame:
    """A row per model, configuration and group.

    `accuracy` and `std` (ddof 1) are over the accuracies of the passes; `low` and `high` the 95 % interval of that mean
    for new contexts (bootstrap over contexts of each item's share of correct passes); `averaged…` the accuracy of the
    averaged probabilities, likewise; `chance` the share of the most frequent label; `floor` says where the interval
    does not lie above chance.
    """
    rows = []
    for model in e.names:
        for configuration in (PLAIN, *e.stochastic):
            if not e.has(model, configuration):
                continue
            rows += [{"model": model, "configuration": configuration, "group": group}
                     | _level(e, model, configuration, group) for group in e.all_groups]  # fmt: skip
    return pd.DataFrame(rows)


def _level(e: Evaluations, model: str, configuration: str, group: str) -> dict[str, object]:
    items, passes = e.outcomes(model, configuration, group), e.accuracies(model, configuration, group)
    run = over_clusters(items.frequency.to_numpy(float), list(items.context), replicates=REPLICATES)
    averaged = over_clusters(items.correct.to_numpy(float), list(items.context), replicates=REPLICATES)
    mean = float(passes.mean())
    if abs(mean - run.value) > 1e-4:
        what = f"passes and items must agree on the {group} accuracy of {model!r}, {configuration!r}"
        got = Phrase(f"{mean:.6f} over passes, {run.value:.6f} over items")
        raise BadInput(what, "passes", got, "evaluate the model again into a new folder")
    chance, uniform = chance_of(items)
    return {
        "items": len(items), "contexts": run.n, "passes": len(passes),
        "accuracy": mean, "std": spread(passes),
        "low": run.low, "high": run.high,
        "averaged": averaged.value, "averaged_low": averaged.low, "averaged_high": averaged.high,
        "chance": chance, "floor": floor(run.low, run.high, chance, uniform),
    }  # fmt: skip


def spread(accuracies: np.ndarray) -> float:
    """Sample std over passes; NaN for one pass, and exactly 0 where all are equal (rounding of the mean is no spread).

    >>> spread(np.full(40, 0.1 + 0.2)), spread(np.array([0.5, 0.7])) > 0.1
    (0.0, True)
    """
    if len(accuracies) < 2:
        return math.nan
    return float(accuracies.std(ddof=1)) if accuracies.max() > accuracies.min() else 0.0


def chance_of(items: pd.DataFrame) -> tuple[float, float]:
    """What one gets without reading: the share of the most frequent label, and one over the number of classes."""
    return float(items.label.value_counts(normalize=True).iloc[0]), 1 / len(items.probability.iloc[0])


def floor(low: float, high: float, chance: float, uniform: float) -> str:
    """Says "at chance" of an interval that does not lie above chance, "below chance" of one under 1/classes.

    A drop of a task that is at chance cannot be seen, so such a task is no evidence of robustness.

    >>> floor(0.45, 0.55, 0.5, 0.5), floor(0.6, 0.7, 0.5, 0.5), floor(0.2, 0.3, 0.5, 0.5), floor(0.5, 0.6, 0.7, 0.25)
    ('at chance', '', 'below chance', 'at chance')
    """
    if math.isnan(low) or math.isnan(high):
        return "no interval"
    if high < uniform:
        return "below chance"
    return "at chance" if low <= chance else ""


def pick(levels: pd.DataFrame, configuration: str | None, group: str, column: str = "accuracy") -> pd.Series:
    """One column of `run_levels` by model."""
    chosen = levels[(levels.configuration == configuration) & (levels["group"] == group)]
    return chosen.set_index("model")[column]


def least_overall_std(stds: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """The smallest std the overall accuracy Σ_g share_g·accuracy_g can have, whatever the correlations of the groups.

    max(0, max_g (w_g σ_g − Σ_{h≠g} w_h σ_h)); with equal halves |σ_1 − σ_2|/2.

    >>> round(least_overall_std({"memory": 0.0139, "reasoning": 0.0527}, {"memory": 0.5, "reasoning": 0.5}), 4)
    0.0194
    """
    weighted = [shares[name] * stds[name] for name in stds]
    return max(0.0, *(2 * one - sum(weighted) for one in weighted))


def consistency(e: Evaluations, levels: pd.DataFrame) -> pd.DataFrame:
    """Overall std against the least it can be, for our rows and for the published ones (table 4)."""
    rows: list[dict[str, object]] = []
    for name, row in published.TABLE_4.items():
        stds = {"memory": row.memory_std, "reasoning": row.reasoning_std}
        least = least_overall_std(stds, {"memory": 0.5, "reasoning": 0.5})
        rows.append(_consistency_row("published", name, "baseline", row.overall_std, least))
    for (model, configuration), part in levels.groupby(["model", "configuration"], sort=False):
        by = part.set_index("group")
        if not e.groups or by["std"].isna().any():
            continue
        total = float(by["items"][OVERALL])
        stds = {group: float(by["std"][group]) for group in e.groups}
        least = least_overall_std(stds, {group: float(by["items"][group]) / total for group in e.groups})
        rows.append(_consistency_row("here", str(model), str(configuration), float(by["std"][OVERALL]), least))
    return pd.DataFrame(rows)


def _consistency_row(source: str, model: str, configuration: str, std: float, least: float) -> dict[str, object]:
    return {
        "source": source, "model": model, "configuration": configuration, "overall_std": std,
        "least_possible": least, "consistent": std >= least - 1e-9,
    }  # fmt: skip


def stability(e: Evaluations, levels: pd.DataFrame) -> pd.DataFrame:
    """Models from the steadiest: std over passes of the baseline's overall accuracy.

    `independent_std` is what items that flip independently of each other would give, from each item's share f of
    correct passes: sqrt(Σ f(1 − f)·T/(T − 1))/n. Masks per example come near it, masks per pass may lie above.
    """
    if e.mc is None or levels.empty:
        return pd.DataFrame(columns=["rank", "model", "family", "kind", "parameters", "std"])
    about = e.models.set_index("model")
    rows = []
    for model, std in pick(levels, e.mc, OVERALL, "std").items():
        items, passes = e.outcomes(str(model), e.mc), len(e.accuracies(str(model), e.mc))
        share = items.frequency.to_numpy(float)
        spread = float((share * (1 - share)).sum()) * passes / max(passes - 1, 1)
        rows.append({
            "model": model, "family": about.family[model], "kind": about.kind[model],
            "parameters": int(about.parameters[model]), "specialised": bool(about.specialised[model]),
            "std": float(std), "independent_std": math.sqrt(spread) / len(items),
            **{f"{group}_std": float(pick(levels, e.mc, group, "std")[model]) for group in e.groups},
            "masks": e.setting(str(model), e.mc).masks,
            "published_std": published.BASELINE_STD.get(short(str(model)), math.nan),
        })  # fmt: skip
    table = pd.DataFrame(rows).sort_values("std", kind="stable").reset_index(drop=True)
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    return table
