"""Options of the study, checked as far as that goes without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dropscope.checks import check_count, check_literals
from dropscope.errors import BadInput, Phrase

_OF_MODEL = ("group_column", "text_column", "tokenizer", "keys", "mean", "std", "transforms", "class_names")


@dataclass(frozen=True)
class Options:
    """What the study may be asked for.

    Attributes:
        data: CIFAR-10's folder or hub name, a folder of mammograms, or data for `model`.
        task: Which of the paper's tasks.
        network: For CIFAR-10: the paper's is the cnn.
        train_dropout: Train the paper's CIFAR-10 network with dropout on.
        noise: Of the masks at inference; the paper's is bernoulli, multinomial one that it leaves open.
        model: A trained classifier of your own instead of a task: file.py:callable, or hf:CHECKPOINT.
        sites: With `model`: its layers, the penultimate last; all of them (the last four at most) if not given.
        labels: Table of a folder of images, with columns file and label; labels.csv in the folder if not given.
        label_column: Column of the labels in a table; label, if present, if not given.
        group_column: With `model`: column of the groups in a table, such as patients; they stay in one half.
        text_column: With `model`: column of the texts in a table; text if not given.
        tokenizer: With `model`: checkpoint whose tokenizer reads the texts; the model's own if not given.
        keys: With `model`, of dicts: the fields of the input and the label, such as image,label.
        image_size: With `model`: images are resized to one side, or HEIGHTxWIDTH.
        mean: With `model`: subtracted from pixels in [0, 1]: one number, one per channel, imagenet or cifar10.
        std: With `model`: what pixels are divided by after that.
        transforms: With `model`: from a PIL image to a tensor, file.py:callable, in place of the three before.
        class_names: With `model`: in the order of its outputs, comma-separated, or a file with one per line.
        side: Mammography: side of the network's input; 200, or less in smaller presets, if not given.
        preprocessing: Mammography: breast keeps the breast alone, paper has the steps as the paper writes them.
        positions: Mammography: masks at the outputs of stem and blocks, or before and after their last activation.
        split: Mammography: by_image matches the paper; leaks are counted.
        augment: Mammography: which training images are augmented; the paper's are the normal ones.
        preset: How large: as in the paper, 15 minutes, or seconds.
        seeds: Networks to train, with seeds 0, 1, …
        epochs: Epochs of training; the preset's if not given.
        weights: Trained networks instead: a file each, safetensors or a plain state_dict. Rules about networks need
            three.
        out: Folder of the results; a killed run continues there.
        beside: Folder of a finished run of another task, which figures show beside this one.
        device: cpu or cuda; the GPU where there is one if not given.
        preregister: File of a preregistration. A new one: claims, margins, seeds and options are written to it, and
            nothing is run. One that is there: the summary says whether the run is as registered.
        progress: Whether to show progress; on a terminal if not given.
    """

    data: str | Path
    task: Literal["cifar10", "mammography"] = "cifar10"
    network: Literal["cnn", "vit", "efficientnet"] = "cnn"
    train_dropout: bool = False
    noise: Literal["bernoulli", "gaussian", "multinomial"] = "bernoulli"
    model: str | None = None
    sites: tuple[str, ...] | None = None
    labels: str | Path | None = None
    label_column: str | None = None
    group_column: str | None = None
    text_column: str | None = None
    tokenizer: str | None = None
    keys: Sequence[str] | None = None
    image_size: str | None = None
    mean: str | None = None
    std: str | None = None
    transforms: str | None = None
    class_names: str | None = None
    side: int | None = None
    preprocessing: Literal["breast", "paper"] = "breast"
    positions: Literal["output", "activation"] = "output"
    split: Literal["by_patient", "by_image"] = "by_patient"
    augment: Literal["normal", "all", "none"] = "normal"
    preset: Literal["paper", "small", "smoke"] = "small"
    seeds: int = 1
    epochs: int | None = None
    weights: Sequence[str] | None = None
    out: str | Path = "where-to-drop"
    beside: str | Path | None = None
    device: str | None = None
    preregister: str | Path | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        check_literals(self)
        check_count(self.seeds, "seeds", 5)
        if self.epochs is not None:
            check_count(self.epochs, "epochs", 20)
        for name in _OF_MODEL:
            if self.model is None and getattr(self, name) is not None:
                what = f"{name} must go with a model of your own"
                raise BadInput(what, name, getattr(self, name), f"leave {name} out, or write model='mine.py:model'")
        if self.seeds > 1 and (self.weights or self.model):
            what = "seeds must be 1 with weights or a model, which is one trained network"
            raise BadInput(what, "seeds", self.seeds, "leave seeds out, or leave weights and model out")
        for name, usual in (("preprocessing", "breast"), ("positions", "output")):
            if getattr(self, name) != usual and (self.task != "mammography" or self.model):
                what = f"{name} must go with task='mammography'"
                raise BadInput(what, name, getattr(self, name), f"leave {name} out")
        papers = self.task == "cifar10" and self.network == "cnn" and not self.weights and not self.model
        if self.train_dropout and not papers:
            got = Phrase(f"task={self.task}, network={self.network}, weights={self.weights}, model={self.model}")
            what = "train_dropout must go with the paper's CIFAR-10 network"
            raise BadInput(what, "train_dropout", got, "leave train_dropout out")
