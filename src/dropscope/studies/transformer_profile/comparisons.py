"""Comparisons and tests, each p-value with the name of its test: within a model over items, between models over models.

Owns which values are compared with which. Within a model the replicates are contexts, between models the models;
passes are never replicates (Cohen's d over passes is printed because the paper's kind of d is, and named so).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from dropscope.analysis import (
    Estimate,
    bootstrap_p,
    cohens_d,
    difference_of_means,
    holm,
    log_over_networks,
    over_clusters,
    over_networks,
    paired_d,
)
from dropscope.studies.transformer_profile import published
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.rows import (
    BASELINE,
    HIGH_ATTENTION,
    HIGH_BOTH,
    HIGH_FFN,
    MEMORY,
    PLAIN,
    REASONING,
    Evaluations,
)

ALPHA = 0.05
WITHIN_ALPHA = ALPHA / published.TESTS_OF_A_FAMILY
QUARTILE_ALPHA = ALPHA / published.QUARTILE_TESTS
READINGS = tuple(dict.fromkeys(name for name, _ in published.DROPS))
WITHIN_METHODS = {
    "p_bootstrap": "paired percentile bootstrap over contexts",
    "p_t": "paired t over contexts (cluster-robust)",
}


def within_models(e: Evaluations) -> pd.DataFrame:
    """Deterministic against each stochastic configuration: share of correct passes minus deterministic correctness.

    `difference` is the mean over items (MC − deterministic), `low` and `high` its 95 % interval over contexts. Both
    p-values stand against .05/15 and, adjusted after Holm over all rows of the table, against .05.
    """
    rows = []
    for model in e.names:
        for configuration in e.stochastic:
            if not e.has(model, PLAIN, configuration):
                continue
            rows += [{"model": model, "configuration": configuration, "group": group}
                     | _within(e, model, configuration, group) for group in e.all_groups]  # fmt: skip
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    for name in WITHIN_METHODS:
        table[f"{name}_holm"] = holm(table[name])
    table["beyond_05_15"] = (table[list(WITHIN_METHODS)] < WITHIN_ALPHA).all(axis=1)
    table["beyond_holm"] = (table[[f"{name}_holm" for name in WITHIN_METHODS]] < ALPHA).all(axis=1)
    return table


def _within(e: Evaluations, model: str, configuration: str, group: str) -> dict[str, object]:
    plain, noisy = e.outcomes(model, PLAIN, group), e.outcomes(model, configuration, group)
    difference = noisy.frequency.to_numpy(float) - plain.correct.to_numpy(float)
    contexts = list(noisy.context)
    estimate = over_clusters(difference, contexts)
    return {
        "difference": estimate.value, "low": estimate.low, "high": estimate.high, "contexts": estimate.n,
        "p_bootstrap": bootstrap_p(difference, contexts), "p_t": estimate.p,
        "d_over_passes": d_over_passes(e, model, configuration, group), "d_over_items": paired_d(difference),
    }  # fmt: skip


def d_over_passes(e: Evaluations, model: str, configuration: str, group: str) -> float:
    """Cohen's d of the passes' accuracies, MC − deterministic; the one deterministic answer stands for as many passes.

    Grows without bound as items are added, whatever the effect: it measures spread over passes, not over items.
    """
    noisy, plain = e.accuracies(model, configuration, group), e.accuracies(model, PLAIN, group)
    return cohens_d(noisy, np.resize(plain, len(noisy)))


def attention_or_ffn(e: Evaluations) -> pd.DataFrame:
    """Which of the two hurts more: run-level accuracy at high attention minus that at high FFN, paired over contexts,
    with Holm's p over the models of a group."""
    rows, estimates = [], []
    for model in e.names:
        if not e.has(model, HIGH_ATTENTION, HIGH_FFN):
            continue
        for group in e.all_groups:
            first, second = e.outcomes(model, HIGH_ATTENTION, group), e.outcomes(model, HIGH_FFN, group)
            difference = pd.Series(first.frequency.to_numpy(float) - second.frequency.to_numpy(float))
            estimate = over_networks(difference.groupby(first.context.to_numpy()).mean().tolist())
            estimates.append(estimate)
            rows.append({
                "model": model, "group": group, "difference": estimate.value, "low": estimate.low,
                "high": estimate.high, "p_t": estimate.p,
            })  # fmt: skip
    table = pd.DataFrame(rows, columns=["model", "group", "difference", "low", "high", "p_t"])
    table["p_t_holm"] = table.groupby("group")["p_t"].transform(lambda p: holm(p.tolist()))
    return table.assign(hurts_more=[*map(hurts_more, estimates, table.p_t_holm)])


