"""Training a segmentation network as the paper does: Dice loss, Adadelta, flips along x, the best validation loss kept.

Owns the loss, the batches and how long training lasts. The loop is `studies.training.fit`'s. Everything lies on the
device before the first step, flipped copies too, so that a step is one gather and the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from dropscope.errors import BadInput
from dropscope.studies.segmentation_measures.preparing import Prepared
from dropscope.studies.training import History, Recipe, fit

EPSILON = 1e-7
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
AUTO = "auto"  # bf16 on a GPU, fp32 elsewhere
_AT_ONCE = 1 << 21  # voxels of validation volumes in one forward


@dataclass(frozen=True)
class Regime:
    """How long and how. Either `epochs` (passes over the training set, as the paper) or `steps` (the same number for
    every network, whatever its training set). Validation comes `validations` times, at the latest after every epoch."""

    epochs: int | None = 600
    steps: int | None = None
    validations: int | None = None
    batch: int = 1
    precision: str = "fp32"

    def __post_init__(self) -> None:
        given = [n for n in (self.epochs, self.steps) if n is not None]
        if len(given) != 1 or given[0] < 1:
            received = f"epochs={self.epochs}, steps={self.steps}"
            raise BadInput(
                "training lasts for epochs or for steps", "--epochs, --steps", received, "write one of the two"
            )
        if self.batch < 1 or (self.validations is not None and self.validations < 1):
            received = f"batch={self.batch}, validations={self.validations}"
            raise BadInput("a batch and the validations are at least 1", "--batch, --validations", received, "write 1")
        if self.precision not in (AUTO, *PRECISIONS):
            raise BadInput(f"precision is one of {', '.join(PRECISIONS)}", "--precision", self.precision, "write fp32")

    def on(self, device: torch.device) -> Regime:
        """With the precision settled for a device."""
        settled = ("bf16" if device.type == "cuda" else "fp32") if self.precision == AUTO else self.precision
        return replace(self, precision=settled)

    def rounds(self, n_train: int) -> tuple[int, int]:
        """(rounds, steps in each): a round ends with a validation.

        >>> Regime(epochs=600).rounds(9), Regime(epochs=None, steps=1000, validations=20, batch=2).rounds(9)
        ((600, 9), (20, 50))
        """
        per_epoch = -(-n_train // self.batch)
        steps = self.steps if self.steps is not None else (self.epochs or 1) * per_epoch
        rounds = min(self.validations or self.epochs or 20, steps)
        return rounds, -(-steps // rounds)


def dice_loss(probabilities: Tensor, label: Tensor, valid: Tensor, epsilon: float = EPSILON) -> Tensor:
    """1 − mean_c 2 Σ p g / (Σ p + Σ g + ε) of each image, `[N]`; p `[N, C, *spatial]`, label and valid `[N, *spatial]`.

    In [0, 1]; lower is better. Sums run over the valid voxels of one image. NOT 1 − `scores.dice`, which is of
    decisions, not of probabilities. Reference: S3; Milletari et al. (2016) square p and g in the denominator.

    >>> p = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> dice_loss(p, torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)).tolist()
    [0.0]
    """
    classes = torch.arange(probabilities.shape[1], device=label.device).reshape(-1, *[1] * (label.dim() - 1))
    counted = valid.unsqueeze(1)
    truth = ((label.unsqueeze(1) == classes) & counted).to(probabilities.dtype)
    found = probabilities * counted
    both, p, g = ((x.flatten(2)).sum(-1) for x in (found * truth, found, truth))
    return 1 - (2 * both / (p + g + epsilon)).mean(1)


class Batches:
    """One round of training batches (image, label, valid), already on the device; an endless shuffled walk through
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
        for some in numbers:
            image, label, valid = (part.index_select(0, some) for part in self._parts)
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
    """Trains `net` in place; it ends on the CPU, in eval, with the weights of its best validation Dice loss."""
    batches = Batches(prepared, cases, regime, seed, device)
    held = tuple(part[list(validation)].to(device) for part, _ in _flippable(prepared))
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(regime.precision)
    if device.type == "cuda" and prepared.images.dim() == 5:
        net.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]

    def loss(module: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        image, label, valid = batch
        return dice_loss(module(image).float().softmax(1), label, valid).mean()

    def score(module: nn.Module) -> float:
        with torch.autocast(device.type, lower, enabled=lower is not None):
            return -validation_loss(module, *held)

    recipe = Recipe(
        epochs=batches.rounds,
        loss=loss,
        score=score,
        optimizer=lambda parameters: torch.optim.Adadelta(parameters, lr=1.0, rho=0.9, eps=1e-6),
        precision=PRECISIONS[regime.precision],
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
