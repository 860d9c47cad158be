"""Tables of the study, from its rows: averages over the images of an experiment, then over experiments."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch

from dropscope import scores
from dropscope.analysis import Estimate, crossed_mean, differences_over_patients, holm, ordered_pairs, win_posterior
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.evaluation import FLOORS, FOUR, floored_name
from dropscope.studies.segmentation_measures.rows import LABELS, dice_columns, foreground_dice, mean_auprc

EVERY, TRAINED = "all", "without failures"  # which networks a line is of
_RIVAL = "plain_entropy"
_OF_MAPS = {"foreground mean": "foreground_mean", "worst patch": "worst_patch"}
_OF_PASSES = {
    "volume_variation": "volume variation over passes",
    "pairwise_disagreement": "1 − pairwise Dice of passes",
}


def per_experiment(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per experiment: where it lies in the grid, Dice, errors, images left out, mean AUC-PR of each measure."""
    cases = rows.drop_duplicates(["experiment", "case"])
    cases = cases.assign(
        dice_foreground=foreground_dice(cases), without=cases.errors == 0, share=cases.errors / cases.voxels
    )
    grouped = cases.groupby("experiment", sort=False)
    table = grouped[["n_train", "rate", "noise"]].first()
    table = table.join(grouped[[*dice_columns(rows), "dice_foreground"]].mean())
    table["error_share"] = grouped["share"].mean()
    table["failed"] = table["dice_foreground"] < published.FAILED_DICE
    table["images"], table["without_errors"] = grouped.size(), grouped["without"].sum().astype(int)
    return table.join(mean_auprc(rows)).reset_index()


def per_measure(rows: pd.DataFrame, costs: dict[str, float]) -> pd.DataFrame:
    """A row per measure: AUC-PR over experiments, its paired difference to one plain pass (over experiments and
    patients), seconds per case."""
    of_experiments = mean_auprc(rows)
    cells = rows.pivot_table("auprc", ["experiment", "patient", "case"], "measure", "mean")
    table = []
    for name in of_experiments.columns:
        values = of_experiments[name].dropna()
        difference = _apart(cells, name, _RIVAL)
        low, median, high = values.quantile([0.05, 0.5, 0.95]) if len(values) else (np.nan,) * 3
        row: dict[str, Any] = {"measure": LABELS.get(name, name), "mean AUC-PR ↑": values.mean(), "median": median}
        row |= {"5 %": low, "95 %": high, "difference to one plain pass": difference.value}
        row |= {"low": difference.low, "high": difference.high, "seconds per case ↓": costs.get(name, np.nan)}
        table.append(row)
    return pd.DataFrame(table)


def per_case(rows: pd.DataFrame) -> pd.DataFrame:
    """How well the uncertainty of a whole case predicts 1 − mean foreground Dice: rank correlation and risk, each the
    mean over experiments; a case that has no such uncertainty (nothing predicted) is left out and counted."""
    wanted = {f"{LABELS[name]}, {how}": (name, column) for name in FOUR for how, column in _OF_MAPS.items()}
    wanted |= {f"{LABELS[name]}, {how}": (name, column) for name in (_RIVAL,) for how, column in _OF_MAPS.items()}
    wanted |= {words: (FOUR[0], column) for column, words in _OF_PASSES.items()}
    table = []
    for words, (name, column) in wanted.items():
        own = rows[rows.measure == name]
        own = own.assign(loss=1 - foreground_dice(own))
        known = own[np.isfinite(own[column]) & np.isfinite(own.loss)]
        pairs = [
            (torch.tensor(e[column].to_numpy()), torch.tensor(e.loss.to_numpy()))
            for _, e in known.groupby("experiment")
        ]
        correlations = np.array([float(scores.loss_correlation(u, v)) for u, v in pairs if len(u) > 1])
        correlations = correlations[np.isfinite(correlations)]
        risks = [float(scores.loss_aurc(u, v)) for u, v in pairs]
        low, high = np.quantile(correlations, [0.05, 0.95]) if len(correlations) else (np.nan, np.nan)
        row = {
            "uncertainty of a case": words,
            "rank correlation ↑": correlations.mean() if len(correlations) else np.nan,
        }
        row |= {
            "5 %": low,
            "95 %": high,
            "risk ↓": np.mean(risks) if risks else np.nan,
            "left out": len(own) - len(known),
        }
        table.append(row)
    return pd.DataFrame(table)


