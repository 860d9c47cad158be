"""Tables 4, 5 and 6 of the paper with our rows and the published ones beside them.

Owns their columns and order. A published row whose model was not evaluated here stands alone, ours left empty.
"""

from __future__ import annotations

import math

import pandas as pd

from dropscope.analysis import over_networks
from dropscope.studies.transformer_profile import published
from dropscope.studies.transformer_profile.comparisons import gaps
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.results import OVERALL, PLAIN, Evaluated, short


def table_4(e: Evaluated, levels: pd.DataFrame) -> pd.DataFrame:
    """Baseline accuracy by group, best model first: run-level mean and std, interval over contexts, Δ, floor."""
    rows: list[dict[str, object]] = []
    part = levels[levels.configuration == e.mc]
    delta = gaps(e, levels, e.mc)
    for model, one in part.groupby("model", sort=False):
        by = one.set_index("group")
        row: dict[str, object] = {"model": e.shown[str(model)]}
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


def table_5(e: Evaluated, levels: pd.DataFrame, within: pd.DataFrame) -> pd.DataFrame:
    """Deterministic against MC dropout at the baseline, overall, the most degraded model first, with its tests."""
    rows: list[dict[str, object]] = []
    plain, noisy = pick(levels, PLAIN, OVERALL), pick(levels, e.mc, OVERALL)
    for model in most_degraded(e, levels, len(e.names)):
        test = within[(within.model == model) & (within.configuration == e.mc) & (within["group"] == OVERALL)].iloc[0]
        rows.append({
            "model": e.shown[model],
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


def most_degraded(e: Evaluated, levels: pd.DataFrame, count: int = 5) -> list[str]:
    """The models that lose most from deterministic to MC dropout at the baseline, overall."""
    lost = (pick(levels, PLAIN, OVERALL) - pick(levels, e.mc, OVERALL)).dropna()
    return [str(model) for model in lost.sort_values(ascending=False, kind="stable").index[:count]]


def table_6(e: Evaluated, levels: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy over models by configuration and group, t interval over models, and the gap of the two domains."""
    rows = []
    for configuration in (PLAIN, *e.stochastic):
        settings = e.configurations[e.configurations.configuration == configuration]
        row: dict[str, object] = {"configuration": configuration}
        if len(settings):
            row |= {"attention_rate": settings.attention_rate.iloc[0], "ffn_rate": settings.ffn_rate.iloc[0]}
        for group in e.all_groups:
            found = over_networks(list(pick(levels, configuration, group)))
            row |= {"models": found.n, group: found.value, f"{group}_low": found.low, f"{group}_high": found.high}
        if e.domains is not None:
            row["gap"] = over_networks(list(gaps(e, levels, configuration))).value
        theirs = published.TABLE_6.get(configuration, (math.nan,) * 3)
        row |= dict(zip(("published_memory", "published_reasoning", "published_gap"), theirs, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)
