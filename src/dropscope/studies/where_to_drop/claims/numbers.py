"""Claims about published numbers: accuracy, the ends of the p_mean curves, single layers, table 3.

Owns these comparisons. A number stands when our interval lies within a factor of two of it (`verdicts.near`), and only
a run of the paper's size can decide one: another n, another budget or an untrained network measures something else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from dropscope.analysis import Estimate, over_networks
from dropscope.report import Claim, Evidence, Verdict, decide, decide_all, format_estimate
from dropscope.studies.where_to_drop.claims.verdicts import (
    MARGIN_WORDS,
    enough,
    measured,
    near,
    near_evidence,
    of_networks,
    share,
    what_decided,
    with_interval,
)
from dropscope.studies.where_to_drop.curves import BATCH, batch_scores, curve_pair, paired_bootstrap, table_three
from dropscope.studies.where_to_drop.published import FACTOR, MARGIN, PENULTIMATE, Number, Published, published_for
from dropscope.studies.where_to_drop.rows import StudyRows
from dropscope.studies.where_to_drop.tables import wilson

_WORDS = {
    "isotonic_penalty": "isotonic",
    "rearrangement_penalty": "rearrangement",
    "running_minimum_penalty": "running minimum",
}
_ENDS = (0.1, 0.9)  # of the paper's grid of p_mean
_FEW = 40  # batches below which a 95 % range of batches is not known


def number_claims(study: StudyRows, smaller: Sequence[str] = ()) -> list[Claim]:
    """`smaller`: ways in which the run is not the paper's, any of which leaves its numbers undecided."""
    claims = _number_claims(study)
    if not smaller:
        return claims
    why = "not decided, for the run is not of the paper's size (see the end of the summary)"
    return [
        claim if claim.arithmetic or claim.name.startswith("table-3-order")
        else replace(claim, verdict="undecided", how=f"{claim.how}; {why}", evidence=())
        for claim in claims
    ]  # fmt: skip


def _number_claims(study: StudyRows) -> list[Claim]:
    published = published_for(study.task)
    numbers = [] if published is None else [_accuracy(study, published), *_ends(study, published)]
    singles = [] if published is None else [claim for n in published.single if (claim := _single(study, n)) is not None]
    return [*numbers, *singles, *_table_three(study, published)]


def _accuracy(study: StudyRows, published: Published) -> Claim:
    least, most = published.accuracy_range
    estimate = accuracy_estimate([result.accuracy for result in study.results], study.examples)
    each = ", ".join(f"{100 * result.accuracy:.2f}" for result in study.results)
    return Claim(
        "accuracy",
        f"The network, trained as described, has a test accuracy of {100 * least:.4g} to {100 * most:.4g} %",
        f"{100 * published.accuracy:.2f} %",
        f"{format_estimate(100 * estimate.value, 100 * estimate.low, 100 * estimate.high, 2, ' %')}; each: {each}",
        decide(
            estimate,
            "same",
            bound=published.accuracy,
            margin=(published.accuracy - least, most - published.accuracy),
        ),
        estimate.method,
        estimand="test accuracy of one plain pass, over networks trained alike and test images",
        margin=f"{100 * least:.4g} to {100 * most:.4g} %",
    )


def accuracy_estimate(accuracies: Sequence[float], examples: int) -> Estimate:
    """Mean accuracy of networks that share their test examples: neither interval alone covers both kinds of chance, so
    it is the wider at each end."""
    estimate = over_networks(accuracies)
    low, high = wilson(estimate.value, examples)
    how = f"Wilson's interval over {examples:,} test examples"
    if not math.isnan(estimate.low):
        low, high = min(low, estimate.low), max(high, estimate.high)
        how = f"the wider of {how} and the {estimate.method}, at each end"
    return replace(estimate, low=low, high=high, method=how)


