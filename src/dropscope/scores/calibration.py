"""Calibration of probabilities: expected calibration error, Brier score, log loss.

These judge probabilities `[..., n, C]` against labels, not an uncertainty: ranking scores are in `detection`. All three
are functions of means over examples, so that they can be taken from a few numbers per example, and resampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase
from dropscope.scores.docs import probability_docs
from dropscope.scores.ranking import check_classes

_BINS, _FLOOR = 15, 1e-12
_TOLERANCE = 1e-2  # of a sum of probabilities in half precision


@dataclass(frozen=True)
class Confidences:
    """What the scores read of each example, `[..., n]`: as good as its probabilities, and as small as a measure."""

    confidence: Tensor  # the top probability
    right: Tensor  # bool: whether its class is the label
    squares: Tensor  # Σ_c (p_c − [c = label])²
    log_loss: Tensor  # −log max(p_label, floor)

    def __getitem__(self, examples: object) -> Confidences:
        """Some of the examples, or of the leading dimensions, as an index of each tensor."""
        return Confidences(*(part[examples] for part in self.parts))  # type: ignore[index]

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Its tensors."""
        return self.confidence, self.right, self.squares, self.log_loss

    def on(self, device: torch.device) -> Confidences:
        """The same on a device."""
        return Confidences(*(part.to(device) for part in self.parts))

    @classmethod
    def joined(cls, several: Sequence[Confidences], dim: int) -> Confidences:
        """Several as one, along a dimension."""
        return cls(*(torch.cat(parts, dim) for parts in zip(*(one.parts for one in several), strict=True)))


def confidences_of(p: Tensor, labels: Tensor) -> Confidences:
    """Of probabilities `[..., n, C]` that are known to be some; see `ece`, `brier` and `nll` for the definitions."""
    confidence, predicted = p.max(-1)
    return Confidences(
        confidence, predicted == labels, _squares(p, labels).float(), _log_loss(p, labels, _FLOOR).float()
    )


def calibration_terms(read: Confidences, bins: int = _BINS) -> Tensor:
    """`[..., n, bins + 2]`, float64, whose means over (resampled) examples are what `calibration_of` takes."""
    gap = torch.nn.functional.one_hot(_bins(read.confidence, bins), bins) * _gap(read).unsqueeze(-1)
    return torch.cat([gap, read.squares.double().unsqueeze(-1), read.log_loss.double().unsqueeze(-1)], -1)


def calibration_means(read: Confidences, bins: int = _BINS) -> Tensor:
    """The means of `calibration_terms`, without the terms."""
    gaps = _gap_means(_bins(read.confidence, bins), _gap(read), bins)
    losses = [part.double().mean(-1) for part in (read.squares, read.log_loss)]
    return torch.stack([*gaps, *losses], -1)


def calibration_of(means: Tensor) -> dict[str, Tensor]:
    """Every score of the table that takes probabilities, `[...]`, from means `[..., bins + 2]`.

    >>> p, labels = torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1])
    >>> found = calibration_of(calibration_means(confidences_of(p, labels)))
    >>> {name: round(value.item(), 4) for name, value in found.items()}
    {'ece': 0.375, 'brier': 0.3125, 'nll': 0.4904}
    """
    return {"ece": means[..., :-2].abs().sum(-1), "brier": means[..., -2], "nll": means[..., -1]}


