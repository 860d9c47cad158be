"""Claims about trends: the penalty by how much is dropped, in how many layers, how evenly, and where in the layer.

Owns the claims about p_mean, n_layers, skewness and kurtosis, and position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from dropscope.analysis import Estimate, effect_over_networks
from dropscope.report import Claim, Direction, Evidence, Verdict, all_of, decide_all
from dropscope.studies.where_to_drop.claims.verdicts import (
    IDENTITY,
    MARGIN_WORDS,
    WORDS,
    by_test,
    effect_evidence,
    enough,
    estimate_of,
    moves,
    share,
    share_evidence,
    what_decided,
    with_interval,
)
from dropscope.studies.where_to_drop.published import MARGIN, NO_IMPACT, published_for
from dropscope.studies.where_to_drop.rows import BOTH, StudyRows
from dropscope.studies.where_to_drop.tables import BEFORE_AFTER, INPUT_AFTER, find_line


def p_mean_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    """Figure 7: rising for the entropies, falling for variation_predicted; and the two together."""
    wanted = {"predictive_entropy": "rises", "expected_entropy": "rises", "variation_predicted": "falls"}
    published = published_for(study.task)
    numbers = {} if published is None else published.p_mean
    score, claims = "rearrangement_penalty", {}
    for measure, way in wanted.items():
        rate = find_line(effects, "p_mean", "slope", measure, score)
        rank = find_line(effects, "p_mean", "rank correlation", measure, score)
        if rate is None or rank is None:
            continue
        ends = numbers.get(measure)
        gap = _ends_apart(study, measure, score)
        direction: Direction = "above" if way == "rises" else "below"
        verdict = decide_all([estimate_of(rate, "p"), enough(gap)], direction)
        evidence = (effect_evidence(rate, direction, "slope"), Evidence(enough(gap), direction, name="end to end"))
        texts = [f"slope {with_interval(rate)}", f"end to end {with_interval(gap)}"]
        claims[measure] = Claim(
            f"p_mean-{measure}",
            f"The {WORDS[score]} of {measure} {way} with p_mean",
            f"{way}, {ends[0]:g} → {ends[1]:g}; no test" if ends else f"{way} (figure 7); no test",
            f"slope per unit of p_mean {with_interval(rate)}; {_turn(rate['value'], gap.value)}from the least to the "
            f"greatest p_mean {with_interval(gap)}; rank correlation over placements within a network "
            f"{with_interval(rank)}; means at p_mean {_steps(study, measure, score)}",
            verdict,
            f"slope and ends must agree, for a curve that turns has neither; {by_test(rate)}",
            estimand="slope of the mean penalty on p_mean, and its change from end to end, over networks trained alike",
            evidence=evidence,
            brief=_turn(rate["value"], gap.value) + what_decided(texts, evidence),
        )
    first, second = (claims.get(name) for name in ("predictive_entropy", "variation_predicted"))
    if first is None or second is None:
        return list(claims.values())
    together = Claim(
        "p_mean-opposite",
        "p_mean acts in opposite directions on predictive_entropy and variation_predicted",
        "predictive_entropy rises, variation_predicted falls",
        f"predictive_entropy rises: {first.verdict}; variation_predicted falls: {second.verdict}",
        all_of([first.verdict, second.verdict]),
        "both slopes and both ends, as above",
        estimand="the two claims above together",
        evidence=tuple(
            replace(one, name=f"{measure}, {one.name}")
            for measure, claim in (("predictive_entropy", first), ("variation_predicted", second))
            for one in claim.evidence
        ),
        brief=f"predictive_entropy rises: {first.verdict}, variation_predicted falls: {second.verdict}",
    )
    return [*claims.values(), together]


def _turn(slope: float, gap: float) -> str:
    """What a curve does whose slope and ends disagree."""
    if slope * gap >= 0:
        return ""
    return "rises, then falls: " if gap > 0 else "falls, then rises: "


def _steps(study: StudyRows, measure: str, score: str) -> str:
    """Means over networks at both ends and over fifths of p_mean: a slope hides a curve that turns."""
    part = study.of(measure)
    edges = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    place = np.digitize(part["p_mean"], edges[1:-1], right=True)
    means = part.groupby(place)[score].mean()
    named = [f"{low:g}–{high:g}" for low, high in pairwise(edges)]
    least, greatest = (
        f"{end:g}: {part[score][part['p_mean'] == end].mean():.3g}"
        for end in (part["p_mean"].min(), part["p_mean"].max())
    )
    between = ", ".join(f"{named[int(at)]}: {value:.3g}" for at, value in means.items())
    return f"{least}, {between}, {greatest}"


def layer_count_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    claims = []
    for measure in study.measures:
        lines = [find_line(effects, "n_layers", "slope", measure, score) for score in BOTH]
        known = [one for one in lines if one is not None and one["value"] == one["value"]]
        if not known:
            continue
        texts = [f"{WORDS[one['score']]} per further layer {with_interval(one)}" for one in known]
        evidence = tuple(
            share_evidence(_from_one_to_all(study, one), _level(study, one), WORDS[one["score"]]) for one in known
        )
        claims.append(
            Claim(
                f"n_layers-{measure}",
                f"The number of masked layers has no impact on the penalty ({measure})",
                "no significant impact; figure 9, expected entropy: means with bands; no number, no test",
                "; ".join(texts),
                _without_effect([share(_from_one_to_all(study, one), _level(study, one)) for one in known]),
                f"t over networks of the slope times {len(study.layers) - 1}; {_margin_words()}; {by_test(known[0])}",
                brief=what_decided(texts, evidence),
                evidence=evidence,
                margin=MARGIN_WORDS,
                quotation=NO_IMPACT,
                estimand="change of the mean penalty from one masked layer to all, by its slope, over networks",
            )
        )
    return claims


def shape_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    """Figures 10 and 11: BALD's penalty moves with the skewness and the kurtosis of the rates over the layers."""
    measure, score, claims = "bald", "rearrangement_penalty", []
    for figure, quantity in ((10, "skewness"), (11, "kurtosis")):
        line = find_line(effects, quantity, "slope", measure, score)
        rank = find_line(effects, quantity, "rank correlation", measure, score)
        if line is None or rank is None or math.isnan(line["value"]):
            continue
        values = study.of(measure)[quantity]
        level, range_ = _level(study, line), float(values.max() - values.min())
        change = _times(estimate_of(line, "p"), range_)
        claims.append(
            Claim(
                f"{quantity}-{measure}",
                f"The {WORDS[score]} of {measure} moves with the {quantity} of the rates over the layers",
                f"figure {figure}; no number, no test",
                f"from the least {quantity} ({values.min():.3g}) to the greatest ({values.max():.3g}) "
                f"{with_interval(change)}, of a mean of {level:.3g}; rank correlation over placements within a network "
                f"{with_interval(rank)}",
                moves(share(change, level), estimate_of(rank, "p")),
                f"slope and rank correlation must agree, in either direction; {by_test(line)}",
                estimand=f"change of the mean penalty over the range of {quantity}, by its slope, over networks; "
                "placements of one layer have none and are left out",
                margin=MARGIN_WORDS,
            )
        )
    return claims


