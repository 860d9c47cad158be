"""Claims of the paper, and whether they hold here: each is decided by an interval or not at all."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dropscope.report import Claim, Verdict, format_estimate, verdict_of_interval
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.evaluation import FOUR
from dropscope.studies.segmentation_measures.rows import LABELS


def judge_claims(
    posteriors: pd.DataFrame, bootstrap: pd.DataFrame, measures: pd.DataFrame, best: dict[str, Any]
) -> list[Claim]:
    """`posteriors`, `bootstrap` and `measures` are the tables of `tables.py`; `best` has experiment, dice, cases."""
    claims = [_pair(posteriors, bootstrap, a, b) for a, b in published.PAIRS]
    claims += [_whole_order(claims), _count(posteriors), _cheapest(measures), _dice(best)]
    return claims


def _pair(posteriors: pd.DataFrame, bootstrap: pd.DataFrame, a: str, b: str) -> Claim:
    p = posteriors[(posteriors.better == a) & (posteriors.than == b)].iloc[0]
    difference, low, high = _difference(bootstrap, a, b)
    by_patients = verdict_of_interval(low, high, above=0)
    ours = (
        f"better in {p.wins:g} of {p.experiments} experiments, "
        f"probability {format_estimate(p['mean'], p.low, p.high, 3)}; "
        f"mean AUC-PR differs by {format_estimate(difference, low, high)}, over patients: {by_patients}"
    )
    return Claim(
        f"{a} > {b}",
        f"{LABELS[a].capitalize()} finds misclassified voxels better than {LABELS[b]}",
        "significant over 144 experiments",
        ours,
        verdict_of_interval(p.low, p.high, above=0.5),
        "95 % interval of the Beta posterior over experiments, as in the paper; "
        "beside it a bootstrap over patients at 1 − .05/6",
    )


def _difference(bootstrap: pd.DataFrame, a: str, b: str) -> tuple[float, float, float]:
    every = bootstrap[bootstrap.centre == "all"]
    row = every[(every.better == a) & (every.than == b)]
    if len(row):
        return float(row.difference.iloc[0]), float(row.low.iloc[0]), float(row.high.iloc[0])
    row = every[(every.better == b) & (every.than == a)]
    return -float(row.difference.iloc[0]), -float(row.high.iloc[0]), -float(row.low.iloc[0])


def _whole_order(pairs: list[Claim]) -> Claim:
    verdicts = [claim.verdict for claim in pairs]
    whole: Verdict = (
        "does not hold"
        if "does not hold" in verdicts
        else "cannot be decided"
        if "cannot be decided" in verdicts
        else "holds"
    )
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    return Claim(
        "order",
        "{averaged variance, averaged entropy} > Bhattacharyya > Kullback-Leibler",
        "holds in all five pairs",
        f"of the five pairs: {counts}",
        whole,
        "all five posteriors together",
    )


def _count(posteriors: pd.DataFrame) -> Claim:
    count = int(posteriors.significant.sum())
    tied = posteriors[(posteriors.better == FOUR[0]) & (posteriors.than == FOUR[1])].iloc[0]
    same: Verdict = "does not hold" if bool(tied.significant) else "cannot be decided"
    return Claim(
        "variance = entropy",
        "Averaged variance and averaged entropy do not differ; the other 10 of 12 ordered pairs do",
        "10 of 12 ordered pairs significant",
        f"{count} of {len(posteriors)} significant; variance beats entropy with probability "
        f"{format_estimate(tied['mean'], tied.low, tied.high, 3)}",
        same,
        "an interval that contains one half shows no difference, and proves no equality",
    )


def _cheapest(measures: pd.DataFrame) -> Claim:
    column = "seconds per case ↓"
    timed = measures[measures.measure.isin([LABELS[name] for name in FOUR])].set_index("measure")[column]
    fastest = str(timed.idxmin())
    verdict: Verdict = "holds" if fastest == LABELS["averaged_variance"] else "does not hold"
    return Claim(
        "cost",
        "Averaged variance is the cheapest of the four, which is why it is recommended",
        "said, not measured",
        ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in timed.items()),
        verdict,
        "time of one measure with its statistics for one case, its passes given; the faster of two runs",
    )


def _dice(best: dict[str, Any]) -> Claim:
    values = ", ".join(f"{name} {value:.3f}" for name, value in best["dice"].items())
    return Claim(
        "Dice",
        "The network segments well enough for its errors to be worth finding",
        published.DICE,
        f"{best['experiment']} (best validation loss): {values}; mean foreground {best['foreground']:.3f} "
        f"over {best['cases']} test cases",
        "cannot be decided",
        "other images than the paper's: numbers stand side by side",
    )
