"""Networks of the study in plain torch: the paper's two, a small Vision Transformer and a small EfficientNet.

Owns the architectures and which sites stand for EffNet's four maskable layers. Layers carry the names that placements
use. CIFAR-10 has `CifarNet`, `SmallViT` and `SmallEfficientNet`; mammography has `EffNet`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Rates of training with dropout: channel masks for convolutions, element masks for the linear layer.
TRAINING_RATES = {"conv1": 0.1, "conv2": 0.1, "conv3": 0.1, "fc1": 0.5}


class CifarNet(nn.Module):
    """3 × [conv 3×3 → ReLU → maxpool 2] with 16, 32, 64 filters → fc1 1024→128 → ReLU → fc2 128→10.

    `dropout` gives layers a rate for training; the study's noise at inference does not need it.
    """

    def __init__(self, dropout: dict[str, float] | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 4 * 4, 128)
        self.fc2 = nn.Linear(128, 10)
        self.dropout = dropout or {}

    def forward(self, x: Tensor) -> Tensor:
        for name in ("conv1", "conv2", "conv3"):
            x = F.relu(getattr(self, name)(x))
            if self.training and name in self.dropout:
                x = F.dropout2d(x, self.dropout[name])
            x = F.max_pool2d(x, 2)
        x = F.relu(self.fc1(x.flatten(1)))
        if self.training and "fc1" in self.dropout:
            x = F.dropout(x, self.dropout["fc1"])
        return self.fc2(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(n, tokens, width))


class Encoder(nn.Module):
    """A pre-norm block: x + attention(norm x), then + mlp(norm)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SmallViT(nn.Module):
    """A Vision Transformer for 32×32 images: patches of 4, width 192, six blocks of three heads, mean-pooled tokens."""

    def __init__(self, width: int = 192, depth: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.blocks = nn.ModuleList(Encoder(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Inverted(nn.Module):
    """EfficientNet's block: 1×1 expansion → depthwise → squeeze and excitation → 1×1 projection, SiLU and BN; a skip
    where the shape allows."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int = 4) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = nn.Sequential(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.SiLU()
        )
        squeezed = max(8, channels // 4)
        self.squeeze, self.excite = nn.Conv2d(inner, squeezed, 1), nn.Conv2d(squeezed, inner, 1)
        self.project = nn.Sequential(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))
        self.skips = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.project(y * gate)
        return x + y if self.skips else y


class SmallEfficientNet(nn.Module):
    """An EfficientNet for 32×32 images: stem 32, four stages of two inverted blocks, 32 to 160 wide, head 320 → 10."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.SiLU())
        stages, channels = [], 32
        for out, stride in ((32, 1), (64, 2), (96, 2), (160, 2)):
            stages.append(nn.Sequential(Inverted(channels, out, stride), Inverted(out, out, 1)))
            channels = out
        self.stages = nn.ModuleList(stages)
        self.top = nn.Sequential(nn.Conv2d(160, 320, 1, bias=False), nn.BatchNorm2d(320), nn.SiLU())
        self.head = nn.Linear(320, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(self.top(x).mean((2, 3)))


# --- mammography ------------------------------------------------------------------------------------------------------

# A layer named in the paper (stem, block1, block2, block3) is a module here: the authors' code masks what goes into
# such a module or what comes out of it, the paper's text speaks of before and after the activation. `EFFNET_SITES` has
# both readings. `stem` alone means `stem@output`: after LeakyReLU and BatchNorm, a mask per feature map.
EFFNET_LAYERS = ("stem", "block1", "block2", "block3")

# Position → the sites of the four layers, in order, as `PlacementGrid` takes them. LeakyReLU commutes with a
# non-negative factor, so before and after are one function. The BatchNorm behind it shifts, so they are another one
# than `output`: a map that is dropped before it enters the next layer as a constant, one dropped after it as 0.
# `stem@input` is the image: its one channel is kept or lost whole.
EFFNET_CONVOLUTIONS = ("stem.conv", "block1.shrink", "block2.shrink", "block3.shrink")
EFFNET_SITES: dict[str, tuple[str, ...]] = {
    "input": tuple(f"{layer}@input" for layer in EFFNET_LAYERS),
    "output": tuple(f"{layer}@output" for layer in EFFNET_LAYERS),
    "before_activation": tuple(f"{layer}@before_activation" for layer in EFFNET_CONVOLUTIONS),
    "after_activation": tuple(f"{layer}@after_activation" for layer in EFFNET_CONVOLUTIONS),
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