def failures(rows: pd.DataFrame) -> list[str]:
    """Experiments whose network did not learn to segment."""
    table = per_experiment(rows)
    return [str(name) for name in table.experiment[table.failed]]


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Differences of mean AUC-PR for each pair of the four over experiments × patients, with Holm's p over the six; of
    all experiments, and of those whose network learned to segment where some did not."""
    parts = {EVERY: rows}
    if failed := failures(rows):
        parts[TRAINED] = rows[~rows.experiment.isin(failed)]
    lines = []
    for which, part in parts.items():
        cells = part.pivot_table("auprc", ["experiment", "patient", "case"], "measure", "mean")
        if cells.empty:
            continue
        known = cells.dropna()
        counts = {f"{kind}s": known.index.get_level_values(kind).nunique() for kind in ("experiment", "patient")}
        estimates = {pair: _apart(cells, *pair) for pair in combinations(FOUR, 2)}
        adjusted = holm([e.p for e in estimates.values()])
        for ((a, b), e), p_holm in zip(estimates.items(), adjusted, strict=True):
            line = {"networks": which, "better": a, "than": b, "difference": e.value, "low": e.low, "high": e.high}
            lines.append(line | {"p": e.p, "p_holm": p_holm, **counts, "method": e.method})
    return pd.DataFrame(lines)


def _apart(cells: pd.DataFrame, first: str, second: str) -> Estimate:
    """Mean difference of two measures; every experiment counts alike, however many of its images have errors."""
    apart = (cells[first] - cells[second]).dropna()
    experiment, patient = (apart.index.get_level_values(kind).to_numpy() for kind in ("experiment", "patient"))
    images = apart.groupby("experiment").transform("size").to_numpy(float)
    kinds = ("experiments", "patients")
    return crossed_mean(apart.to_numpy(), experiment, patient, kinds=kinds, weights=1 / images, least=published.LEAST)


def posteriors(rows: pd.DataFrame) -> pd.DataFrame:
    """Every ordered pair of the paper's four measures over the experiments."""
    return ordered_pairs(mean_auprc(rows)[list(FOUR)])


def floors(rows: pd.DataFrame) -> pd.DataFrame:
    """Kullback-Leibler at each floor of an empty bin: mean AUC-PR, and the posterior that Bhattacharyya beats it."""
    values = mean_auprc(rows)
    table = []
    for floor in (1e-7, *FLOORS):
        name = "kullback_leibler" if floor == 1e-7 else floored_name(floor)
        p = win_posterior(values["bhattacharyya"].to_numpy(), values[name].to_numpy())
        row = {"floor": f"{floor:.0e}".replace("e-0", "e-"), "mean AUC-PR ↑": values[name].mean()}
        table.append(row | {"Bhattacharyya wins": p.wins, "experiments": p.n, "low": p.low, "high": p.high})
    return pd.DataFrame(table)


def bootstrap(rows: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Differences of mean AUC-PR for each pair of the four, over resampled patients: all centres, and each."""
    parts = []
    centres = sorted(rows.centre.unique())
    for centre in ["all", *(centres if len(centres) > 1 else [])]:
        cube, patients = _cube(rows if centre == "all" else rows[rows.centre == centre])
        parts.append(differences_over_patients(cube, list(FOUR), patients, seed=seed).assign(centre=centre))
    return pd.concat(parts, ignore_index=True)[
        ["centre", "better", "than", "difference", "low", "high", "patients", "level", "significant"]
    ]


def _cube(rows: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """AUC-PR `[experiments, cases, four measures]` and the patient of each case."""
    cases = rows.drop_duplicates("case").set_index("case").patient
    wide = rows[rows.measure.isin(FOUR)].pivot_table("auprc", "case", ["experiment", "measure"], "first", dropna=False)
    experiments = rows.experiment.unique()
    cube = np.stack([wide.reindex(cases.index)[e][list(FOUR)].to_numpy() for e in experiments])
    return cube, [str(p) for p in cases]
