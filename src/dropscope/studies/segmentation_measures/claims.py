"""Claims of the paper, and whether they stand here.

Owns the rule of each. Experiments share test patients, so pairs of measures are decided over both at once; the paper's
Beta posterior, which counts experiments as independent, stands beside as a description.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dropscope.analysis import Estimate, log_over_networks
from dropscope.report import Claim, Evidence, Verdict, decide, decide_all, deciding, format_estimate
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.evaluation import FOUR
from dropscope.studies.segmentation_measures.rows import LABELS
from dropscope.studies.segmentation_measures.tables import EVERY, TRAINED

_ESTIMAND = "difference of mean AUC-PR, every experiment alike, over experiments and test patients"
_MARGIN = f"± {published.MARGIN:g} of AUC-PR"


def judge_claims(posteriors: pd.DataFrame, pairs: pd.DataFrame, timings: Mapping[str, Sequence[float]]) -> list[Claim]:
    """`posteriors` and `pairs` are tables of `tables.py`; `timings` the seconds of each measure in every round."""
    claims = [_pair(posteriors, pairs, a, b) for a, b in published.PAIRS]
    return [*claims, _whole_order(pairs, claims), _same(posteriors, pairs), _cheapest(timings)]


def _pair(posteriors: pd.DataFrame, pairs: pd.DataFrame, a: str, b: str) -> Claim:
    p = posteriors[(posteriors.better == a) & (posteriors.than == b)].iloc[0]
    estimate = _difference(pairs, a, b)
    verdict = decide(estimate, "above", margin=published.MARGIN)
    apart = verdict == "undecided" and (estimate.low > 0 or estimate.high < 0)  # by its interval, not after Holm
    return Claim(
        f"{a} > {b}",
        f"{LABELS[a].capitalize()} finds misclassified voxels better than {LABELS[b]}",
        "significant over 144 experiments",
        f"{_words(pairs, a, b)}; better in {p.wins:g} of {p.experiments} experiments, posterior probability "
        f"{format_estimate(p['mean'], p.low, p.high, 3)} (too sure: decides nothing)",
        verdict,
        estimate.method + ("" if math.isnan(estimate.p) else f", Holm over the six pairs (p = {estimate.p:.2g})"),
        estimand=_ESTIMAND,
        margin=_MARGIN,
        evidence=(Evidence(estimate, "above", margin=published.MARGIN, family="pairs"),),
        brief=_words(pairs, a, b).partition("; ")[0] + f", but p = {estimate.p:.2g} by Holm over six pairs" * apart,
    )


def _difference(pairs: pd.DataFrame, a: str, b: str, which: str = EVERY, p: str = "p_holm") -> Estimate:
    """First minus second over the experiments named; its p-value adjusted over the six pairs, unless `p` says else."""
    rows = pairs[(pairs.networks == which) & pairs.better.isin((a, b)) & pairs.than.isin((a, b))]
    row = rows.iloc[0]
    sign, low, high = (1, row.low, row.high) if row.better == a else (-1, -row.high, -row.low)
    groups = min(int(row.experiments), int(row.patients))
    return Estimate(sign * float(row.difference), float(low), float(high), float(row[p]), groups, str(row.method))


def _words(pairs: pd.DataFrame, a: str, b: str) -> str:
    every = _difference(pairs, a, b)
    text = f"mean AUC-PR differs by {format_estimate(every.value, every.low, every.high)}"
    if TRAINED not in set(pairs.networks):
        return text
    other = _difference(pairs, a, b, TRAINED)
    left = int(
        pairs[pairs.networks == EVERY].experiments.iloc[0] - pairs[pairs.networks == TRAINED].experiments.iloc[0]
    )
    return f"{text}; without {left} that failed to train {format_estimate(other.value, other.low, other.high)}"


def _whole_order(pairs: pd.DataFrame, claims: list[Claim]) -> Claim:
    verdicts = [claim.verdict for claim in claims]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    estimates = [_difference(pairs, a, b, p="p") for a, b in published.PAIRS]
    evidence = tuple(
        Evidence(estimate, "above", margin=published.MARGIN, name=f"{LABELS[a]} − {LABELS[b]}")
        for estimate, (a, b) in zip(estimates, published.PAIRS, strict=True)
    )
    last = evidence[deciding(evidence)]
    return Claim(
        "order",
        "{averaged variance, averaged entropy} > Bhattacharyya > Kullback-Leibler",
        "holds in all five pairs",
        f"of the five pairs: {counts}",
        decide_all(estimates, "above", margin=published.MARGIN),
        "all five pairs at .05 support it; one of them the other way round at .01 contradicts it",
        estimand=_ESTIMAND,
        margin=_MARGIN,
        evidence=evidence,
        brief=f"of the five pairs {counts}; {last.name} "
        + format_estimate(last.estimate.value, last.estimate.low, last.estimate.high),
    )


def _same(posteriors: pd.DataFrame, pairs: pd.DataFrame) -> Claim:
    count = int(posteriors.significant.sum())
    tied = posteriors[(posteriors.better == FOUR[0]) & (posteriors.than == FOUR[1])].iloc[0]
    estimate = _difference(pairs, FOUR[0], FOUR[1])
    beats = format_estimate(tied["mean"], tied.low, tied.high, 3)
    return Claim(
        "variance = entropy",
        "Averaged variance and averaged entropy do not differ",
        "10 of 12 ordered pairs significant: all but these two",
        f"{_words(pairs, FOUR[0], FOUR[1])}; by posteriors, which decide nothing, {count} of {len(posteriors)} "
        f"significant, variance beats entropy with probability {beats}",
        decide(estimate, "same", margin=published.MARGIN),
        f"{estimate.method}; supported by an interval within the margin, contradicted by one wholly beyond it",
        estimand=_ESTIMAND,
        margin=_MARGIN,
        evidence=(Evidence(estimate, "same", margin=published.MARGIN),),
    )


def _cheapest(timings: Mapping[str, Sequence[float]]) -> Claim:
    ratios = cost_ratios(timings)
    # Geometric means, so that their ratios are the shares beside them.
    known = {name: np.asarray(timings[name], float) for name in FOUR if name in timings and len(timings[name])}
    times = ", ".join(f"{LABELS[name]} {1e3 * np.exp(np.log(s).mean()):.1f} ms" for name, s in known.items())
    of = "; ".join(f"of {LABELS[name]} {format_estimate(e.value, e.low, e.high, 2)}" for name, e in ratios.items())
    return Claim(
        "cost",
        "Averaged variance is the cheapest of the four, which is why it is recommended",
        "said, not measured",
        f"{times}; its share {of}" if ratios else "timed too seldom",
        cost_verdict(ratios),
        "time of one measure with its statistics for one case, its passes given; all three shares at .05, one the "
        "other way round at .05/3 contradicts; " + (next(iter(ratios.values())).method if ratios else "no rounds"),
        estimand="ratio of seconds on this machine, over rounds",
        margin=f"± {100 * published.COST_MARGIN:.0f} %",
        brief=_cost_brief(ratios),
    )


def _cost_brief(ratios: Mapping[str, Estimate]) -> str:
    evidence = [Evidence(e, "below", 1.0, published.COST_MARGIN, name) for name, e in ratios.items()]
    if not evidence:
        return ""
    last = evidence[deciding(evidence)]
    words = format_estimate(last.estimate.value, last.estimate.low, last.estimate.high, 2)
    return f"its time over that of {LABELS[last.name]} {words}"


def cost_ratios(timings: Mapping[str, Sequence[float]]) -> dict[str, Estimate]:
    """Seconds of averaged variance over those of each of the others, paired by round, on logarithms."""
    own = np.asarray(timings.get(FOUR[0], ()), float)
    if len(own) < published.LEAST_ROUNDS or any(name not in timings for name in FOUR):
        return {}
    found = {name: log_over_networks((own / np.asarray(timings[name], float)).tolist()) for name in FOUR[1:]}
    return {name: replace(e, method=e.method.replace("networks", "rounds")) for name, e in found.items()}


def cost_verdict(ratios: Mapping[str, Estimate]) -> Verdict:
    """Whether all shares are below 1; within the margin around 1 they are alike."""
    return (
        decide_all(list(ratios.values()), "below", bound=1.0, margin=published.COST_MARGIN) if ratios else "undecided"
    )
