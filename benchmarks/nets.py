"""The networks of the CPU benchmarks: a plain one for Dropscope, its twin with dropout modules for everyone else.

Weights are random: a speed does not depend on them. The last layers are scaled up, so that passes differ visibly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_grid import CifarNet

SITES = ("conv1", "conv2", "conv3", "fc1")


def cifar_net() -> CifarNet:
    torch.manual_seed(0)
    net = CifarNet().eval()
    with torch.no_grad():
        net.fc2.weight.mul_(20)
    return net


class DroppingCifarNet(CifarNet):
    """CifarNet with dropout after its activations: of feature maps behind convolutions, or of single elements."""

    def __init__(self, rates: Mapping[str, float], element: bool = False) -> None:
        super().__init__()
        for site in SITES:
            kind = nn.Dropout if element or site == "fc1" else nn.Dropout2d
            setattr(self, f"drop_{site}", kind(rates[site]) if rates.get(site) else nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.drop_conv1(F.relu(self.conv1(x))), 2)
        x = F.max_pool2d(self.drop_conv2(F.relu(self.conv2(x))), 2)
        x = F.max_pool2d(self.drop_conv3(F.relu(self.conv3(x))), 2)
        return self.fc2(self.drop_fc1(F.relu(self.fc1(x.flatten(1)))))


def dropping(net: CifarNet, rates: Mapping[str, float], element: bool = False) -> DroppingCifarNet:
    twin = DroppingCifarNet(rates, element).eval()
    twin.load_state_dict(net.state_dict())
    return twin


class _Residual(nn.Module):
    def __init__(self, before: int, width: int, stride: int, rate: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.drop = nn.Dropout2d(rate) if rate else nn.Identity()
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.short = nn.Identity() if before == width else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.drop(F.relu(self.bn1(self.conv1(x))))
        return F.relu(self.bn2(self.conv2(inner)) + self.short(x))


class ResNet8(nn.Module):
    """Three residual blocks with BatchNorm; dropout, where there is any, inside the branch of a block."""

    def __init__(self, rates: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.block1 = _Residual(16, 16, 1, rates[0])
        self.block2 = _Residual(16, 32, 2, rates[1])
        self.block3 = _Residual(32, 64, 2, rates[2])
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        return self.fc(self.block3(self.block2(self.block1(x))).mean((2, 3)))


def resnets(rates: tuple[float, float, float]) -> tuple[ResNet8, ResNet8]:
    """The plain network and its twin with dropout."""
    torch.manual_seed(0)
    net, twin = ResNet8().eval(), ResNet8(rates).eval()
    with torch.no_grad():
        net.fc.weight.mul_(20)
    twin.load_state_dict(net.state_dict())
    return net, twin


def small_bert() -> nn.Module:
    """A BERT of two layers with the dropout it was configured with."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, num_labels=3
    )
    net = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        net.classifier.weight.mul_(20)
    return net


class _Block(nn.Module):
    """A block of a ResNet; `bottleneck` with three convolutions, else two. Without weights to match sizes: option A."""

    def __init__(self, before: int, width: int, stride: int, bottleneck: bool, padded: bool) -> None:
        super().__init__()
        after = 4 * width if bottleneck else width
        sizes = [(before, width, 1, 1), (width, width, 3, stride), (width, after, 1, 1)]
        for number, (inside, outside, kernel, step) in enumerate(
            sizes if bottleneck else [(before, width, 3, stride), (width, width, 3, 1)], 1
        ):
            self.add_module(f"conv{number}", nn.Conv2d(inside, outside, kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{number}", nn.BatchNorm2d(outside))
        self.layers, self.relu = 3 if bottleneck else 2, nn.ReLU(inplace=True)
        self.new = after - before
        self.downsample: nn.Module | None = None
        if (stride != 1 or self.new) and not padded:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for number in range(1, self.layers + 1):
            out = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(out))
            out = self.relu(out) if number < self.layers else out
        if self.downsample is not None:
            x = self.downsample(x)
        elif self.new:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))
        return self.relu(out + x)


class ResNet(nn.Module):
    """He et al. 2016, with the names of torchvision: of the CIFAR kind with three groups, or of the ImageNet kind."""

    def __init__(self, depths: Sequence[int], width: int, classes: int, *, cifar: bool, padded: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3 if cifar else 7, 1 if cifar else 2, 1 if cifar else 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if cifar else nn.MaxPool2d(3, 2, 1)
        before, self.groups = width, len(depths)
        for group, depth in enumerate(depths):
            inner, blocks = width * 2**group, []
            for number in range(depth):
                stride = 2 if group and not number else 1
                blocks.append(_Block(before, inner, stride, bottleneck=not cifar, padded=padded))
                before = inner if cifar else 4 * inner
            self.add_module(f"layer{group + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for group in range(1, self.groups + 1):
            x = getattr(self, f"layer{group}")(x)
        return self.fc(x.mean((2, 3)))


def resnet20(weights: Path | None = None) -> ResNet:
    """With the weights of a file, as public implementations save them, or random ones."""
    torch.manual_seed(0)
    if weights is None:
        return ResNet((3, 3, 3), 16, 10, cifar=True).eval()
    state = torch.load(weights, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state)
    state = {name.removeprefix("module.").replace("linear.", "fc."): value for name, value in state.items()}
    padded = not any("downsample" in name for name in state)
    net = ResNet((3, 3, 3), 16, len(state["fc.weight"]), cifar=True, padded=padded)
    net.load_state_dict(state)
    return net.eval()


def resnet50(width: int = 64) -> ResNet:
    torch.manual_seed(0)
    return ResNet((3, 4, 6, 3), width, 1000 if width == 64 else 10, cifar=False).eval()


class UNet3d(nn.Module):
    """Four levels, two convolutions with InstanceNorm each, concatenated skips."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip([1, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose3d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(_twice(2 * w, w) for w in reversed(widths[:-1]))
        self.out = nn.Conv3d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, down in enumerate(self.down):
            x = down(x if not level else F.max_pool3d(x, 2))
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(kept[:-1]), strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.out(x)


def _twice(inside: int, outside: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (inside, outside):
        layers += [nn.Conv3d(before, outside, 3, padding=1), nn.InstanceNorm3d(outside), nn.LeakyReLU(inplace=True)]
    return nn.Sequential(*layers)


def unet3d(width: int = 16) -> nn.Module:
    """MONAI's, if it is installed, else one of the same size."""
    torch.manual_seed(0)
    try:
        from monai.networks.nets import UNet
    except ImportError:
        return UNet3d(width).eval()
    return UNet(3, 1, 3, [width * 2**level for level in range(4)], (2, 2, 2), num_res_units=2).eval()
