"""Task A: CIFAR-10 with the paper's network, or with one of the two that the paper leaves open.

Owns the split, the recipes and the maskable layers. Adam 1e-3, batch 128, cross-entropy, 20 epochs, weights of the best
validation accuracy are the paper's; the two other networks need augmentation and a schedule to be worth asking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.studies.training import History, Recipe, fit
from dropscope.studies.where_to_drop.batches import Resident, cropped_and_flipped
from dropscope.studies.where_to_drop.cifar import Cifar, scaled
from dropscope.studies.where_to_drop.networks import TRAINING_RATES, CifarNet, SmallEfficientNet, SmallViT
from dropscope.studies.where_to_drop.task import Task

VALIDATION = 5_000
_ADAM = partial(torch.optim.Adam, lr=1e-3)
_SPLIT_SEED = 0  # one split for every network, so that networks differ by training alone


@dataclass(frozen=True)
class Network:
    """A network that can be trained here: its layers for the grid, the penultimate last, and how it is trained."""

    build: Callable[[], nn.Module]
    layers: tuple[str, ...]
    epochs: int
    batch: int = 128
    augmented: bool = False
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = _ADAM
    peak: float | None = None  # of a one-cycle schedule

    @property
    def named_positions(self) -> bool:
        """Whether a layer's name already says where its mask goes: no axis of positions then."""
        return any("@" in layer for layer in self.layers)


NETWORKS = {
    "cnn": Network(CifarNet, ("conv1", "conv2", "conv3", "fc1"), epochs=20),
    "cnn-dropout": Network(partial(CifarNet, TRAINING_RATES), ("conv1", "conv2", "conv3", "fc1"), epochs=20),
    "vit": Network(
        SmallViT, ("blocks.1", "blocks.3", "blocks.5", "head@input"), epochs=40, batch=512, augmented=True,
        optimizer=partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.05), peak=1e-3,
    ),
    "efficientnet": Network(
        SmallEfficientNet, ("stages.1", "stages.2", "stages.3", "head@input"), epochs=20, batch=512, augmented=True,
        optimizer=partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.02), peak=3e-3,
    ),
}  # fmt: skip


def cifar_task(
    cifar: Cifar, network: str = "cnn", *, epochs: int | None = None, train: int | None = None,
    validation: int | None = None, test: int | None = None,
) -> Task:  # fmt: skip
    """The task on all images, or on the first so many of each part."""
    chosen = NETWORKS[network]
    order = torch.randperm(len(cifar.train_labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held = max(1, min(VALIDATION, len(order) // 10))
    held_out, learnt = order[:held][:validation], order[held:][:train]
    rounds = epochs or chosen.epochs
    held_images, held_labels = scaled(cifar.train_images[held_out]), cifar.train_labels[held_out]
    images, labels = cifar.train_images[learnt], cifar.train_labels[learnt]

    def prepared(batch: Tensor, draws: torch.Generator) -> Tensor:
        return scaled(cropped_and_flipped(batch, draws) if chosen.augmented else batch)

    def training(net: nn.Module, seed: int, device: torch.device, show: bool | None) -> History:
        batches = Resident(images, labels, chosen.batch, seed, device, prepared)
        there = held_images.to(device), held_labels.to(device)
        schedule = None
        if chosen.peak is not None:
            schedule = partial(_one_cycle, peak=chosen.peak)
        mixed = "bf16-mixed" if device.type == "cuda" and chosen.augmented else "32-true"
        recipe = Recipe(
            rounds, _loss, lambda trained: accuracy(trained, *there), chosen.optimizer, schedule, precision=mixed
        )
        return fit(net, recipe, batches, seed, device, show, f"training {network}, seed {seed}")

    data = {"train": len(labels), "validation": len(held_labels), "fingerprint": _fingerprint(cifar)}
    return Task(
        name=f"cifar10-{network}",
        layers=chosen.layers,
        penultimate=chosen.layers[-1:],
        build=chosen.build,
        train=training,
        validation=(held_images, held_labels),
        test=(scaled(cifar.test_images[:test]), cifar.test_labels[:test]),
        positions=("auto",) if chosen.named_positions else Task.positions,
        masks_inputs=not chosen.named_positions,
        about={"task": "cifar10", "network": network, "epochs": rounds, **data},
    )


def accuracy(net: nn.Module, inputs: Tensor, labels: Tensor, batch: int = 1000) -> float:
    """Share of right predictions of one plain pass."""
    parts = zip(inputs.split(batch), labels.split(batch), strict=True)
    return float(sum((net(x).argmax(1) == y).sum() for x, y in parts)) / len(labels)


def _loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def _one_cycle(optimizer: torch.optim.Optimizer, steps: int, peak: float) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.2)


def _fingerprint(cifar: Cifar) -> str:
    """Of every label and every pixel."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (cifar.train_labels, cifar.train_images, cifar.test_labels, cifar.test_images):
        digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()
