"""Task B: normal or abnormal mammograms with EffNet, on Mini-DDSM or on any folder of mammograms with labels.

Owns the recipe (Adam 1e-3, cosine annealing, cross-entropy, mixed precision on a GPU, 20 epochs, weights of the best
validation score) and the remarks about the data. The paper splits by image; here the split is by patient, and
`by_image` counts how many test images show a patient who is in training too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dropscope.checks import check_choice
from dropscope.model import digest
from dropscope.studies.training import History, Recipe, fit
from dropscope.studies.where_to_drop.augmentation import Amounts
from dropscope.studies.where_to_drop.batches import UndersampledBatches
from dropscope.studies.where_to_drop.cache import check_files, preprocess
from dropscope.studies.where_to_drop.mammograms import ABNORMAL, NORMAL, Collection, Mammogram, find_mammograms
from dropscope.studies.where_to_drop.networks import EFFNET_CONVOLUTIONS, EFFNET_LAYERS, EffNet
from dropscope.studies.where_to_drop.patients import (
    PAPER_SHARES,
    Split,
    draw_at_most,
    draw_balanced,
    split_mammograms,
)
from dropscope.studies.where_to_drop.preprocessing import Settings
from dropscope.studies.where_to_drop.preprocessing_figures import write_preprocessing
from dropscope.studies.where_to_drop.tasks import Task, TrainingRun, classification_loss

AUGMENTED = {"normal": frozenset({NORMAL}), "all": frozenset({ABNORMAL, NORMAL}), "none": frozenset[int]()}

_Part = tuple[NDArray[np.float32], NDArray[np.int64]]  # images [n, side, side], labels [n]


@dataclass(frozen=True)
class Protocol:
    """How the mammograms are split, preprocessed and trained on; the defaults are the paper's, except the split."""

    split: str = "by_patient"  # or "by_image"
    shares: tuple[float, float, float] = PAPER_SHARES
    seed: int = 0  # of the split; a network's own seed comes with its training
    train: int | None = None  # at most so many images of each part
    validation: int | None = None
    test: int | None = None
    balanced_test: bool = True
    positions: str = "output"  # of masks at stem and blocks; or "activation": before and after their last one
    augment: str = "normal"  # which training images; or "all", or "none"
    epochs: int = 20
    batch: int = 32
    preprocessing: Settings = field(default_factory=Settings)


def mammography_task(
    folder: Path,
    labels: Path | None = None,
    protocol: Protocol = Protocol(),  # noqa: B008 - frozen
    cache: Path | None = None,
    *,
    show: bool | None = None,
) -> Task:
    """The task on the mammograms under `folder`; see `find_mammograms` for the layouts.

    `cache` is a folder that keeps the preprocessed images.
    """
    check_choice(protocol.augment, "augment", AUGMENTED)
    settings = protocol.preprocessing
    settings.check()
    collection = find_mammograms(folder, labels)
    images = collection.images
    whole = split_mammograms(images, protocol.split, protocol.shares, protocol.seed)
    parts = _limit(images, whole, protocol)
    contents = check_files(images, settings, cache, show=show)
    train, validation, test = (
        _read_part(images, contents, part, settings, cache, show=show)
        for part in (parts.train, parts.validation, parts.test)
    )
    mean, spread = float(train[0].mean(dtype=np.float64)), float(train[0].std(dtype=np.float64))
    for values, _ in (train, validation, test):
        values -= np.float32(mean)
        values /= np.float32(spread)

    inside = protocol.positions == "activation"
    layers = EFFNET_CONVOLUTIONS if inside else EFFNET_LAYERS
    return Task(
        name="mammography",
        layers=layers,
        penultimate=layers[:-3:-1],  # what the paper calls "the second convolutional layer" may be either
        build=EffNet,
        train=partial(_train, protocol, train, validation),
        validation=_tensors(*validation),
        test=_tensors(*test),
        positions=Task.positions if inside else ("auto",),
        masks_inputs=not inside,  # the inputs that the authors mask are those of stem and blocks
        test_groups=[images[i].patient for i in parts.test],
        about={
            "task": "mammography", "split": protocol.split, "shares": list(protocol.shares),
            "split_seed": protocol.seed, "epochs": protocol.epochs, "batch": protocol.batch,
            "augment": protocol.augment, "amounts": asdict(Amounts()), "settings": asdict(settings),
            "images": [len(parts.train), len(parts.validation), len(parts.test)],
            "fingerprint": digest([[one, i.patient, i.label] for one, i in zip(contents, images, strict=True)]),
            "training_mean": mean, "training_std": spread, **({"positions": "activation"} if inside else {}),
        },
        exhibits=lambda out: write_preprocessing(out, images, settings),
        remarks=(
            *_split_remarks(collection, whole, parts, protocol.split),
            *_copy_remarks(contents, parts),
            *_protocol_remarks(protocol),
        ),
    )  # fmt: skip


