"""The study's tables, from rows: accuracies, best placements beside one plain pass, single layers, marginals.

Owns what is in a line. Table 3 has a file of its own; effects too.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

from dropscope.analysis import effect_over_networks, marginal_means, over_networks
from dropscope.studies.where_to_drop.gathered import PENALTIES, PLAIN, Gathered
from dropscope.studies.where_to_drop.published import published_for

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


def accuracies(g: Gathered) -> pd.DataFrame:
    """Accuracy of one plain pass of each network with Wilson's 95 % interval over the test examples, and their mean
    with its t interval over networks, beside the published one."""
    published = published_for(g.task)
    known = np.nan if published is None else published.accuracy
    lines = []
    for result in g.results:
        low, high = wilson(result.accuracy, g.examples)
        lines.append({"network": result.name, "accuracy": result.accuracy, "low": low, "high": high})
    if g.networks > 1:
        mean = over_networks([result.accuracy for result in g.results])
        lines.append({"network": "mean of networks", "accuracy": mean.value, "low": mean.low, "high": mean.high})
    table = pd.DataFrame(lines).assign(test_examples=g.examples, published=known)
    return table.assign(difference=table["accuracy"] - table["published"])


def wilson(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share of n independent examples.

    >>> [round(v, 4) for v in wilson(0.5, 100)]
    [0.4038, 0.5962]
    """
    z = float(stats.norm.ppf((1 + level) / 2))
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return middle - half, middle + half


def best_placements(g: Gathered) -> pd.DataFrame:
    """For each measure the placements of least AURC and of least penalty, means over networks; then one plain pass and
    the levels of a useless and a truly monotone measure.

    `AURC − plain` is the difference to the entropy of one plain pass with its interval over networks (of one network:
    over its test examples, where the sweep kept them). The best of many, chosen on these examples, look better than
    they are (R28, R29): what a choice is worth on other examples, `chosen` says. Of placements that share a score, as
    `tied` counts them, those of least AURC are shown.
    """
    shown = [name for name in _SHOWN if name in g.rows]
    plain = g.baseline[g.baseline["measure"] == PLAIN].set_index("network")["aurc"]
    gap = g.rows["aurc"] - g.rows["network"].astype(str).map(plain)
    rows = g.rows.assign(gap=gap)
    lines = []
    for measure in g.measures:
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
    for measure, part in g.baseline.groupby("measure", sort=False):
        means = part[[name for name in shown if name in part]].mean()
        lines.append({"measure": measure, "least": "", "placement": "none (one plain pass)", **means})
    for kind in ("random", "monotone"):
        levels = {penalty: g.level(penalty, kind) for penalty in PENALTIES}
        lines.append({"measure": f"{kind} measure", "least": "", "placement": "simulated", **levels})
    return pd.DataFrame(lines).rename(columns=_SHOWN)


def single_layers(g: Gathered) -> pd.DataFrame:
    """Placements of one layer alone: mean and peak over rates of each penalty, means over networks with intervals."""
    lines = []
    for layer in g.layers:
        for measure in g.measures:
            rows = g.rows[g.only(layer) & (g.rows["measure"] == measure)]
            if rows.empty:
                continue
            for score in (*PENALTIES, "aurc"):
                mean = effect_over_networks(rows, lambda own, s=score: float(own[s].mean()))  # type: ignore[misc]
                peak = effect_over_networks(rows, lambda own, s=score: float(own[s].max()))  # type: ignore[misc]
                lines.append(
                    {"layer": layer, "measure": measure, "score": score, "mean": mean.value, "mean_low": mean.low,
                     "mean_high": mean.high, "peak": peak.value, "peak_low": peak.low, "peak_high": peak.high,
                     "random": g.level(score, "random"), "monotone": g.level(score, "monotone"), "networks": mean.n}
                )  # fmt: skip
    return pd.DataFrame(lines)


def marginals(g: Gathered, by: str) -> pd.DataFrame:
    """Mean over placements of each penalty and of AURC at every value of a quantity, its interval over networks, its
    std over placements, and the levels of a random and a monotone measure (at the plain pass's accuracy)."""
    keys = {"first": ["first", "first_layer", "first_rate"], "last": ["last", "last_layer", "last_rate"]}.get(by, [by])
    rows = g.every if by == "position" else g.rows
    frames = [
        marginal_means(rows, keys, s).assign(score=s, random=g.level(s, "random"), monotone=g.level(s, "monotone"))
        for s in (*PENALTIES, "aurc")
    ]
    return pd.concat(frames, ignore_index=True)


def chosen(g: Gathered) -> pd.DataFrame:
    """Per network and measure: the placement of least AURC on the validation examples, judged on the test examples."""
    parts = [r.chosen.assign(network=r.name) for r in g.results if r.chosen is not None]
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
