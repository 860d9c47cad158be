"""The answer of the study in three lines: MC dropout or one plain pass, the paper's rule, and what that rests on.

Owns the sentences; verdicts come from `claims`. Of a user's own network the first line is a recommendation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dropscope.analysis import over_networks
from dropscope.report import ALPHA, Claim, Topic, by_variant, count_verdicts
from dropscope.studies.where_to_drop.claims import LEAST_NETWORKS
from dropscope.studies.where_to_drop.curves import rates_of
from dropscope.studies.where_to_drop.published import published_for
from dropscope.studies.where_to_drop.rows import BOTH, PLAIN, StudyRows
from dropscope.studies.where_to_drop.tables import chosen, untrained


@dataclass(frozen=True)
class _Choice:
    """The best of the placements that were chosen on validation examples, one per measure and network."""

    measure: str
    placements: tuple[str, ...]
    difference: float
    low: float
    high: float

    def __str__(self) -> str:
        where = self.placements[0] if len(self.placements) == 1 else "the choice of each network"
        return f"{self.measure} under {where}"

    @property
    def gap(self) -> str:
        interval = f"{self.low:+.4f} to {self.high:+.4f}" if self.low == self.low else "no interval"
        return f"{self.difference:+.4f} ({interval})"


def answer(study: StudyRows, claims: Sequence[Claim]) -> list[str]:
    """Three lines, most important first."""
    named = {claim.name: claim for claim in claims}
    rule = [_rule(study, layer, named) for layer in study.task.penultimate]
    where = " ".join(line for line in rule if line) or _by_layer(study)
    return [_dropout_or_not(study, named), where, _evidence(study, claims)]


def topic_of(study: StudyRows) -> Topic:
    """Cases of one claim: measures, cells of table 3, and other published numbers."""
    by_measure = by_variant(*study.measures)

    def topic(claim: Claim) -> tuple[str, str]:
        cell = "Table 3, expected entropy, "
        if claim.statement.startswith(cell):
            return "The published cells of table 3 (expected entropy) are met", claim.statement.removeprefix(cell)
        if claim.name.startswith("single-") or claim.name.rpartition("-")[2] in ("0.1", "0.9"):
            return "Other published rearrangement penalties are met", claim.statement.removeprefix("The ")
        return by_measure(claim)

    return topic


def choices(study: StudyRows) -> pd.DataFrame:
    """What was chosen for each measure, as the summary prints it; empty where nothing was."""
    table = chosen(study)
    if table.empty:
        return table
    columns = ["network", "measure", "placement", "aurc", "plain_aurc", "difference", "low", "high"]
    return table[columns if study.networks > 1 else columns[1:]].rename(columns={"plain_aurc": "one plain pass"})


def _dropout_or_not(study: StudyRows, named: dict[str, Claim]) -> str:
    if failed := untrained(study):
        return f"Nothing follows about MC dropout: {', '.join(failed)} at chance on the test examples, so not trained."
    best, claim = _best_choice(study), named.get("beats-plain")
    if best is None or claim is None:
        return "No placement was chosen on validation examples, so nothing is recommended."
    if claim.verdict == "supported":
        return (
            f"**Use MC dropout**: chosen on validation examples, {best} ranks test examples better than one plain "
            f"pass, AURC {best.gap}, at {_cost(study, best)} times the price."
        )
    if claim.verdict == "contradicted":
        return (
            "**Keep one plain pass** and rank by its entropy: every placement that was chosen on validation examples "
            f"has a higher AURC on test examples; the best, {best}, {best.gap}."
        )
    return (
        "**Keep one plain pass** and rank by its entropy: that MC dropout ranks errors better is not shown. The best "
        f"choice, {best}, changes the AURC by {best.gap}; below 0 would be better."
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
        ends = (estimate.low, estimate.high) if len(part) > 1 else (part["low"].iloc[0], part["high"].iloc[0])
        placements = tuple(dict.fromkeys(map(str, part["placement"])))
        found.append(_Choice(str(measure), placements, estimate.value, *map(float, ends)))
    return min(found, key=lambda one: (one.high if one.high == one.high else one.difference, one.difference))


def _cost(study: StudyRows, best: _Choice) -> str:
    """Of the placement in plain passes, where the layers before its masks run once."""
    rates = rates_of(best.placements[0])
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
        f"{_against(by_score['aurc'], by_score['single-aurc'])}."
    )


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
    accurate = f"{min(shares):.1f} %" if len(shares) == 1 else f"{min(shares):.1f} to {max(shares):.1f} %"
    networks = f"{study.networks} network{'s' * (study.networks > 1)} ({accurate} accurate)"
    passes = f", {study.passes} passes" if study.passes else ""
    text = f"Evidence: {networks}, {study.examples:,} test examples{passes}; {count_verdicts(claims)}."
    if study.networks < LEAST_NETWORKS:
        left_out = "those are not listed" if published_for(study.task) is None else "so those stay undecided"
        text += f" Rules about networks need {LEAST_NETWORKS} of them; {left_out}."
    return text
