"""Calibration of probabilities: expected calibration error, Brier score, log loss.

These judge probabilities `[..., n, C]` against labels, not an uncertainty: ranking scores are in `detection`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase
from dropscope.scores.docs import probability_docs
from dropscope.scores.ranking import check_classes


@probability_docs()
def ece(
    probabilities: Tensor, labels: Tensor, bins: int = 15, *, binning: Literal["width", "mass"] = "width"
) -> Tensor:
    """Expected calibration error of the top probability.

    Σ_b (n_b/n)·|accuracy_b − confidence_b|. In [0, 1]. Lower is better. Biased up when bins are thin.

    Not a proper score: a constant prediction at the base rate has 0.
    Reference: Guo et al. (2017); Nixon et al. (2019) for "mass".

    Args:
        bins: How many bins.
        binning: "width": bin = min(⌊bins·p⌋, bins − 1). "mass": bins of about n/bins examples by rank, where equal
            confidences share the bin of the first of them.

    Examples:
        >>> ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1])).item()
        0.25
    """
    p, labels = _checked(probabilities, labels)
    if bins < 1:
        raise BadInput("bins must be at least 1", "bins", bins, "leave bins=15")
    confidence, predicted = p.max(-1)
    n = confidence.shape[-1]
    if binning == "width":
        place = (confidence * bins).long().clamp(0, bins - 1)
    elif binning == "mass":
        ordered = confidence.sort(dim=-1).values
        place = torch.searchsorted(ordered, confidence.contiguous()) * bins // n
    else:
        raise BadInput("binning must be 'width' or 'mass'", "binning", binning, "write binning='width'")
    gap = (predicted == labels).double() - confidence.double()
    # A loop over few bins: no scatter, whose order of addition differs from run to run on a GPU.
    return torch.stack([torch.where(place == b, gap, 0.0).sum(-1).abs() for b in range(bins)]).sum(0) / n


@probability_docs()
def brier(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Brier score: mean squared distance of the probabilities from the label.

    (1/n) Σ_x Σ_c (p_c − [c = label])². In [0, 2]. Lower is better; proper.

    Not the two-class form over one probability, which is half of this. Reference: Brier (1950).

    Examples:
        >>> brier(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1])).item()
        0.3125
    """
    p, labels = _checked(probabilities, labels)
    target = torch.nn.functional.one_hot(labels, p.shape[-1])
    return (p.double() - target).square().sum(-1).mean(-1)


@probability_docs()
def nll(probabilities: Tensor, labels: Tensor, *, floor: float = 1e-12) -> Tensor:
    """Log loss: mean negative log probability of the label.

    −(1/n) Σ_x log max(p_label, floor). In [0, −log floor]. Lower is better; proper.

    Not the loss from logits, which has no floor. Reference: Good (1952).

    Args:
        floor: Smallest probability of a label: one impossible label costs 27.6 instead of everything.

    Examples:
        >>> round(nll(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([1, 0])).item(), 6)
        0.346574
    """
    p, labels = _checked(probabilities, labels)
    if not 0 < floor < 1:
        raise BadInput("floor must be above 0 and below 1", "floor", floor, "leave floor=1e-12")
    at_label = p.gather(-1, labels.unsqueeze(-1)).squeeze(-1).double()
    return 0.0 - at_label.clamp(floor, 1.0).log().mean(-1)


def _checked(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    p = probabilities.detach()
    if p.dim() < 2 or 0 in p.shape or not p.is_floating_point():
        remedy = "give softmax outputs, classes last"
        rule = "probabilities must be a floating tensor [..., n, C]"
        raise BadInput(rule, "probabilities", (tuple(p.shape), p.dtype), remedy)
    low, high = (float(x) for x in torch.aminmax(p))
    if not (low >= -1e-2 and high <= 1 + 1e-2):
        extremes = Phrase(f"values from {low:.4g} to {high:.4g}")
        raise BadInput("probabilities must lie in [0, 1]", "probabilities", extremes, "apply softmax to logits first")
    cells = p.shape[:-1]
    if labels.shape[-1:] != cells[-1:]:
        rule, remedy = f"labels must match {tuple(cells)}", "give one class index per example"
        raise BadInput(rule, "labels", (tuple(labels.shape), labels.dtype), remedy)
    check_classes(labels, cells, p.shape[-1])
    p = p.float() if p.dtype in (torch.float16, torch.bfloat16) else p
    return p, labels.to(p.device).long().expand(cells)
