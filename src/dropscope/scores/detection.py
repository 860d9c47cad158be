"""Detection of errors by uncertainty: risk against coverage, and errors found as a ranking.

Ties are shared out: within a group of equal uncertainty, errors count as spread evenly, the expected value over all
orders of the group. No score depends on row order. Accuracy enters the risks: compare at the same labels only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.scores.docs import ranking_docs
from dropscope.scores.ranking import Ranking, check_classes, checked_correct, rank


@ranking_docs("Coverage k/n `[n]` and risk `[..., n]`, float64.")
def risk_coverage_curve(uncertainty: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Risk at every coverage: the share of errors among the k most certain examples, k = 1 … n.

    Both in [0, 1]; lower risk is better. Within a group of equal uncertainty errors count as spread evenly.

    Not `accuracy_curve`, where ties enter together. Reference: El-Yaniv and Wiener (2010); Geifman and El-Yaniv (2017).

    Examples:
        >>> coverage, risk = risk_coverage_curve(torch.tensor([0.1, 0.2, 0.2, 0.4]), torch.tensor([1, 1, 0, 0]))
        >>> coverage.tolist(), risk[:2].tolist()
        ([0.25, 0.5, 0.75, 1.0], [0.0, 0.25])
    """
    ranking = rank(uncertainty, correct)
    k = _one_to(ranking)
    return k / ranking.n, _accepted_errors(ranking) / k


@ranking_docs()
def aurc(uncertainty: Tensor, correct: Tensor) -> Tensor:
    """Area under the risk-coverage curve.

    (1/n) Σ_k risk at coverage k/n. In [0, 1]. Lower is better; a useless measure has the error rate.

    Not comparable between models or labels of different accuracy: see excess_aurc, augrc.
    Reference: Geifman et al. (2019).

    Examples:
        >>> aurc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 1, 1, 0])).item()
        0.0625
    """
    return detection_scores(uncertainty, correct)["aurc"]


@ranking_docs()
def excess_aurc(uncertainty: Tensor, correct: Tensor) -> Tensor:
    """Area under the risk-coverage curve above that of the perfect order with as many errors.

    aurc − aurc of the perfect order (exact, not the logarithmic approximation). In [0, 1]. Lower is better; 0 is
    perfect.

    Not free of accuracy either: only its floor is. Reference: Geifman et al. (2019).

    Examples:
        >>> excess_aurc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 1, 1, 0])).item()
        0.0
    """
    return detection_scores(uncertainty, correct)["excess_aurc"]


def risk_at_coverage(uncertainty: Tensor, correct: Tensor, coverage: float) -> Tensor:
    """Share of errors among the ⌈coverage·n⌉ most certain examples.

    In [0, 1]. Lower is better. Not a guarantee for new data. Reference: Geifman and El-Yaniv (2017).

    Args:
        uncertainty: `[..., n]`, higher for less certain examples.
        correct: 0/1 per example, `[n]` or `[..., n]`.
        coverage: Share of examples that are kept, in (0, 1].

    Returns:
        `[...]`, float64.

    Raises:
        BadInput: Where `coverage` is no such share, the uncertainty has NaN, or `correct` is not 0/1.

    Examples:
        >>> risk_at_coverage(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 0, 1, 0]), 0.5).item()
        0.5
    """
    if not 0 < coverage <= 1:
        raise BadInput("coverage must be above 0 and at most 1", "coverage", coverage, "write 0.9 to keep 90 %")
    ranking = rank(uncertainty, correct)
    # 0.07·100 is 7.000000000000001 in floating point and means 7.
    k = max(1, math.ceil(coverage * ranking.n - 1e-9))
    return _accepted_errors(ranking)[..., k - 1] / k


@ranking_docs()
def augrc(uncertainty: Tensor, correct: Tensor) -> Tensor:
    """Area under the generalised risk-coverage curve.

    ∫ (errors accepted / n) d coverage by the trapezoid rule from coverage 0, which is exactly
    (1 − error_auroc)·acc·(1 − acc) + (1 − acc)²/2. In [0, 1/2]. Lower is better; a useless measure has (1 − acc)/2.

    Not aurc: the risk is over all examples, so that the first few certain ones do not weigh most.
    Reference: Traub et al. (2024).

    Examples:
        >>> augrc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 1, 1, 0])).item()
        0.03125
    """
    return detection_scores(uncertainty, correct)["augrc"]


