"""How much does the answer change from pass to pass, and from run to run? (S2's run-level accuracy; R22.)

These judge the sampling, not the ranking of errors (`detection`) or the probabilities (`calibration`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dropscope.errors import BadInput, nearest
from dropscope.scores.ranking import checked_correct, checked_uncertainty


@dataclass(frozen=True)
class RunLevelAccuracy:
    """Mean and sample std (ddof 1; NaN for one pass) over passes of each pass's accuracy, overall and per group."""

    passes: int
    mean: Tensor  # [...]
    std: Tensor  # [...]
    groups: tuple[Hashable, ...]
    group_mean: Tensor  # [..., G]
    group_std: Tensor  # [..., G]

    def of(self, group: Hashable) -> tuple[Tensor, Tensor]:
        """Mean and std of one group."""
        if group not in self.groups:
            remedy = nearest(str(group), map(str, self.groups))
            raise BadInput("the group was counted", "group", group, remedy)
        at = self.groups.index(group)
        return self.group_mean[..., at], self.group_std[..., at]


def run_level_accuracy(correct: Tensor, groups: Sequence[Hashable] | Tensor | None = None) -> RunLevelAccuracy:
    """Each pass's accuracy over all examples, then mean and std over passes. `correct[..., passes, n]`, 0/1.

    Means in [0, 1], higher is better; std in [0, .71], lower is steadier. `groups` names the group of each example.
    NOT the accuracy of the averaged probabilities, which is usually higher; and the std is spread over passes, NOT an
    interval for new examples. Reference: S2, training and evaluation.

    >>> level = run_level_accuracy(torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]), groups=["m", "m", "r", "r"])
    >>> level.mean.item(), level.of("m")[0].item(), round(level.std.item(), 4)
    (0.875, 0.75, 0.1768)
    """
    if correct.dim() < 2 or 0 in correct.shape:
        remedy = "stack the passes before the examples"
        raise BadInput("correctness is [..., passes, n]", "correct", tuple(correct.shape), remedy)
    right = checked_correct(correct, correct.shape, "correct")
    names, member = _groups(groups, right.shape[-1])
    inside = [right[..., torch.tensor(member, device=right.device) == g].sum(-1) for g in range(len(names))]
    sizes = torch.tensor([member.count(g) for g in range(len(names))])
    return run_level_accuracy_of_counts(torch.stack(inside, -1), sizes, names)


def run_level_accuracy_of_counts(
    counts: Tensor, sizes: Tensor, groups: Sequence[Hashable] | None = None
) -> RunLevelAccuracy:
    """The same from `PassStatistics.correct_per_pass` `[..., passes, G]` and `.group_sizes` `[G]`.

    >>> run_level_accuracy_of_counts(torch.tensor([[3], [4]]), torch.tensor([4])).mean.item()
    0.875
    """
    names = tuple(range(sizes.numel())) if groups is None else tuple(groups)
    if counts.dim() < 2 or 0 in counts.shape or sizes.shape != counts.shape[-1:] or len(names) != sizes.numel():
        received = (tuple(counts.shape), tuple(sizes.shape), len(names))
        remedy = "give counts [..., passes, G], sizes [G] and G group names"
        raise BadInput("counts and sizes name the same groups", "(counts, sizes, groups)", received, remedy)
    sizes = sizes.to(counts.device).double()
    overall = counts.sum(-1).double() / sizes.sum()
    each = counts.double() / sizes
    mean, std = _mean_std(overall, -1)
    group_mean, group_std = _mean_std(each, -2)
    return RunLevelAccuracy(counts.shape[-2], mean, std, names, group_mean, group_std)


def group_difference(level: RunLevelAccuracy, first: Hashable, second: Hashable) -> Tensor:
    """Mean run-level accuracy of `first` minus that of `second`; Δ_cog = memory − reasoning. In [−1, 1]; no direction.

    NOT a test: the passes are no replicates (R27). Reference: S2.

    >>> level = run_level_accuracy(torch.tensor([[1, 1, 0, 1]]), groups=["m", "m", "r", "r"])
    >>> group_difference(level, "m", "r").item()
    0.5
    """
    return level.of(first)[0] - level.of(second)[0]


def flip_rate(first: Tensor, second: Tensor, fraction: float) -> Tensor:
    """Share of the ⌈fraction·n⌉ most uncertain examples that another run replaces. `[..., n]` twice → `[...]`.

    In [0, 1]; two unrelated runs have 1 − fraction. Lower is better. Ties at the threshold share its places evenly, so
    row order does not matter, and equal runs have 0. NOT a rank correlation: only who is deferred counts.
    Reference: R22.

    >>> flip_rate(torch.tensor([0.1, 0.9, 0.8, 0.2]), torch.tensor([0.1, 0.9, 0.2, 0.8]), 0.5).item()
    0.5
    """
    first, second = checked_uncertainty(first, "first"), checked_uncertainty(second, "second")
    if first.shape != second.shape:
        raise BadInput(f"both runs are {tuple(first.shape)}", "second", tuple(second.shape), "give the same examples")
    if not 0 < fraction <= 1:
        raise BadInput("a fraction is above 0 and at most 1", "fraction", fraction, "write 0.2 for one in five")
    k = max(1, math.ceil(fraction * first.shape[-1] - 1e-9))
    kept = torch.minimum(_places(first, k), _places(second.to(first.device), k)).sum(-1)
    return (1 - kept / k).clamp(0, 1)


def monte_carlo_error(values: Tensor, dim: int = -1) -> Tensor:
    """std (ddof 1)/sqrt(passes) of a mean over passes along `dim`: its standard error. ≥ 0; lower is better.

    NaN for one pass. NOT the uncertainty of an example: this one vanishes with more passes. Reference: R22.

    >>> monte_carlo_error(torch.tensor([0.0, 1.0])).item()
    0.5
    """
    if values.dim() < 1 or 0 in values.shape:
        raise BadInput("there is at least one pass", "values", tuple(values.shape), "give values of the passes")
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
        raise BadInput(f"each of {n} examples has a group", "groups", f"{len(named)} groups", "give one per example")
    names = tuple(dict.fromkeys(named))
    place = {name: at for at, name in enumerate(names)}
    return names, [place[name] for name in named]
