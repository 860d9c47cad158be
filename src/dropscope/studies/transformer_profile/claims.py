"""The published claims, each judged by the tables of this run.

Owns statements, published numbers in words and the rule of each verdict. Claims are about models, so models are the
replicates: fewer than three decide nothing, whatever their own intervals say. Models whose task is at chance cannot
show a loss of it and do not take part where a loss is judged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from dropscope.analysis import Estimate, difference_of_means, over_networks, rank_correlation, sign_test
from dropscope.report import Claim, Verdict, format_estimate, verdict_of_interval
from dropscope.studies.transformer_profile import published
from dropscope.studies.transformer_profile.comparisons import ALPHA, READINGS, gaps, kind_gap
from dropscope.studies.transformer_profile.levels import pick
from dropscope.studies.transformer_profile.rows import HIGH_BOTH, MEMORY, OVERALL, PLAIN, REASONING
from dropscope.studies.transformer_profile.tables import Findings

SMALL, LARGE = 50_000_000, 200_000_000  # parameters: below, mid-sized between, and from there on large
ROBUST = 0.05  # a task that loses less than this is called robust
FEWEST = 3  # models that decide a claim about models
UNDECIDED: Verdict = "cannot be decided"


def judge_claims(f: Findings) -> list[Claim]:
    """Every claim, in the order of the paper."""
    return [
        _deterministic_beats_mc(f), _collapse(f), _memory_bias(f), _decoder_gap(f), _memory_fragile(f),
        _reasoning_robust(f), _small_steady(f), _mid_sized_best(f), _large_remember(f), _family(f), _specialised(f),
        _calibration(f), _consistency(f), *_artefacts(f),
    ]  # fmt: skip


def by_test(estimate: Estimate, null: float = 0.0) -> Verdict:
    """Whether a value is above `null` by its test at .05; NaN or a larger p decides nothing.

    >>> by_test(sign_test(16, 3), 0.5), by_test(sign_test(3, 16), 0.5), by_test(sign_test(10, 9), 0.5)
    ('holds', 'does not hold', 'cannot be decided')
    """
    if not estimate.p < ALPHA:
        return UNDECIDED
    return "holds" if estimate.value > null else "does not hold"


def by_interval(estimate: Estimate, *, above: float | None = None, below: float | None = None) -> Verdict:
    """Whether a mean over models lies on the claimed side of a bound; too few models decide nothing."""
    return (
        verdict_of_interval(estimate.low, estimate.high, above=above, below=below)
        if estimate.n >= FEWEST
        else UNDECIDED
    )


def _deterministic_beats_mc(f: Findings) -> Claim:
    plain = pick(f.levels, PLAIN, OVERALL)
    run = _counted(plain - pick(f.levels, f.e.mc, OVERALL))
    averaged = _counted(plain - pick(f.levels, f.e.mc, OVERALL, "averaged"))
    wins, of = published.DETERMINISTIC_BETTER
    return Claim(
        "deterministic_beats_mc",
        "Deterministic inference is more accurate than MC dropout at the baseline in most models",
        f"{wins} of {of} models, without a test (an exact sign test gives p = {sign_test(wins, of - wins).p:.2g})",
        f"{run.words}; by the averaged probabilities {averaged.words}",
        by_test(run.test, 0.5),
        f"{run.test.method} on run-level accuracy; ties count for neither",
    )


def _collapse(f: Findings) -> Claim:
    floors = pd.DataFrame({name: pick(f.levels, name, OVERALL, "floor") for name in (PLAIN, f.e.mc)}).dropna()
    able = floors[floors[PLAIN] == ""]
    low = [str(name) for name in able.index if able[f.e.mc][name]]
    fallen = [name for name in low if _fell(f, name)]
    verdict: Verdict = "holds" if fallen else UNDECIDED if low or len(able) < FEWEST else "does not hold"
    return Claim(
        "collapse",
        "Rates of .1/.1 at inference bring some fine-tuned models down to chance",
        "roberta-base-squad2 .735 → .497, albert-base-v2 .640 → .489",
        f"{len(low)} of {len(able)} models that are above chance without dropout are at chance with it, {len(fallen)} "
        "of them by a drop beyond .05/15" + "".join(f"; {f.e.short_names[name]}" for name in fallen),
        verdict,
        "overall accuracy: its 95 % interval over contexts lies above chance without dropout and not with it, and the "
        "paired bootstrap and t tests over contexts agree",
    )


def _fell(f: Findings, model: str) -> bool:
    row = f.within[(f.within.model == model) & (f.within.configuration == f.e.mc) & (f.within["group"] == OVERALL)]
    return bool(row.beyond_05_15.any()) and bool((row.difference < 0).all())


def _memory_bias(f: Findings) -> Claim:
    wins_of_memory = _counted(gaps(f.e, f.levels, f.e.mc) if _has_domains(f) else pd.Series(dtype=float))
    wins, of = published.MEMORY_BIASED
    return Claim(
        "memory_bias",
        "Most models are better at memory than at reasoning (Δ_cog > 0 at the baseline)",
        f"{wins} of {of} models (exact sign test p = {sign_test(wins, of - wins).p:.2g})",
        wins_of_memory.words + _without_domains(f),
        by_test(wins_of_memory.test, 0.5),
        f"{wins_of_memory.test.method}; ties count for neither",
    )


def _decoder_gap(f: Findings) -> Claim:
    by = kind_gap(f.e, f.levels) if _has_domains(f) else {}
    estimate = difference_of_means(by.get("decoder", []), by.get("encoder", []))
    means = "; ".join(f"{kind}s {np.mean(gap):+.3f} ({len(gap)})" for kind, gap in by.items())
    return Claim(
        "decoder_gap",
        "Decoders have the larger gap between memory and reasoning",
        "encoders .782 − .496 = .286, decoders .822 − .479 = .344, without a test",
        f"{means or 'no models'}{_without_domains(f)}; {_difference(estimate)}",
        by_test(estimate),
        estimate.method,
    )


def _memory_fragile(f: Findings) -> Claim:
    able = _able(f, MEMORY) & _able(f, REASONING)
    lost = {group: _lost(f, group) for group in (MEMORY, REASONING)}
    estimate = over_networks([float(lost[MEMORY][m] - lost[REASONING][m]) for m in lost[MEMORY].index if m in able])
    return Claim(
        "memory_fragile",
        "High dropout costs memory more than reasoning",
        "27 against 1 points (deterministic to high both), 25.9 points of memory (baseline to high both), and 8.7 "
        "against 2.3 = 3.8× (conclusion): three readings that contradict each other",
        f"{_readings(f)}; more of memory by {_mean(estimate)} in the {estimate.n} models with both tasks above chance"
        f"{_without_domains(f)}",
        by_interval(estimate, above=0),
        f"drop of memory minus drop of reasoning, deterministic to high both; {estimate.method}",
    )


def _reasoning_robust(f: Findings) -> Claim:
    able, lost = _able(f, REASONING), _lost(f, REASONING)
    estimate = over_networks([float(value) for name, value in lost.items() if name in able])
    floored = len(lost) - estimate.n
    return Claim(
        "reasoning_robust",
        "Reasoning is robust to high dropout",
        "1 point lost, from a mean of .508: at chance in every configuration",
        f"lost by the {estimate.n} models whose reasoning is above chance without dropout: {_mean(estimate)}; "
        f"{floored} of {len(lost)} are at chance and have nothing to lose{_without_domains(f)}",
        by_interval(estimate, below=ROBUST),
        f"robust = less than {ROBUST:.2f} lost, deterministic to high both; {estimate.method}",
    )


def _small_steady(f: Findings) -> Claim:
    estimate = rank_correlation(list(f.stability.parameters), list(f.stability["std"]))
    first = ", ".join(f.e.short_names[m] for m in f.stability.model[:3])
    return Claim(
        "small_steady",
        "Small models are the most stable",
        "without a number; baseline std from .000 (gpt-neo-125m, where no dropout was on) to .034 (roberta-base)",
        f"rank correlation of std with parameters: {_difference(estimate, 2)}; steadiest: {first or 'none'}",
        by_test(estimate),
        estimate.method,
    )


def _mid_sized_best(f: Findings) -> Claim:
    accuracy = pick(f.levels, f.e.mc, OVERALL)
    size = f.e.models.set_index("model").parameters
    mid = [name for name in accuracy.index if SMALL <= size[name] < LARGE]
    return _size_claim(
        "mid_sized_best", "Mid-sized models are the most accurate overall", "deberta-v3-small leads with .796",
        accuracy, mid, f"mid-sized ({SMALL // 10**6} to {LARGE // 10**6} M parameters)",
    )  # fmt: skip


def _large_remember(f: Findings) -> Claim:
    memory = pick(f.levels, f.e.mc, MEMORY)
    size = f.e.models.set_index("model").parameters
    large = [name for name in memory.index if size[name] >= LARGE]
    return _size_claim(
        "large_remember", "Large models are the best at memory", "gpt2-medium .922, deberta-v3-base .938",
        memory, large, f"large ({LARGE // 10**6} M parameters and more)",
    )  # fmt: skip


def _size_claim(name: str, statement: str, before: str, values: pd.Series, members: list[str], words: str) -> Claim:
    estimate = difference_of_means([values[m] for m in members], [values[m] for m in values.index if m not in members])
    return Claim(
        name,
        statement,
        before,
        f"{words} minus the others: {_difference(estimate)}",
        by_test(estimate),
        estimate.method,
    )


def _family(f: Findings) -> Claim:
    estimate = over_networks(list(f.family_or_size.difference))
    errors = f.family_or_size[["by_family", "by_size"]].sub(f.family_or_size["std"], axis=0).pow(2).mean().pow(0.5)
    return Claim(
        "family_over_size",
        "The family predicts stability better than the size",
        "without a number",
        f"root mean squared error of a left-out model's std: {errors['by_family']:.4f} by family, "
        f"{errors['by_size']:.4f} by size; difference of squares {_mean(estimate, 6)}"
        if estimate.n
        else "no two models of a family among four or more",
        by_interval(estimate, above=0),
        f"leave one out: mean of the family's other members against a line on log(parameters); {estimate.method}",
    )


def _specialised(f: Findings) -> Claim:
    lost = (pick(f.levels, PLAIN, OVERALL) - pick(f.levels, f.e.mc, OVERALL)).dropna()
    special = f.e.models.set_index("model").specialised
    estimate = difference_of_means(
        [lost[m] for m in lost.index if special[m]], [lost[m] for m in lost.index if not special[m]]
    )
    return Claim(
        "specialised_degrade",
        "Task-specialised checkpoints degrade more than general ones",
        "roberta-base-squad2 loses most (.735 → .497)",
        f"drop of the specialised minus that of the others: {_difference(estimate)}",
        by_test(estimate),
        f"overall accuracy, deterministic to baseline; {estimate.method}",
    )


def _calibration(f: Findings) -> Claim:
    mild = f.e.configurations[["attention_rate", "ffn_rate"]].max(axis=1).between(0.1, 0.2)
    names = sorted(set(f.e.configurations.configuration[mild]))
    part = f.differences
    if len(part):
        part = part[part.configuration.isin(names) & (part["group"] == REASONING)]
    estimates = {}
    for score in ("ece", "brier", "nll", "aurc"):
        by_model = part[part.score == score].groupby("model").difference.mean() if len(part) else []
        estimates[score] = over_networks(list(by_model))
    verdicts = [by_interval(estimates[score], below=0) for score in ("ece", "brier", "nll")]
    verdict: Verdict = UNDECIDED
    if "does not hold" in verdicts:
        verdict = "does not hold"
    elif set(verdicts) == {"holds"}:
        verdict = "holds"
    return Claim(
        "calibration_on_reasoning",
        "Rates of .1 to .2 improve calibration on reasoning",
        "without a number",
        f"MC − deterministic at {', '.join(names) or 'no such rates'}: "
        + "; ".join(f"{score.upper()} {_mean(e)}" for score, e in estimates.items())
        + _without_domains(f),
        verdict,
        f"holds where ECE, Brier and NLL all fall, does not where one rises; {estimates['nll'].method}",
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
        "does not hold" if bad else "holds",
        "arithmetic: the std of a mean of two halves is at least half the difference of their stds; the verdict is on "
        "the published rows",
    )


def _artefacts(f: Findings) -> list[Claim]:
    """Published spreads that are settings left on or off, where a model of that family was evaluated."""
    made = []
    neo = _of_family(f, "gpt_neo")
    if len(neo) and f.e.mc is not None:
        std = pick(f.levels, f.e.mc, OVERALL, "std").reindex(neo).dropna()
        fired = all(bool(f.e.setting(name, f.e.mc).audit_ok) for name in std.index)
        made.append(Claim(
            "gpt_neo_steady", "GPT-Neo does not react to dropout at all", "baseline std .000",
            f"baseline std {_listed(f, std)}; audit {'passed' if fired else 'FAILED'}",
            UNDECIDED if not len(std) or not fired else "does not hold" if (std > 0).all() else "holds",
            "its config defaults to rates of 0, so nothing was on; here every site that should fire is audited",
        ))  # fmt: skip
    albert = _of_family(f, "albert")
    if len(albert):
        std = pick(f.levels, PLAIN, OVERALL, "std").reindex(albert).dropna()
        made.append(Claim(
            "albert_deterministic", "ALBERT varies even without dropout", "deterministic std .0129",
            f"deterministic std {_listed(f, std)}",
            UNDECIDED if not len(std) else "does not hold" if (std == 0).all() else "holds",
            "its classifier has a dropout of its own, which was left on; std over passes, exactly 0 where all is off",
        ))  # fmt: skip
    return made


class _Counted(NamedTuple):
    test: Estimate
    words: str


def _counted(differences: pd.Series) -> _Counted:
    """In how many models a difference is above 0."""
    known = differences.dropna().round(9)  # equal accuracies may differ in the last bit
    wins, losses = int((known > 0).sum()), int((known < 0).sum())
    test = sign_test(wins, losses)
    ties = f", {len(known) - wins - losses} tied" if len(known) > wins + losses else ""
    tested = f" (exact sign test p = {test.p:.2g})" if wins + losses else ""
    return _Counted(test, f"{wins} of {len(known)} models{ties}{tested}")


def _lost(f: Findings, group: str) -> pd.Series:
    return (pick(f.levels, PLAIN, group) - pick(f.levels, HIGH_BOTH, group)).dropna()


def _able(f: Findings, group: str) -> set[str]:
    """Models above chance in a group without dropout."""
    floors = pick(f.levels, PLAIN, group, "floor")
    return set(floors.index[floors == ""])


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
        ratio = f" = {memory / reasoning:.1f}×" if reasoning > 0 and memory > 0 else ""
        readings.append(f"{memory:.1f} against {reasoning:.1f} points{ratio} ({reading})")
    return ", ".join(readings) or "no such drop was measured"


def _of_family(f: Findings, family: str) -> list[str]:
    known = f.e.models.family.astype(str).str.lower().str.replace("-", "_")
    return [str(name) for name in f.e.models.model[known == family]]


def _listed(f: Findings, values: pd.Series) -> str:
    return ", ".join(f"{value:.4f} ({f.e.short_names[str(name)]})" for name, value in values.items()) or "not measured"


def _difference(e: Estimate, digits: int = 3) -> str:
    return (
        "too few models" if math.isnan(e.value) else f"{format_estimate(e.value, e.low, e.high, digits)}, p = {e.p:.3g}"
    )


def _mean(e: Estimate, digits: int = 4) -> str:
    return "unknown" if math.isnan(e.value) else format_estimate(e.value, e.low, e.high, digits)
