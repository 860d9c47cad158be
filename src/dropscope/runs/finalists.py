"""Finalists of a sweep: which rows they are, with intervals and paired differences from their per-example values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import scores
from dropscope.analysis import REPLICATES, bootstrap, bootstrap_scores, interval, paired_interval, resamples
from dropscope.progress import track
from dropscope.scores import Confidences, Score

AGAINST = "plain_entropy"  # the baseline that differences are taken to
INTERVAL = ("low", "high", "minus_single_pass_low", "minus_single_pass_high")
_RANKING = ["placement", "measure", "score"]


@dataclass(frozen=True, eq=False)
class Finalists:
    """Rows that are looked at again, example by example."""

    examples: pd.DataFrame  # a ranking per placement and measure; see `values_table`
    confidences: Mapping[str, Confidences]  # placement → what calibration scores read; empty where none is asked for


def select_finalists(rows: pd.DataFrame, keep: int | None, objective: Score) -> pd.DataFrame:
    """The `keep` best rows by `objective` (None: all), each computed placement once."""
    own = rows[rows.equivalent_to.isna()]
    if keep is None:
        return own
    return own.sort_values(objective.name, ascending=objective.direction == "lower", kind="stable").head(keep)


def values_table(ids: np.ndarray, placement: str, measure: str, uncertainty: Tensor, correct: Tensor) -> pd.DataFrame:
    """One measure of one placement, example by example."""
    return pd.DataFrame(
        {
            "id": ids,
            "placement": placement,
            "measure": measure,
            "uncertainty": uncertainty.cpu().numpy(),
            "correct": correct.cpu().numpy(),
        }
    )


def interval_table(
    finalists: Finalists,
    scored: pd.DataFrame,
    chosen: Sequence[Score],
    groups: Sequence[Hashable] | None,
    seed: int,
    device: torch.device,
    *,
    show: bool | None,
) -> pd.DataFrame:
    """A row per ranking and score: 95 % intervals of the value, and of its paired difference to the plain entropy's.

    The calibration error is biased up under resampling: its replicates are moved so that their mean is its value.

    Args:
        finalists: Per-example values of the finalists and the baselines.
        scored: Rows of a sweep and its baselines: the values themselves. A placement that equals another by
            mathematics gets the intervals of the one that was computed.
        chosen: The scores.
        groups: What is resampled instead of examples.
        seed: Of the resampling.
        device: Where it is computed.
        show: Whether progress is shown.
    """
    kept = list(finalists.examples.groupby(["placement", "measure"], sort=False))
    kept.sort(key=lambda pair: pair[0][1] != AGAINST)  # what the others are compared with comes first
    indices = resamples(len(kept[0][1]), groups, REPLICATES, seed)
    names = [score.name for score in chosen]
    found = []
    reference: dict[str, Tensor] = {}
    confidences: dict[str, dict[str, Tensor]] = {}
    with track("intervals", len(kept), "rows", show=show) as tick:
        for (placement, measure), group in kept:
            uncertainty = torch.as_tensor(group.uncertainty.to_numpy(copy=True), device=device)
            correct = torch.as_tensor(group.correct.to_numpy(copy=True), device=device)
            drawn = ranking_replicates(chosen, uncertainty, correct, indices)
            if finalists.confidences and placement not in confidences:
                confidences[placement] = _calibration_replicates(finalists.confidences[placement], indices)
            drawn |= confidences.get(placement, {})
            reference = reference or drawn
            for name in ("accuracy", *names):
                ends = (*interval(drawn[name]), *paired_interval(drawn[name], reference[name]))
                found.append((placement, measure, name, *ends))
            tick(1)
    table = pd.DataFrame(found, columns=[*_RANKING, *INTERVAL])
    return _with_values(pd.concat([table, _of_equivalents(table, scored)], ignore_index=True), scored)


def _of_equivalents(table: pd.DataFrame, scored: pd.DataFrame) -> pd.DataFrame:
    """The intervals of placements that are equal to a computed one by mathematics."""
    equals = scored[["placement", "equivalent_to"]].dropna().drop_duplicates()
    computed = table.rename(columns={"placement": "equivalent_to"})
    return equals.merge(computed, on="equivalent_to").drop(columns="equivalent_to")


def _with_values(table: pd.DataFrame, scored: pd.DataFrame) -> pd.DataFrame:
    """Beside each interval the value, and its difference to the plain entropy's."""
    wanted = scored.merge(table[["placement", "measure"]].drop_duplicates(), on=["placement", "measure"])
    names = list(table.score.unique())
    values = wanted.melt(["placement", "measure"], names, var_name="score", value_name="value")
    plain = values[values.measure == AGAINST].set_index("score")["value"]
    table = table.merge(values, on=_RANKING, how="left", validate="1:1")
    table["minus_single_pass"] = table["value"] - table.score.map(plain)
    return table[[*_RANKING, "value", *INTERVAL[:2], "minus_single_pass", *INTERVAL[2:]]]


def ranking_replicates(
    chosen: Sequence[Score], uncertainty: Tensor, correct: Tensor, indices: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The scores of a ranking on every resample, those of the user's own included."""
    drawn = bootstrap_scores(uncertainty, correct, indices)
    own = [score for score in chosen if score.own]
    return drawn | _own_replicates(own, uncertainty, correct, indices) if own else drawn


def _own_replicates(
    own: Sequence[Score], uncertainty: Tensor, correct: Tensor, indices: Sequence[Tensor]
) -> dict[str, Tensor]:
    uncertainty, correct = uncertainty.cpu(), correct.cpu()

    def statistics(chosen: Tensor) -> dict[str, Tensor]:
        drawn = uncertainty[chosen], correct[chosen]
        return {s.name: scores.score_rankings(s.function, s.name, *drawn, batched=s.batched) for s in own}

    return bootstrap(statistics, indices)


def _calibration_replicates(confidences: Confidences, indices: Sequence[Tensor]) -> dict[str, Tensor]:
    """Weighted means of the same terms: how often each example is drawn is all that differs."""
    terms = scores.calibration_terms(confidences).cpu()
    counts = (torch.bincount(chosen, minlength=len(terms)).double() / len(chosen) for chosen in indices)
    drawn = scores.calibration_of(torch.stack([weights @ terms for weights in counts]))
    value = float(scores.calibration_of(terms.mean(0))["ece"])
    return drawn | {"ece": drawn["ece"] - drawn["ece"].mean() + value}
