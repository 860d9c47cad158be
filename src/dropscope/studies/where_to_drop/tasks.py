"""A task of the study: its data, its network and how that is trained.

CIFAR-10, mammography and a user's own classifier are each a `Task`; what sweeps and reports do not know which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.studies.training import History

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]  # one, several, or by name: the examples come first


@dataclass(frozen=True)
class TrainingRun:
    """One training: its seed, its device and whether progress is shown."""

    seed: int
    device: torch.device
    show: bool | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """Data and network of one task. `layers` are the maskable sites in order, the penultimate last."""

    name: str
    layers: tuple[str, ...]
    penultimate: tuple[str, ...]  # the layers that the paper's rule may mean; the first is the default reading
    build: Callable[[], nn.Module]
    train: Callable[[nn.Module, TrainingRun], History] | None  # None: the network comes trained
    validation: tuple[Inputs, Tensor]  # inputs, labels: a placement is chosen here
    test: tuple[Inputs, Tensor]  # … and reported here
    positions: tuple[str, ...] = ("before_activation", "after_activation")  # ("auto",): each layer's own only
    noise: str = "bernoulli"  # at inference
    masks_inputs: bool = True  # whether the grid is repeated with masks on the layers' inputs
    test_groups: list[str] | None = None  # patients, where examples share them
    about: dict[str, Any] = field(default_factory=dict)  # fingerprint of data and recipe: a folder holds one study
    exhibits: Callable[[Path], object] | None = None  # writes figures of the data themselves into the study's folder
    remarks: tuple[str, ...] = ()  # for the summary: leaks, what was left out
    untrained: tuple[str, ...] = ()  # parts of the network that came without weights, in words


def take(inputs: Inputs, rows: Tensor) -> Inputs:
    """The inputs of some examples."""
    if isinstance(inputs, Tensor):
        return inputs[rows]
    if isinstance(inputs, dict):
        return {name: value[rows] for name, value in inputs.items()}
    return tuple(value[rows] for value in inputs)


def with_noise(task: Task, noise: str) -> Task:
    """The task under another noise at inference.

    Multinomial noise is one place before and after a ReLU, and over the few channels of an image no draw is left at
    high rates: it has one position and no masks on inputs.
    """
    if noise == task.noise:
        return task
    few = {"positions": ("auto",), "masks_inputs": False} if noise == "multinomial" else {}
    words = f"Noise at inference is {noise}; the paper's is Bernoulli."
    return replace(task, noise=noise, about={**task.about, "noise": noise}, remarks=(*task.remarks, words), **few)  # type: ignore[arg-type]


def classification_loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of one batch of inputs and labels."""
    return F.cross_entropy(net(batch[0]), batch[1])


def accuracy(net: nn.Module, inputs: Tensor, labels: Tensor, batch: int = 1000) -> float:
    """Share of right predictions of one plain pass."""
    parts = zip(inputs.split(batch), labels.split(batch), strict=True)
    return float(sum((net(x).argmax(1) == y).sum() for x, y in parts)) / len(labels)
