"""Networks of the study: the anisotropic U-Net, or one of the user's, with dropout on whole feature maps.

Owns the architecture, the dropout that is on during training, and the checks that a network fits the study. At
inference noise comes from a placement on the dropout sites, so that masks are keyed and audited as anywhere else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dropscope.checks import check_choice, check_rate
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.injection import examine, resolve
from dropscope.model import Call, random_state_kept
from dropscope.placement import as_placement
from dropscope.tracing import is_dropout

NOISES = ("bernoulli", "gaussian")
FEATURES = (16, 32, 64, 128)
_CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
_NORMS = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_DROPOUTS = {2: nn.Dropout2d, 3: nn.Dropout3d}
_POOLS = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
_HALVES = {2: (2, 2), 3: (2, 2, 1)}  # slices are thick: only the plane is pooled


class GaussianFeatureDropout(nn.Module):
    """Each feature map times λ ~ N(1, rate/(1 − rate)) in training, nothing otherwise. Equation 2 of the paper.

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
    """(convolution 3, padded → dropout → batch norm → ReLU) twice; the first block of the network does not drop."""

    def __init__(self, dims: int, inputs: int, outputs: int, rate: float, noise: str, *, drops: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = (_CONVOLUTIONS[dims](n, outputs, 3, padding=1) for n in (inputs, outputs))
        if drops:
            self.dropout1, self.dropout2 = (feature_dropout(dims, rate, noise) for _ in range(2))
        self.norm1, self.norm2 = (_NORMS[dims](outputs) for _ in range(2))
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
        if dims not in _CONVOLUTIONS:
            raise BadInput("dims must be 2 or 3", "dims", dims, "write dims=3")
        if len(features) < 2 or min(features) < 1:
            remedy = "write features=(16, 32, 64, 128)"
            raise BadInput("features must be at least 1 on two levels or more", "features", features, remedy)
        self.dims, self.depth = dims, len(features) - 1
        inputs = (channels, *features[:-1])
        self.encoder = nn.ModuleList(
            Block(dims, a, b, rate, noise, drops=level > 0)
            for level, (a, b) in enumerate(zip(inputs, features, strict=True))
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
    check_choice(noise, "noise", NOISES)
    return _DROPOUTS[dims](check_rate(rate, "rate")) if noise == "bernoulli" else GaussianFeatureDropout(rate)


def with_feature_dropout(net: nn.Module, rate: float, noise: str, dims: int) -> nn.Module:
    """The network with every dropout module of its own replaced by one on feature maps, of this rate and noise."""
    names = [name for name, module in net.named_modules() if is_dropout(module)]
    if not names and rate > 0:
        remedy = "build it with dropout, as MONAI's UNet(dropout=0.1), or write dropout='inference'"
        received = Phrase(f"{type(net).__name__} without any")
        raise BadInput("model must have dropout modules where it is trained with dropout", "model", received, remedy)
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(net.get_submodule(parent), child, feature_dropout(dims, rate, noise))
    return net


def check_network(
    net: nn.Module, images: Tensor, classes: int, placement: str, *, drops: bool, trains: bool = True
) -> None:
    """Refuses a network that does not fit the study, before any is trained.

    One plain forward on the first of `images`, one in training on two, and a look at the sites of the placement.
    `drops` says whether it is trained with dropout, `trains` whether it is trained at all.
    """
    first = images[:1]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch would warn of is refused below
        net.eval()
        try:
            shape = tuple(net(first).shape)
        except RuntimeError as error:
            remedy = "choose sides that it takes with roi, and as many channels as the images have"
            what = f"model must take images {tuple(first.shape)}"
            raise BadInput(what, "model", Phrase(first_line(error)), remedy) from error
        wanted = (1, classes, *first.shape[2:])
        if shape != wanted:
            received = Phrase(f"an output of shape {shape}")
            raise BadInput(f"model must return logits {wanted}", "model", received, "build it with those classes")
        if trains:
            _check_training(net, first.expand(2, *first.shape[1:]), wanted[1:], drops=drops)
        resolve(as_placement(placement), examine(net, Call.of(first)))


def _check_training(net: nn.Module, images: Tensor, wanted: tuple[int, ...], *, drops: bool) -> None:
    """A forward in training: the same output, and dropout on feature maps."""
    ranks: dict[str, int] = {}

    def note_rank(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, args: ranks.update({name: args[0].dim()})

    dropouts = [(name, module) for name, module in net.named_modules() if is_dropout(module)]
    hooks = [module.register_forward_pre_hook(note_rank(name)) for name, module in dropouts]
    try:
        with random_state_kept():
            shape = tuple(getattr(net.train()(images), "shape", ("not a tensor",)))
    except (RuntimeError, ValueError) as error:
        received, remedy = Phrase(first_line(error)), "choose a larger roi"
        raise BadInput("model must be trainable on this region", "model", received, remedy) from error
    finally:
        net.eval()
        for hook in hooks:
            hook.remove()
    if shape[1:] != wanted:
        what = f"model must return logits {(len(images), *wanted)} in training too"
        remedy = "build it without further outputs (deep supervision)"
        raise BadInput(what, "model", Phrase(f"an output of shape {shape}"), remedy)
    tokens = next((name for name, rank in ranks.items() if rank != images.dim()), None)
    if drops and tokens is not None:
        remedy = "ask for dropout='inference' and name sites in a placement"
        received = Phrase(f"dropout on tokens at {tokens}")
        raise BadInput("model must have its dropout on feature maps", "model", received, remedy)