def hurts_more(difference: Estimate, p: float) -> str:
    """What accuracy at high attention minus that at high FFN says, with the p-value of its family of tests."""
    if not p < ALPHA or difference.low <= 0 <= difference.high:
        return "undecided"
    return "FFN" if difference.low > 0 else "attention"


def quartiles(e: Evaluations, levels: pd.DataFrame, stability: pd.DataFrame) -> pd.DataFrame:
    """Steadiest against least steady quarter of the models (5 against 5 of 19), on accuracy and never on std.

    One test per group at .05/3. Cohen's d is over models. With fewer than four models there are no quarters.
    """
    stability = over_models(e, stability)
    size = math.ceil(len(stability) / 4)
    rows = []
    for group in e.all_groups:
        accuracy = pick(levels, e.mc, group)
        accuracy = accuracy.groupby([e.replicates.get(name, name) for name in accuracy.index]).mean()
        known = len(stability) >= 4
        steady = [accuracy[m] for m in stability.model[:size]] if known else []
        unsteady = [accuracy[m] for m in stability.model[-size:]] if known else []
        estimate = difference_of_means(steady, unsteady)
        rows.append({
            "group": group, "models": f"{len(steady)} against {len(unsteady)}",
            "steadiest": float(np.mean(steady)) if steady else math.nan,
            "least_steady": float(np.mean(unsteady)) if unsteady else math.nan,
            "difference": estimate.value, "low": estimate.low, "high": estimate.high, "p": estimate.p,
            "test": estimate.method,
            "d_over_models": cohens_d(steady, unsteady), "beyond_05_3": estimate.p < QUARTILE_ALPHA,
        })  # fmt: skip
    return pd.DataFrame(rows)


def over_models(e: Evaluations, stability: pd.DataFrame) -> pd.DataFrame:
    """The table with one row per model where it has several of a model's trainings: their means, steadiest first."""
    if stability.empty or all(name == model for name, model in e.replicates.items()):
        return stability
    own = stability.assign(model=stability.model.map(e.replicates)).groupby("model", sort=False)
    table = own.agg({"family": "first", "kind": "first", "parameters": "mean", "std": "mean"}).reset_index()
    return table.sort_values("std", kind="stable").reset_index(drop=True)


def kinds(e: Evaluations, levels: pd.DataFrame) -> pd.DataFrame:
    """Encoders and decoders at the baseline: mean accuracy per group over models, and the gap of the two domains."""
    about = e.models.set_index("model")
    rows = []
    for kind in dict.fromkeys(about.kind):
        members = [name for name in e.names if about.kind[name] == kind and e.mc and e.has(name, e.mc)]
        for what, values in _profiles(e, levels, members).items():
            estimate = over_networks(list(values))
            rows.append({
                "kind": kind, "what": what, "models": estimate.n, "mean": estimate.value, "low": estimate.low,
                "high": estimate.high, "published": _published_kind(e, str(kind), what),
            })  # fmt: skip
    return pd.DataFrame(rows)


def kind_gap(e: Evaluations, levels: pd.DataFrame) -> dict[str, list[float]]:
    """Δ of every model at the baseline, by kind."""
    about = e.models.set_index("model")
    by_kind: dict[str, list[float]] = {}
    for name, gap in gaps(e, levels, e.mc).items():
        by_kind.setdefault(str(about.kind[name]), []).append(float(gap))
    return by_kind


def gaps(e: Evaluations, levels: pd.DataFrame, configuration: str | None) -> pd.Series:
    """Δ_cog by model: mean accuracy on the first domain minus that on the second; empty without two domains."""
    if e.domains is None:
        return pd.Series(dtype=float)
    first, second = (pick(levels, configuration, domain) for domain in e.domains)
    return first - second


