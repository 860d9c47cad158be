"""The answer of the study in three lines: MC dropout or one plain pass, the paper's rule, and what that rests on.

Owns the sentences; verdicts come from `claims`. Of a user's own network the first line is a recommendation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from dropscope.analysis import Estimate, over_networks
from dropscope.report import ALPHA, Claim, Topic, by_variant, count_verdicts
from dropscope.studies.where_to_drop.claims import LEAST_NETWORKS, change_words, placement_counts
from dropscope.studies.where_to_drop.curves import rates_of
from dropscope.studies.where_to_drop.published import AURC_MARGIN, published_for
from dropscope.studies.where_to_drop.rows import BOTH, PLAIN, StudyRows
from dropscope.studies.where_to_drop.tables import chance, chosen, identical, untrained

TERMS = {
    "plain pass": "one pass of the network without dropout; its entropy is the rival that costs nothing",
    "placement": "which layers drop, and at which rates: `conv3=0.1` masks conv3 alone at rate 0.1",
    "p_mean": "the mean rate of the masked layers",
    "AURC": "area under the risk-coverage curve: the mean error rate when the most uncertain examples are left to "
    "somebody else, over all shares that are left; lower ranks errors better",
    "penalty": "how far accuracy is from falling steadily as the uncertainty grows: the distance of that curve from "
    "the nearest falling one (isotonic), from its own values in order (rearrangement), or from its running minimum; 0 "
    "is perfect, and it shrinks with the number of examples",
    "predictive_entropy, expected_entropy, bald": "entropy of the averaged probabilities; mean entropy of the single "
    "passes; the first minus the second",
    "variation_predicted, variation_max": "mean squared distance over the passes of the predicted class's probability "
    "from that of the plain pass; variance over the passes of the largest probability",
}


@dataclass(frozen=True)
class _Choice:
    """The best of the placements that were chosen on validation examples, one per measure and network."""

    measure: str
    placement: str  # of the first network
    where: str  # the placements of all of them
    difference: Estimate
    networks: int

    def __str__(self) -> str:
        return f"{self.measure}; {self.where}"

    @property
    def gap(self) -> str:
        return change_words(self.difference, self.networks)


def answer(study: StudyRows, claims: Sequence[Claim]) -> list[str]:
    """Three lines, most important first; two where a network is at chance, of which no number says anything."""
    named = {claim.name: claim for claim in claims}
    first, last = _dropout_or_not(study, named), _evidence(study, claims)
    if untrained(study):
        return [first, last]
    rule = [_rule(study, layer, named) for layer in study.task.penultimate]
    return [first, " ".join(line for line in rule if line) or _by_layer(study), last]


def topic_of(study: StudyRows) -> Topic:
    """Cases of one claim: measures, cells of table 3, and other published numbers."""
    by_measure = by_variant(*study.measures)

    def topic(claim: Claim) -> tuple[str, str]:
        cell = "Table 3, expected entropy, "
        if claim.statement.startswith(cell):
            case = claim.statement.removeprefix(cell).rpartition(": ")[0]
            return "The published cells of table 3 (expected entropy) are met", f"{case}:"
        if claim.name.startswith("single-") or claim.name.rpartition("-")[2] in ("0.1", "0.9"):
            case = claim.statement.removeprefix("The ").replace("rearrangement penalty of ", "").rpartition(" is ")[0]
            return "Other published rearrangement penalties are met", f"{case}:"
        return by_measure(claim)

    return topic


def choices(study: StudyRows) -> pd.DataFrame:
    """What was chosen for each measure, as the summary prints it; empty where nothing was. Networks at chance are left
    out."""
    table = chosen(study)
    table = table if table.empty else table[~table["network"].isin(untrained(study))]
    if table.empty:
        return table
    columns = ["network", "measure", "placement", "aurc", "plain_aurc", "difference", "low", "high"]
    return table[columns if study.networks > 1 else columns[1:]].rename(columns={"plain_aurc": "one plain pass"})


def _dropout_or_not(study: StudyRows, named: dict[str, Claim]) -> str:
    if failed := untrained(study):
        shares = _accurate([100 * r.accuracy for r in study.results if r.name in failed])
        why = "".join(f" {remark}." for remark in study.task.untrained)
        return (
            f"Nothing follows about MC dropout: {', '.join(failed)} ({shares} accurate) not above chance "
            f"({100 * chance(study):.3g} %) on {study.examples:,} test examples, so not trained.{why}"
        )
    best, claim = _best_choice(study), named.get("beats-plain")
    if best is None or claim is None:
        return "No placement was chosen on validation examples, so nothing is recommended."
    if claim.verdict == "supported":
        return (
            f"**Use MC dropout**: chosen on validation examples, it ranks test examples better than one plain pass "
            f"({best}): AURC {best.gap}, at {_cost(study, best)} times the price."
        )
    if claim.verdict == "contradicted":
        return (
            "**Keep one plain pass** and rank by its entropy: every placement that was chosen on validation examples "
            f"has a higher AURC on test examples; the best ({best}) by {best.gap}."
        )
    at_best = f"At its best ({best}) it changes the AURC by {best.gap}"
    if claim.verdict == "equivalent":
        return (
            f"**Keep one plain pass** and rank by its entropy: MC dropout does not rank errors better. {at_best}, "
            f"within the ± {100 * AURC_MARGIN:.0f} % of the plain AURC that count as equal."
        )
    return (
        "**Keep one plain pass** and rank by its entropy: it is not shown that MC dropout ranks errors better. "
        f"{at_best}; below 0 would be better."
    )


def _best_choice(study: StudyRows) -> _Choice | None:
    """The measure whose interval ends lowest, of what was chosen on validation examples."""
    table = chosen(study)
    if table.empty:
        return None
    level = 1 - ALPHA / table["measure"].nunique()
    found = []
    for measure, part in table.groupby("measure", sort=False):
        estimate = over_networks(part["difference"].tolist(), level)
        if len(part) == 1:
            estimate = replace(estimate, low=float(part["low"].iloc[0]), high=float(part["high"].iloc[0]))
        where, first = placement_counts(part), str(part["placement"].iloc[0])
        found.append(_Choice(str(measure), first, where, estimate, len(part)))
    return min(found, key=lambda one: _ends(one.difference))


def _ends(e: Estimate) -> tuple[float, float]:
    return (e.high if e.high == e.high else e.value, e.value)


def _cost(study: StudyRows, best: _Choice) -> str:
    """Of the placement in plain passes, where the layers before its masks run once."""
    rates = rates_of(best.placement)
    rows = study.of(best.measure)
    for layer in study.layers:
        rows = rows[rows[f"rate_{layer}"] == rates.get(layer.partition("@")[0], 0.0)]
    return f"{float(rows['cost'].mean()):.3g}" if len(rows) and "cost" in rows else "several"


def _rule(study: StudyRows, layer: str, named: dict[str, Claim]) -> str:
    """How the rule of the penultimate layer fares, in numbers of measures; nothing where it was not judged."""
    by_score = {
        score: [named.get(f"penultimate-{layer}-{measure}-{score}") for measure in study.measures]
        for score in ("aurc", *BOTH, "single-aurc", "single")
    }
    if not any(claim is not None for claims in by_score.values() for claim in claims):
        return ""
    penalties = [
        all(claim is not None and claim.verdict == "supported" for claim in pair)
        for pair in zip(*(by_score[score] for score in BOTH), strict=True)
    ]
    of = len(study.measures)
    if all(claim is None or claim.verdict == "undecided" for claims in by_score.values() for claim in claims):
        return f"The rule “mask {layer} alone” is undecided, by AURC and by penalties, for all {of} measures."
    return (
        f"The rule “mask {layer} alone”: better than several layers by AURC for {_supported(by_score['aurc'])} of {of} "
        f"measures, by both penalties for {sum(penalties)}; better than every other single layer by AURC for "
        f"{_supported(by_score['single-aurc'])}, by penalties for {_supported(by_score['single'])}"
        f"{_against(by_score['aurc'], by_score['single-aurc'])}.{_tuned(study, layer)}"
    )


def _tuned(study: StudyRows, layer: str) -> str:
    """How much of the rule is left where rates are chosen well: its means are over all rates of the grid."""
    rows = study.rows.assign(alone=study.rows["aurc"].where(study.only(layer)))
    rows["several"] = rows["aurc"].where(rows["n_layers"] > 1)
    by = rows.groupby(["measure", "network"], sort=False, observed=True)[["alone", "several"]]
    means, best = ((t["alone"] - t["several"]).groupby("measure").mean() for t in (by.mean(), by.min()))
    if not best.notna().any():
        return ""
    return (
        " That compares means over all rates, at many of which the network is broken: the AURC differs by "
        f"{_range(means)}. With the best rates of each, chosen on these examples, {_range(best)} remains."
    )


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():+.4f}", f"{values.max():+.4f}"
    return low if low == high else f"{low} to {high}"


def above_random(study: StudyRows) -> str:
    """Which measures have a higher penalty than one that knows nothing, on average over the grid; empty where none."""
    score = "rearrangement_penalty"
    level = study.level(score, "random")
    if not level > 0:
        return ""
    found = []
    for measure in study.measures:
        values = study.of(measure)[score]
        if values.mean() > level:
            found.append(
                f"{measure} {values.mean() / level:.1f} times on average, in {100 * (values > level).mean():.0f} % of "
                "all placements above it"
            )
    if not found:
        return ""
    return f"Worse than useless by the rearrangement penalty of a random measure ({level:.3g}): {'; '.join(found)}."


def _by_layer(study: StudyRows) -> str:
    """What each layer alone does to accuracy and ranking at a middling rate: where dropout is borne, in a network that
    cannot decide rules."""
    measure = "predictive_entropy" if "predictive_entropy" in study.measures else study.measures[0]
    rows = study.of(measure)
    rows = rows[rows["n_layers"] == 1]
    rate = min(rows["p_mean"].unique(), key=lambda value: (abs(value - 0.5), value))
    found = []
    for layer in study.layers:
        own = rows[study.only(layer, rows) & (rows["p_mean"] == rate)]
        if len(own):
            found.append(f"{layer} {100 * own['accuracy'].mean():.1f} % and {own['aurc'].mean():.4f}")
    plain = study.baseline[study.baseline["measure"] == PLAIN]
    accuracy = 100 * sum(result.accuracy for result in study.results) / study.networks
    return (
        f"One layer alone at {rate:g}, accuracy and AURC of {measure}: {'; '.join(found)}; without dropout "
        f"{accuracy:.1f} % and {plain['aurc'].mean():.4f}."
    )


def _supported(claims: Sequence[Claim | None]) -> int:
    return sum(claim is not None and claim.verdict == "supported" for claim in claims)


def _against(several: Sequence[Claim | None], single: Sequence[Claim | None]) -> str:
    counts = [sum(claim is not None and claim.verdict == "contradicted" for claim in c) for c in (several, single)]
    return f"; contradicted by AURC for {counts[0]} and {counts[1]}" if any(counts) else ""


def _evidence(study: StudyRows, claims: Sequence[Claim]) -> str:
    shares = [100 * result.accuracy for result in study.results]
    networks = f"{study.networks} network{'s' * (study.networks > 1)} ({_accurate(shares)} accurate)"
    passes = f", {study.passes} passes" if study.passes else ""
    text = f"Evidence: {networks}, {study.examples:,} test examples{passes}; {count_verdicts(claims)}."
    if study.networks < LEAST_NETWORKS:
        left_out = "those are not listed" if published_for(study.task) is None else "so those stay undecided"
        text += f" Rules about networks need {LEAST_NETWORKS} of them; {left_out}."
    if same := identical(study):
        text += f" {', '.join(same)} scores exactly as an earlier one: the same network twice?"
    return text


def _accurate(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.1f}", f"{max(shares):.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"
