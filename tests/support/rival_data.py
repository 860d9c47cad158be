"""A small classifier with labels that it gets wrong now and then, for tests of rivals."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dropscope.deploy.rivals.forwards import PlainPass, plain_pass
from dropscope.engine import open_session
from support import zoo

CLASSES = 3


class PictureNet(nn.Module):
    """A convolution with batch normalisation, and a linear head on pooled features."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.head = nn.Linear(12 * 4, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(x.flatten(1))


def picture_net(seed: int = 0) -> nn.Module:
    """In eval mode, its logits spread out."""

    def build() -> nn.Module:
        torch.manual_seed(seed)
        net = PictureNet()
        with torch.no_grad():
            net.norm.momentum = 1.0  # running statistics are those of this one batch
            logits = net.train()(torch.randn(256, 1, 8, 8))
            net.head.bias -= logits.mean(0)
            net.head.weight *= 3 / logits.std()
            net.head.bias *= 3 / logits.std()
        return net

    return zoo.seeded(build).eval()


def pictures(n: int = 160, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """Images, and what the network says about noisy ones: so about one in five of its predictions is wrong."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 1, 8, 8, generator=draw)
    with torch.no_grad():
        y = picture_net()(x + noise * torch.randn(n, 1, 8, 8, generator=draw)).argmax(1)
    return x, y


def two_parts(model: nn.Module | None = None, n: int = 160) -> tuple[PlainPass, PlainPass]:
    """A plain pass over fitting examples, and one over others."""
    x, y = pictures(n)
    net = picture_net() if model is None else model
    half = n // 2
    return tuple(plain_pass(open_session(net, (x[part], y[part]))) for part in (slice(half), slice(half, n)))  # type: ignore[return-value]
