"""Claims about single layers: the penultimate is better than several and than every other, the first the worst of all.

Owns the claims about which layers to mask; for mammograms also what the paper says against its own rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from dropscope.report import Claim, Direction, Evidence, decide, judge
from dropscope.studies.where_to_drop.claims.verdicts import (
    AURC_WORDS,
    EVERY_ONE,
    MARGIN_WORDS,
    WORDS,
    by_test,
    effect_evidence,
    enough,
    measured,
    of_networks,
    share,
    what_decided,
    with_interval,
)
from dropscope.studies.where_to_drop.published import AURC_MARGIN, MARGIN, PENULTIMATE, published_for
from dropscope.studies.where_to_drop.rows import BOTH, JUDGED, StudyRows
from dropscope.studies.where_to_drop.tables import EARLY, alone_alone, alone_several, find_line


def penultimate_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    """The rule, per reading, measure and score: against several layers; then against every other layer alone."""
    claims = []
    for layer in study.task.penultimate:
        for measure in study.measures:
            for score in JUDGED:
                mean = find_line(effects, alone_several(layer), "difference", measure, score)
                if mean is None:
                    continue
                best = find_line(effects, alone_several(layer), "best minus best", measure, score)
                ratio = find_line(effects, alone_several(layer), "ratio", measure, score)
                assert best is not None
                assert ratio is not None
                claims.append(
                    Claim(
                        f"penultimate-{layer}-{measure}-{score}",
                        f"Masking {layer} alone has a lower {WORDS[score]} than masking several layers ({measure})",
                        "the penultimate layer alone gives the best calibration; no test",
                        f"mean {layer} alone − mean of several layers {with_interval(mean)}; ratio of the means "
                        f"{with_interval(ratio)}; best − best {with_interval(best)} (no test: chosen on these "
                        "examples, from far more placements of several layers)",
                        judge([_evidence(study, mean, "below")]),
                        by_test(mean),
                        quotation=PENULTIMATE,
                        estimand=f"difference of mean {WORDS[score]} over the grid, over networks trained alike",
                        margin=AURC_WORDS if score == "aurc" else MARGIN_WORDS,
                        evidence=(_evidence(study, mean, "below"),),
                        brief=with_interval(mean),
                    )
                )
            claims += _among_single(study, effects, layer, measure, BOTH, "penalties")
            claims += _among_single(study, effects, layer, measure, ("aurc",), "AURC")
    return claims


def _among_single(
    study: StudyRows, effects: pd.DataFrame, layer: str, measure: str, scores: Sequence[str], what: str
) -> list[Claim]:
    lines = {
        (other, score): find_line(effects, alone_alone(layer, other), "difference", measure, score)
        for other in study.layers
        for score in scores
        if other != layer
    }
    known = {key: value for key, value in lines.items() if value is not None}
    if not known:
        return []
    texts = [f"against {other}, {WORDS[score]} {with_interval(value)}" for (other, score), value in known.items()]
    evidence = tuple(
        _evidence(study, line, "below", f"against {other}, {WORDS[score]}") for (other, score), line in known.items()
    )
    return [
        Claim(
            f"penultimate-{layer}-{measure}-single" + ("-aurc" if what == "AURC" else ""),
            f"Of all layers masked alone, {layer} has the lowest {what} ({measure})",
            "the penultimate layer alone gives the best calibration; no test",
            f"mean {layer} alone − mean of the other alone: {'; '.join(texts)}",
            judge(evidence),
            EVERY_ONE,
            quotation=PENULTIMATE,
            estimand=f"differences of mean {what} over rates, over networks trained alike",
            margin=AURC_WORDS if what == "AURC" else MARGIN_WORDS,
            evidence=evidence,
            brief=what_decided(texts, evidence) + ", within the margin" * (judge(evidence) == "equivalent"),
        )
    ]


def halves_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    claims = []
    several = study.rows["n_layers"] > 1
    for layer in study.task.penultimate:
        alone = study.only(layer)
        if not (alone.any() and several.any()):
            continue
        for score in BOTH:
            rows = study.rows.assign(alone=study.rows[score].where(alone), several=study.rows[score].where(several))
            ratio = of_networks(rows, lambda own: float(own["alone"].mean() / own["several"].mean()), null=0.5)
            each = [
                f"{measure} {with_interval(one)}"
                for measure in study.measures
                if (one := find_line(effects, alone_several(layer), "ratio", measure, score)) is not None
            ]
            claims.append(
                Claim(
                    f"halves-{layer}-{score}",
                    f"Masking {layer} alone at least halves the mean {WORDS[score]} of masking several layers",
                    "it halves the mean penalty of multi-layer masking; measure and penalty not stated",
                    f"ratio of the means over all measures {with_interval(ratio)}; per measure: {', '.join(each)}",
                    decide(enough(ratio), "below", bound=0.5),
                    f"{measured(ratio)}; against a ratio of .5",
                    quotation=PENULTIMATE,
                    estimand="ratio of mean penalties over the grid and all measures, over networks trained alike",
                    evidence=(Evidence(enough(ratio), "below", bound=0.5, scale="log"),),
                )
            )
    return claims


def first_layer_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    """Masks in the first layer alone give the highest penalty: higher than any other layer alone and than several."""
    published, first, score = published_for(study.task), study.layers[0], "rearrangement_penalty"
    claims = []
    for measure in () if published is None else published.highest_first:
        numbers = [n.value for n in published.single if (n.layer, n.measure) == (first, measure)] if published else []
        kinds = {alone_alone(first, other): f"{other} alone" for other in study.layers[1:]}
        kinds[alone_several(first)] = "several layers"
        lines = {words: find_line(effects, kind, "difference", measure, score) for kind, words in kinds.items()}
        known = {words: line for words, line in lines.items() if line is not None}
        if len(known) < len(kinds):
            continue
        texts = [f"against {words} {with_interval(line)}" for words, line in known.items()]
        evidence = tuple(_evidence(study, line, "above", f"against {words}") for words, line in known.items())
        claims.append(
            Claim(
                f"highest-{first}-{measure}",
                f"The {WORDS[score]} of {measure} is highest where {first} alone is masked",
                f"highest there ({', '.join(f'{value:g}' for value in numbers)}); no test",
                f"mean {first} alone − mean of the others: {'; '.join(texts)}",
                judge(evidence),
                EVERY_ONE,
                estimand="differences of mean penalty over rates and grid, over networks trained alike",
                margin=MARGIN_WORDS,
                evidence=evidence,
                brief=f"{first} alone {what_decided(texts, evidence)}",
            )
        )
    return claims


def early_claims(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    """What the paper says about mammograms, against its own rule: early layers best, rising with l_last."""
    published = published_for(study.task)
    if published is None or not published.early_layers_best:
        return []
    claims, score = [], "rearrangement_penalty"
    for measure in study.measures:
        last = find_line(effects, "last", "slope", measure, score)
        early = find_line(effects, EARLY, "difference", measure, score)
        if last is not None:
            claims.append(
                Claim(
                    f"last-{measure}", f"The {WORDS[score]} rises with the last masked layer ({measure})",
                    "it rises with l_last, which contradicts the penultimate rule; no test",
                    f"slope per layer {with_interval(last)}",
                    judge([_evidence(study, last, "above", steps=len(study.layers) - 1)]), by_test(last),
                    estimand="slope of the penalty on l_last over the grid, over networks trained alike",
                    margin=f"{MARGIN_WORDS}, from the first layer to the last",
                    evidence=(_evidence(study, last, "above", steps=len(study.layers) - 1),),
                    brief=with_interval(last),
                )
            )  # fmt: skip
        if early is not None:
            claims.append(
                Claim(
                    f"early-{measure}", f"The {WORDS[score]} is lowest with early layers only ({measure})",
                    "lowest with early layers only; no test",
                    f"first half of the layers only − placements that reach later layers {with_interval(early)}",
                    judge([_evidence(study, early, "below")]), by_test(early),
                    estimand="difference of mean penalty over the grid, over networks trained alike",
                    margin=MARGIN_WORDS,
                    evidence=(_evidence(study, early, "below"),),
                    brief=with_interval(early),
                )
            )  # fmt: skip
    return claims


def _evidence(study: StudyRows, line: pd.Series, direction: Direction, name: str = "", steps: float = 1.0) -> Evidence:
    """A line of the table of effects as a share of the mean score of its measure."""
    of_line = effect_evidence(line, direction, name)
    level = float(study.of(line["measure"])[line["score"]].mean())
    margin = AURC_MARGIN if line["score"] == "aurc" else MARGIN
    return replace(of_line, estimate=share(of_line.estimate, level, steps), margin=margin)
