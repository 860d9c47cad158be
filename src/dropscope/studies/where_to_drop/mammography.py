"""Task B: normal or abnormal mammograms with EffNet, on Mini-DDSM or on any folder of mammograms with labels.

Owns the recipe (Adam 1e-3, cosine annealing, cross-entropy, mixed precision on a GPU, 20 epochs, weights of the best
validation score) and what is said about the data. The paper splits by image; here the split is by patient, and
`by_image` counts how many test images show a patient who was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dropscope.errors import BadInput
from dropscope.model import digest
from dropscope.studies.training import History, Recipe, fit
from dropscope.studies.where_to_drop.augmentation import Amounts
from dropscope.studies.where_to_drop.effnet import LAYERS, EffNet
from dropscope.studies.where_to_drop.mammograms import ABNORMAL, NORMAL, Collection, Mammogram, find_mammograms
from dropscope.studies.where_to_drop.patients import PAPER_SHARES, Split, balanced, split_mammograms, thinned
from dropscope.studies.where_to_drop.prepared import check_files, prepare
from dropscope.studies.where_to_drop.preprocessing import Settings
from dropscope.studies.where_to_drop.preprocessing_figure import write_preprocessing
from dropscope.studies.where_to_drop.task import Task
from dropscope.studies.where_to_drop.undersampled import UndersampledBatches

AUGMENTED = {"normal": frozenset({NORMAL}), "all": frozenset({ABNORMAL, NORMAL}), "none": frozenset[int]()}


def mammography(
    folder: Path,
    labels: Path | None = None,
    *,
    side: int = 200,
    split: str = "by_patient",
    shares: tuple[float, float, float] = PAPER_SHARES,
    balanced_test: bool = True,
    augment: str = "normal",
    epochs: int = 20,
    batch: int = 32,
    seed: int = 0,
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    settings: Settings | None = None,
    cache: Path | None = None,
    show: bool | None = None,
) -> Task:
    """The task on the mammograms under `folder`; `mammograms.find_mammograms` knows the layouts.

    `seed` is the split's; a network's own seed comes with its training. `train`, `validation` and `test` limit the
    parts. `augment` is "normal" as in the paper, "all" or "none". `cache` keeps the prepared images.
    """
    if augment not in AUGMENTED:
        raise BadInput("augmentation is for normal, all or none", "augment", augment, f"one of {', '.join(AUGMENTED)}")
    how = replace(settings or Settings(), side=side)
    how.check()
    collection = find_mammograms(folder, labels)
    images = collection.images
    whole = split_mammograms(images, split, shares, seed)
    parts = replace(
        whole,
        train=thinned(images, whole.train, train, seed),
        validation=thinned(images, whole.validation, validation, seed),
        test=balanced(images, whole.test, test, seed) if balanced_test else thinned(images, whole.test, test, seed),
    )
    contents = check_files(images, how, cache, show)
    learnt, held, tested = (
        _part(images, contents, part, how, cache, show) for part in (parts.train, parts.validation, parts.test)
    )
    mean, spread = float(learnt[0].mean(dtype=np.float64)), float(learnt[0].std(dtype=np.float64))
    for values, _ in (learnt, held, tested):
        values -= np.float32(mean)
        values /= np.float32(spread)

    def training(net: nn.Module, network_seed: int, device: torch.device, shown: bool | None) -> History:
        batches = UndersampledBatches(*learnt, batch, network_seed, device, AUGMENTED[augment])
        inputs, classes = (part.to(device) for part in _tensors(*held))
        recipe = Recipe(
            epochs, _loss, lambda trained: balanced_accuracy(trained, inputs, classes),
            partial(torch.optim.Adam, lr=1e-3), _cosine, precision="16-mixed" if device.type == "cuda" else "32-true",
        )  # fmt: skip
        return fit(net, recipe, batches, network_seed, device, shown, f"training effnet, seed {network_seed}")

    remarks = [*_remarks(collection, whole, parts, split), *_about_contents(contents, parts)]
    if side < 200:
        remarks.append(f"Images are {side}×{side}, not the paper's 200 or 224.")
    if augment == "normal":
        remarks.append(
            "Only normal training images were augmented, as in the paper. Rotating and cropping smooth an image, so a "
            "network can tell the classes of training images apart by that alone; augment='all' rules it out."
        )
    return Task(
        name="mammography",
        layers=LAYERS,
        penultimate=("block3", "block2"),  # what the paper calls "the second convolutional layer" may be either
        build=EffNet,
        train=training,
        validation=_tensors(*held),
        test=_tensors(*tested),
        positions=("auto",),  # a block's activations lie inside it; `effnet.SITES` has before and after
        test_groups=[images[i].patient for i in parts.test],
        about={
            "task": "mammography", "split": split, "shares": list(shares), "split_seed": seed, "epochs": epochs,
            "batch": batch, "augment": augment, "amounts": asdict(Amounts()), "settings": asdict(how),
            "images": [len(parts.train), len(parts.validation), len(parts.test)],
            "fingerprint": digest([[one, i.patient, i.label] for one, i in zip(contents, images, strict=True)]),
            "training_mean": mean, "training_std": spread,
        },
        exhibits=lambda out: write_preprocessing(out, images, how),
        remarks=tuple(remarks),
    )  # fmt: skip


def balanced_accuracy(net: nn.Module, inputs: Tensor, labels: Tensor, batch: int = 64) -> float:
    """The mean over the classes of the share that one plain pass gets right: .5 is chance, whatever their sizes.

    Not accuracy, which a network that always names the larger class can raise. Range 0 to 1, higher is better.
    """
    right = torch.cat([net(x).argmax(1) for x in inputs.split(batch)]) == labels
    return float(torch.stack([right[labels == label].double().mean() for label in labels.unique()]).mean())


def _part(
    images: Sequence[Mammogram], contents: Sequence[str], part: Sequence[int], settings: Settings, cache: Path | None,
    show: bool | None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:  # fmt: skip
    chosen = [images[i] for i in part]
    values = prepare(chosen, [contents[i] for i in part], settings, cache, show)
    return values, np.array([image.label for image in chosen], dtype=np.int64)


def _tensors(values: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(values)[:, None], torch.from_numpy(labels)


def _loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def _cosine(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


# --- what is said about the data --------------------------------------------------------------------------------------


def _remarks(collection: Collection, whole: Split, parts: Split, split: str) -> list[str]:
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


def _about_contents(contents: Sequence[str], parts: Split) -> list[str]:
    """Files of the same content on both sides of the split: a leak that patients' names do not show."""
    known = {contents[i] for i in (*parts.train, *parts.validation)}
    same = sum(contents[i] in known for i in parts.test)
    return [f"LEAK: {same} test images are copies of training or validation images under other names."] if same else []
