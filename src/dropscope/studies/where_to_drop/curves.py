"""Curves of single placements: per-example uncertainty under the two placements of table 3, and what follows.

Owns the placements, their values in batches of 128 images and on all of them, table 3, and the paired bootstrap between
the two. Why 128: the published figures look like one such batch, with a running minimum where the text says
rearrangement.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pandas as pd
import torch

from dropscope import scores
from dropscope.analysis import (
    REPLICATES,
    bootstrap_scores,
    log_over_networks,
    over_networks,
    paired_interval,
    resamples,
)
from dropscope.placement import Placement
from dropscope.studies.where_to_drop.published import published_for
from dropscope.studies.where_to_drop.rows import PENALTIES, StudyRows
from dropscope.studies.where_to_drop.tasks import Task

BATCH = 128
MEASURE = "expected_entropy"


def curve_placements(task: Task) -> list[str]:
    """Table 3's two placements, with the last three layers standing for conv2, conv3 and fc1; and the first layer."""
    layers = task.layers
    second = ",".join(
        f"{name}={rate}" for name, rate in zip(layers[-3:], (0.7, 0.8, 0.4)[-len(layers[-3:]) :], strict=True)
    )
    noise = "" if task.noise == "bernoulli" else f" noise={task.noise}"
    return [f"{text}{noise}" for text in dict.fromkeys([f"{layers[-1]}=0.8", second, f"{layers[0]}=0.5"])]


def curve_pair(study: StudyRows, measure: str = MEASURE) -> tuple[str, str] | None:
    """Table 3's two placements, in the order of the paper: the last layer alone, and several layers. None where the
    per-example values lack one."""
    published = published_for(study.task)
    texts = _texts(study, measure)
    if published is not None and published.table_three:
        wanted = [next((t for t in texts if rates_of(t) == row.rates), None) for row in published.table_three]
        return None if None in wanted or len(wanted) != 2 else (str(wanted[0]), str(wanted[1]))
    alone = next((t for t in texts if list(rates_of(t)) == [_bare(study.layers[-1])]), None)
    several = next((t for t in texts if len(rates_of(t)) > 1), None)
    return None if alone is None or several is None else (alone, several)


def values(study: StudyRows, network: int, placement: str, measure: str = MEASURE) -> tuple[torch.Tensor, torch.Tensor]:
    """Uncertainty and correctness of every example, in the order of the data."""
    curves = study.results[network].curves
    part = curves[(curves["placement"] == placement) & (curves["measure"] == measure)]
    uncertainty = torch.tensor(part["uncertainty"].to_numpy(dtype=float, copy=True))
    return uncertainty, torch.tensor(part["correct"].to_numpy(dtype=bool, copy=True))


def batch_scores(study: StudyRows) -> pd.DataFrame:
    """Penalties and AURC of every network, placement of the pair, and batch: disjoint batches of 128 in the order of
    the data (what is left over is not used), and all examples as one batch."""
    frames = []
    pair = curve_pair(study)
    for network, result in enumerate(study.results):
        for placement in pair or ():
            uncertainty, correct = values(study, network, placement)
            for size in dict.fromkeys((BATCH, len(correct))):
                count = len(correct) // size
                if not count:
                    continue
                cut = slice(0, count * size)
                ranking = scores.ranking_scores(uncertainty[cut].view(count, size), correct[cut].view(count, size))
                table = {name: ranking[name].numpy() for name in (*PENALTIES, "aurc")}
                facts = {"network": result.name, "placement": placement, "n": size, "batch": range(count)}
                right = correct[cut].view(count, size).double().mean(1).numpy()
                frames.append(pd.DataFrame({**facts, "accuracy": right, **table}))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def table_three(study: StudyRows, batches: pd.DataFrame | None = None) -> pd.DataFrame:
    """One line per placement, n and score; empty where the per-example values are not there.

    `ours` is the mean over networks of the mean over batches with its t interval over networks (of a penalty, which is
    never negative, on logarithms), `batch_std`,
    `batch_low`, `batch_high` the std and the 2.5 to 97.5 % range of single batches of all networks, `random` and
    `monotone` what a useless and a truly monotone measure score at that n and accuracy.
    """
    batches = batch_scores(study) if batches is None else batches
    if batches.empty:
        return pd.DataFrame()
    lines = []
    published = _published(study)
    for (placement, n), part in batches.groupby(["placement", "n"], sort=False):
        levels = _levels(round(float(part["accuracy"].mean()), 4), int(n))
        for score in (*PENALTIES, "aurc"):
            networks = part.groupby("network", sort=False)[score]
            estimate = (over_networks if score == "aurc" else log_over_networks)(networks.mean().tolist())
            low, high = np.quantile(part[score], [0.025, 0.975]) if networks.size().iloc[0] > 1 else (np.nan, np.nan)
            lines.append(
                {
                    "placement": placement, "n": int(n), "batches": int(networks.size().iloc[0]), "score": score,
                    "published": published.get((str(placement), score), np.nan),
                    "ours": estimate.value, "low": estimate.low, "high": estimate.high, "networks": estimate.n,
                    "batch_std": float(networks.std().mean()), "batch_low": low, "batch_high": high,
                    "random": levels.get(score, {}).get("random", np.nan),
                    "monotone": levels.get(score, {}).get("monotone", np.nan),
                    "accuracy": float(part["accuracy"].mean()),
                }
            )  # fmt: skip
    return pd.DataFrame(lines)


def paired_bootstrap(study: StudyRows, network: int, score: str, seed: int = 0) -> tuple[float, float, float]:
    """Score of the pair's first placement minus that of its second on all examples of one network, and its 95 %
    interval over resampled examples (patients, where examples share them).

    A resample repeats examples, which makes its curve rougher and its penalty larger, the more so for the flatter of
    two curves. So the replicates are moved by that bias: their mean is the difference itself.
    """
    pair = curve_pair(study)
    assert pair is not None
    first, second = (values(study, network, placement) for placement in pair)
    indices = resamples(len(first[1]), study.task.test_groups, REPLICATES, seed)
    drawn = [bootstrap_scores(*side, indices)[score] for side in (first, second)]
    a, b = (float(scores.TABLE[score].function(*side)) for side in (first, second))
    return a - b, *paired_interval(*drawn, difference=a - b)


def rates_of(text: str) -> dict[str, float]:
    """Layer → rate, whatever the position.

    >>> rates_of("fc1@after_activation=0.8")
    {'fc1': 0.8}
    """
    return {term.name: term.rate for term in Placement.parse(text).terms}


def _texts(study: StudyRows, measure: str) -> list[str]:
    """Placements whose values every network has."""
    known = [
        set(r.curves.loc[r.curves["measure"] == measure, "placement"]) for r in study.results if not r.curves.empty
    ]
    if len(known) < study.networks:
        return []
    return [t for t in study.results[0].curves["placement"].unique() if all(t in texts for texts in known)]


def _published(study: StudyRows) -> Mapping[tuple[str, str], float]:
    published, pair = published_for(study.task), curve_pair(study)
    if published is None or pair is None:
        return {}
    cells: dict[tuple[str, str], float] = {}
    for placement, row in zip(pair, published.table_three, strict=False):
        cells[placement, "isotonic_penalty"] = row.isotonic
        cells[placement, "rearrangement_penalty"] = cells[placement, "running_minimum_penalty"] = row.rearrangement
    return cells


def _bare(layer: str) -> str:
    return layer.partition("@")[0].partition("#")[0]


@lru_cache(maxsize=32)
def _levels(accuracy: float, n: int) -> dict[str, dict[str, float]]:
    return scores.reference_levels(accuracy, n)
