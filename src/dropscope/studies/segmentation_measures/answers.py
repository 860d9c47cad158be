"""The answer of the study in three lines: which measure to use, whether passes pay, and what that rests on.

Owns the sentences; verdicts come from `claims`, numbers from `tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from dropscope.report import Claim, count_verdicts
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.evaluation import FLOORS, FOUR, floored_name
from dropscope.studies.segmentation_measures.own_report import recommend
from dropscope.studies.segmentation_measures.rows import LABELS

_MEAN = "mean AUC-PR ↑"
_POOR = 0.6  # mean foreground Dice
TERMS = {
    "AUC-PR": "area under the precision-recall curve of finding wrong voxels by their uncertainty; higher is better, "
    "and a useless measure has the share of wrong voxels",
    "averaged variance, averaged entropy, predictive entropy": "variance over the passes, averaged over classes; mean "
    "over classes of the entropy of a histogram of each probability over the passes; entropy of the averaged passes",
    "Bhattacharyya, Kullback-Leibler": "overlap of the histograms of the two likeliest classes over the passes, and "
    "their divergence, which needs a floor for empty bins (1e-7 where none is named)",
    "experiment": "one network with its number of training cases, its rate and its noise",
    "P(error)": "probability that a voxel is wrong, from its uncertainty by a curve fitted on validation cases",
}


def answer(
    rows: pd.DataFrame,
    measures: pd.DataFrame,
    experiments: pd.DataFrame,
    claims: Sequence[Claim],
    facts: dict[str, Any],
) -> list[str]:
    """Three lines, most important first; `measures` and `experiments` are tables of the report, the first of the
    networks that learned to segment."""
    last = _evidence(experiments, claims, facts, int(rows.patient.nunique()))
    if experiments.failed.all() and not facts["own"]:
        few = f"all {len(experiments)} networks failed to train (mean foreground Dice below {published.FAILED_DICE:g})"
        return [f"Nothing follows: {few}.", last]
    if not experiments.failed.all():
        rows = rows[rows.experiment.isin(experiments.experiment[~experiments.failed])]
    networks = rows if facts["own"] else rows.assign(network=rows.experiment)
    return [recommend(networks), _order(measures.set_index("measure")[_MEAN], claims), last]


def _order(means: pd.Series, claims: Sequence[Claim]) -> str:
    """The paper's four by their means, “>” only where the pair is decided; and what Kullback-Leibler hangs on."""
    verdicts = {claim.name: claim.verdict for claim in claims}
    four = sorted(FOUR, key=lambda name: -means[LABELS[name]])
    ranked = f"{LABELS[four[0]]} {means[LABELS[four[0]]]:.3f}"
    for a, b in pairwise(four):
        decided = verdicts.get(f"{a} > {b}") == "supported" or verdicts.get(f"{b} > {a}") == "contradicted"
        decided |= {a, b} == {*FOUR[:2]} and verdicts.get("variance = entropy") == "contradicted"
        ranked += f" {'>' if decided else '≈'} {LABELS[b]} {means[LABELS[b]]:.3f}"
    order = "the paper's order, averaged variance and entropy > Bhattacharyya > Kullback-Leibler"
    judged = f"; {order}: {verdicts['order']}" if "order" in verdicts else ""
    return f"The paper's four: {ranked}{judged}{_floors(means)}."


def _floors(means: pd.Series) -> str:
    """Where another floor of an empty bin turns Bhattacharyya and Kullback-Leibler round."""
    rival, own = means[LABELS["bhattacharyya"]], means[LABELS["kullback_leibler"]]
    turned = [
        f"{floor:.0e}".replace("e-0", "e-") + f" ({value:.3f})"
        for floor in FLOORS
        if ((value := means.get(LABELS.get(floored_name(floor), ""), own)) > rival) != (own > rival)
    ]
    if not turned:
        return ""
    return f" at the floor 1e-7 of an empty bin, Bhattacharyya and Kullback-Leibler reversed at {', '.join(turned)}"


def _evidence(experiments: pd.DataFrame, claims: Sequence[Claim], facts: dict[str, Any], patients: int) -> str:
    failed = int(experiments.failed.sum())
    dice = experiments.dice_foreground
    dice = dice[~experiments.failed] if failed < len(dice) else dice
    left_out = f" ({failed} failed to train and {'is' if failed == 1 else 'are'} left out above)" if failed else ""
    networks = f"{facts['networks']} network{'s' * (facts['networks'] > 1)}{left_out}"
    return (
        f"Evidence: {networks}, {patients} test patients, {facts['passes']} passes, mean foreground Dice "
        f"{dice.min():.2f} to {dice.max():.2f}{_poor(float(dice.mean()))}; {count_verdicts(claims)}."
    )


def _poor(dice: float) -> str:
    return f" (mean {dice:.2f}: they segment poorly, and better networks err elsewhere)" if dice < _POOR else ""
