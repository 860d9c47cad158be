"""Tables of the study: accuracies, best placements beside one plain pass, single layers, marginals, effects.

Owns what is in a line and which effects there are; `dropscope.analysis` computes them. See `curves` for table 3.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

from dropscope.analysis import (
    QUANTITIES,
    Choice,
    effect_over_networks,
    marginal_means,
    over_networks,
    paired_differences,
    pairwise_contrasts,
    trends,
)
from dropscope.studies.where_to_drop.published import published_for
from dropscope.studies.where_to_drop.rows import JUDGED, PENALTIES, PLAIN, StudyRows

BEFORE_AFTER = "before − after the activation"
INPUT_AFTER = "on the inputs − after the activation"
EARLY = "first half of the layers only − later layers too"

_SHOWN = {
    "accuracy": "accuracy ↑",
    "isotonic_penalty": "isotonic ↓",
    "rearrangement_penalty": "rearrangement ↓",
    "running_minimum_penalty": "running minimum ↓",
    "aurc": "AURC ↓",
    "augrc": "AUGRC ↓",
    "error_auroc": "error AUROC ↑",
    "error_auprc": "error AUC-PR ↑",
    "cost": "cost (passes)",
}
_BEST = 3  # placements shown per measure and score


def accuracies(study: StudyRows) -> pd.DataFrame:
    """Accuracy of one plain pass of each network with Wilson's 95 % interval over the test examples, and their mean
    with its t interval over networks, beside the published one."""
    published = published_for(study.task)
    known = np.nan if published is None else published.accuracy
    lines = []
    for result in study.results:
        low, high = wilson(result.accuracy, study.examples)
        lines.append({"network": result.name, "accuracy": result.accuracy, "low": low, "high": high})
    if study.networks > 1:
        mean = over_networks([result.accuracy for result in study.results])
        lines.append({"network": "mean of networks", "accuracy": mean.value, "low": mean.low, "high": mean.high})
    table = pd.DataFrame(lines).assign(test_examples=study.examples, published=known)
    return table.assign(difference=table["accuracy"] - table["published"])


def untrained(study: StudyRows) -> list[str]:
    """Networks whose accuracy is not above what one gets by guessing among the classes of the test examples."""
    least = chance(study)
    return [result.name for result in study.results if wilson(result.accuracy, study.examples)[0] <= least]


def chance(study: StudyRows) -> float:
    """What one gets by guessing among the classes of the test examples; nothing where there is one class."""
    classes = int(study.task.test[1].unique().numel())
    return 1 / classes if classes > 1 else 0.0


def identical(study: StudyRows) -> list[str]:
    """Networks whose every score is that of an earlier one."""
    found: list[str] = []
    seen: list[np.ndarray] = []
    for result in study.results:
        scores = result.rows.select_dtypes("number").to_numpy()
        if any(np.array_equal(scores, other, equal_nan=True) for other in seen):
            found.append(result.name)
        seen.append(scores)
    return found


def wilson(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share of n independent examples.

    >>> [round(v, 4) for v in wilson(0.5, 100)]
    [0.4038, 0.5962]
    """
    z = float(stats.norm.ppf((1 + level) / 2))
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return middle - half, middle + half


def best_placements(study: StudyRows) -> pd.DataFrame:
    """For each measure the placements of least AURC and of least penalty, means over networks; then one plain pass and
    the levels of a useless and a truly monotone measure.

    `AURC − plain` is the difference to the entropy of one plain pass with its interval over networks (of one network:
    over its test examples, where the sweep kept them). The best of many, chosen on these examples, look better than
    they are; `chosen` says what a choice is worth on other examples. Of placements that share a score, as
    `tied` counts them, those of least AURC are shown.
    """
    shown = [name for name in _SHOWN if name in study.rows]
    plain = study.baseline[study.baseline["measure"] == PLAIN].set_index("network")["aurc"]
    gap = study.rows["aurc"] - study.rows["network"].astype(str).map(plain)
    rows = study.rows.assign(gap=gap)
    lines = []
    for measure in study.measures:
        part = rows[rows["measure"] == measure]
        means = part.groupby("placement", sort=False)[shown].mean()
        for score in ("aurc", "isotonic_penalty", "rearrangement_penalty"):
            for placement in means.sort_values([score, "aurc"], kind="stable").index[:_BEST]:
                own = part[part["placement"] == placement]
                tied = int((means[score] == means.loc[placement, score]).sum())
                lines.append(
                    {"measure": measure, "least": _SHOWN[score], "placement": placement, **means.loc[placement]}
                    | {"tied": tied}
                    | _gap(own)
                )
    for measure, part in study.baseline.groupby("measure", sort=False):
        means = part[[name for name in shown if name in part]].mean()
        lines.append({"measure": measure, "least": "", "placement": "none (one plain pass)", **means})
    for kind in ("random", "monotone"):
        levels = {penalty: study.level(penalty, kind) for penalty in PENALTIES}
        lines.append({"measure": f"{kind} measure", "least": "", "placement": "simulated", **levels})
    return pd.DataFrame(lines).rename(columns=_SHOWN)


