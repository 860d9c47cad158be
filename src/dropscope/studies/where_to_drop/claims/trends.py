"""Claims about trends: the penalty by how much is dropped, in how many layers, and where in the layer.

Owns the claims about p_mean, n_layers and position.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd

from dropscope.report import Claim
from dropscope.studies.where_to_drop.claims.verdicts import (
    MARGIN,
    UNDECIDED,
    WORDS,
    all_of,
    by_test,
    decide,
    moved,
    with_interval,
    without_effect,
)
from dropscope.studies.where_to_drop.published import published_for
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
        verdict = decide(rate, above=0) if way == "rises" else decide(rate, below=0)
        claims[measure] = Claim(
            f"p_mean-{measure}",
            f"The {WORDS[score]} of {measure} {way} with p_mean",
            f"{way}, {ends[0]:g} → {ends[1]:g}; no test" if ends else f"{way} (figure 7); no test",
            f"slope per unit of p_mean {with_interval(rate)}; rank correlation over placements within a network "
            f"{with_interval(rank)}; mean by p_mean: {_steps(study, measure, score)}",
            verdict,
            by_test(rate),
        )
    first, second = (claims.get(name) for name in ("predictive_entropy", "variation_predicted"))
    if first is None or second is None:
        return list(claims.values())
    both = Claim(
        "p_mean-opposite",
        "p_mean acts in opposite directions on predictive_entropy and variation_predicted",
        "predictive_entropy rises, variation_predicted falls",
        f"predictive_entropy rises: {first.verdict}; variation_predicted falls: {second.verdict}",
        all_of([first.verdict, second.verdict]),
        "both slopes, as above",
    )
    return [*claims.values(), both]


def _steps(study: StudyRows, measure: str, score: str) -> str:
    """Means over networks at a few values of p_mean: a slope hides a curve that turns."""
    part = study.of(measure)
    edges = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    place = np.digitize(part["p_mean"], edges[1:-1], right=True)
    means = part.groupby(place)[score].mean()
    named = [f"{low:g}–{high:g}" for low, high in pairwise(edges)]
    return ", ".join(f"{named[int(at)]}: {value:.3g}" for at, value in means.items())


def layer_count_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    claims = []
    for measure in study.measures:
        lines = [find_line(effects, "n_layers", "slope", measure, score) for score in BOTH]
        known = [one for one in lines if one is not None and one["value"] == one["value"]]
        if not known:
            continue
        text = "; ".join(f"{WORDS[one['score']]} per further layer {with_interval(one)}" for one in known)
        claims.append(
            Claim(
                f"n_layers-{measure}",
                f"The penalty changes with the number of masked layers ({measure})",
                "figure 9, expected entropy: means with bands; no number, no test",
                text,
                all_of([moved(one) for one in known]),
                f"slopes on n_layers, an effect in either direction counts; {by_test(known[0])}",
            )
        )
    return claims


def position_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    claims = []
    both_positions = effects[effects["effect"] == BEFORE_AFTER]
    if len(both_positions):
        largest = float(both_positions["largest"].max())
        same = largest == 0
        verdicts = [without_effect(one, _mean(study, one)) for _, one in both_positions.iterrows()]
        claims.append(
            Claim(
                "position-before-after",
                "Masking before or after the activation makes no difference",
                "not statistically significant; no test",
                f"largest difference of any score, measure and network: {largest:.3g}",
                "holds" if same else all_of(verdicts),
                "an identity: a non-negative mask commutes with a positively homogeneous activation (ReLU, LeakyReLU), "
                "so the rows are equal to the last digit"
                if same
                else _margin_words(),
            )
        )
    if study.inputs is not None and not (effects["effect"] == INPUT_AFTER).any():
        claims.append(
            Claim(
                "position-input",
                "Masking the inputs of the layers instead of their activations makes no difference",
                "positions: not statistically significant (the authors' code masks inputs); no test",
                "not measured",
                UNDECIDED,
                "the two grids have no rates of all layers in common",
            )
        )
    for measure in study.measures:
        lines = [find_line(effects, INPUT_AFTER, "paired difference", measure, score) for score in BOTH]
        known = [one for one in lines if one is not None]
        if not known:
            continue
        text = "; ".join(
            f"{WORDS[one['score']]} {with_interval(one)}{_of_the_mean(one['relative'])}, {int(one['pairs'])} pairs"
            for one in known
        )
        claims.append(
            Claim(
                f"position-input-{measure}",
                f"Masking the inputs of the layers instead of their activations makes no difference ({measure})",
                "positions: not statistically significant (the authors' code masks inputs); no test",
                f"on the inputs − after the activation: {text}",
                all_of([without_effect(one, _mean(study, one)) for one in known]),
                f"paired by the rates of all layers; {_margin_words()}; {by_test(known[0])}",
            )
        )
    return claims


def _margin_words() -> str:
    return (
        f"stands if the interval over networks lies within ± {100 * MARGIN:.0f} % of the mean score, falls if it "
        "excludes 0 and reaches beyond"
    )


def _mean(study: StudyRows, one: pd.Series) -> float:
    """Of the rows that were compared; of all where nothing differs."""
    relative = float(one["relative"])
    return float(one["value"]) / relative if abs(relative) > 0 else float(study.of(one["measure"])[one["score"]].mean())


def _of_the_mean(relative: float) -> str:
    return "" if math.isnan(relative) else f", {100 * relative:+.0f} % of the mean"  # of a mean of 0 nothing is a share
