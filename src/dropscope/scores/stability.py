"""Stability of answers from pass to pass, and from run to run.

These judge the sampling, not the ranking of errors (`detection`) or the probabilities (`calibration`). Run-level
accuracy is that of Caiado and Hahsler (docs/papers.md).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase, nearest
from dropscope.scores.ranking import checked_correct, checked_uncertainty


@dataclass(frozen=True)
class RunLevelAccuracy:
    """Accuracy of each pass, as mean and standard deviation over passes, overall and per group.

    Attributes:
        passes: How many passes there are.
        mean: Mean over passes, `[...]`, in [0, 1]. Higher is better.
        std: Sample standard deviation (ddof 1), `[...]`, in [0, 0.71]; NaN for one pass. Lower is steadier.
        groups: The groups' names.
        group_mean: The mean of each group, `[..., G]`.
        group_std: The standard deviation of each group, `[..., G]`.

    Examples:
        >>> level = run_level_accuracy(torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]), groups=["m", "m", "r", "r"])
        >>> level.groups, level.group_mean.tolist()
        (('m', 'r'), [0.75, 1.0])
    """

    passes: int
    mean: Tensor
    std: Tensor
    groups: tuple[Hashable, ...]
    group_mean: Tensor
    group_std: Tensor

    def of(self, group: Hashable) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of one group.

        Args:
            group: One of `groups`.

        Raises:
            BadInput: Where there is no such group.
        """
        if group not in self.groups:
            remedy = nearest(str(group), map(str, self.groups))
            raise BadInput("group must be one that was counted", "group", group, remedy)
        at = self.groups.index(group)
        return self.group_mean[..., at], self.group_std[..., at]


def run_level_accuracy(correct: Tensor, groups: Sequence[Hashable] | Tensor | None = None) -> RunLevelAccuracy:
    """Each pass's accuracy over all examples, then mean and standard deviation over passes.

    Means in [0, 1], higher is better; standard deviations in [0, 0.71], lower is steadier.

    Not the accuracy of the averaged probabilities, which is usually higher; and the standard deviation is spread over
    passes, not an interval for new examples. Reference: Caiado and Hahsler.

    Args:
        correct: 0/1 per pass and example, `[..., passes, n]`.
        groups: The group of each example; without them all are the group "all".

    Returns:
        A `RunLevelAccuracy`, overall and per group.

    Raises:
        BadInput: Where `correct` is not 0/1, or there is not one group per example.

    Examples:
        >>> level = run_level_accuracy(torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]), groups=["m", "m", "r", "r"])
        >>> level.mean.item(), level.of("m")[0].item(), round(level.std.item(), 4)
        (0.875, 0.75, 0.1768)
    """
    if correct.dim() < 2 or 0 in correct.shape:
        remedy = "stack the passes before the examples"
        raise BadInput("correct must be [..., passes, n]", "correct", tuple(correct.shape), remedy)
    right = checked_correct(correct, correct.shape, "correct")
    names, member = _groups(groups, right.shape[-1])
    inside = [right[..., torch.tensor(member, device=right.device) == g].sum(-1) for g in range(len(names))]
    sizes = torch.tensor([member.count(g) for g in range(len(names))])
    return run_level_accuracy_of_counts(torch.stack(inside, -1), sizes, names)


def run_level_accuracy_of_counts(
    counts: Tensor, sizes: Tensor, groups: Sequence[Hashable] | None = None
) -> RunLevelAccuracy:
    """Run-level accuracy from counts, as `PassStatistics` keeps them under "correct".

    Not from single outcomes: for those, `run_level_accuracy`.

    Args:
        counts: Correct examples of each pass and group, `[..., passes, G]`: `PassStatistics.correct_per_pass`.
        sizes: Examples of each group, `[G]`: `PassStatistics.group_sizes`.
        groups: Names of the groups; 0, 1, … without them.

    Returns:
        A `RunLevelAccuracy`, overall and per group.

    Raises:
        BadInput: Where the three do not speak of the same groups.

    Examples:
        >>> run_level_accuracy_of_counts(torch.tensor([[3], [4]]), torch.tensor([4])).mean.item()
        0.875
    """
    names = tuple(range(sizes.numel())) if groups is None else tuple(groups)
    if counts.dim() < 2 or 0 in counts.shape:
        remedy = "give PassStatistics.correct_per_pass"
        raise BadInput("counts must be [..., passes, G]", "counts", tuple(counts.shape), remedy)
    if sizes.shape != counts.shape[-1:]:
        remedy = "give PassStatistics.group_sizes"
        raise BadInput(f"sizes must have the shape {tuple(counts.shape[-1:])}", "sizes", tuple(sizes.shape), remedy)
    if len(names) != sizes.numel():
        raise BadInput(f"groups must name {sizes.numel()} groups", "groups", names, "give one name per group")
    sizes = sizes.to(counts.device).double()
    overall = counts.sum(-1).double() / sizes.sum()
    each = counts.double() / sizes
    mean, std = _mean_std(overall, -1)
    group_mean, group_std = _mean_std(each, -2)
    return RunLevelAccuracy(counts.shape[-2], mean, std, names, group_mean, group_std)


