"""Image models: transformers and convolutional networks of Hugging Face and MONAI, and a few written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support import zoo
from support.architectures.architecture import Architecture, hugging_face

_RATES = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def images(examples: int, scale: int, channels: int = 3, size: int = 32) -> Tensor:
    size = size if scale == 1 else 2 * size
    return torch.randn(examples, channels, size, size, generator=torch.Generator().manual_seed(1))


def _vit(scale: int) -> dict[str, Any]:
    sizes = {"hidden_size": 32 * scale, "num_hidden_layers": scale, "num_attention_heads": 4}
    return {**sizes, **_RATES, "intermediate_size": 64 * scale, "image_size": 32 * min(scale, 2), "patch_size": 8}


def _swin_v2(scale: int) -> dict[str, Any]:
    return {**_swin(scale), "depths": [scale], "num_heads": [2]}


def _swin(scale: int) -> dict[str, Any]:
    sizes = {"embed_dim": 16 * scale, "depths": [1, scale], "num_heads": [2, 4], "window_size": 4, "patch_size": 4}
    return {**sizes, **_RATES, "image_size": 32 * min(scale, 2)}


def _segformer(scale: int) -> dict[str, Any]:
    lists = {"depths": [1, scale], "hidden_sizes": [8 * scale, 16 * scale], "sr_ratios": [4, 1]}
    more = {"num_attention_heads": [1, 4], "mlp_ratios": [2, 2], "num_encoder_blocks": 2}
    more |= {"patch_sizes": [7, 3], "strides": [4, 2]}
    return {**lists, **more, **_RATES, "decoder_hidden_size": 16 * scale, "classifier_dropout_prob": 0.1}


def _stages(scale: int) -> dict[str, Any]:
    return {"hidden_sizes": [8 * scale, 16 * scale], "depths": [1, scale]}


def _resnet(scale: int) -> dict[str, Any]:
    return {**_stages(scale), "embedding_size": 8 * scale, "layer_type": "basic"}


def _regnet(scale: int) -> dict[str, Any]:
    return {**_stages(scale), "embedding_size": 8 * scale, "groups_width": 4}


def _convnext(scale: int) -> dict[str, Any]:
    return {**_stages(scale), "drop_path_rate": 0.1, "patch_size": 2, "layer_scale_init_value": 1.0, "num_stages": 2}


def _mobilenet(scale: int) -> dict[str, Any]:
    return {"depth_multiplier": 0.125 * scale, "classifier_dropout_prob": 0.2}


class UNet2d(nn.Module):
    """Two levels with a concatenated skip, BatchNorm and Dropout2d; a class for every pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1 = _twice(3, width)
        self.down2 = _twice(width, 2 * width)
        self.drop = nn.Dropout2d(0.2)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join = _twice(2 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        deep = self.drop(self.down2(F.max_pool2d(first, 2)))
        return self.out(self.join(torch.cat([first, self.up(deep)], 1)))


def _twice(inside: int, outside: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (inside, outside):
        layers += [nn.Conv2d(before, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _densenet(scale: int) -> nn.Module:
    from monai.networks.nets import DenseNet

    blocks = (2, 2 * scale)
    return DenseNet(2, 3, 5, 8 * scale, 4 * scale, block_config=blocks, dropout_prob=0.1)


def _monai_efficientnet(scale: int) -> nn.Module:
    from monai.networks.nets import EfficientNet

    blocks = ["r1_k3_s11_e1_i32_o16_se0.25", f"r{scale}_k3_s22_e4_i16_o24_se0.25"]
    width = 0.25 * min(scale, 4)
    return EfficientNet(blocks, 2, 3, 5, width_coefficient=width, depth_coefficient=1.0, image_size=32)


def _image(
    name: str,
    family: str,
    fields: Callable[[int], dict[str, Any]],
    shared: str,
    loop: Mapping[str, str] | None = None,
    head: str = "ForImageClassification",
    **more: Any,
) -> Architecture:
    inputs = more.pop("inputs", images)

    def build(scale: int) -> nn.Module:
        return hugging_face(family, head, {"num_labels": 5, **fields(scale), **more})

    return Architecture(name, "vision", build, inputs, shared, loop or {}, needs="transformers")


VISION = (
    _image("vit", "ViT", _vit, "own last attention ffn keys values"),
    _image("deit", "DeiT", _vit, "own last attention ffn keys values"),
    _image("beit", "Beit", _vit, "own last attention ffn keys values"),
    _image("swin", "Swin", _swin, "own last attention ffn keys values"),
    _image("swin-v2", "Swinv2", _swin_v2, "own last attention ffn keys values"),
    _image("segformer", "Segformer", _segformer, "own last attention conv keys"),
    _image("segformer-pixels", "Segformer", _segformer, "last conv", head="ForSemanticSegmentation"),
    _image("convnext", "ConvNext", _convnext, "own last ffn"),
    _image("resnet", "ResNet", _resnet, "last conv"),
    _image("regnet", "RegNet", _regnet, "last conv"),
    _image("mobilenet", "MobileNetV1", _mobilenet, "own last conv"),
    Architecture("cifar-cnn", "vision", lambda scale: zoo.Cifar(32 * min(scale, 2)), images, "last conv conv1 fc1"),
    Architecture("resnet-20", "vision", lambda scale: zoo.CifarResNet("pad", 3, 4 * scale), images,
                 "last conv conv1 layer3.2.conv1"),
    Architecture("unet-2d", "vision", lambda scale: UNet2d(4 * scale), images, "own last conv"),
    Architecture("monai-densenet", "vision", _densenet, images, "own last conv", needs="monai"),
    Architecture("monai-efficientnet", "vision", _monai_efficientnet, images, "own last conv", needs="monai"),
)  # fmt: skip
