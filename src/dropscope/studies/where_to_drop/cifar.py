"""Task A: CIFAR-10 with the paper's network, or with one of the two that the paper leaves open.

Owns the split, the recipes and the maskable layers. The paper's recipe: Adam 1e-3, batch 128, cross-entropy, 20 epochs,
weights of the best validation accuracy. The two other networks need augmentation and a schedule to be worth asking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dropscope.studies.training import History, Recipe, fit
from dropscope.studies.where_to_drop.batches import ShuffledBatches, shift_and_mirror
from dropscope.studies.where_to_drop.cifar_files import CifarImages, scale_pixels
from dropscope.studies.where_to_drop.networks import TRAINING_RATES, CifarNet, SmallEfficientNet, SmallViT
from dropscope.studies.where_to_drop.tasks import Task, TrainingRun, accuracy, classification_loss

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
    cifar: CifarImages, network: str = "cnn", *, epochs: int | None = None, train: int | None = None,
    validation: int | None = None, test: int | None = None,
) -> Task:  # fmt: skip
    """The task on all images, or on the first so many of each part."""
    chosen = NETWORKS[network]
    order = torch.randperm(len(cifar.train_labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    count = max(1, min(VALIDATION, len(order) // 10))
    held_out, learnt = order[:count][:validation], order[count:][:train]
    rounds = epochs or chosen.epochs
    held_images, held_labels = scale_pixels(cifar.train_images[held_out]), cifar.train_labels[held_out]
    images, labels = cifar.train_images[learnt], cifar.train_labels[learnt]

    def prepare(batch: Tensor, draws: torch.Generator) -> Tensor:
        return scale_pixels(shift_and_mirror(batch, draws) if chosen.augmented else batch)

    def train_network(net: nn.Module, training: TrainingRun) -> History:
        seed, device = training.seed, training.device
        batches = ShuffledBatches(images, labels, chosen.batch, seed, device, prepare)
        there = held_images.to(device), held_labels.to(device)
        schedule = None
        if chosen.peak is not None:
            schedule = partial(_one_cycle, peak=chosen.peak)
        mixed = "bf16-mixed" if device.type == "cuda" and chosen.augmented else "32-true"
        recipe = Recipe(
            rounds,
            classification_loss,
            lambda trained: accuracy(trained, *there),
            chosen.optimizer,
            schedule,
            precision=mixed,
        )
        return fit(net, recipe, batches, seed, device, show=training.show, what=f"training {network}, seed {seed}")

    data = {"train": len(labels), "validation": len(held_labels), "fingerprint": _fingerprint(cifar)}
    return Task(
        name=f"cifar10-{network}",
        layers=chosen.layers,
        penultimate=chosen.layers[-1:],
        build=chosen.build,
        train=train_network,
        validation=(held_images, held_labels),
        test=(scale_pixels(cifar.test_images[:test]), cifar.test_labels[:test]),
        positions=("auto",) if chosen.named_positions else Task.positions,
        masks_inputs=not chosen.named_positions,
        about={"task": "cifar10", "network": network, "epochs": rounds, **data},
        remarks=(_trained_with_dropout(),) if network == "cnn-dropout" else (),
    )


def _trained_with_dropout() -> str:
    rates = ", ".join(f"{name} {rate:g}" for name, rate in TRAINING_RATES.items())
    return (
        f"The paper's network, trained with dropout on ({rates}; feature maps of convolutions, units of fc1), which "
        "the paper leaves open: its rules are judged, its numbers are not."
    )


def _one_cycle(optimizer: torch.optim.Optimizer, steps: int, peak: float) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.2)


def _fingerprint(cifar: CifarImages) -> str:
    """Of every label and every pixel."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (cifar.train_labels, cifar.train_images, cifar.test_labels, cifar.test_images):
        digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()
