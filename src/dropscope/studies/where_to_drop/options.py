"""Options of the study, checked as far as that goes without data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from dropscope.checks import check_choice, check_count
from dropscope.errors import BadInput, Phrase
from dropscope.studies.where_to_drop.patients import SPLITS
from dropscope.studies.where_to_drop.presets import PRESETS

TASKS = ("cifar10", "mammography")
NETWORKS = ("cnn", "vit", "efficientnet")
AUGMENTATIONS = ("normal", "all", "none")


@dataclass(frozen=True)
class Options:
    """What the study may be asked for.

    Attributes:
        data: CIFAR-10's folder or hub name, a folder of mammograms, or data for `model`.
        task: Which of the paper's tasks: "cifar10" or "mammography".
        network: For CIFAR-10: the paper's "cnn", or "vit", or "efficientnet".
        train_dropout: Train the paper's CIFAR-10 network with dropout on.
        model: The user's own trained classifier instead of a task: "file.py:callable".
        sites: With `model`: its layers, the penultimate last; all of them (the last four at most) if not given.
        labels: Table of labels of a folder.
        label_column: Column of the labels in a table.
        image_size: With `model`: images are resized to a side or HEIGHTxWIDTH.
        side: Mammography: side of the network's input; the preset's if not given.
        split: Mammography: "by_patient", or "by_image" as in the paper.
        augment: Mammography: which training images are augmented, "normal" as in the paper, "all" or "none".
        preset: How large: "paper", "small" or "smoke".
        seeds: Networks to train, with seeds 0, 1, …
        epochs: Epochs of training; the preset's if not given.
        weights: A trained network instead: safetensors, or a plain state_dict.
        out: Folder of the results; a killed run continues there.
        device: Such as "cpu" or "cuda"; the GPU where there is one if not given.
        progress: Whether to show progress; on a terminal if not given.
    """

    data: str | Path
    task: str = "cifar10"
    network: str = "cnn"
    train_dropout: bool = False
    model: str | None = None
    sites: tuple[str, ...] | None = None
    labels: str | Path | None = None
    label_column: str | None = None
    image_size: str | None = None
    side: int | None = None
    split: str = "by_patient"
    augment: str = "normal"
    preset: str = "small"
    seeds: int = 1
    epochs: int | None = None
    weights: str | Path | None = None
    out: str | Path = "where-to-drop"
    device: str | torch.device | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        choices = {"task": TASKS, "network": NETWORKS, "split": SPLITS, "augment": AUGMENTATIONS, "preset": PRESETS}
        for name, valid in choices.items():
            check_choice(getattr(self, name), name, valid)
        check_count(self.seeds, "seeds", 5)
        if self.epochs is not None:
            check_count(self.epochs, "epochs", 20)
        if self.seeds > 1 and (self.weights or self.model):
            what = "seeds must be 1 with weights or a model, which is one trained network"
            raise BadInput(what, "seeds", self.seeds, "leave seeds out, or leave weights and model out")
        papers = self.task == "cifar10" and self.network == "cnn" and not self.weights and not self.model
        if self.train_dropout and not papers:
            got = Phrase(f"task={self.task}, network={self.network}, weights={self.weights}, model={self.model}")
            what = "train_dropout must go with the paper's CIFAR-10 network"
            raise BadInput(what, "train_dropout", got, "leave train_dropout out")
