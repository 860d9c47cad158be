"""The anisotropic U-Net of the study, with dropout on whole feature maps, Bernoulli or Gaussian.

Owns the architecture and the two dropout modules that are on during training. At inference their noise comes from a
placement on the sites of the same names (`inference_placement`), so that masks are keyed and audited as anywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dropscope.checks import check_rate
from dropscope.errors import BadInput, nearest

NOISES = ("bernoulli", "gaussian")
FEATURES = (16, 32, 64, 128)
_CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
_NORMS = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_DROPOUTS = {2: nn.Dropout2d, 3: nn.Dropout3d}
_POOLS = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
_HALVES = {2: (2, 2), 3: (2, 2, 1)}  # slices are thick: only the plane is pooled


class GaussianFeatureDropout(nn.Module):
    """Each feature map times λ ~ N(1, rate/(1 − rate)) in training, nothing otherwise. S3 eq 2.

    >>> torch.equal(GaussianFeatureDropout(0.5).eval()(torch.ones(1, 2, 3)), torch.ones(1, 2, 3))
    True
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = check_rate(rate, "rate")

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        shape = (*x.shape[:2], *(1,) * (x.dim() - 2))
        spread = math.sqrt(self.rate / (1 - self.rate))
        return x * torch.randn(shape, device=x.device).mul_(spread).add_(1).to(x.dtype)

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class Block(nn.Module):
    """(convolution 3, padded → dropout → batch norm → ReLU) twice; the first block of the network has no dropout."""

    def __init__(self, dims: int, given: int, made: int, rate: float, noise: str, drops: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = (_CONVOLUTIONS[dims](n, made, 3, padding=1) for n in (given, made))
        if drops:
            self.dropout1, self.dropout2 = (feature_dropout(dims, rate, noise) for _ in range(2))
        self.norm1, self.norm2 = (_NORMS[dims](made) for _ in range(2))
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.drops = drops

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = self.relu1(self.norm1(self.dropout1(x) if self.drops else x))
        x = self.conv2(x)
        return self.relu2(self.norm2(self.dropout2(x) if self.drops else x))


class UNet(nn.Module):
    """Logits `[N, classes, *spatial]` of `[N, channels, *spatial]`; sides of the plane divisible by 2^depth.

    `dims` 3 is the study's (pooling 2×2×1), 2 for single images. The depth is one less than the number of `features`.

    >>> UNet(1, 3, features=(4, 8))(torch.zeros(1, 1, 8, 8, 3)).shape
    torch.Size([1, 3, 8, 8, 3])
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        rate: float = 0.0,
        noise: str = "bernoulli",
        features: Sequence[int] = FEATURES,
        dims: int = 3,
    ) -> None:
        super().__init__()
        features = tuple(features)
        if dims not in _CONVOLUTIONS or len(features) < 2 or min(features) < 1:
            remedy = "write features=(16, 32, 64, 128) and dims=3"
            raise BadInput(
                "a U-Net has two levels or more, in 2 or 3 dimensions", "features, dims", (features, dims), remedy
            )
        self.dims, self.depth = dims, len(features) - 1
        given = (channels, *features[:-1])
        self.encoder = nn.ModuleList(
            Block(dims, a, b, rate, noise, drops=level > 0)
            for level, (a, b) in enumerate(zip(given, features, strict=True))
        )
        self.pool = nn.ModuleList(_POOLS[dims](_HALVES[dims]) for _ in range(self.depth))
        lower = list(zip(features[1:], features[:-1], strict=True))[::-1]  # deepest first: (from below, made)
        self.up = nn.ModuleList(nn.Upsample(scale_factor=_HALVES[dims]) for _ in lower)
        self.up_dropout = nn.ModuleList(feature_dropout(dims, rate, noise) for _ in lower)
        self.decoder = nn.ModuleList(Block(dims, below + made, made, rate, noise) for below, made in lower)
        self.head = _CONVOLUTIONS[dims](features[0], classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        across = []
        for level, block in enumerate(self.encoder):
            x = block(x)
            if level < self.depth:
                across.append(x)
                x = self.pool[level](x)
        for up, dropout, block in zip(self.up, self.up_dropout, self.decoder, strict=True):
            x = block(torch.cat([across.pop(), dropout(up(x))], 1))
        return self.head(x)


def feature_dropout(dims: int, rate: float, noise: str) -> nn.Module:
    """The dropout of one place, on during training."""
    if noise not in NOISES:
        raise BadInput("noise is bernoulli or gaussian", "noise", noise, nearest(noise, NOISES))
    return _DROPOUTS[dims](check_rate(rate, "rate")) if noise == "bernoulli" else GaussianFeatureDropout(rate)
