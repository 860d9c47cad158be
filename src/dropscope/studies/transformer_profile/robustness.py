"""Claims about robustness over models: against scale, against accuracy, and what high dropout leaves of the gap.

Owns three claims of the paper; see `claims` for the others. All are decided over models × contexts.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from dropscope.analysis import Estimate, rank_correlation
from dropscope.report import Claim, Evidence, Verdict, decide, decide_all, deciding, format_estimate
from dropscope.studies.transformer_profile import cells, published
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.published import MARGIN, QUARTILE_TESTS, SCALE_MARGIN
from dropscope.studies.transformer_profile.rows import (
    HIGH_ATTENTION,
    HIGH_BOTH,
    HIGH_FFN,
    MEMORY,
    OVERALL,
    PLAIN,
    REASONING,
)
from dropscope.studies.transformer_profile.tables import Findings

_HIGH = (HIGH_ATTENTION, HIGH_FFN, HIGH_BOTH)
_LEVEL = 1 - 0.05 / QUARTILE_TESTS


def robustness_claims(f: Findings) -> list[Claim]:
    return [_scale(f), _steady_and_accurate(f), _gap_compression(f)]


def _scale(f: Findings) -> Claim:
    sizes = f.e.models.set_index("model").parameters
    lost = cells.differences(f.e, PLAIN, f.e.mc)
    sizes = sizes.groupby(sizes.index.map(f.e.replicates)).mean()
    estimate = cells.slope_on(lost, {str(m): math.log10(max(float(n), 1.0)) for m, n in sizes.items()})
    by_model = lost.groupby("model").value.mean() if len(lost) else pd.Series(dtype=float)
    ranks = rank_correlation([float(sizes[name]) for name in by_model.index], by_model.tolist())
    return Claim(
        "robustness_and_scale",
        "Robustness to dropout is uncorrelated with scale",
        "uncorrelated, without a number",
        f"accuracy lost per tenfold of the parameters, deterministic to baseline: {_words(estimate)}; rank correlation "
        f"of the loss with the parameters over models (no test): {_words(ranks, 2)}",
        decide(estimate, "same", margin=SCALE_MARGIN),
        f"slope on log10(parameters); {estimate.method}",
        estimand="slope of the loss of run-level accuracy on log10(parameters), over models and contexts",
        margin=f"± {SCALE_MARGIN:g} of accuracy per tenfold",
        evidence=(Evidence(estimate, "same", margin=SCALE_MARGIN),),
    )


def _steady_and_accurate(f: Findings) -> Claim:
    found = {group: cells.steadiest_minus_least(f.e, f.e.mc, group, _LEVEL) for group in f.e.all_groups}
    few = [e for e in found.values() if not math.isnan(e.low)]
    return Claim(
        "steady_and_accurate",
        "Steady and unsteady models differ in accuracy (steadiest against least steady quarter)",
        "three tests at .05/3, without a number",
        "steadiest − least steady: " + "; ".join(f"{group} {_words(e)}" for group, e in found.items()),
        differ(list(found.values())) if len(few) == len(found) else "undecided",
        f"supported where one group differs at .05/{QUARTILE_TESTS}, in either direction; intervals at that level; "
        f"spread from one half of the contexts, accuracy from the other; {found[OVERALL].method}",
        estimand="difference of mean run-level accuracy at the baseline, over models and contexts",
        margin=f"± {MARGIN:g} of accuracy",
    )


def differ(estimates: list[Estimate]) -> Verdict:
    """Whether one of several numbers, with their intervals at .05/3, differs from 0 in either direction."""
    verdicts = [decide(e, "above", margin=MARGIN, alpha=1 - _LEVEL) for e in estimates]
    if "supported" in verdicts or "contradicted" in verdicts:
        return "supported"
    return "equivalent" if set(verdicts) == {"equivalent"} else "undecided"


def _gap_compression(f: Findings) -> Claim:
    domains = f.e.domains == (MEMORY, REASONING)
    lost = {name: cells.differences(f.e, PLAIN, name) for name in _HIGH if domains}
    estimates = {name: cells.between_groups(table, MEMORY, REASONING) for name, table in lost.items() if len(table)}
    gaps = "; ".join(f"{name.replace('_', ' ')} by {_words(e)}" for name, e in estimates.items())
    floors = pick(f.levels, HIGH_BOTH, MEMORY, "floor") if domains else pd.Series(dtype=object)
    note = f"; memory itself is at chance under high both in {int((floors != '').sum())} of {len(floors)} networks"
    theirs = ", ".join(f"{published.TABLE_6[name][2]:.3f}" for name in _HIGH)
    evidence = tuple(Evidence(e, "above", margin=MARGIN, name=name) for name, e in estimates.items())
    whole = len(estimates) == len(_HIGH)
    last = evidence[deciding(evidence)] if whole else None
    return Claim(
        "gap_compression",
        "High dropout compresses the gap between memory and reasoning",
        f"{published.TABLE_6[PLAIN][2]:.3f} deterministic, {theirs} at high attention, FFN and both (table 6); no test",
        f"gap without dropout {_gap(f, PLAIN):.3f}, smaller at {gaps}{note}"
        if estimates
        else "the data has no groups memory and reasoning, or no high rates",
        decide_all(list(estimates.values()), "above", margin=MARGIN) if whole else "undecided",
        "all three high configurations at .05, one the other way round at .05/3 contradicts; "
        + (next(iter(estimates.values())).method if estimates else ""),
        estimand="gap without dropout minus gap with it, over all models and contexts",
        margin=f"± {MARGIN:g} of accuracy",
        evidence=evidence if whole else (),
        brief=f"smaller at {last.name.replace('_', ' ')} by {_words(last.estimate)}" if last is not None else "",
    )


def _gap(f: Findings, configuration: str) -> float:
    memory, reasoning = (pick(f.levels, configuration, group) for group in (MEMORY, REASONING))
    return float(np.mean(memory - reasoning))


def _words(e: Estimate, digits: int = 3) -> str:
    return "too few models" if math.isnan(e.value) else format_estimate(e.value, e.low, e.high, digits)
