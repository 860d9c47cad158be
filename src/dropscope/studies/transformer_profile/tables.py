"""The tables of the report: every question answered once from the rows, and the paper's tables with ours beside them.

Owns which tables there are, their columns, order and captions. A published row whose model was not evaluated here
stands alone, ours left empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from dropscope.analysis import over_networks
from dropscope.studies.transformer_profile import calibration, comparisons, levels, published
from dropscope.studies.transformer_profile.comparisons import WITHIN_METHODS, gaps
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.recommendations import RULE, Recommendation, recommend, recommendation_table
from dropscope.studies.transformer_profile.rows import OVERALL, PLAIN, Evaluations, short
from dropscope.studies.transformer_profile.surface import surface_tables


@dataclass(frozen=True)
class Findings:
    """One table per question; see the function of the same name for its columns."""

    e: Evaluations
    levels: pd.DataFrame
    consistency: pd.DataFrame
    stability: pd.DataFrame
    within: pd.DataFrame
    attention_or_ffn: pd.DataFrame
    quartiles: pd.DataFrame
    kinds: pd.DataFrame
    drops: pd.DataFrame
    family_or_size: pd.DataFrame
    calibration: pd.DataFrame
    differences: pd.DataFrame
    recommendations: list[Recommendation]


def analyse(e: Evaluations, replicates: int = calibration.REPLICATES) -> Findings:
    """Everything the report draws from, computed once; `replicates` of the calibration's bootstrap."""
    run = levels.run_levels(e)
    steady = levels.stability(e, run)
    replicated = calibration.replicate(e, replicates)
    return Findings(
        e=e,
        levels=run,
        consistency=levels.consistency(e, run),
        stability=steady,
        within=comparisons.within_models(e),
        attention_or_ffn=comparisons.attention_or_ffn(e),
        quartiles=comparisons.quartiles(e, run, steady),
        kinds=comparisons.kinds(e, run),
        drops=comparisons.drops(e, run),
        family_or_size=comparisons.family_or_size(comparisons.over_models(e, steady)),
        calibration=calibration.calibration_table(replicated),
        differences=calibration.difference_table(replicated),
        recommendations=recommend(e, run, replicated),
    )


def all_tables(f: Findings) -> dict[str, tuple[pd.DataFrame, str]]:
    """Every table of the report by the name of its file, with its caption."""
    mc = f.e.mc
    return {
        "table_4": (
            table_4(f.e, f.levels),
            f"Accuracy at {mc}: mean and std over passes, 95 % interval over contexts, and the published numbers",
        ),
        "table_5": (
            table_5(f.e, f.levels, f.within),
            f"Deterministic against MC dropout at {mc}, the largest drop first; p_t: {WITHIN_METHODS['p_t']}; "
            f"p_bootstrap: {WITHIN_METHODS['p_bootstrap']}; beyond: both are",
        ),
        "table_6": (
            table_6(f.e, f.levels),
            "Mean accuracy over models by configuration, with t intervals over models",
        ),
        "accuracy": (f.levels, "Accuracy of every evaluation; averaged: of the mean probabilities over passes"),
        "tests_within_models": (
            f.within,
            f"MC correctness frequency minus deterministic correctness; p_t: {WITHIN_METHODS['p_t']}; "
            f"p_bootstrap: {WITHIN_METHODS['p_bootstrap']}; Holm over all rows; d_over_passes and d_over_items: "
            "Cohen's d over passes, and of paired differences over items",
        ),
        "attention_or_ffn": (
            f.attention_or_ffn, "Accuracy at high attention minus that at high FFN, paired over items",
        ),
        "stability": (f.stability, f"Models from the steadiest: std over passes of overall accuracy at {mc}"),
        "stability_quartiles": (
            f.quartiles, "Steadiest against least steady quarter of the models, on accuracy; three tests at .05/3",
        ),
        "encoders_decoders": (f.kinds, f"Encoders and decoders at {mc}, t intervals over models"),
        "drops": (f.drops, "Loss of accuracy under high dropout in the paper's three readings, over models"),
        "family_or_size": (f.family_or_size, "Left-out models' std predicted from their family and from their size"),
        "consistency": (f.consistency, "Overall std against the least that the stds of its groups allow"),
        "calibration": (f.calibration, "Calibration by group with 95 % intervals over contexts"),
        "calibration_differences": (
            f.differences, "Scores of MC dropout minus those of one deterministic pass, paired",
        ),
        "recommendations": (recommendation_table(f.recommendations), RULE),
        **surface_tables(f.e),
    }  # fmt: skip


