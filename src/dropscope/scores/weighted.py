"""Ranking scores of one measure under many weightings of its examples: what a bootstrap asks for.

A resample is a count per example. Groups of equal uncertainty are found once for all resamples, and nothing is sorted
again. Equal to `ranking_scores` on the repeated examples; see `detection` and `monotonicity` for the definitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dropscope.scores.monotonicity import isotonic_penalty_of, rearrangement_penalty_of
from dropscope.scores.ranking import checked_correct, checked_uncertainty


def weighted_ranking_scores(
    uncertainty: Tensor, correct: Tensor, counts: Tensor, points: int = 100
) -> dict[str, Tensor]:
    """Every ranking score, and the accuracy, of examples that are repeated.

    Args:
        uncertainty: `[n]`, higher for less certain examples.
        correct: 0/1 per example, `[n]`.
        counts: How often each example counts, whole numbers `[R, n]`, at least one in each row.
        points: Points of the accuracy curve.

    Returns:
        Each score under its name, `[R]`, float64; NaN where it is undefined.

    Raises:
        BadInput: Where the uncertainty has NaN, or `correct` is not 0/1.

    Examples:
        >>> u, correct = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 1, 0])
        >>> weighted_ranking_scores(u, correct, torch.tensor([[1, 1, 1], [0, 2, 1]]))["accuracy"]
        tensor([0.6667, 0.6667], dtype=torch.float64)
    """
    t = _Tally.of(uncertainty, correct, counts)
    accepted = (t.errors_before * t.size + t.errors * (t.size + 1) / 2).sum(1)
    rank_sum = (t.errors * (t.start + t.end + 1)).sum(1) / 2
    precision = (t.wrongs[:, None] - t.errors_before) / (t.n[:, None] - t.start).clamp_min(1)
    n, wrongs, area = t.n, t.wrongs, t.area
    rights = n - wrongs
    perfect = (wrongs - rights * (t.harmonic[n.long()] - t.harmonic[rights.long()])) / n
    curve = _curve(t.end, t.errors_to, n, points)
    return {
        "isotonic_penalty": isotonic_penalty_of(curve),
        "rearrangement_penalty": rearrangement_penalty_of(curve),
        "running_minimum_penalty": _running_minimum(t.end, t.start, t.errors_before, n, points),
        "aurc": area,
        "excess_aurc": (area - perfect).clamp_min(0),
        "augrc": (accepted - wrongs / 2) / n**2,
        "error_auroc": (rank_sum - wrongs * (wrongs + 1) / 2) / (wrongs * rights),
        "error_auprc": (t.errors * precision).sum(1) / wrongs,
        "accuracy": rights / n,
    }


def weighted_aurc(uncertainty: Tensor, correct: Tensor, counts: Tensor) -> Tensor:
    """AURC of examples that are repeated: that one of `weighted_ranking_scores` alone, in a fraction of the time.

    Args:
        uncertainty: `[n]`, higher for less certain examples.
        correct: 0/1 per example, `[n]`.
        counts: How often each example counts, whole numbers `[R, n]`, at least one in each row.

    Returns:
        `[R]`, float64.

    Raises:
        BadInput: Where the uncertainty has NaN, or `correct` is not 0/1.

    Examples:
        >>> u, correct = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 1, 0])
        >>> weighted_aurc(u, correct, torch.tensor([[1, 1, 1], [0, 2, 1]]))
        tensor([0.1111, 0.1111], dtype=torch.float64)
    """
    return _Tally.of(uncertainty, correct, counts).area


def weighted_risk_curve(uncertainty: Tensor, correct: Tensor, counts: Tensor, coverages: Tensor) -> Tensor:
    """Risk at some coverages of examples that are repeated: the share of errors among the most certain ones.

    Args:
        uncertainty: `[n]`, higher for less certain examples.
        correct: 0/1 per example, `[n]`.
        counts: How often each example counts, whole numbers `[R, n]`, at least one in each row.
        coverages: Shares in (0, 1], `[k]`, of the examples that are kept.

    Returns:
        `[R, k]`, float64; within a group of equal uncertainty errors count as spread evenly.

    Raises:
        BadInput: Where the uncertainty has NaN, or `correct` is not 0/1.

    Examples:
        >>> u, correct = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 1, 0, 0])
        >>> weighted_risk_curve(u, correct, torch.ones(1, 4), torch.tensor([0.5, 1.0]))
        tensor([[0.0000, 0.5000]], dtype=torch.float64)
    """
    t = _Tally.of(uncertainty, correct, counts)
    kept = (coverages.double() * t.n[:, None]).clamp_min(1)
    at = torch.searchsorted(t.end, kept - 1e-9).clamp_max(t.end.shape[1] - 1)
    inside = (kept - t.start.gather(1, at)) / t.size.gather(1, at)
    return (t.errors_before.gather(1, at) + inside * t.errors.gather(1, at)) / kept


@dataclass(frozen=True, eq=False)
class _Tally:
    """Examples and errors in groups of equal uncertainty, `[R, groups]`, from the least uncertain."""

    size: Tensor
    errors: Tensor
    end: Tensor  # examples up to the group's last
    errors_to: Tensor
    harmonic: Tensor

    @classmethod
    def of(cls, uncertainty: Tensor, correct: Tensor, counts: Tensor) -> _Tally:
        uncertainty = checked_uncertainty(uncertainty)
        wrong = ~checked_correct(correct, uncertainty.shape, "correct").to(uncertainty.device)
        values, group = uncertainty.unique(return_inverse=True)
        empty = counts.new_zeros(len(counts), len(values), dtype=torch.float64)
        counts = counts.to(torch.float64)  # sums of whole numbers below 2^53 are exact
        size = empty.index_add(1, group, counts)
        errors = empty.index_add(1, group[wrong], counts[:, wrong])
        end = size.cumsum(1)
        whole = int(end[:, -1].max())
        harmonic = torch.zeros(whole + 1, dtype=torch.float64, device=size.device)
        harmonic[1:] = (1 / torch.arange(1, whole + 1, dtype=torch.float64, device=size.device)).cumsum(0)
        return cls(size, errors, end, errors.cumsum(1), harmonic)

    @property
    def start(self) -> Tensor:
        return self.end - self.size

    @property
    def errors_before(self) -> Tensor:
        return self.errors_to - self.errors

    @property
    def n(self) -> Tensor:
        return self.end[:, -1]

    @property
    def wrongs(self) -> Tensor:
        return self.errors_to[:, -1]

    @property
    def area(self) -> Tensor:
        """Errors spread evenly within a group: Σ over its ranks k of (errors before + share · (k − start)) / k."""
        start, before = self.start, self.errors_before
        share = self.errors / self.size.clamp_min(1)
        inverse_ranks = self.harmonic[self.end.long()] - self.harmonic[start.long()]
        return (before * inverse_ranks + share * (self.size - start * inverse_ranks)).sum(1) / self.n


def _curve(end: Tensor, errors_to: Tensor, n: Tensor, points: int) -> Tensor:
    """The accuracy curve `[R, points]`: all that is at most as uncertain as the ⌈j n / points⌉-th."""
    j = torch.arange(1, points + 1, device=end.device)
    k = (j * n.long()[:, None] + points - 1) // points
    at = torch.searchsorted(end, k.double())
    size = end.gather(1, at)
    return (size - errors_to.gather(1, at)) / size


def _running_minimum(end: Tensor, start: Tensor, errors_before: Tensor, n: Tensor, points: int) -> Tensor:
    """As `running_minimum_penalty`: all that is less uncertain than the order statistic ⌈q(n − 1)⌉."""
    steps = points - 1
    j = torch.arange(points, device=end.device)
    k = -(-j * (n.long()[:, None] - 1) // steps) + 1
    at = torch.searchsorted(end, k.double())
    curve = 1 - errors_before.gather(1, at) / start.gather(1, at).clamp_min(1)
    excess = curve - curve.cummin(1).values
    return (excess[:, 1:] + excess[:, :-1]).sum(1) / (2 * steps)
