"""Does the penalty move with how much is dropped, in how many layers, and where in the layer the mask sits?

Owns the claims about p_mean, n_layers and position.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd

from dropscope.report import Claim
from dropscope.studies.where_to_drop.effects import BEFORE_AFTER, INPUT_AFTER, line
from dropscope.studies.where_to_drop.gathered import Gathered
from dropscope.studies.where_to_drop.published import published_for
from dropscope.studies.where_to_drop.verdicts import (
    BOTH,
    MARGIN,
    UNDECIDED,
    WORDS,
    all_of,
    by_test,
    moved,
    settled,
    told,
    without_effect,
)


def p_mean_claims(g: Gathered, table: pd.DataFrame) -> list[Claim]:
    """Figure 7: rising for the entropies, falling for variation_predicted; and the two together."""
    wanted = {"predictive_entropy": "rises", "expected_entropy": "rises", "variation_predicted": "falls"}
    published = published_for(g.task)
    numbers = {} if published is None else published.p_mean
    score, found = "rearrangement_penalty", {}
    for measure, way in wanted.items():
        rate = line(table, "p_mean", "slope", measure, score)
        rank = line(table, "p_mean", "rank correlation", measure, score)
        if rate is None or rank is None:
            continue
        ends = numbers.get(measure)
        verdict = settled(rate, above=0) if way == "rises" else settled(rate, below=0)
        found[measure] = Claim(
            f"p_mean-{measure}",
            f"The {WORDS[score]} of {measure} {way} with p_mean",
            f"{way}, {ends[0]:g} → {ends[1]:g}; no test" if ends else f"{way} (figure 7); no test",
            f"slope per unit of p_mean {told(rate)}; rank correlation over placements within a network {told(rank)}; "
            f"mean by p_mean: {_steps(g, measure, score)}",
            verdict,
            by_test(rate),
        )
    first, second = (found.get(name) for name in ("predictive_entropy", "variation_predicted"))
    if first is None or second is None:
        return list(found.values())
    both = Claim(
        "p_mean-opposite",
        "p_mean acts in opposite directions on predictive_entropy and variation_predicted",
        "predictive_entropy rises, variation_predicted falls",
        f"predictive_entropy rises: {first.verdict}; variation_predicted falls: {second.verdict}",
        all_of([first.verdict, second.verdict]),
        "both slopes, as above",
    )
    return [*found.values(), both]


def _steps(g: Gathered, measure: str, score: str) -> str:
    """Means over networks at a few values of p_mean: a slope hides a curve that turns."""
    part = g.of(measure)
    edges = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    place = np.digitize(part["p_mean"], edges[1:-1], right=True)
    means = part.groupby(place)[score].mean()
    named = [f"{low:g}–{high:g}" for low, high in pairwise(edges)]
    return ", ".join(f"{named[int(at)]}: {value:.3g}" for at, value in means.items())


def layer_count_claims(g: Gathered, table: pd.DataFrame) -> list[Claim]:
    found = []
    for measure in g.measures:
        lines = [line(table, "n_layers", "slope", measure, score) for score in BOTH]
        known = [one for one in lines if one is not None and one["value"] == one["value"]]
        if not known:
            continue
        text = "; ".join(f"{WORDS[one['score']]} per further layer {told(one)}" for one in known)
        found.append(
            Claim(
                f"n_layers-{measure}",
                f"The penalty changes with the number of masked layers ({measure})",
                "figure 9, expected entropy: means with bands; no number, no test",
                text,
                all_of([moved(one) for one in known]),
                f"slopes on n_layers, an effect in either direction counts; {by_test(known[0])}",
            )
        )
    return found


def position_claims(g: Gathered, table: pd.DataFrame) -> list[Claim]:
    found = []
    twins = table[table["effect"] == BEFORE_AFTER]
    if len(twins):
        largest = float(twins["largest"].max())
        same = largest == 0
        verdicts = [without_effect(one, _mean(g, one)) for _, one in twins.iterrows()]
        found.append(
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
    if g.inputs is not None and not (table["effect"] == INPUT_AFTER).any():
        found.append(
            Claim(
                "position-input",
                "Masking the inputs of the layers instead of their activations makes no difference",
                "positions: not statistically significant (the authors' code masks inputs); no test",
                "not measured",
                UNDECIDED,
                "the two grids have no rates of all layers in common",
            )
        )
    for measure in g.measures:
        lines = [line(table, INPUT_AFTER, "paired difference", measure, score) for score in BOTH]
        known = [one for one in lines if one is not None]
        if not known:
            continue
        text = "; ".join(
            f"{WORDS[one['score']]} {told(one)}{_of_the_mean(one['relative'])}, {int(one['pairs'])} pairs"
            for one in known
        )
        found.append(
            Claim(
                f"position-input-{measure}",
                f"Masking the inputs of the layers instead of their activations makes no difference ({measure})",
                "positions: not statistically significant (the authors' code masks inputs); no test",
                f"on the inputs − after the activation: {text}",
                all_of([without_effect(one, _mean(g, one)) for one in known]),
                f"paired by the rates of all layers; {_margin_words()}; {by_test(known[0])}",
            )
        )
    return found


def _margin_words() -> str:
    return (
        f"stands if the interval over networks lies within ± {100 * MARGIN:.0f} % of the mean score, falls if it "
        "excludes 0 and reaches beyond"
    )


def _mean(g: Gathered, one: pd.Series) -> float:
    """Of the rows that were compared; of all where nothing differs."""
    relative = float(one["relative"])
    return float(one["value"]) / relative if abs(relative) > 0 else float(g.of(one["measure"])[one["score"]].mean())


def _of_the_mean(relative: float) -> str:
    return "" if math.isnan(relative) else f", {100 * relative:+.0f} % of the mean"  # of a mean of 0 nothing is a share
