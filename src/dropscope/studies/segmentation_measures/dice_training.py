"""Training of a segmentation network as in the paper: Dice loss, Adadelta, flips along x, the best validation loss.

Owns the loss and the batches; see `studies.training` for the loop. All images are on the device before the first step,
flipped copies too, so that a step is one gather and the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dropscope.studies.segmentation_measures.preparation import Prepared
from dropscope.studies.segmentation_measures.presets import Regime
from dropscope.studies.training import History, Recipe, fit

EPSILON = 1e-7
LOWER_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}  # of the regime, of the training loop
_AT_ONCE = 1 << 21  # voxels of validation volumes in one forward


def dice_loss(probabilities: Tensor, label: Tensor, valid: Tensor, epsilon: float = EPSILON) -> Tensor:
    """1 − mean_c 2 Σ p g / (Σ p + Σ g + ε) of each image, `[N]`; p `[N, C, *spatial]`, label and valid `[N, *spatial]`.

    In [0, 1]; lower is better. Sums run over the valid voxels of one image. NOT 1 − `scores.dice`, which is of
    decisions, not of probabilities. Reference: the paper; Milletari et al. (2016) square p and g in the denominator.

    >>> p = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> dice_loss(p, torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)).tolist()
    [0.0]
    """
    classes = torch.arange(probabilities.shape[1], device=label.device).reshape(-1, *[1] * (label.dim() - 1))
    counted = valid.unsqueeze(1)
    truth = ((label.unsqueeze(1) == classes) & counted).to(probabilities.dtype)
    soft = probabilities * counted
    both, p, g = ((x.flatten(2)).sum(-1) for x in (soft * truth, soft, truth))
    return 1 - (2 * both / (p + g + epsilon)).mean(1)


class Batches:
    """Training batches (image, label, valid) on the device, one round per iteration: an endless shuffled walk through
    the training set, each image flipped along x or not."""

    def __init__(
        self, prepared: Prepared, cases: Sequence[int], regime: Regime, seed: int, device: torch.device
    ) -> None:
        chosen = torch.as_tensor(list(cases))
        self.rounds, self._steps = regime.rounds(len(chosen))
        self._batch, self._n = regime.batch, len(chosen)
        self._device, self._draw = device, np.random.default_rng(seed)
        self._parts = tuple(_with_flips(part[chosen], axis).to(device) for part, axis in _flippable(prepared))
        self._queue = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        wanted = self._steps * self._batch
        while len(self._queue) < wanted:
            self._queue = np.concatenate([self._queue, self._draw.permutation(self._n)])
        order, self._queue = self._queue[:wanted], self._queue[wanted:]
        rows = order + self._n * self._draw.integers(0, 2, wanted)
        numbers = torch.as_tensor(rows.reshape(self._steps, self._batch), device=self._device)
        for batch in numbers:
            image, label, valid = (part.index_select(0, batch) for part in self._parts)
            yield image, label, valid


def _flippable(prepared: Prepared) -> Iterator[tuple[Tensor, int]]:
    yield prepared.images, 2
    yield prepared.labels, 1
    yield prepared.valid, 1


def _with_flips(part: Tensor, axis: int) -> Tensor:
    return torch.cat([part, part.flip(axis)])


def train(
    net: nn.Module,
    prepared: Prepared,
    cases: Sequence[int],
    validation: Sequence[int],
    regime: Regime,
    seed: int,
    device: torch.device,
    tick: Callable[[int], None] = lambda batches: None,
) -> History:
    """Trains `net` in place; it ends on the CPU, in eval mode, with the weights of its best validation Dice loss."""
    batches = Batches(prepared, cases, regime, seed, device)
    held = tuple(part[list(validation)].to(device) for part, _ in _flippable(prepared))
    dtype = LOWER_PRECISION.get(regime.precision)
    if device.type == "cuda" and prepared.images.dim() == 5:
        net.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]

    def loss(module: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        image, label, valid = batch
        return dice_loss(module(image).float().softmax(1), label, valid).mean()

    def score(module: nn.Module) -> float:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            return -validation_loss(module, *held)

    recipe = Recipe(
        epochs=batches.rounds,
        loss=loss,
        score=score,
        optimizer=lambda parameters: torch.optim.Adadelta(parameters, lr=1.0, rho=0.9, eps=1e-6),
        precision=_PRECISIONS[regime.precision],
    )
    history = fit(net, recipe, batches, seed, device, tick=tick)
    net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload] # as it will be when read from its file
    return history


def validation_loss(net: nn.Module, images: Tensor, labels: Tensor, valid: Tensor) -> float:
    """Mean Dice loss over validation images, dropout off."""
    at_once = max(1, _AT_ONCE // images[0, 0].numel())
    losses = [
        dice_loss(net(image).float().softmax(1), label, mask)
        for image, label, mask in zip(*(part.split(at_once) for part in (images, labels, valid)), strict=True)
    ]
    return float(torch.cat(losses).mean())
