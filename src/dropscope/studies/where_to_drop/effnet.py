"""EffNet for one channel, the mammography network of the paper, and which sites stand for its four maskable layers.

Owns the architecture. A layer named in the paper (stem, block1, block2, block3) is a module here: the authors' code
masks what goes into such a module or what comes out of it, the paper's text speaks of before and after the activation.
`SITES` has both readings. `stem` alone means `stem@output`: after LeakyReLU and BatchNorm, a mask per feature map.
"""

from __future__ import annotations

from torch import Tensor, nn

LAYERS = ("stem", "block1", "block2", "block3")

# Position → the sites of the four layers, in order, as `PlacementGrid` takes them. LeakyReLU commutes with a
# non-negative factor, so before and after are one function. The BatchNorm behind it shifts, so they are another one
# than `output`: a map that is dropped before it enters the next layer as a constant, one dropped after it as 0.
# `stem@input` is the image: its one channel is kept or lost whole.
_CLOSING = ("stem.conv", "block1.shrink", "block2.shrink", "block3.shrink")
SITES: dict[str, tuple[str, ...]] = {
    "input": tuple(f"{layer}@input" for layer in LAYERS),
    "output": tuple(f"{layer}@output" for layer in LAYERS),
    "before_activation": tuple(f"{layer}@before_activation" for layer in _CLOSING),
    "after_activation": tuple(f"{layer}@after_activation" for layer in _CLOSING),
}

_SLOPE = 0.3  # of LeakyReLU: EffNet's (Freeman et al., 2018); the paper gives none


class EffNet(nn.Module):
    """[n, 1, height, width] → logits [n, classes]. Every block halves the height (pooling) and the width (stride).

    >>> import torch
    >>> net = EffNet().eval()
    >>> net(torch.zeros(2, 1, 40, 40)).shape, sum(p.numel() for p in net.parameters())
    (torch.Size([2, 2]), 111970)
    """

    def __init__(self, widths: tuple[int, int, int, int] = (32, 64, 128, 256), classes: int = 2) -> None:
        super().__init__()
        self.stem = Stem(widths[0])
        self.block1 = Block(widths[0], widths[1])
        self.block2 = Block(widths[1], widths[2])
        self.block3 = Block(widths[2], widths[3])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.stem(x))))
        return self.head(self.pool(x).flatten(1))


class Stem(nn.Module):
    """A 3×3 convolution of the image, LeakyReLU, BatchNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.activation = nn.LeakyReLU(_SLOPE)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.conv(x)))


class Block(nn.Module):
    """1×1 → 1×3 depthwise → pooling of rows → 3×1 depthwise → 1×2 at stride (1, 2), LeakyReLU and BatchNorm after
    each. No convolution has a bias."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 1, bias=False)
        self.mix_norm = nn.BatchNorm2d(width)
        self.across = nn.Conv2d(width, width, (1, 3), padding=(0, 1), groups=width, bias=False)
        self.across_norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d((2, 1))
        self.down = nn.Conv2d(width, width, (3, 1), padding=(1, 0), groups=width, bias=False)
        self.down_norm = nn.BatchNorm2d(width)
        self.shrink = nn.Conv2d(width, wider, (1, 2), stride=(1, 2), bias=False)
        self.shrink_norm = nn.BatchNorm2d(wider)
        self.activation = nn.LeakyReLU(_SLOPE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix_norm(self.activation(self.mix(x)))
        x = self.pool(self.across_norm(self.activation(self.across(x))))
        x = self.down_norm(self.activation(self.down(x)))
        return self.shrink_norm(self.activation(self.shrink(x)))
