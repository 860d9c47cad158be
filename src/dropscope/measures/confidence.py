"""Measures of confidence: the highest mean probabilities, and the same of one plain pass as baselines."""

from __future__ import annotations

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.measures.needs import measure_docs, plain_docs, statistics_of
from dropscope.measures.statistics import PassStatistics


@measure_docs()
def max_probability(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """One minus the highest mean probability: an uncertainty, although named after the confidence it turns round.

    1 − max_c p̂(c). In [0, 1 − 1/C].

    Not plain_max_probability, the same of one pass without noise.
    Reference: Hendrycks and Gimpel (2017).

    Examples:
        >>> max_probability(torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])).tolist()
        [0.25]
    """
    kept = statistics_of(passes, "max_probability", plain)
    return (1 - kept.mean.amax(-1)).clamp_min(0).to(kept.dtype)


@measure_docs(raises="Where there is one class, or the statistic was not kept.")
def margin(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """One minus the gap between the two highest mean probabilities.

    1 − (p̂_(1) − p̂_(2)). In [0, 1].

    Not max_probability, which for two classes ranks the same; with more, the runner-up counts here.
    Reference: Scheffer et al. (2001).

    Examples:
        >>> margin(torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])).tolist()
        [0.5]
    """
    kept = statistics_of(passes, "margin", plain)
    return _margin(kept.mean).to(kept.dtype)


@plain_docs()
def plain_entropy(p: Tensor, *, axis: int = 1) -> Tensor:
    """Entropy of one plain pass: the baseline of predictive_entropy.

    −Σ_c p log p. In [0, log C]. Not an entropy of several passes.

    Examples:
        >>> plain_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
        [0.6931471824645996, 0.0]
    """
    return torch.special.entr(_classes_last(p, axis)).sum(-1).to(_precision(p))


@plain_docs()
def plain_max_probability(p: Tensor, *, axis: int = 1) -> Tensor:
    """One minus the highest probability of one plain pass: the baseline of max_probability.

    1 − max_c p. In [0, 1 − 1/C]. Not the confidence itself, which is one minus this.

    Examples:
        >>> plain_max_probability(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
        [0.5, 0.0]
    """
    return (1 - _classes_last(p, axis).amax(-1)).clamp_min(0).to(_precision(p))


@plain_docs("Where `p` holds no probabilities, or one class.")
def plain_margin(p: Tensor, *, axis: int = 1) -> Tensor:
    """One minus the gap between the two highest probabilities of one plain pass: the baseline of margin.

    1 − (p_(1) − p_(2)). In [0, 1]. Not the gap itself, which is one minus this.

    Examples:
        >>> plain_margin(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
        [1.0, 0.0]
    """
    return _margin(_classes_last(p, axis)).to(_precision(p))


def _margin(p: Tensor) -> Tensor:
    if p.shape[-1] < 2:
        rule = "classes must be at least 2 for a margin"
        raise BadInput(rule, "classes", p.shape[-1], "use max_probability for one output")
    top = p.topk(2, -1).values
    return (1 - (top[..., 0] - top[..., 1])).clamp(0, 1)


def _precision(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)


def _classes_last(p: Tensor, axis: int) -> Tensor:
    """Probabilities of one plain pass in float64, checked as the passes are."""
    one_pass = PassStatistics(("sum_p",))
    one_pass.update(p.movedim(axis, -1))
    return one_pass.mean