def group_difference(level: RunLevelAccuracy, first: Hashable, second: Hashable) -> Tensor:
    """Mean run-level accuracy of one group minus that of another.

    In [−1, 1]; no direction. With memory and reasoning as groups this is the paper's Δ_cog.

    Not a test: passes are no replicates. Reference: Caiado and Hahsler.

    Args:
        level: What `run_level_accuracy` returns.
        first: A group of it.
        second: Another.

    Returns:
        `[...]`, float64.

    Raises:
        BadInput: Where there is no such group.

    Examples:
        >>> level = run_level_accuracy(torch.tensor([[1, 1, 0, 1]]), groups=["m", "m", "r", "r"])
        >>> group_difference(level, "m", "r").item()
        0.5
    """
    return level.of(first)[0] - level.of(second)[0]


def flip_rate(first: Tensor, second: Tensor, fraction: float) -> Tensor:
    """Share of the most uncertain examples that another run replaces.

    Of the ⌈fraction·n⌉ most uncertain. In [0, 1]; two unrelated runs have 1 − fraction. Lower is better. Ties at the
    threshold share its places evenly, so row order does not matter, and equal runs have 0.

    Not a rank correlation: only who is deferred counts.

    Args:
        first: Uncertainty of one run, `[..., n]`.
        second: Uncertainty of another run over the same examples, of the same shape.
        fraction: Share of examples that are deferred, in (0, 1].

    Returns:
        `[...]`, float64.

    Raises:
        BadInput: Where shapes differ, a value is NaN, or `fraction` is no such share.

    Examples:
        >>> flip_rate(torch.tensor([0.1, 0.9, 0.8, 0.2]), torch.tensor([0.1, 0.9, 0.2, 0.8]), 0.5).item()
        0.5
    """
    first, second = checked_uncertainty(first, "first"), checked_uncertainty(second, "second")
    if first.shape != second.shape:
        rule = f"second must have the shape {tuple(first.shape)}"
        raise BadInput(rule, "second", tuple(second.shape), "give the same examples in both runs")
    if not 0 < fraction <= 1:
        raise BadInput("fraction must be above 0 and at most 1", "fraction", fraction, "write 0.2 for one in five")
    k = max(1, math.ceil(fraction * first.shape[-1] - 1e-9))
    kept = torch.minimum(_places(first, k), _places(second.to(first.device), k)).sum(-1)
    return (1 - kept / k).clamp(0, 1)


def monte_carlo_error(values: Tensor, dim: int = -1) -> Tensor:
    """Standard error of a mean over passes.

    std (ddof 1)/sqrt(passes). At least 0. Lower is better.

    Not the uncertainty of an example: this one vanishes with more passes.

    Args:
        values: One value per pass, along `dim`.
        dim: The dimension of the passes.

    Returns:
        The values' shape without `dim`, float64; NaN for one pass.

    Raises:
        BadInput: Where there are no passes.

    Examples:
        >>> monte_carlo_error(torch.tensor([0.0, 1.0])).item()
        0.5
    """
    if values.dim() < 1 or 0 in values.shape:
        raise BadInput("values must hold at least one pass", "values", tuple(values.shape), "give values of the passes")
    values = values.double()
    return _mean_std(values, dim)[1] / math.sqrt(values.shape[dim])


def _places(uncertainty: Tensor, k: int) -> Tensor:
    """How much of a place among the k most uncertain each example holds: 1, 0, or an even share at the threshold."""
    threshold = uncertainty.topk(k, -1).values[..., -1:]
    above = uncertainty > threshold
    tied = uncertainty == threshold
    share = (k - above.sum(-1, keepdim=True)).double() / tied.sum(-1, keepdim=True)
    return torch.where(above, 1.0, torch.where(tied, share, 0.0))


def _mean_std(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    mean = values.mean(dim)
    if values.shape[dim] == 1:  # torch warns here; the answer is undefined, not 0
        return mean, torch.full_like(mean, torch.nan)
    return mean, values.std(dim)


def _groups(groups: Sequence[Hashable] | Tensor | None, n: int) -> tuple[tuple[Hashable, ...], list[int]]:
    if groups is None:
        return ("all",), [0] * n
    named = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    if len(named) != n:
        received = Phrase(f"{len(named)} groups for {n} examples")
        raise BadInput("groups must hold one group per example", "groups", received, "give one group per example")
    names = tuple(dict.fromkeys(named))
    place = {name: at for at, name in enumerate(names)}
    return names, [place[name] for name in named]