def _limit(images: Sequence[Mammogram], whole: Split, protocol: Protocol) -> Split:
    """The split with at most so many images in each part."""
    seed, draw_test = protocol.seed, draw_balanced if protocol.balanced_test else draw_at_most
    return replace(
        whole,
        train=draw_at_most(images, whole.train, protocol.train, seed),
        validation=draw_at_most(images, whole.validation, protocol.validation, seed),
        test=draw_test(images, whole.test, protocol.test, seed),
    )


def _read_part(
    images: Sequence[Mammogram], contents: Sequence[str], part: Sequence[int], settings: Settings, cache: Path | None,
    *, show: bool | None,
) -> _Part:  # fmt: skip
    chosen = [images[i] for i in part]
    values = preprocess(chosen, [contents[i] for i in part], settings, cache, show=show)
    return values, np.array([image.label for image in chosen], dtype=np.int64)


def _train(protocol: Protocol, train: _Part, validation: _Part, net: nn.Module, training: TrainingRun) -> History:
    seed, device = training.seed, training.device
    batches = UndersampledBatches(*train, protocol.batch, seed, device, AUGMENTED[protocol.augment])
    inputs, labels = (part.to(device) for part in _tensors(*validation))
    recipe = Recipe(
        protocol.epochs,
        classification_loss,
        lambda trained: balanced_accuracy(trained, inputs, labels),
        partial(torch.optim.Adam, lr=1e-3),
        _cosine,
        precision="16-mixed" if device.type == "cuda" else "32-true",
    )
    return fit(net, recipe, batches, seed, device, show=training.show, what=f"training effnet, seed {seed}")


def balanced_accuracy(net: nn.Module, inputs: Tensor, labels: Tensor, batch: int = 64) -> float:
    """The mean over the classes of the share that one plain pass gets right: .5 is chance, whatever their sizes.

    Not accuracy, which a network that always names the larger class can raise. Range 0 to 1, higher is better.
    """
    right = torch.cat([net(x).argmax(1) for x in inputs.split(batch)]) == labels
    return float(torch.stack([right[labels == label].double().mean() for label in labels.unique()]).mean())


def _tensors(values: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(values)[:, None], torch.from_numpy(labels)


def _cosine(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


# --- remarks for the summary ------------------------------------------------------------------------------------------


def _split_remarks(collection: Collection, whole: Split, parts: Split, split: str) -> list[str]:
    images = collection.images
    sizes = []
    for name, part in (("training", parts.train), ("validation", parts.validation), ("test", parts.test)):
        normal = sum(images[i].label == NORMAL for i in part)
        patients = len({images[i].patient for i in part})
        sizes.append(f"{name} {len(part)} ({len(part) - normal} abnormal, {normal} normal; {patients} patients)")
    lines = [f"{len(images)} mammograms ({collection.layout}), split {split}: {', '.join(sizes)}.", *collection.remarks]
    left = len(whole.test) - len(parts.test)
    if left:
        lines.append(f"{left} of {len(whole.test)} test images were left out, drawn without replacement.")
    if split == "by_image":
        leaked = parts.leaked(images)
        lines.append(
            f"LEAK: {leaked} of {len(parts.test)} test images ({leaked / len(parts.test):.0%}) show a patient who was "
            "trained on. The split is by image, as in the paper; its accuracy is not one for new patients."
        )
    return lines


def _copy_remarks(contents: Sequence[str], parts: Split) -> list[str]:
    """Files of the same content on both sides of the split: a leak that patients' names do not show."""
    known = {contents[i] for i in (*parts.train, *parts.validation)}
    same = sum(contents[i] in known for i in parts.test)
    return [f"LEAK: {same} test images are copies of training or validation images under other names."] if same else []


def _protocol_remarks(protocol: Protocol) -> list[str]:
    side, lines = protocol.preprocessing.side, []
    if protocol.positions == "activation":
        lines.append("Masks are before and after the last activation of stem and blocks, ahead of its BatchNorm.")
    if not protocol.preprocessing.whole_breast:
        lines.append("Preprocessing is the paper's as written: what Otsu's threshold and its marker rule leave.")
    if side < 200:
        lines.append(f"Images are {side}×{side}, not the paper's 200 or 224.")
    if protocol.augment == "normal":
        lines.append(
            "Only normal training images were augmented, as in the paper. Rotating and cropping smooth an image, so a "
            "network can tell the classes of training images apart by that alone; augment='all' rules it out."
        )
    return lines