@probability_docs()
def ece(
    probabilities: Tensor, labels: Tensor, bins: int = _BINS, *, binning: Literal["width", "mass"] = "width"
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
    p, labels = checked_probabilities(probabilities, labels)
    if bins < 1:
        raise BadInput("bins must be at least 1", "bins", bins, "leave bins=15")
    confidence, predicted = p.max(-1)
    n = confidence.shape[-1]
    if binning == "width":
        place = _bins(confidence, bins)
    elif binning == "mass":
        ordered = confidence.sort(dim=-1).values
        place = torch.searchsorted(ordered, confidence.contiguous()) * bins // n
    else:
        raise BadInput("binning must be 'width' or 'mass'", "binning", binning, "write binning='width'")
    gap = (predicted == labels).double() - confidence.double()
    return torch.stack(_gap_means(place, gap, bins)).abs().sum(0)


@probability_docs()
def brier(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Brier score: mean squared distance of the probabilities from the label.

    (1/n) Σ_x Σ_c (p_c − [c = label])². In [0, 2]. Lower is better; proper.

    Not the two-class form over one probability, which is half of this. Reference: Brier (1950).

    Examples:
        >>> brier(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1])).item()
        0.3125
    """
    return _squares(*checked_probabilities(probabilities, labels)).mean(-1)


@probability_docs()
def nll(probabilities: Tensor, labels: Tensor, *, floor: float = _FLOOR) -> Tensor:
    """Log loss: mean negative log probability of the label.

    −(1/n) Σ_x log max(p_label, floor). In [0, −log floor]. Lower is better; proper.

    Not the loss from logits, which has no floor. Reference: Good (1952).

    Args:
        floor: Smallest probability of a label: one impossible label costs 27.6 instead of everything.

    Examples:
        >>> round(nll(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([1, 0])).item(), 6)
        0.346574
    """
    p, labels = checked_probabilities(probabilities, labels)
    if not 0 < floor < 1:
        raise BadInput("floor must be above 0 and below 1", "floor", floor, "leave floor=1e-12")
    return _log_loss(p, labels, floor).mean(-1)


def _squares(p: Tensor, labels: Tensor) -> Tensor:
    """Σ_c (p_c − [c = label])² as Σ_c p_c² − 2 p_label + 1, which takes no more memory than the probabilities."""
    at_label = p.gather(-1, _index(p, labels)).squeeze(-1).double()
    return (p.square().sum(-1, dtype=torch.float64) - 2 * at_label + 1).clamp_min(0)


def _log_loss(p: Tensor, labels: Tensor, floor: float) -> Tensor:
    return 0.0 - p.gather(-1, _index(p, labels)).squeeze(-1).double().clamp(floor, 1.0).log()


def _index(p: Tensor, labels: Tensor) -> Tensor:
    return labels.expand(p.shape[:-1]).unsqueeze(-1)


def _bins(confidence: Tensor, bins: int) -> Tensor:
    return (confidence * bins).long().clamp(0, bins - 1)


def _gap(read: Confidences) -> Tensor:
    return read.right.double() - read.confidence.double()


def _gap_means(place: Tensor, gap: Tensor, bins: int) -> list[Tensor]:
    """Of each bin, its share of the mean gap; a loop, as the order of a scatter's sums differs from run to run."""
    return [torch.where(place == b, gap, 0.0).mean(-1) for b in range(bins)]


def checked_probabilities(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities `[..., n, C]` and their labels, which are known to be some from here on."""
    p = probabilities.detach()
    if p.dim() < 2 or 0 in p.shape or not p.is_floating_point():
        remedy = "give softmax outputs, classes last"
        rule = "probabilities must be a floating tensor [..., n, C]"
        raise BadInput(rule, "probabilities", (tuple(p.shape), p.dtype), remedy)
    low, high = (float(x) for x in torch.aminmax(p))
    if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):
        extremes = Phrase(f"values from {low:.4g} to {high:.4g}")
        raise BadInput("probabilities must lie in [0, 1]", "probabilities", extremes, "apply softmax to logits first")
    furthest = float((p.sum(-1, dtype=torch.float32) - 1).abs().max())
    if furthest > _TOLERANCE:
        received = Phrase(f"sums up to {furthest:.3g} from 1")
        remedy = "apply softmax over the classes, which are last"
        raise BadInput("probabilities must sum to 1 over the classes", "probabilities", received, remedy)
    cells = p.shape[:-1]
    if labels.shape[-1:] != cells[-1:]:
        rule, remedy = f"labels must match {tuple(cells)}", "give one class index per example"
        raise BadInput(rule, "labels", (tuple(labels.shape), labels.dtype), remedy)
    check_classes(labels, cells, p.shape[-1])
    p = p.float() if p.dtype in (torch.float16, torch.bfloat16) else p
    return p, labels.to(p.device).long().expand(cells)
