"""Ranking of examples by their uncertainty, with ties kept together: what every ranking score starts from.

Owns the one sort, and the checks of uncertainties, outcomes and labels that scores share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase


@dataclass(frozen=True)
class Ranking:
    """Uncertainty `[..., n]` in rising order, whether each is wrong, and the running count of errors before each."""

    uncertainty: Tensor
    wrong: Tensor  # bool [..., n]
    errors: Tensor  # int64 [..., n + 1]: errors among the first k

    @property
    def n(self) -> int:
        """How many examples are ranked."""
        return self.uncertainty.shape[-1]

    def tie_bounds(self) -> tuple[Tensor, Tensor]:
        """For each rank, where its group of equal uncertainty starts, and one past where it ends; int64 `[..., n]`."""
        index = torch.arange(self.n, device=self.uncertainty.device).expand(self.uncertainty.shape)
        differs = self.uncertainty[..., 1:] != self.uncertainty[..., :-1]
        edge = torch.ones_like(self.wrong[..., :1])
        start = torch.where(torch.cat([edge, differs], -1), index, 0).cummax(-1).values
        last = torch.where(torch.cat([differs, edge], -1), index, self.n)
        end = last.flip(-1).cummin(-1).values.flip(-1) + 1
        return start, end


def rank(uncertainty: Tensor, correct: Tensor) -> Ranking:
    """Check and sort. `uncertainty[..., n]` without NaN, `correct` 0/1 and broadcastable to it.

    >>> rank(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([False, True, True])).errors.tolist()
    [0, 0, 0, 1]
    """
    uncertainty = checked_uncertainty(uncertainty)
    right = checked_correct(correct, uncertainty.shape, "correct").to(uncertainty.device)
    ordered, order = uncertainty.sort(dim=-1)
    wrong = ~right.expand(uncertainty.shape).gather(-1, order)
    errors = torch.nn.functional.pad(wrong.cumsum(-1), (1, 0))
    return Ranking(ordered, wrong, errors)


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Whether a tensor of this shape expands to `to` as it is, without `to` having to grow.

    >>> broadcasts(torch.Size([1, 3]), torch.Size([2, 3])), broadcasts(torch.Size([2, 3]), torch.Size([3]))
    (True, False)
    """
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def check_classes(labels: Tensor, cells: torch.Size, classes: int) -> None:
    """Refuses labels that do not broadcast to the examples `cells`, or are no indices in 0 … classes − 1."""
    if labels.is_floating_point() or not broadcasts(labels.shape, cells):
        rule, remedy = f"labels must match {tuple(cells)}", "give one class index per example"
        raise BadInput(rule, "labels", (tuple(labels.shape), labels.dtype), remedy)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        remedy = "leave out examples with other labels, or give their classes too"
        raise BadInput(f"labels must lie in 0 … {classes - 1}", "labels", Phrase(f"{low} … {high}"), remedy)


def checked_uncertainty(uncertainty: Tensor, name: str = "uncertainty") -> Tensor:
    """The uncertainty as float32 or float64, or BadInput where it is empty or has NaN."""
    if uncertainty.dim() < 1 or 0 in uncertainty.shape:
        remedy = "give at least one example, along the last dimension"
        raise BadInput(f"{name} must hold examples", name, tuple(uncertainty.shape), remedy)
    if not uncertainty.is_floating_point():
        uncertainty = uncertainty.double()
    if uncertainty.dtype in (torch.float16, torch.bfloat16):
        uncertainty = uncertainty.float()
    missing = int(uncertainty.isnan().sum())
    if missing:
        received = Phrase(f"{missing} NaN among {uncertainty.numel()}")
        raise BadInput(f"{name} must hold numbers", name, received, "leave out those examples, or fix the measure")
    return uncertainty.detach()


def checked_correct(correct: Tensor, shape: torch.Size, name: str) -> Tensor:
    """0/1 as bool, or BadInput where it holds anything else or does not broadcast to `shape`."""
    if not broadcasts(correct.shape, shape) or correct.shape[-1:] != shape[-1:]:
        remedy = "give one 0/1 per example, along the last dimension"
        raise BadInput(f"{name} must match the uncertainty {tuple(shape)}", name, tuple(correct.shape), remedy)
    if correct.dtype == torch.bool:
        return correct
    if not bool(((correct == 0) | (correct == 1)).all()):
        remedy = "compare prediction == label first"
        raise BadInput(f"{name} must be 0 or 1", name, correct.flatten()[:8].tolist(), remedy)
    return correct != 0
