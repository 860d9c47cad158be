"""Rates that follow from a value: dropout that loses a set share of the information in it, example by example.

Rate-In (Zeevi et al., CVPR 2025) looks for the rate at which dropout loses a set share of the information in what a
layer returns. Here the share lost is Σ h² over dropped units by Σ h² over all: 1 − r², r being the correlation about 0
of the value with and without the mask. Masks are nested in the rate, so that the loss of one draw rises with it: one
sort finds where it reaches the share. The mask itself is another draw, which keeps the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

HIGHEST = 0.95  # rate: a few units must stay


def rates_of_loss(energy: Tensor, words: Tensor, share: float) -> Tensor:
    """The rate at which a draw loses the share, float64 `[n]`, between two units in proportion to the second.

    Args:
        energy: Of each unit, `[n, units]`.
        words: Uniform int32 `[n, units]`: a unit drops at rates above its own word's.
        share: In (0, 1).

    >>> words = torch.tensor([[-(2**31), -(2**30), 0, 2**30]], dtype=torch.int32)  # at rates of 0, 1/4, 1/2, 3/4
    >>> alike, one = torch.tensor([[1.0, 1.0, 1.0, 1.0]]), torch.tensor([[0.0, 0.0, 4.0, 0.0]])
    >>> float(rates_of_loss(alike, words, 0.5)), float(rates_of_loss(one, words, 0.5))
    (0.25, 0.375)
    """
    order = words.argsort(-1)
    at = (words.gather(-1, order).double() + 2**31) / 2**32
    each = energy.double().gather(-1, order)
    lost = each.cumsum(-1)
    aim = share * lost[:, -1:]
    first = (lost < aim).sum(-1, keepdim=True).clamp_max(lost.shape[-1] - 1)  # the unit whose loss reaches the share
    before = torch.where(first > 0, at.gather(-1, (first - 1).clamp_min(0)), 0.0)
    part = (aim - (lost - each).gather(-1, first)) / each.gather(-1, first).clamp_min(torch.finfo(torch.float64).tiny)
    found = before + part.clamp(0, 1) * (at.gather(-1, first) - before)
    return torch.where(lost[:, -1] > 0, found.squeeze(-1), 0.0).clamp(0, HIGHEST)
