"""The answer of the study in three lines: which measure to use, whether passes pay, and what that rests on.

Owns the sentences; verdicts come from `claims`, numbers from `tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dropscope.report import Claim, count_verdicts
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.evaluation import FOUR
from dropscope.studies.segmentation_measures.own_report import recommend
from dropscope.studies.segmentation_measures.rows import LABELS

_MEAN = "mean AUC-PR ↑"


def answer(
    rows: pd.DataFrame,
    measures: pd.DataFrame,
    experiments: pd.DataFrame,
    claims: Sequence[Claim],
    facts: dict[str, Any],
) -> list[str]:
    """Three lines, most important first; `measures` and `experiments` are tables of the report."""
    last = _evidence(experiments, claims, facts, int(rows.patient.nunique()))
    if experiments.failed.all() and not facts["own"]:
        few = f"all {len(experiments)} networks failed to train (mean foreground Dice below {published.FAILED_DICE:g})"
        return [f"Nothing follows: {few}.", last]
    networks = rows if facts["own"] else rows.assign(network=rows.experiment)
    return [recommend(networks), _order(measures.set_index("measure"), claims), last]


def _order(measures: pd.DataFrame, claims: Sequence[Claim]) -> str:
    four = measures.loc[[LABELS[name] for name in FOUR], _MEAN].sort_values(ascending=False)
    ranked = " > ".join(f"{name} {value:.3f}" for name, value in four.items())
    order = "the paper's order, averaged variance and entropy > Bhattacharyya > Kullback-Leibler"
    judged = "".join(f"; {order}: {claim.verdict}" for claim in claims if claim.name == "order")
    return f"The paper's four: {ranked}{judged}."


def _evidence(experiments: pd.DataFrame, claims: Sequence[Claim], facts: dict[str, Any], patients: int) -> str:
    failed = int(experiments.failed.sum())
    least, most = experiments.dice_foreground.min(), experiments.dice_foreground.max()
    return (
        f"Evidence: {facts['networks']} networks{f' ({failed} failed to train)' if failed else ''}, {patients} test "
        f"patients, {facts['passes']} passes, mean foreground Dice {least:.2f} to {most:.2f}; {count_verdicts(claims)}."
    )
