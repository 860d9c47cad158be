"""The networks of the CPU benchmarks: a plain one for Dropscope, its twin with dropout modules for everyone else.

Weights are random: a speed does not depend on them. The last layers are scaled up, so that passes differ visibly.
"""

from __future__ import annotations

from collections.abc import Mapping

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