def table_4(e: Evaluations, levels: pd.DataFrame) -> pd.DataFrame:
    """Baseline accuracy by group, best model first: run-level mean and std, interval over contexts, Δ, floor."""
    rows: list[dict[str, object]] = []
    part = levels[levels.configuration == e.mc]
    delta = gaps(e, levels, e.mc)
    for model, one in part.groupby("model", sort=False):
        by = one.set_index("group")
        row: dict[str, object] = {"model": e.short_names[str(model)]}
        for group in e.all_groups:
            row |= {group: by.accuracy[group], f"{group}_std": by["std"][group]}
            row |= {f"{group}_low": by.low[group], f"{group}_high": by.high[group]}
        row |= {"averaged": by.averaged[OVERALL], "gap": delta.get(model, math.nan)}
        row["floor"] = ", ".join(f"{group} {by.floor[group]}" for group in e.groups if by.floor[group])
        rows.append(row | _published_4(short(str(model))))
    rows.sort(key=lambda row: -float(row[OVERALL]))  # type: ignore[arg-type]
    here = {str(row["model"]) for row in rows} | {short(name) for name in e.names}
    rows += [{"model": name} | _published_4(name) for name in published.TABLE_4 if name not in here]
    return pd.DataFrame(rows)


def _published_4(name: str) -> dict[str, object]:
    row = published.TABLE_4.get(name)
    return {f"published_{field}": math.nan if row is None else getattr(row, field) for field in published.Row4._fields}


def table_5(e: Evaluations, levels: pd.DataFrame, within: pd.DataFrame) -> pd.DataFrame:
    """Deterministic against MC dropout at the baseline, overall, the most degraded model first, with its tests."""
    rows: list[dict[str, object]] = []
    plain, noisy = pick(levels, PLAIN, OVERALL), pick(levels, e.mc, OVERALL)
    for model in most_degraded(e, levels, len(e.names)):
        test = within[(within.model == model) & (within.configuration == e.mc) & (within["group"] == OVERALL)].iloc[0]
        rows.append({
            "model": e.short_names[model],
            "deterministic": plain[model], "deterministic_std": pick(levels, PLAIN, OVERALL, "std")[model],
            "mc": noisy[model], "mc_std": pick(levels, e.mc, OVERALL, "std")[model],
            "mc_averaged": pick(levels, e.mc, OVERALL, "averaged")[model],
            "drop": plain[model] - noisy[model], "drop_low": -test.high, "drop_high": -test.low,
            "p_t": test.p_t, "p_bootstrap": test.p_bootstrap, "beyond_05_15": test.beyond_05_15,
            "beyond_holm": test.beyond_holm, "d_over_passes": test.d_over_passes, "d_over_items": test.d_over_items,
        } | _published_5(short(model)))  # fmt: skip
    here = {short(name) for name in e.names}
    rows += [{"model": name} | _published_5(name) for name in published.TABLE_5 if name not in here]
    return pd.DataFrame(rows)


def _published_5(name: str) -> dict[str, object]:
    row = published.TABLE_5.get(name)
    return {f"published_{field}": math.nan if row is None else getattr(row, field) for field in published.Row5._fields}


def most_degraded(e: Evaluations, levels: pd.DataFrame, count: int = 5) -> list[str]:
    """The models that lose most from deterministic to MC dropout at the baseline, overall."""
    lost = (pick(levels, PLAIN, OVERALL) - pick(levels, e.mc, OVERALL)).dropna()
    return [str(model) for model in lost.sort_values(ascending=False, kind="stable").index[:count]]


def table_6(e: Evaluations, levels: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy over models by configuration and group, t interval over models, and the gap of the two domains."""
    rows = []
    for configuration in (PLAIN, *e.stochastic):
        settings = e.configurations[e.configurations.configuration == configuration]
        row: dict[str, object] = {"configuration": configuration}
        if len(settings):
            row |= {"attention_rate": settings.attention_rate.iloc[0], "ffn_rate": settings.ffn_rate.iloc[0]}
        for group in e.all_groups:
            estimate = over_networks(list(pick(levels, configuration, group)))
            row |= {
                "models": estimate.n,
                group: estimate.value,
                f"{group}_low": estimate.low,
                f"{group}_high": estimate.high,
            }
        if e.domains is not None:
            row["gap"] = over_networks(list(gaps(e, levels, configuration))).value
        theirs = published.TABLE_6.get(configuration, (math.nan,) * 3)
        row |= dict(zip(("published_memory", "published_reasoning", "published_gap"), theirs, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)
