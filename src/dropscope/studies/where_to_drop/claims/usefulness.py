"""Claims about usefulness, which the paper does not make: a low penalty ranks well, a placement beats a plain pass.

Owns these two. A penalty alone cannot show either.
"""

from __future__ import annotations

import math

import pandas as pd
from scipy import stats

from dropscope.analysis import Estimate, effect_over_networks, over_networks, t_factor
from dropscope.report import ALPHA, Claim, Evidence, decide_all, judge
from dropscope.runs import LEAST_ERRORS
from dropscope.studies.where_to_drop.claims import verdicts
from dropscope.studies.where_to_drop.published import AURC_MARGIN, LEAST_NETWORKS, USEFUL
from dropscope.studies.where_to_drop.rows import BOTH, PLAIN, StudyRows
from dropscope.studies.where_to_drop.tables import chosen, find_line


def useful_claims(study: StudyRows, table: pd.DataFrame) -> list[Claim]:
    """Not the paper's: is a low penalty a useful ranking?"""
    claims = []
    for measure in study.measures:
        known = {
            penalty: one
            for penalty in BOTH
            if (one := find_line(table, penalty, "rank correlation", measure, "aurc")) is not None
        }
        finding = [
            f"with error AUROC, {verdicts.WORDS[penalty]} {verdicts.with_interval(one)}"
            for penalty in BOTH
            if (one := find_line(table, penalty, "rank correlation", measure, "error_auroc")) is not None
        ]
        if not known:
            continue
        texts = [f"{verdicts.WORDS[penalty]} {verdicts.with_interval(one)}" for penalty, one in known.items()]
        evidence = tuple(verdicts.effect_evidence(one, "above", verdicts.WORDS[p], USEFUL) for p, one in known.items())
        claims.append(
            Claim(
                f"useful-{measure}",
                f"Placements of lower penalty have a lower AURC, so that choosing by the penalty is useful ({measure})",
                "not tested in the paper, which chooses by the penalty alone",
                "rank correlation of penalty and AURC over placements in a network (1 would be agreement): "
                f"{'; '.join(texts)}. Free of accuracy (here −1 would be agreement): {'; '.join(finding)}. AURC of the "
                "placements of least penalty − least AURC: "
                f"{'; '.join(_price(study, measure, penalty) for penalty in known)}",
                decide_all([verdicts.estimate_of(one, "p") for one in known.values()], "above", bound=USEFUL),
                "both penalties, by the interval of the rank correlation; "
                f"{verdicts.by_test(next(iter(known.values())))}",
                estimand="rank correlation of penalty and AURC over the grid, over networks trained alike",
                margin=f"useful above a rank correlation of {USEFUL:g}",
                evidence=evidence,
                brief=f"rank correlation, {verdicts.what_decided(texts, evidence)}",
            )
        )
    return claims


def beats_plain_claims(study: StudyRows) -> list[Claim]:
    """Not the paper's: chosen on the validation examples, does any placement rank better than one plain pass?"""
    table = chosen(study)
    plain = study.baseline[study.baseline["measure"] == PLAIN].set_index("network")["aurc"]
    better = (
        (study.rows["aurc"] < study.rows["network"].astype(str).map(plain))
        .groupby(study.rows["network"], observed=True)
        .sum()
    )
    count = len(study.rows) // study.networks
    note = (
        f"of the {count:,} pairs of placement and measure of each network {', '.join(map(str, better))} have a lower "
        "AURC than the plain entropy on the test examples themselves (picked after the fact: no evidence)"
    )
    evidence: list[Evidence] = []
    texts = []
    level = 1 - ALPHA / max(1, table["measure"].nunique() if len(table) else 1)
    for measure, part in table.groupby("measure", sort=False) if len(table) else ():
        estimate = over_networks(part["difference"].tolist(), level)
        judged = of_one(part.iloc[0], level) if study.networks == 1 else verdicts.enough(estimate)
        margin = AURC_MARGIN * float(part["plain_aurc"].mean())
        plainly = (
            of_one(part.iloc[0], 0.95) if study.networks == 1 else verdicts.enough(over_networks([*part["difference"]]))
        )
        evidence.append(Evidence(plainly, "below", margin=margin, name=str(measure)))
        texts.append(f"{measure} ({placement_counts(part)}) {change_words(judged, study.networks)}")
    one = study.networks == 1
    how = (
        "paired bootstrap over the test examples of one network, widened to 1 − .05/measures: says nothing about other "
        "networks" if one else f"t intervals over {study.networks} networks at 1 − .05/measures"
    )  # fmt: skip
    verdict = judge(evidence, one_is_enough=True)
    return [
        Claim(
            "beats-plain",
            "A placement chosen on validation examples has a lower AURC on test examples than one plain pass (entropy)",
            "not asked in the paper",
            f"AURC − plain AURC of the choice of each measure: {'; '.join(texts)}; {note}" if texts else note,
            verdict if texts else "undecided",
            how if texts else "no choice was made on validation examples",
            estimand="difference of AURC of one choice per measure, "
            + ("over test examples" if one else "over networks"),
            margin=f"± {100 * AURC_MARGIN:.0f} % of the plain AURC",
            evidence=tuple(evidence),
            one_is_enough=True,
            brief=verdicts.what_decided(texts, evidence, one_is_enough=True) if texts else "",
        )
    ]


def placement_counts(part: pd.DataFrame) -> str:
    """Which placements the networks chose, and how many of them each."""
    counts = part["placement"].astype(str).value_counts(sort=True)
    if len(part) == 1 or len(counts) == 1:
        return str(counts.index[0])
    return ", ".join(f"{placement} in {count}" for placement, count in counts.items()) + f" of {len(part)} networks"


def change_words(e: Estimate, networks: int) -> str:
    """A difference of AURC with its interval, or why it has none."""
    if math.isnan(e.low):
        few = f": {networks} networks, {LEAST_NETWORKS} needed" if 1 < networks < LEAST_NETWORKS else ""
        return f"{e.value:+.4f} (no interval{few})"
    return f"{e.value:+.4f} ({e.low:+.4f} to {e.high:+.4f})"


def _price(study: StudyRows, measure: str, penalty: str) -> str:
    """What choosing by the penalty costs in AURC, both on these examples. Where many share the least penalty, a choice
    among them is blind: their mean counts, and it is said how many they are."""
    rows = study.of(measure)
    cost = effect_over_networks(rows, lambda own: float(own["aurc"][_least(own[penalty])].mean() - own["aurc"].min()))
    tied = effect_over_networks(rows, lambda own: float(_least(own[penalty]).sum())).value
    return f"{verdicts.WORDS[penalty]} {verdicts.with_interval(cost)}" + (
        f", mean of {tied:,.0f} placements that share it" if tied > 1 else ""
    )


def _least(values: pd.Series) -> pd.Series:
    return values == values.min()


def of_one(row: pd.Series, level: float) -> Estimate:
    """One network's difference: its 95 % interval (± t·s, as `judge` has it) at another level. With too few errors
    there is none."""
    value, errors = float(row["difference"]), int(row.get("errors", LEAST_ERRORS))
    method = "paired bootstrap over the test examples of one network"
    if errors < LEAST_ERRORS:
        return Estimate(value, math.nan, math.nan, math.nan, 1, f"{method}; {errors} errors, and {LEAST_ERRORS} needed")
    error = (float(row["high"]) - float(row["low"])) / 2 / t_factor(errors - 1)
    half = t_factor(errors - 1, level) * error
    p = float(2 * stats.t.sf(abs(value) / error, errors - 1)) if error > 0 else 1.0
    return Estimate(value, value - half, value + half, p, 1, method)