def class_risk(correct: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Error rate within each true class.

    In [0, 1]. Lower is better. A low risk overall can hide a class that is always wrong.

    Not one minus the precision of that class, which is within a predicted one.

    Args:
        correct: 0/1 per example, `[..., n]`.
        labels: Class indices `[n]` or `[..., n]`.
        classes: How many classes there are.

    Returns:
        `[..., classes]`, float64; NaN where a class has no examples.

    Raises:
        BadInput: Where `correct` is not 0/1, or labels do not match it or lie outside 0 … classes − 1.

    Examples:
        >>> class_risk(torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1]), classes=3).tolist()
        [0.5, 0.0, nan]
    """
    if correct.dim() < 1 or 0 in correct.shape:
        raise BadInput("correct must hold examples", "correct", tuple(correct.shape), "give at least one example")
    wrong = ~checked_correct(correct, correct.shape, "correct")
    check_classes(labels, wrong.shape, classes)
    columns = []
    for label in range(classes):
        inside = labels == label
        columns.append((wrong & inside).sum(-1).double() / inside.sum(-1))
    return torch.stack(torch.broadcast_tensors(*columns), -1)


@ranking_docs("`[...]`, float64; NaN without errors or without correct examples.")
def error_auroc(uncertainty: Tensor, correct: Tensor) -> Tensor:
    """Probability that an error is more uncertain than a correct example.

    P(U of an error > U of a correct example) + P(equal)/2 (Mann-Whitney). In [0, 1]. Higher is better; 0.5 is useless.

    Not the AUROC of the classifier; and blind to how rare errors are. Reference: Hendrycks and Gimpel (2017).

    Examples:
        >>> error_auroc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 1, 0, 0])).item()
        1.0
    """
    return detection_scores(uncertainty, correct)["error_auroc"]


@ranking_docs("`[...]`, float64; NaN without errors.")
def error_auprc(uncertainty: Tensor, correct: Tensor) -> Tensor:
    """Average precision of finding the errors.

    Σ over distinct thresholds of (recall gained)·precision, positive = error. In [0, 1]. Higher is better; a useless
    measure has about the error rate. Ties enter together, as in scikit-learn.

    Not the trapezoid area, which is too high. Reference: Camarasa et al. (2020), eq 7; Davis and Goadrich (2006).

    Examples:
        >>> error_auprc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 0, 1, 0])).item()
        0.8333333333333333
    """
    return detection_scores(uncertainty, correct)["error_auprc"]


@ranking_docs("Each score under its name, `[...]`, float64. See the functions for ranges and directions.")
def detection_scores(uncertainty: Tensor, correct: Tensor) -> dict[str, Tensor]:
    """All detection scores from one sort: aurc, excess_aurc, augrc, error_auroc and error_auprc.

    Examples:
        >>> sorted(detection_scores(torch.tensor([0.1, 0.2]), torch.tensor([1, 0])))
        ['augrc', 'aurc', 'error_auprc', 'error_auroc', 'excess_aurc']
    """
    return detection_of(rank(uncertainty, correct))


def detection_of(ranking: Ranking) -> dict[str, Tensor]:
    """`detection_scores` of a ranking."""
    n, errors, wrong = ranking.n, ranking.errors, ranking.wrong
    start, end = ranking.tie_bounds()
    accepted = _share_out(errors, start, end)
    area = (accepted / _one_to(ranking)).mean(-1)
    wrongs = errors[..., -1].double()
    rights = n - wrongs
    generalised = (accepted.sum(-1) - wrongs / 2) / n**2
    # Twice the middle rank stays an integer: (start + 1) + end.
    rank_sum = torch.where(wrong, start + end + 1, 0).sum(-1).double() / 2
    pairs = wrongs * rights
    auroc = (rank_sum - wrongs * (wrongs + 1) / 2) / pairs  # 0/0 = NaN, as documented
    # Counting down from the most uncertain, everything from `start` on is flagged when this group is.
    flagged_wrong = errors[..., -1:] - errors.gather(-1, start)
    precision = flagged_wrong.double() / (n - start)
    auprc = torch.where(wrong, precision, 0.0).sum(-1) / wrongs
    best = _perfect_aurc(errors[..., -1], n)
    return {
        "aurc": area,
        "excess_aurc": (area - best).clamp_min(0),
        "augrc": generalised,
        "error_auroc": auroc,
        "error_auprc": auprc,
    }


def _accepted_errors(ranking: Ranking) -> Tensor:
    return _share_out(ranking.errors, *ranking.tie_bounds())


def _share_out(errors: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Expected errors among the first k, k = 1 … n, over the orders of ties: linear within a group."""
    before = errors.gather(-1, start)
    inside = errors.gather(-1, end) - before
    position = torch.arange(1, start.shape[-1] + 1, device=start.device) - start
    return before + inside.double() * position / (end - start)


def _perfect_aurc(wrongs: Tensor, n: int) -> Tensor:
    """(1/n) Σ_{k > r} (k − r)/k with r = n − wrongs right ones first = (wrongs − r (H_n − H_r))/n."""
    steps = 1 / torch.arange(1, n + 1, dtype=torch.float64, device=wrongs.device)
    harmonic = torch.nn.functional.pad(steps.cumsum(0), (1, 0))
    rights = n - wrongs
    return (wrongs - rights * (harmonic[n] - harmonic[rights])) / n


def _one_to(ranking: Ranking) -> Tensor:
    return torch.arange(1, ranking.n + 1, device=ranking.wrong.device, dtype=torch.float64)
