"""Table of scores: what each is called, what it takes, which direction is better; and all ranking scores at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from dropscope.checks import check_choice
from dropscope.errors import BadInput
from dropscope.scores.calibration import brier, ece, nll
from dropscope.scores.cases import loss_aurc, loss_correlation
from dropscope.scores.detection import augrc, aurc, detection_of, error_auprc, error_auroc, excess_aurc
from dropscope.scores.docs import curve_docs
from dropscope.scores.monotonicity import isotonic_penalty, penalties_of, rearrangement_penalty, running_minimum_penalty
from dropscope.scores.own import is_batched
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
        own: Whether it is a function of the user's.
        batched: Whether the function scores several rankings `[k, n]` at once.

    Examples:
        >>> TABLE["aurc"].direction, TABLE["aurc"].range
        ('lower', '[0, 1]')
    """

    name: str
    function: Callable[..., Tensor]
    direction: Literal["lower", "higher"]
    range: str
    takes: Literal["ranking", "probabilities", "images", "losses"] = "ranking"
    own: bool = False
    batched: bool = True


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


RANKING = tuple(name for name, row in TABLE.items() if row.takes == "ranking")
CALIBRATION = tuple(name for name, row in TABLE.items() if row.takes == "probabilities")
DIRECTIONS = ("lower", "higher")


def of_ranking(
    function: Callable[..., Any], *, direction: Literal["lower", "higher"], name: str | None = None
) -> Score:
    """A score of your own for `sweep(..., scores=[...])`: how good a ranking by uncertainty is.

    Args:
        function: Takes `uncertainty` and `correct`, tensors `[n]` on the CPU, the second bool, and returns a number.
            One that takes `[k, n]` and returns `[k]` is called once for many rankings.
        direction: Whether "lower" or "higher" is better.
        name: What the score is called; None takes the function's own name.

    Returns:
        A row, for `scores=[...]`.

    Raises:
        BadInput: Where the function does not score a ranking, or has no name.

    Examples:
        >>> from dropscope import scores
        >>> half = of_ranking(lambda u, c: scores.risk_at_coverage(u, c, coverage=0.5), direction="lower", name="half")
        >>> half.name, half.direction, half.batched
        ('half', 'lower', True)
    """
    name = getattr(function, "__name__", "") if name is None else name
    if not callable(function) or not isinstance(name, str) or not name.isidentifier():
        remedy = "write scores.of_ranking(function, direction='lower', name='my_score')"
        raise BadInput("scores of your own must be functions with a name", "scores", name or function, remedy)
    if direction not in DIRECTIONS:
        remedy = f"write scores.of_ranking({name}, direction='lower'), or {name}.direction = 'lower'"
        raise BadInput(f"score {name!r} must say whether lower or higher is better", "scores", direction, remedy)
    if name in TABLE or name in _COLUMNS:
        raise BadInput("scores of your own must have a name of their own", "scores", name, "write name='my_score'")
    return Score(name, function, direction, "as its author says", own=True, batched=is_batched(function, name))


def resolve(chosen: Any = None, argument: str = "scores") -> list[Score]:
    """The rows for what a user names, of those that a sweep can have.

    Args:
        chosen: A name in `TABLE` of a score that takes a ranking or probabilities, a function with an attribute
            `direction`, a row, or several of these; None means every one of the table.
        argument: What the error calls it.

    Returns:
        A row for each, each once, in the same order.

    Raises:
        BadInput: Where there is no such score, a function is none, or two have one name.

    Examples:
        >>> [row.name for row in resolve(["aurc", "ece"])]
        ['aurc', 'ece']
    """
    if chosen is None:
        chosen = (*RANKING, *CALIBRATION)
    several: Sequence[Any] = [chosen] if isinstance(chosen, str | Score) or callable(chosen) else chosen
    rows = list(dict.fromkeys(_row(one, argument) for one in several))
    names = [row.name for row in rows]
    if len(set(names)) < len(names):
        remedy = "give each its own by scores.of_ranking(function, direction='lower', name='another')"
        raise BadInput(f"{argument} must have names of their own", argument, names, remedy)
    return rows


_COLUMNS = ("placement", "measure", "accuracy", "cost", "equivalent_to", "number", "order")


def _row(score: Any, argument: str) -> Score:
    if isinstance(score, Score):
        return score
    if callable(score):
        known = next((row for row in TABLE.values() if row.function is score), None)
        stated: Any = getattr(score, "direction", None)
        return _row(known.name, argument) if known else of_ranking(score, direction=stated)
    return TABLE[check_score(score, argument, (*RANKING, *CALIBRATION))]


def check_score(value: object, name: str, valid: Iterable[str]) -> str:
    """The value, if it is a score that a sweep's rows have; other common names of those are only suggested."""
    words, written = tuple(valid), str(value).lower()
    rule = f"{name} must be one of {', '.join(words)}"
    meant = _ALSO_CALLED.get(written)
    if meant in words:
        raise BadInput(rule, name, value, f"did you mean {meant!r}?")
    if written in TABLE and TABLE[written].takes not in ("ranking", "probabilities"):
        remedy = f"call dropscope.scores.{written}: it scores {TABLE[written].takes}, not a ranking"
        raise BadInput(rule, name, value, remedy)
    if written == "accuracy":
        raise BadInput(rule, name, value, "sort rows by 'accuracy': it is the predictions', whatever the measure")
    return check_choice(value, name, words)


_ALSO_CALLED = {
    "auc": "error_auroc", "roc": "error_auroc", "roc_auc": "error_auroc", "rocauc": "error_auroc",
    "ap": "error_auprc", "pr_auc": "error_auprc", "average_precision": "error_auprc",
    "eaurc": "excess_aurc", "e_aurc": "excess_aurc", "risk_coverage": "aurc",
    "log_loss": "nll", "cross_entropy": "nll", "calibration": "ece", "calibration_error": "ece", "brier_score": "brier",
}  # fmt: skip


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