def drops(e: Evaluations, levels: pd.DataFrame) -> pd.DataFrame:
    """Loss of accuracy by group, mean over models (paired), in the paper's three readings and their ratio.

    The paper's third pair, 8.7 and 2.3 points, is no difference of any two rows of its table 6; the reading here is
    from deterministic to the mean of all stochastic configurations.
    """
    readings = {
        READINGS[0]: (PLAIN, (HIGH_BOTH,)),
        READINGS[1]: (BASELINE, (HIGH_BOTH,)),
        READINGS[2]: (PLAIN, tuple(name for name in e.stochastic if name in published.TABLE_6)),
    }
    rows = []
    for name, (start, ends) in readings.items():
        if not ends or not set(ends) <= set(e.stochastic) or (start != PLAIN and start not in e.stochastic):
            continue
        for group in e.all_groups:
            after = pd.concat([pick(levels, end, group) for end in ends], axis=1).mean(axis=1, skipna=False)
            lost = (pick(levels, start, group) - after).dropna()
            estimate = over_networks(list(lost))
            rows.append({
                "reading": name, "group": group, "models": estimate.n, "drop": estimate.value, "low": estimate.low,
                "high": estimate.high, "published": published.DROPS.get((name, group), math.nan),
            })  # fmt: skip
    return pd.DataFrame(rows)


def family_or_size(stability: pd.DataFrame) -> pd.DataFrame:
    """Leave-one-out prediction of each model's std from its family's other members and from a line on log(parameters).

    Only models whose family has another member take part; `difference` = squared error by size − by family, so that
    above 0 the family predicts better. Undefined for fewer than four models in all.
    """
    rows = []
    size = np.log(stability.parameters.to_numpy(float)) if len(stability) else np.empty(0)
    std = stability["std"].to_numpy(float)
    for at, row in enumerate(stability.itertuples(index=False)):
        others = np.arange(len(stability)) != at
        relatives = others & (stability.family == row.family).to_numpy()
        if not relatives.any() or len(stability) < 4 or np.ptp(size[others]) == 0:
            continue
        by_family = float(std[relatives].mean())
        slope, level = np.polyfit(size[others], std[others], 1)
        by_size = float(slope * size[at] + level)
        rows.append({
            "model": row.model, "family": row.family, "std": std[at], "by_family": by_family, "by_size": by_size,
            "difference": (by_size - std[at]) ** 2 - (by_family - std[at]) ** 2,
        })  # fmt: skip
    return pd.DataFrame(rows, columns=["model", "family", "std", "by_family", "by_size", "difference"])


def family_estimate(table: pd.DataFrame) -> Estimate:
    """Of `family_or_size`: root mean squared error by family over that by size, over families, on logarithms.

    Members of one family predict each other, so that families, not models, are the replicates; three are needed.
    """
    squares = table[["by_family", "by_size"]].sub(table["std"], axis=0).pow(2).groupby(table.family).mean()
    known = squares[(squares > 0).all(axis=1)]
    estimate = log_over_networks(np.sqrt(known.by_family / known.by_size).tolist())
    words = estimate.method.replace("networks", "families")
    if estimate.n >= published.LEAST[0]:
        return replace(estimate, method=words)
    few = f"{words}, and a verdict needs {published.LEAST[0]}"
    return replace(estimate, low=math.nan, high=math.nan, p=math.nan, method=few)


def _profiles(e: Evaluations, levels: pd.DataFrame, members: list[str]) -> dict[str, pd.Series]:
    profiles = {group: pick(levels, e.mc, group).reindex(members) for group in e.all_groups}
    if e.domains is not None:
        profiles["gap"] = gaps(e, levels, e.mc).reindex(members)
    return profiles


def _published_kind(e: Evaluations, kind: str, what: str) -> float:
    values = published.KINDS.get(kind)
    if values is None or e.domains != (MEMORY, REASONING):
        return math.nan
    return dict(zip((MEMORY, REASONING, "gap"), values, strict=True)).get(what, math.nan)
