"""Claims of the paper, and whether they stand here.

Owns the rule of each. Experiments share test patients, so pairs of measures are decided over both at once; the paper's
Beta posterior, which counts experiments as independent, stands beside as a description.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from dropscope.analysis import Estimate
from dropscope.report import Claim, Evidence, Verdict, decide, decide_all, format_estimate
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.evaluation import FOUR
from dropscope.studies.segmentation_measures.rows import LABELS
from dropscope.studies.segmentation_measures.tables import EVERY, TRAINED

_ESTIMAND = "difference of mean AUC-PR, every experiment alike, over experiments and test patients"
_MARGIN = f"± {published.MARGIN:g} of AUC-PR"


def judge_claims(
    posteriors: pd.DataFrame, pairs: pd.DataFrame, measures: pd.DataFrame, best: dict[str, Any]
) -> list[Claim]:
    """`posteriors`, `pairs` and `measures` are the tables of `tables.py`; `best` has experiment, dice, cases."""
    claims = [_pair(posteriors, pairs, a, b) for a, b in published.PAIRS]
    return [*claims, _whole_order(pairs, claims), _same(posteriors, pairs), _cheapest(measures), _dice(best)]


def _pair(posteriors: pd.DataFrame, pairs: pd.DataFrame, a: str, b: str) -> Claim:
    p = posteriors[(posteriors.better == a) & (posteriors.than == b)].iloc[0]
    estimate = _difference(pairs, a, b)
    return Claim(
        f"{a} > {b}",
        f"{LABELS[a].capitalize()} finds misclassified voxels better than {LABELS[b]}",
        "significant over 144 experiments",
        f"{_words(pairs, a, b)}; better in {p.wins:g} of {p.experiments} experiments, posterior probability "
        f"{format_estimate(p['mean'], p.low, p.high, 3)} (description)",
        decide(estimate, "above", margin=published.MARGIN),
        estimate.method + ("" if math.isnan(estimate.p) else f", Holm over the six pairs (p = {estimate.p:.2g})"),
        estimand=_ESTIMAND,
        margin=_MARGIN,
        evidence=(Evidence(estimate, "above", margin=published.MARGIN, family="pairs"),),
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
    return Claim(
        "order",
        "{averaged variance, averaged entropy} > Bhattacharyya > Kullback-Leibler",
        "holds in all five pairs",
        f"of the five pairs: {counts}",
        decide_all(estimates, "above", margin=published.MARGIN),
        "all five pairs at .05 support it; one of them the other way round at .01 contradicts it",
        estimand=_ESTIMAND,
        margin=_MARGIN,
        evidence=tuple(
            Evidence(estimate, "above", margin=published.MARGIN, name=f"{LABELS[a]} − {LABELS[b]}")
            for estimate, (a, b) in zip(estimates, published.PAIRS, strict=True)
        ),
    )


def _same(posteriors: pd.DataFrame, pairs: pd.DataFrame) -> Claim:
    count = int(posteriors.significant.sum())
    tied = posteriors[(posteriors.better == FOUR[0]) & (posteriors.than == FOUR[1])].iloc[0]
    estimate = _difference(pairs, FOUR[0], FOUR[1])
    return Claim(
        "variance = entropy",
        "Averaged variance and averaged entropy do not differ",
        "10 of 12 ordered pairs significant: all but these two",
        f"{_words(pairs, FOUR[0], FOUR[1])}; by posteriors (description) {count} of {len(posteriors)} significant, "
        f"variance beats entropy with probability {format_estimate(tied['mean'], tied.low, tied.high, 3)}",
        decide(estimate, "same", margin=published.MARGIN),
        f"{estimate.method}; supported by an interval within the margin, contradicted by one wholly beyond it",
        estimand=_ESTIMAND,
        margin=_MARGIN,
        evidence=(Evidence(estimate, "same", margin=published.MARGIN),),
    )


def _cheapest(measures: pd.DataFrame) -> Claim:
    column = "seconds per case ↓"
    timed = measures[measures.measure.isin([LABELS[name] for name in FOUR])].set_index("measure")[column]
    own = float(timed[LABELS["averaged_variance"]])
    share = own / float(timed.drop(LABELS["averaged_variance"]).min())
    verdict: Verdict = "equivalent"
    if share < 1 - published.COST_MARGIN:
        verdict = "supported"
    elif share > 1 + published.COST_MARGIN:
        verdict = "contradicted"
    return Claim(
        "cost",
        "Averaged variance is the cheapest of the four, which is why it is recommended",
        "said, not measured",
        ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in timed.items()),
        verdict if share == share else "undecided",
        "time of one measure with its statistics for one case, its passes given; the faster of two, so no interval",
        estimand="seconds on this machine, against the cheapest of the others",
        margin=f"± {100 * published.COST_MARGIN:.0f} %",
    )


def _dice(best: dict[str, Any]) -> Claim:
    values = ", ".join(f"{name} {value:.3f}" for name, value in best["dice"].items())
    return Claim(
        "Dice",
        "The network segments well enough for its errors to be worth finding",
        published.DICE,
        f"{best['experiment']} (best validation loss): {values}; mean foreground {best['foreground']:.3f} "
        f"over {best['cases']} test cases",
        "undecided",
        "other images than the paper's, which cannot decide its numbers: they stand side by side",
        estimand="mean Dice of one network over test cases",
    )
