"""The published claims, each judged by this run.

Owns statements, published numbers in words and the rule of each verdict. Models share their items, so claims about
accuracy are decided over models × contexts; what exists once per model (a spread, an ECE) over models. Fewer than three
models decide nothing and say nothing. Models whose task is at chance cannot show a loss of it: a loss is measured in
those that are above chance on other items than it is measured on.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from dropscope.analysis import Estimate, over_networks, rank_correlation, sign_test
from dropscope.report import Claim, Evidence, decide, decide_all, deciding, format_estimate
from dropscope.studies.transformer_profile import cells, published
from dropscope.studies.transformer_profile.artefacts import artefact_claims
from dropscope.studies.transformer_profile.comparisons import READINGS, family_estimate, gaps, kind_gap, over_models
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.published import LARGE, MARGIN, ROBUST, SMALL
from dropscope.studies.transformer_profile.robustness import robustness_claims
from dropscope.studies.transformer_profile.rows import (
    HIGH_BOTH,
    LEAST_MODELS,
    MEMORY,
    OVERALL,
    PLAIN,
    REASONING,
    short,
)
from dropscope.studies.transformer_profile.tables import Findings

FEWEST = LEAST_MODELS
_POINTS = f"± {MARGIN:g} of accuracy"
_OVER = "over models and contexts"
_LEAST_POINTS = 0.5  # of a drop, below which its ratio to another is noise


def judge_claims(f: Findings) -> list[Claim]:
    """Every claim, in the order of the paper; of fewer than three models only what they can decide."""
    judged = [
        _deterministic_beats_mc(f), _collapse(f), _memory_bias(f), _decoder_gap(f), _memory_fragile(f),
        _reasoning_robust(f), _small_steady(f), _mid_sized_best(f), _large_remember(f), _family(f), _specialised(f),
        _calibration(f), *robustness_claims(f), _consistency(f), *artefact_claims(f),
    ]  # fmt: skip
    quoted = [replace(claim, quotation=published.QUOTATIONS.get(claim.name, "")) for claim in judged]
    if len(f.e.names) >= FEWEST:
        return quoted
    return [claim for claim in quoted if claim.verdict != "undecided"]


def _by_points(
    estimate: Estimate, name: str, statement: str, before: str, ours: str, *, estimand: str, method: str | None = None
) -> Claim:
    """A claim that a difference of accuracies is above 0, by more than the margin."""
    return Claim(
        name,
        statement,
        before,
        ours,
        decide(estimate, "above", margin=MARGIN),
        method or estimate.method,
        estimand=estimand,
        margin=_POINTS,
        evidence=(Evidence(estimate, "above", margin=MARGIN),),
    )


def _won(wins: int, of: int) -> str:
    return f"{wins} of {of} models (an exact sign test gives p = {sign_test(wins, of - wins).p:.2g})"


def _deterministic_beats_mc(f: Findings) -> Claim:
    plain = pick(f.levels, PLAIN, OVERALL)
    run, averaged = (_counted(plain - pick(f.levels, f.e.mc, OVERALL, column)) for column in ("accuracy", "averaged"))
    estimate = cells.mean_of(cells.differences(f.e, PLAIN, f.e.mc))
    return _by_points(
        estimate,
        "deterministic_beats_mc",
        "Deterministic inference is more accurate than MC dropout at the baseline",
        f"{_won(*published.DETERMINISTIC_BETTER)}, without a test",
        f"deterministic − MC {_mean(estimate)}; better in {run}; by the averaged probabilities in {averaged}",
        estimand=f"mean difference of run-level accuracy, {_OVER}",
    )


def _collapse(f: Findings) -> Claim:
    floors = pd.DataFrame({name: pick(f.levels, name, OVERALL, "floor") for name in (PLAIN, f.e.mc)}).dropna()
    able = [str(name) for name in floors.index[floors[PLAIN] == ""]]
    low = [name for name in able if floors[f.e.mc][name]]
    fallen = [name for name in low if cells.collapsed(f.e, name, f.e.mc, len(able))]
    above = f"of {len(able)} networks above chance without dropout"
    ours = f"{above} {len(low)} {'is' if len(low) == 1 else 'are'} not with it" if low else f"all {above[3:]} stay so"
    return Claim(
        "collapse",
        "Rates of .1/.1 at inference bring some fine-tuned models down to chance",
        "roberta-base-squad2 .735 → .497, albert-base-v2 .640 → .489",
        (ours if able else "no network is above chance without dropout")
        + "".join(f"; down at chance by the test: {f.e.short_names[name]}" for name in fallen),
        cells.collapse_verdict(fallen),
        "supported by a network whose accuracy falls at .05/15 and is below the margin at .05 divided by the number of "
        "networks; never contradicted, for networks that stay above chance say nothing about others; t over contexts",
        estimand="whether there is such a network among those evaluated",
        margin=f"less than chance + {published.CHANCE_MARGIN:g}",
    )


def _memory_bias(f: Findings) -> Claim:
    found = cells.cell_table(f.e, f.e.mc)
    estimate = cells.between_groups(found, MEMORY, REASONING)
    counted = _counted(gaps(f.e, f.levels, f.e.mc) if _has_domains(f) else pd.Series(dtype=float))
    return _by_points(
        estimate,
        "memory_bias",
        "Models are better at memory than at reasoning (Δ_cog > 0 at the baseline)",
        _won(*published.MEMORY_BIASED),
        f"memory − reasoning {_mean(estimate)}; above 0 in {counted}{_without_domains(f)}",
        estimand=f"difference of mean run-level accuracy at the baseline, {_OVER}",
    )


def _decoder_gap(f: Findings) -> Claim:
    by = kind_gap(f.e, f.levels) if _has_domains(f) else {}
    kinds = f.e.models.set_index("model").kind
    found = cells.able_cells(f.e, cells.cell_table(f.e, f.e.mc), *_domains(f))
    decoders = f.e.replicates_of(kinds.index[kinds == "decoder"])
    estimate = cells.gap_between_models(found, decoders, MEMORY, REASONING)
    means = "; ".join(f"{kind}s {np.mean(gap):+.3f} ({len(gap)})" for kind, gap in by.items())
    return _by_points(
        estimate,
        "decoder_gap",
        "Decoders have the larger gap between memory and reasoning",
        "encoders .782 − .496 = .286, decoders .822 − .479 = .344, without a test",
        f"in models with both tasks above chance, decoders − encoders: {_difference(estimate)}; over all networks "
        f"{means or 'no gap'}{_without_domains(f)}",
        estimand=f"difference of gaps at the baseline, of models with both tasks above chance, {_OVER}",
        method=f"{estimate.method}; {_chosen_words()}",
    )


def _memory_fragile(f: Findings) -> Claim:
    found = cells.able_cells(f.e, cells.differences(f.e, PLAIN, HIGH_BOTH), *_domains(f))
    estimate = cells.between_groups(found, MEMORY, REASONING)
    return _by_points(
        estimate,
        "memory_fragile",
        "High dropout costs memory more than reasoning",
        "27 against 1 points (deterministic to high both), 25.9 points of memory (baseline to high both), and 8.7 "
        "against 2.3 = 3.8× (conclusion): three readings that contradict each other",
        f"more of memory by {_mean(estimate)} in the {found.model.nunique()} models with both tasks above chance; over "
        f"all networks {_readings(f)}{_without_domains(f)}",
        estimand=f"difference of losses, of models with both tasks above chance, {_OVER}",
        method="drop of memory minus drop of reasoning, deterministic to high both; "
        f"{estimate.method}; {_chosen_words()}",
    )


def _reasoning_robust(f: Findings) -> Claim:
    lost = cells.differences(f.e, PLAIN, HIGH_BOTH, REASONING) if _has_domains(f) else _no_cells()
    found = cells.able_cells(f.e, lost, REASONING)
    beyond = cells.mean_of(found.assign(value=found.value - ROBUST))
    shown = replace(beyond, value=beyond.value + ROBUST, low=beyond.low + ROBUST, high=beyond.high + ROBUST)
    every, able = lost.model.nunique(), found.model.nunique()
    return Claim(
        "reasoning_robust",
        "Reasoning is robust to high dropout",
        "1 point lost, from a mean of .508: at chance in every configuration",
        f"lost by the {able} models whose reasoning is above chance without dropout: {_mean(shown)}; the other "
        f"{every - able} are at chance and have nothing to lose{_without_domains(f)}",
        decide(beyond, "below"),
        f"deterministic to high both, against {ROBUST:g}; {beyond.method}; {_chosen_words()}",
        estimand=f"loss of accuracy, of models whose reasoning is above chance, {_OVER}",
        margin=f"robust = less than {ROBUST:g} lost",
        evidence=(Evidence(shown, "below", bound=ROBUST),),
    )


def _small_steady(f: Findings) -> Claim:
    steady = over_models(f.e, f.stability)
    estimate = rank_correlation(list(steady.parameters), list(steady["std"]))
    first = ", ".join(f.e.short_names[m] for m in f.stability.model[:3])
    return Claim(
        "small_steady",
        "Small models are the most stable",
        "without a number; baseline std from .000 (gpt-neo-125m, where no dropout was on) to .034 (roberta-base)",
        f"rank correlation of std with parameters: {_difference(estimate, 2)}; steadiest: {first or 'none'}",
        decide(estimate, "above", margin=published.RANK_MARGIN),
        estimate.method,
        estimand="rank correlation of the std over passes with the number of parameters, over models",
        margin=f"± {published.RANK_MARGIN:g} of the rank correlation",
        evidence=(Evidence(estimate, "above", margin=published.RANK_MARGIN, scale="correlation"),),
    )


def _mid_sized_best(f: Findings) -> Claim:
    mid = f.e.replicates_of(name for name, size in _sizes(f).items() if SMALL <= size < LARGE)
    words = f"mid-sized ({SMALL // 10**6} to {LARGE // 10**6} M parameters)"
    statement = "Mid-sized models are the most accurate overall"
    return _size_claim(f, "mid_sized_best", statement, "deberta-v3-small leads with .796", OVERALL, mid, words)


def _large_remember(f: Findings) -> Claim:
    large = f.e.replicates_of(name for name, size in _sizes(f).items() if size >= LARGE)
    words = f"large ({LARGE // 10**6} M parameters and more, and {', '.join(published.CALLED_LARGE)})"
    before = "gpt2-medium .922, deberta-v3-base .938"
    return _size_claim(f, "large_remember", "Large models are the best at memory", before, MEMORY, large, words)


def _sizes(f: Findings) -> dict[str, float]:
    """Parameters by model; a model that the paper calls large counts as one."""
    sizes = f.e.models.set_index("model").parameters
    return {
        str(name): max(float(size), LARGE) if short(str(name)) in published.CALLED_LARGE else float(size)
        for name, size in sizes.items()
    }


def _size_claim(
    f: Findings, name: str, statement: str, before: str, group: str, members: set[str], words: str
) -> Claim:
    known = group in f.e.all_groups
    estimate = cells.between_models(cells.cell_table(f.e, f.e.mc, group) if known else _no_cells(), members)
    return _by_points(
        estimate,
        name,
        statement,
        before,
        f"{words} minus the others: {_difference(estimate)}",
        estimand=f"difference of mean {group} accuracy at the baseline, {_OVER}",
    )


def _family(f: Findings) -> Claim:
    estimate = family_estimate(f.family_or_size)
    errors = f.family_or_size[["by_family", "by_size"]].sub(f.family_or_size["std"], axis=0).pow(2).mean().pow(0.5)
    return Claim(
        "family_over_size",
        "The family predicts stability better than the size",
        "without a number",
        f"root mean squared error of a left-out model's std: {errors['by_family']:.4f} by family, "
        f"{errors['by_size']:.4f} by size; ratio over families {_mean(estimate, 2)}"
        if estimate.n
        else "no two models of a family among four or more",
        decide(estimate, "below", bound=1.0, margin=published.ERROR_MARGIN),
        f"leave one out: mean of the family's other members against a line on log(parameters); {estimate.method}",
        estimand="error of a left-out model's std by family over that by size, over families",
        margin=f"± {100 * published.ERROR_MARGIN:.0f} % of the error by size",
        evidence=(Evidence(estimate, "below", bound=1.0, margin=published.ERROR_MARGIN, scale="log"),),
    )


def _specialised(f: Findings) -> Claim:
    about = f.e.models.set_index("model").specialised
    special = f.e.replicates_of(about.index[about.astype(bool)])
    estimate = cells.between_models(cells.differences(f.e, PLAIN, f.e.mc), special)
    return _by_points(
        estimate,
        "specialised_degrade",
        "Task-specialised checkpoints degrade more than general ones",
        "roberta-base-squad2 loses most (.735 → .497)",
        f"drop of the specialised minus that of the others: {_difference(estimate)}",
        estimand=f"difference of mean losses of run-level accuracy, {_OVER}",
        method=f"overall accuracy, deterministic to baseline; {estimate.method}",
    )


def _calibration(f: Findings) -> Claim:
    mild = f.e.configurations[["attention_rate", "ffn_rate"]].max(axis=1).between(0.1, 0.2)
    names = sorted(set(f.e.configurations.configuration[mild]))
    part = f.differences
    if len(part):
        part = part[part.configuration.isin(names) & (part["group"] == REASONING)]
    estimates = {}
    for score in ("ece", "aurc"):
        own = part[part.score == score] if len(part) else part
        by_model = own.groupby(own.model.map(f.e.replicates)).difference.mean() if len(part) else []
        estimate = over_networks(list(by_model))
        few = replace(estimate, low=math.nan, high=math.nan, p=math.nan)
        estimates[score] = estimate if estimate.n >= FEWEST else few
    for score, of_items in (("brier", cells.brier), ("nll", cells.nll)):
        parts = [cells.differences(f.e, name, PLAIN, REASONING, of_items) for name in names if _has_domains(f)]
        estimates[score] = cells.mean_of(pd.concat(parts, ignore_index=True) if parts else _no_cells())
    words = {score: f"{score.upper()} {_mean(e)}" for score, e in estimates.items()}
    evidence = tuple(
        Evidence(estimates[score], "below", margin=published.SCORE_MARGIN, name=score.upper())
        for score in ("ece", "brier", "nll")
    )
    return Claim(
        "calibration_on_reasoning",
        "Rates of .1 to .2 improve calibration on reasoning",
        "without a number",
        f"MC − deterministic at {', '.join(names) or 'no such rates'}: {'; '.join(words.values())}"
        f"{_without_domains(f)}",
        decide_all([estimates[score] for score in ("ece", "brier", "nll")], "below", margin=published.SCORE_MARGIN),
        "supported where ECE, Brier and NLL all fall at .05, contradicted where one rises at .05/3; "
        f"ECE {estimates['ece'].method}, Brier and NLL {estimates['nll'].method}",
        estimand=f"mean difference of ECE over models, of Brier and NLL {_OVER}",
        margin=f"± {published.SCORE_MARGIN:g} of each",
        evidence=evidence,
        brief=f"MC − deterministic: {words[evidence[deciding(evidence)].name.lower()]}",
    )


def _consistency(f: Findings) -> Claim:
    broken = f.consistency[~f.consistency.consistent.astype(bool)]
    theirs, ours = (f.consistency[f.consistency.source == source] for source in ("published", "here"))
    bad = len(broken[broken.source == "published"])
    return Claim(
        "consistent_stds",
        "The stds of table 4 belong to one set of passes (overall std ≥ |σ_memory − σ_reasoning|/2)",
        f"{bad} of {len(theirs)} published rows break it",
        f"{len(broken) - bad} of {len(ours)} rows break it",
        "contradicted" if bad else "supported",
        "the std of a mean of two halves is at least half the difference of their stds",
        estimand="rows of table 4 below the least possible std",
        arithmetic=True,
    )


def _counted(differences: pd.Series) -> str:
    """In how many networks a difference is above 0, in words: a description, for models share their items."""
    known = differences.dropna().round(9)  # equal accuracies may differ in the last bit
    wins, losses = int((known > 0).sum()), int((known < 0).sum())
    ties = f", {len(known) - wins - losses} tied" if len(known) > wins + losses else ""
    return f"{wins} of {len(known)} networks{ties}"


def _no_cells() -> pd.DataFrame:
    return pd.DataFrame({"model": [], "context": [], "group": [], "value": []})


def _chosen_words() -> str:
    return "above chance on the half of the contexts that is not measured"


def _domains(f: Findings) -> tuple[str, ...]:
    return (MEMORY, REASONING) if _has_domains(f) else ()


def _has_domains(f: Findings) -> bool:
    return f.e.domains == (MEMORY, REASONING)


def _without_domains(f: Findings) -> str:
    return "" if _has_domains(f) else "; the data has no groups memory and reasoning"


def _readings(f: Findings) -> str:
    readings = []
    for reading in READINGS:
        part = f.drops[f.drops.reading == reading].set_index("group") if len(f.drops) else f.drops
        if MEMORY not in part.index or REASONING not in part.index:
            continue
        memory, reasoning = (100 * float(part["drop"][group]) for group in (MEMORY, REASONING))
        ratio = f" = {memory / reasoning:.1f}×" if min(memory, reasoning) >= _LEAST_POINTS else ""
        readings.append(f"{memory:.1f} against {reasoning:.1f} points{ratio} ({reading})")
    return ", ".join(readings) or "no such drop was measured"


def _difference(e: Estimate, digits: int = 3) -> str:
    if math.isnan(e.value):
        return "too few models"
    return format_estimate(e.value, e.low, e.high, digits) + ("" if math.isnan(e.p) else f", p = {e.p:.3g}")


def _mean(e: Estimate, digits: int = 4) -> str:
    return "unknown" if math.isnan(e.value) else format_estimate(e.value, e.low, e.high, digits)