def _ends(study: StudyRows, published: Published) -> list[Claim]:
    """The published penalties at the two ends of p_mean."""
    claims = []
    for measure, ends in published.p_mean.items():
        part = study.of(measure)
        if part.empty:
            continue
        for end, value in zip(_ENDS, ends, strict=True):
            rows = part[part["p_mean"] == end]
            if rows.empty:
                claims.append(_absent(measure, end, value))
                continue
            ours = of_networks(rows, lambda own: float(own["rearrangement_penalty"].mean()))
            other = of_networks(rows, lambda own: float(own["running_minimum_penalty"].mean()))
            claims.append(
                Claim(
                    f"p_mean-{measure}-{end:g}",
                    f"The rearrangement penalty of {measure} at p_mean = {end:g} is {value:g}",
                    f"{value:g} at this end of figure 7",
                    f"{with_interval(ours)}; as a running minimum {with_interval(other)}",
                    near(ours, value),
                    f"{measured(ours)}; {_met_words(study)}",
                    estimand="mean rearrangement penalty of the placements at this p_mean, over networks trained alike",
                    margin=f"a factor of {FACTOR:g}",
                    evidence=(near_evidence(ours, value),),
                    brief=f"{with_interval(ours)}, published {value:g}",
                )
            )
    return claims


def _absent(measure: str, end: float, value: float) -> Claim:
    return Claim(
        f"p_mean-{measure}-{end:g}",
        f"The rearrangement penalty of {measure} at p_mean = {end:g} is {value:g}",
        f"{value:g} at this end of figure 7",
        "not measured",
        "undecided",
        f"no placement of this grid has p_mean = {end:g}",
    )


def _single(study: StudyRows, number: Number) -> Claim | None:
    part = study.rows[study.only(number.layer) & (study.rows["measure"] == number.measure)]
    if part.empty:
        return None
    ours, other = (_of(part, number.statistic, f"{name}_penalty") for name in ("rearrangement", "running_minimum"))
    return Claim(
        f"single-{number.layer}-{number.measure}",
        f"The {number.statistic} rearrangement penalty of {number.measure} with {number.layer} masked alone is "
        f"{number.value:g}",
        f"{number.value:g}",
        f"{number.statistic} over rates: {with_interval(ours)}, as a running minimum {with_interval(other)}",
        near(ours, number.value),
        f"{measured(ours)}; {_met_words(study)}",
        quotation=PENULTIMATE if number.statistic == "minimum" else "",
        estimand=f"{number.statistic} over rates of the penalty of {number.measure}, over networks trained alike",
        margin=f"a factor of {FACTOR:g}",
        evidence=(near_evidence(ours, number.value),),
        brief=f"{with_interval(ours)}, published {number.value:g}",
    )


def _met_words(study: StudyRows) -> str:
    return f"met within a factor of {FACTOR:g}; n = {study.examples:,} here, and a penalty shrinks with n"


def _of(part: pd.DataFrame, statistic: str, score: str) -> Estimate:
    return of_networks(part, lambda own: float(own[score].max() if statistic == "peak" else own[score].min()))


def _table_three(study: StudyRows, published: Published | None) -> list[Claim]:
    pair, batches = curve_pair(study), batch_scores(study)
    if pair is None or batches.empty:
        return []
    table = table_three(study, batches)
    claims = [_order(study, batches, pair, n) for n in table["n"].unique()]
    if published is None or not published.table_three:
        return claims
    for placement in pair:
        lines = table[(table["placement"] == placement) & table["published"].notna()]
        claims += [_cell(line) for line in lines.to_dict("records")]
    row = published.table_three[1]
    claims.append(
        Claim(
            "table-3-bound",
            "The rearrangement penalties of table 3 are those of sorted curves",
            f"{row.rearrangement:g} beside an isotonic penalty of {row.isotonic:g}",
            f"sorting can at most double the isotonic penalty; published ratios {_ratios(published)}, largest of ours "
            f"{float((study.rows['rearrangement_penalty'] / study.rows['isotonic_penalty']).max()):.3f}",
            "contradicted",
            "rearrangement ≤ 2 × isotonic for every curve",
            arithmetic=True,
        )
    )
    return claims