def single_layers(study: StudyRows) -> pd.DataFrame:
    """Placements of one layer alone: mean and peak over rates of each penalty, means over networks with intervals."""
    lines = []
    for layer in study.layers:
        for measure in study.measures:
            rows = study.rows[study.only(layer) & (study.rows["measure"] == measure)]
            if rows.empty:
                continue
            for score in (*PENALTIES, "aurc"):
                mean = effect_over_networks(rows, lambda own, s=score: float(own[s].mean()))  # type: ignore[misc]
                peak = effect_over_networks(rows, lambda own, s=score: float(own[s].max()))  # type: ignore[misc]
                lines.append(
                    {"layer": layer, "measure": measure, "score": score, "mean": mean.value, "mean_low": mean.low,
                     "mean_high": mean.high, "peak": peak.value, "peak_low": peak.low, "peak_high": peak.high,
                     "random": study.level(score, "random"), "monotone": study.level(score, "monotone"),
                     "networks": mean.n}
                )  # fmt: skip
    return pd.DataFrame(lines)


def marginals(study: StudyRows, by: str) -> pd.DataFrame:
    """Mean over placements of each penalty and of AURC at every value of a quantity, its interval over networks, its
    std over placements, and the levels of a random and a monotone measure (at the plain pass's accuracy)."""
    keys = {"first": ["first", "first_layer", "first_rate"], "last": ["last", "last_layer", "last_rate"]}.get(by, [by])
    rows = study.every if by == "position" else study.rows
    frames = [
        marginal_means(rows, keys, s).assign(
            score=s, random=study.level(s, "random"), monotone=study.level(s, "monotone")
        )
        for s in (*PENALTIES, "aurc")
    ]
    return pd.concat(frames, ignore_index=True)


def chosen(study: StudyRows) -> pd.DataFrame:
    """Per network and measure: the placement of least AURC on the validation examples, judged on the test examples."""
    parts = [r.chosen.assign(network=r.name) for r in study.results if r.chosen is not None]
    if not parts:
        return pd.DataFrame()
    table = pd.concat(parts, ignore_index=True)
    return table[["network", *(column for column in table if column != "network")]]


def _gap(own: pd.DataFrame) -> dict[str, float]:
    estimate = over_networks(own["gap"].tolist())
    low, high = estimate.low, estimate.high
    if len(own) == 1 and "aurc_minus_baseline_low" in own:
        low, high = (float(own[f"aurc_minus_baseline_{end}"].iloc[0]) for end in ("low", "high"))
    return {"AURC − plain": estimate.value, "low": low, "high": high}


# --- effects ----------------------------------------------------------------------------------------------------------


def effect_table(study: StudyRows) -> pd.DataFrame:
    """A line per effect, statistic, measure and score: value, interval over networks, p, Holm's p of its family."""
    scores = [score for score in JUDGED if score in study.rows]
    parts = [
        pairwise_contrasts(study.rows, _kinds(study), scores),
        trends(study.rows, QUANTITIES, scores),
        *(
            trends(study.rows, [penalty], [s for s in ("aurc", "error_auroc") if s in study.rows])
            for penalty in PENALTIES
        ),
        *_positions(study, scores),
    ]
    return pd.concat([part for part in parts if not part.empty], ignore_index=True)


def alone_several(layer: str) -> str:
    return f"{layer} alone − several layers"


def alone_alone(layer: str, other: str) -> str:
    return f"{layer} alone − {other} alone"


def find_line(table: pd.DataFrame, effect: str, statistic: str, measure: str, score: str) -> pd.Series | None:
    """One line of the table, or None where the rows do not have what it compares."""
    lines = table[
        (table["effect"] == effect)
        & (table["statistic"] == statistic)
        & (table["measure"] == measure)
        & (table["score"] == score)
    ]
    return None if lines.empty else lines.iloc[0]


def _kinds(study: StudyRows) -> dict[str, tuple[Choice, Choice]]:
    def alone(layer: str) -> Choice:
        return lambda rows: study.only(layer, rows)

    kinds: dict[str, tuple[Choice, Choice]] = {}
    published = published_for(study.task)
    first = study.layers[:1] if published is not None and published.highest_first else ()
    for layer in (*study.task.penultimate, *first):
        kinds[alone_several(layer)] = alone(layer), lambda rows: rows["n_layers"] > 1
        for other in study.layers:
            if other != layer:
                kinds[alone_alone(layer, other)] = alone(layer), alone(other)
    half = len(study.layers) // 2
    if half:
        kinds[EARLY] = lambda rows: rows["last"] <= half, lambda rows: rows["last"] > half
    return kinds


def _positions(study: StudyRows, scores: list[str]) -> list[pd.DataFrame]:
    position = study.every["position"]
    before, after = study.every[position == "before"], study.every[position == "after"]
    tables = []
    if len(before) and len(after):
        tables.append(paired_differences(before, after, BEFORE_AFTER, scores))
    if study.inputs is not None:
        tables.append(paired_differences(study.inputs, after if len(after) else study.rows, INPUT_AFTER, scores))
    return tables
