"""A small network, and data that it gets wrong now and then."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from support import zoo


def net() -> nn.Module:
    return zoo.seeded(
        lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    )


def data(n: int = 40) -> tuple[Tensor, Tensor]:
    """Vectors, and the network's own answers after some noise."""
    x = zoo.vectors(n)
    noisy = net()(x).detach() + torch.randn(n, 3, generator=torch.Generator().manual_seed(9)) * 0.3
    return x, noisy.argmax(1)