def _order(study: StudyRows, batches: pd.DataFrame, pair: tuple[str, str], n: int) -> Claim:
    """Whether the first placement of the pair has the lower penalties, at one n."""
    estimates: list[Estimate] = []
    texts = []
    part, how = batches[batches["n"] == n], ""
    for score in ("isotonic_penalty", "rearrangement_penalty"):
        means = part.groupby(["network", "placement"], sort=False)[score].mean().unstack()
        estimate = over_networks((means[pair[0]] - means[pair[1]]).tolist())
        value, low, high, how = estimate.value, estimate.low, estimate.high, measured(estimate)
        if study.networks == 1 and part["batch"].nunique() == 1:
            value, low, high = paired_bootstrap(study, 0, score)
            how = (
                "paired bootstrap over the test examples of one network, its bias taken off: says nothing about other "
                "networks"
            )
        estimates.append(share(enough(estimate), float(means.to_numpy().mean())))
        texts.append(f"{_WORDS[score]} {with_interval(replace(estimate, value=value, low=low, high=high))}")
    batch = f"batches of {n}" if part["batch"].nunique() > 1 else f"all {n:,} examples"
    evidence = tuple(
        Evidence(e, "below", margin=MARGIN, name=name) for e, name in zip(estimates, _WORDS.values(), strict=False)
    )
    return Claim(
        f"table-3-order-{n}",
        f"{pair[0]} has lower penalties of expected entropy than {pair[1]} ({batch})",
        "table 3: it has",
        f"difference: {'; '.join(texts)}",
        decide_all(estimates, "below", margin=MARGIN),
        how,
        estimand="difference of both penalties of expected entropy, over networks trained alike",
        margin=MARGIN_WORDS,
        evidence=evidence,
        brief=f"difference: {what_decided(texts, evidence)}",
    )


def _cell(line: dict[str, Any]) -> Claim:
    """One published cell beside ours: by the mean over networks, or at n = 128 by the range of single batches."""
    batch, published = line["n"] == BATCH and line["batches"] > 1, line["published"]
    over = f"t interval of the logarithm over {int(line['networks'])} networks"
    ours = Estimate(line["ours"], line["low"], line["high"], float("nan"), int(line["networks"]), over)
    text = f"{with_interval(ours)}; random {line['random']:.3g}, monotone {line['monotone']:.3g} at this n"
    how, verdict, short = measured(ours), near(ours, published), with_interval(ours)
    if batch:
        ends, count = (line["batch_low"], line["batch_high"]), int(line["batches"] * line["networks"])
        how = f"the 2.5 to 97.5 % range of {count} batches"
        short = f"{ends[0]:.3g} to {ends[1]:.3g}"
        text = f"single batches {short}, their mean {text}"
        verdict = of_batches(ours, ends, count, published)
    how = f"{how}; met within a factor of {FACTOR:g}"
    place = f"{line['placement']}, {_WORDS[line['score']]}, n = {line['n']:,}"
    return Claim(
        f"table-3-{line['placement']}-{line['score']}-{line['n']}",
        f"Table 3, expected entropy, {place}: {published:g}",
        f"{published:g}" + (" (printed as rearrangement)" if line["score"] == "running_minimum_penalty" else ""),
        text,
        verdict,
        how,
        estimand="penalty of expected entropy under one placement, over networks trained alike"
        + (" and batches of 128" if batch else ""),
        margin=f"a factor of {FACTOR:g}",
        brief=f"{short}, published {published:g}",
    )


def of_batches(ours: Estimate, ends: tuple[float, float], batches: int, published: float) -> Verdict:
    """Whether a published cell can be that of one batch: by their range, where there are enough of them to know it."""
    return near(replace(ours, low=ends[0], high=ends[1]), published) if batches >= _FEW else "undecided"


def _ratios(published: Published) -> str:
    return " and ".join(f"{row.rearrangement / row.isotonic:.2f}" for row in published.table_three)
