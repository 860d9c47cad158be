"""Networks and data for which it is known whether Monte Carlo Dropout helps to find errors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


class Votes(nn.Module):
    """Two confident votes of a hidden layer that agree where the prediction is right, and cancel where it is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, 64, bias=False)
        self.out = nn.Linear(64, 2, bias=False)
        with torch.no_grad():
            self.hidden.weight.zero_()
            self.hidden.weight[:32, 0] = 1
            self.hidden.weight[32:, 1] = 1
            self.out.weight.zero_()
            self.out.weight[0, :32] = 0.2
            self.out.weight[1, 32:] = 0.2

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(x)))


def noise_finds_the_errors(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of `Votes` differ by the same amount everywhere, so one plain pass knows nothing; the votes differ.

    Right: about 1.5 against 0. Wrong: 6.5 against 5. Under noise, large votes that cancel spread far.
    """
    draw = np.random.default_rng(seed)
    wrong = torch.tensor(draw.random(n) < 0.25)
    base = torch.where(wrong, 5.0, 0.0) + torch.tensor(draw.normal(0, 0.3, n)).float().abs()
    return torch.stack([base + 1.5, base], 1), wrong.long()


def margin_knows_all(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labels are drawn from the probabilities of `Votes`: no ranking is better than that of one plain pass."""
    draw = torch.Generator().manual_seed(seed)
    votes = torch.rand(n, 2, generator=draw)
    logits = Votes()(votes).detach()
    return votes, torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