def _ends_apart(study: StudyRows, measure: str, score: str) -> Estimate:
    """Mean score at the largest p_mean of the grid minus that at the smallest, over networks."""
    part = study.of(measure)
    first, last = part["p_mean"].min(), part["p_mean"].max()

    def apart(own: pd.DataFrame) -> float:
        return float(own[score][own["p_mean"] == last].mean() - own[score][own["p_mean"] == first].mean())

    return effect_over_networks(part, apart)


def _from_one_to_all(study: StudyRows, line: pd.Series) -> Estimate:
    """A slope on n_layers as the change from one masked layer to all of them."""
    return _times(estimate_of(line), len(study.layers) - 1)


def _times(e: Estimate, factor: float) -> Estimate:
    return Estimate(factor * e.value, factor * e.low, factor * e.high, e.p, e.n, e.method)


def _level(study: StudyRows, line: pd.Series) -> float:
    return float(study.of(line["measure"])[line["score"]].mean())


def _without_effect(shares: Sequence[Estimate]) -> Verdict:
    return decide_all(shares, "same", margin=MARGIN)


def position_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    claims = []
    both_positions = effects[effects["effect"] == BEFORE_AFTER]
    if len(both_positions):
        largest = float(both_positions["largest"].max())
        same = largest == 0
        shares = [share(estimate_of(one), _mean(study, one)) for _, one in both_positions.iterrows()]
        claims.append(
            Claim(
                "position-before-after",
                "Masking before or after the activation makes no difference",
                "not statistically significant; no test",
                f"largest difference of any score, measure and network: {largest:.3g}",
                "supported" if same else _without_effect(shares),
                f"{IDENTITY}: a non-negative mask commutes with a positively homogeneous activation (ReLU, LeakyReLU), "
                "so the rows are equal to the last digit"
                if same
                else _margin_words(),
                quotation=NO_IMPACT,
                estimand="paired difference of every score over the grid",
                margin=MARGIN_WORDS,
            )
        )
    if study.inputs is not None and not (effects["effect"] == INPUT_AFTER).any():
        claims.append(
            Claim(
                "position-input",
                "Masking the inputs of the layers instead of their activations makes no difference",
                "positions: not statistically significant (the authors' code masks inputs); no test",
                "not measured",
                "undecided",
                "the two grids have no rates of all layers in common",
                quotation=NO_IMPACT,
            )
        )
    for measure in study.measures:
        lines = [find_line(effects, INPUT_AFTER, "paired difference", measure, score) for score in BOTH]
        known = [one for one in lines if one is not None]
        if not known:
            continue
        texts = [f"{WORDS[one['score']]} {with_interval(one)}{_of_the_mean(one['relative'])}" for one in known]
        text = "; ".join(f"{one}, {int(line['pairs'])} pairs" for one, line in zip(texts, known, strict=True))
        evidence = tuple(share_evidence(estimate_of(one), _mean(study, one), WORDS[one["score"]]) for one in known)
        claims.append(
            Claim(
                f"position-input-{measure}",
                f"Masking the inputs of the layers instead of their activations makes no difference ({measure})",
                "positions: not statistically significant (the authors' code masks inputs); no test",
                f"on the inputs − after the activation: {text}",
                _without_effect([share(estimate_of(one), _mean(study, one)) for one in known]),
                f"paired by the rates of all layers; {_margin_words()}; {by_test(known[0])}",
                quotation=NO_IMPACT,
                estimand="paired difference of both penalties over the grid, over networks trained alike",
                margin=MARGIN_WORDS,
                evidence=evidence,
                brief=what_decided(texts, evidence),
            )
        )
    return claims


def _margin_words() -> str:
    return f"supported by an interval within {MARGIN_WORDS}, contradicted by one wholly beyond"


def _mean(study: StudyRows, one: pd.Series) -> float:
    """Of the rows that were compared; of all where nothing differs."""
    relative = float(one["relative"])
    return float(one["value"]) / relative if abs(relative) > 0 else float(study.of(one["measure"])[one["score"]].mean())


def _of_the_mean(relative: float) -> str:
    return "" if math.isnan(relative) else f", {100 * relative:+.0f} % of the mean"  # of a mean of 0 nothing is a share
