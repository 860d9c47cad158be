"""Is the penultimate layer alone the best place? Against several layers, against every other layer alone, by half.

Owns the claims about which layers to mask; for mammograms also what the paper says against its own rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dropscope.analysis import effect_over_networks
from dropscope.report import Claim, verdict_of_interval
from dropscope.studies.where_to_drop.effects import EARLY, alone_alone, alone_several, line
from dropscope.studies.where_to_drop.gathered import JUDGED, Gathered
from dropscope.studies.where_to_drop.published import published_for
from dropscope.studies.where_to_drop.verdicts import BOTH, WORDS, all_of, by_test, measured, settled, told


def penultimate_claims(g: Gathered, table: pd.DataFrame) -> list[Claim]:
    """The rule, per reading, measure and score: against several layers; then against every other layer alone."""
    found = []
    for layer in g.task.penultimate:
        for measure in g.measures:
            for score in JUDGED:
                mean = line(table, alone_several(layer), "difference", measure, score)
                if mean is None:
                    continue
                best = line(table, alone_several(layer), "best minus best", measure, score)
                ratio = line(table, alone_several(layer), "ratio", measure, score)
                assert best is not None
                assert ratio is not None
                found.append(
                    Claim(
                        f"penultimate-{layer}-{measure}-{score}",
                        f"Masking {layer} alone has a lower {WORDS[score]} than masking several layers ({measure})",
                        "the penultimate layer alone gives the best calibration; no test",
                        f"mean {layer} alone − mean of several layers {told(mean)}; ratio of the means {told(ratio)}; "
                        f"best − best {told(best)} (chosen on these examples, from far more placements of several "
                        "layers: description)",
                        settled(mean, below=0),
                        by_test(mean),
                    )
                )
            found += _among_single(g, table, layer, measure, BOTH, "penalties")
            found += _among_single(g, table, layer, measure, ("aurc",), "AURC")
    return found


def _among_single(
    g: Gathered, table: pd.DataFrame, layer: str, measure: str, scores: Sequence[str], what: str
) -> list[Claim]:
    lines = {
        (other, score): line(table, alone_alone(layer, other), "difference", measure, score)
        for other in g.layers
        for score in scores
        if other != layer
    }
    known = {key: value for key, value in lines.items() if value is not None}
    if not known:
        return []
    text = "; ".join(f"against {other}, {WORDS[score]} {told(value)}" for (other, score), value in known.items())
    return [
        Claim(
            f"penultimate-{layer}-{measure}-single" + ("-aurc" if what == "AURC" else ""),
            f"Of all layers masked alone, {layer} has the lowest {what} ({measure})",
            "the penultimate layer alone gives the best calibration; no test",
            f"mean {layer} alone − mean of the other alone: {text}",
            all_of([settled(value, below=0) for value in known.values()]),
            "stands if every difference does, falls if one does; t intervals over networks, Holm within each pair",
        )
    ]


def halves_claims(g: Gathered, table: pd.DataFrame) -> list[Claim]:
    found = []
    several = g.rows["n_layers"] > 1
    for layer in g.task.penultimate:
        alone = g.only(layer)
        if not (alone.any() and several.any()):
            continue
        for score in BOTH:
            rows = g.rows.assign(alone=g.rows[score].where(alone), several=g.rows[score].where(several))
            ratio = effect_over_networks(rows, lambda own: float(own["alone"].mean() / own["several"].mean()), null=0.5)
            each = [
                f"{measure} {told(one)}"
                for measure in g.measures
                if (one := line(table, alone_several(layer), "ratio", measure, score)) is not None
            ]
            found.append(
                Claim(
                    f"halves-{layer}-{score}",
                    f"Masking {layer} alone at least halves the mean {WORDS[score]} of masking several layers",
                    "it halves the mean penalty of multi-layer masking; measure and penalty not stated",
                    f"ratio of the means over all measures {told(ratio)}; per measure: {', '.join(each)}",
                    verdict_of_interval(ratio.low, ratio.high, below=0.5),
                    f"{measured(ratio)}; against a ratio of .5",
                )
            )
    return found


def early_claims(g: Gathered, table: pd.DataFrame) -> list[Claim]:
    """What the paper says about mammograms, against its own rule: early layers best, rising with l_last."""
    published = published_for(g.task)
    if published is None or not published.early_layers_best:
        return []
    found, score = [], "rearrangement_penalty"
    for measure in g.measures:
        last = line(table, "last", "slope", measure, score)
        early = line(table, EARLY, "difference", measure, score)
        if last is not None:
            found.append(
                Claim(
                    f"last-{measure}", f"The {WORDS[score]} rises with the last masked layer ({measure})",
                    "it rises with l_last, which contradicts the penultimate rule; no test",
                    f"slope per layer {told(last)}", settled(last, above=0), by_test(last),
                )
            )  # fmt: skip
        if early is not None:
            found.append(
                Claim(
                    f"early-{measure}", f"The {WORDS[score]} is lowest with early layers only ({measure})",
                    "lowest with early layers only; no test",
                    f"first half of the layers only − placements that reach later layers {told(early)}",
                    settled(early, below=0), by_test(early),
                )
            )  # fmt: skip
    return found
