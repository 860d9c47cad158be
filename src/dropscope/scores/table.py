"""Table of scores: what each is called, what it takes, which direction is better; and all ranking scores at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dropscope.scores.calibration import brier, ece, nll
from dropscope.scores.cases import loss_aurc, loss_correlation
from dropscope.scores.detection import augrc, aurc, detection_of, error_auprc, error_auroc, excess_aurc
from dropscope.scores.docs import curve_docs
from dropscope.scores.monotonicity import isotonic_penalty, penalties_of, rearrangement_penalty, running_minimum_penalty
from dropscope.scores.ranking import rank
from dropscope.scores.segmentation import dice, voxel_auprc


@dataclass(frozen=True)
class Score:
    """One row of the table of scores.

    Attributes:
        name: What the score is called in arguments and tables.
        function: The function itself.
        direction: Whether "lower" or "higher" is better.
        range: Values it can take, in words.
        takes: Its arguments: "ranking" (uncertainty, correct), "probabilities" (probabilities, labels), "images" or
            "losses" (uncertainty, loss).

    Examples:
        >>> TABLE["aurc"].direction, TABLE["aurc"].range
        ('lower', '[0, 1]')
    """

    name: str
    function: Callable[..., Tensor]
    direction: Literal["lower", "higher"]
    range: str
    takes: Literal["ranking", "probabilities", "images", "losses"] = "ranking"


TABLE: dict[str, Score] = {
    row.name: row
    for row in (
        Score("isotonic_penalty", isotonic_penalty, "lower", "[0, 1/2]"),
        Score("rearrangement_penalty", rearrangement_penalty, "lower", "[0, 1/2]"),
        Score("running_minimum_penalty", running_minimum_penalty, "lower", "[0, 1]"),
        Score("aurc", aurc, "lower", "[0, 1]"),
        Score("excess_aurc", excess_aurc, "lower", "[0, 1]"),
        Score("augrc", augrc, "lower", "[0, 1/2]"),
        Score("error_auroc", error_auroc, "higher", "[0, 1]"),
        Score("error_auprc", error_auprc, "higher", "[0, 1]"),
        Score("ece", ece, "lower", "[0, 1]", "probabilities"),
        Score("brier", brier, "lower", "[0, 2]", "probabilities"),
        Score("nll", nll, "lower", "[0, 27.7]", "probabilities"),
        Score("dice", dice, "higher", "[0, 1]", "images"),
        Score("voxel_auprc", voxel_auprc, "higher", "[0, 1]", "images"),
        Score("loss_correlation", loss_correlation, "higher", "[-1, 1]", "losses"),
        Score("loss_aurc", loss_aurc, "lower", "the loss's", "losses"),
    )
}


@curve_docs("Each score under its name, `[...]`, float64. See the functions for ranges and directions.")
def ranking_scores(uncertainty: Tensor, correct: Tensor, points: int = 100) -> dict[str, Tensor]:
    """Every score of the table that takes a ranking, from one sort.

    Examples:
        >>> import torch
        >>> found = ranking_scores(torch.tensor([0.1, 0.2]), torch.tensor([1, 0]))
        >>> found["aurc"].item(), found["error_auroc"].item()
        (0.25, 1.0)
    """
    ranking = rank(uncertainty, correct)
    return penalties_of(ranking, points) | detection_of(ranking)
