"""Do the probabilities mean what they say? Expected calibration error, Brier score, log loss.

These judge probabilities `[..., n, C]` against labels, not an uncertainty: ranking scores are in `detection`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.scores.ranking import broadcasts


def ece(probabilities: Tensor, labels: Tensor, bins: int = 15, binning: Literal["width", "mass"] = "width") -> Tensor:
    """Σ_b (n_b/n)·|accuracy_b − confidence_b| over bins of the top probability. `[..., n, C]` → `[...]`, float64.

    In [0, 1]. Lower is better. "width": bin = min(⌊bins·p⌋, bins − 1). "mass": bins of about n/bins examples by rank,
    where equal confidences share the bin of the first of them. Biased up when bins are thin. NOT a proper score: a
    constant prediction at the base rate has 0. Reference: Guo et al. (2017); Nixon et al. (2019) for "mass".

    >>> ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1])).item()
    0.25
    """
    p, labels = _checked(probabilities, labels)
    if bins < 1:
        raise BadInput("there is at least one bin", "bins", bins, "leave bins=15")
    confidence, predicted = p.max(-1)
    n = confidence.shape[-1]
    if binning == "width":
        place = (confidence * bins).long().clamp(0, bins - 1)
    elif binning == "mass":
        ordered = confidence.sort(dim=-1).values
        place = torch.searchsorted(ordered, confidence.contiguous()) * bins // n
    else:
        raise BadInput("bins have equal width or equal mass", "binning", binning, "write 'width' or 'mass'")
    gap = (predicted == labels).double() - confidence.double()
    # A loop over few bins: no scatter, whose order of addition differs from run to run on a GPU.
    return torch.stack([torch.where(place == b, gap, 0.0).sum(-1).abs() for b in range(bins)]).sum(0) / n


def brier(probabilities: Tensor, labels: Tensor) -> Tensor:
    """(1/n) Σ_x Σ_c (p_c − [c = label])². `[..., n, C]` → `[...]`, float64. In [0, 2]. Lower is better; proper.

    NOT the two-class form over one probability, which is half of this. Reference: Brier (1950).

    >>> brier(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1])).item()
    0.3125
    """
    p, labels = _checked(probabilities, labels)
    target = torch.nn.functional.one_hot(labels, p.shape[-1])
    return (p.double() - target).square().sum(-1).mean(-1)


def nll(probabilities: Tensor, labels: Tensor, floor: float = 1e-12) -> Tensor:
    """−(1/n) Σ_x log max(p_label, floor). `[..., n, C]` → `[...]`, float64. In [0, −log floor].

    Lower is better; proper. The floor makes one impossible label cost 27.6 instead of everything. NOT the loss from
    logits, which has no floor. Reference: Good (1952).

    >>> round(nll(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([1, 0])).item(), 6)
    0.346574
    """
    p, labels = _checked(probabilities, labels)
    if not 0 < floor < 1:
        raise BadInput("the floor is a small probability", "floor", floor, "leave floor=1e-12")
    at_label = p.gather(-1, labels.unsqueeze(-1)).squeeze(-1).double()
    return 0.0 - at_label.clamp(floor, 1.0).log().mean(-1)


def _checked(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    p = probabilities.detach()
    if p.dim() < 2 or 0 in p.shape or not p.is_floating_point():
        remedy = "give softmax outputs, classes last"
        raise BadInput("probabilities are [..., n, C]", "probabilities", (tuple(p.shape), p.dtype), remedy)
    low, high = (float(x) for x in torch.aminmax(p))
    if not (low >= -1e-2 and high <= 1 + 1e-2):
        raise BadInput("probabilities lie in [0, 1]", "probabilities (smallest, largest)", (low, high), "apply softmax")
    cells = p.shape[:-1]
    if labels.is_floating_point() or labels.shape[-1:] != cells[-1:] or not broadcasts(labels.shape, cells):
        remedy = "give one class index per example"
        raise BadInput(f"labels match {tuple(cells)}", "labels", (tuple(labels.shape), labels.dtype), remedy)
    if int(labels.min()) < 0 or int(labels.max()) >= p.shape[-1]:
        received = (int(labels.min()), int(labels.max()))
        raise BadInput(
            f"labels lie in 0 … {p.shape[-1] - 1}", "labels (smallest, largest)", received, "leave out others"
        )
    p = p.float() if p.dtype in (torch.float16, torch.bfloat16) else p
    return p, labels.to(p.device).long().expand(cells)
