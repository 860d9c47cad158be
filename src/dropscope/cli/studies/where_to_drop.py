"""`dropscope study where-to-drop`: reads what was asked, runs the study, prints its claims."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dropscope.cli.app import AsJson, DryRun, ImageSize, LabelColumn, Labels, words
from dropscope.cli.console import print_json, stderr, stdout
from dropscope.cli.studies.group import Preset, print_claims, study
from dropscope.device import as_device
from dropscope.errors import BadInput

if TYPE_CHECKING:
    from dropscope.studies.where_to_drop.study import Preset as Size
    from dropscope.studies.where_to_drop.task import Task


class TaskName(str, Enum):
    cifar10 = "cifar10"
    mammography = "mammography"


class Network(str, Enum):
    cnn = "cnn"
    vit = "vit"
    efficientnet = "efficientnet"


class Augment(str, Enum):
    normal = "normal"
    all = "all"
    none = "none"


class Split(str, Enum):
    by_patient = "by_patient"
    by_image = "by_image"


@study.command("where-to-drop")
def where_to_drop(
    data: Annotated[
        str, typer.Option(help="CIFAR-10's folder or hub name, a folder of mammograms, or data for --model.")
    ],
    task: Annotated[TaskName, typer.Option(help="Which of the paper's tasks.")] = TaskName.cifar10,
    network: Annotated[Network, typer.Option(help="The paper's network for CIFAR-10, or another.")] = Network.cnn,
    model: Annotated[
        str | None, typer.Option(help="Your own trained classifier instead of a task: file.py:callable.")
    ] = None,
    sites: Annotated[
        str | None, typer.Option(help="With --model: its layers, comma-separated, the penultimate last.")
    ] = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    image_size: ImageSize = None,
    side: Annotated[
        int | None, typer.Option(help="Mammography: side of the network's input; 200, less in smaller presets.")
    ] = None,
    split: Annotated[
        Split, typer.Option(help="Mammography: by_image matches the paper; leaks are counted.")
    ] = Split.by_patient,
    augment: Annotated[
        Augment, typer.Option(help="Mammography: which training images are augmented; the paper's are the normal ones.")
    ] = Augment.normal,
    preset: Annotated[Preset, typer.Option(help="How large: the paper's, 15 minutes, or seconds.")] = Preset.small,
    seeds: Annotated[int, typer.Option(help="Networks to train, with seeds 0, 1, …")] = 1,
    epochs: Annotated[int | None, typer.Option(help="Epochs of training; the preset's if not given.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="A trained network instead: safetensors, or a plain state_dict.")
    ] = None,
    train_dropout: Annotated[
        bool, typer.Option("--train-dropout", help="Also train with dropout on, and repeat the study for it.")
    ] = False,
    out: Annotated[str, typer.Option(help="Folder of the results; a killed run is taken up there.")] = "where-to-drop",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Where should dropout go in an image classifier? Trains, sweeps the grid of placements, judges each claim."""
    from dropscope.studies.where_to_drop.study import SIDES, planned, with_epochs
    from dropscope.studies.where_to_drop.study import preset as size_of
    from dropscope.studies.where_to_drop.study import where_to_drop as run

    if seeds < 1 or (seeds > 1 and (weights or model)):
        remedy = "leave --seeds out, or write --seeds 5 without --weights and --model"
        raise BadInput("--seeds counts the networks to train", "--seeds", seeds, remedy)
    if train_dropout and (weights or model or task is TaskName.mammography or network is not Network.cnn):
        raise BadInput("--train-dropout is for the paper's CIFAR-10 network", "--train-dropout", True, "leave it out")
    size = with_epochs(size_of(preset.value, "own" if model else task.value), epochs)
    chosen: dict[str, Task] = {}
    if model is not None:
        chosen[""] = _own(model, data, sites, size, labels, label_column, image_size)
    elif task is TaskName.mammography:
        chosen[""] = _mammograms(
            data,
            labels,
            side or SIDES[preset.value],
            split.value,
            augment.value,
            size,
            None if dry_run else Path(out) / "prepared",
        )
    else:
        chosen = _cifar(data, [network.value, *(["cnn-dropout"] if train_dropout else [])], size)
    where = as_device(device)
    if dry_run:
        plans = [(_described(one, seeds, str(where)), planned(one, size, where)) for one in chosen.values()]
        if as_json:
            print_json({"studies": [{**described, "sweep": asdict(plan)} for described, plan in plans]})
        for described, plan in () if as_json else plans:
            for key, value in described.items():
                stdout().print(f"{key}: {value}")
            stdout().print(f"per network, and two smaller sweeps besides:\n{plan}", soft_wrap=True)
        return
    say = stderr().print if as_json else stdout().print
    answers = []
    for below, one in chosen.items():
        file = None if weights is None else Path(weights)
        found = run(one, Path(out) / below, size, seeds=range(seeds), weights=file, device=where, say=say)
        answers.append({"folder": str(found.folder), "claims": [asdict(claim) for claim in found.claims]})
        if not as_json:
            print_claims(found.claims)
            stdout().print(f"summary, figures and tables in {found.folder}")
    if as_json:
        print_json({"studies": answers})


def _cifar(data: str, networks: list[str], size: Size) -> dict[str, Task]:
    from dropscope.studies.where_to_drop.cifar import read_cifar
    from dropscope.studies.where_to_drop.cifar_task import cifar_task

    images = read_cifar(data)
    limits = {"train": size.train, "validation": size.validation, "test": size.test, "epochs": size.epochs}
    folders = ["", "trained-with-dropout"]
    return {folders[i]: cifar_task(images, name, **limits) for i, name in enumerate(networks)}


def _mammograms(
    data: str, labels: str | None, side: int, split: str, augment: str, size: Size, cache: Path | None
) -> Task:  # fmt: skip
    from dropscope.studies.where_to_drop.mammography import mammography

    limits: dict[str, Any] = {"augment": augment, "train": size.train, "validation": size.validation, "test": size.test}
    if size.epochs is not None:
        limits["epochs"] = size.epochs
    file = None if labels is None else Path(labels)
    return mammography(Path(data), file, side=side, split=split, cache=cache, **limits)


def _own(
    model: str, data: str, sites: str | None, size: Size, labels: str | None, label_column: str | None,
    image_size: str | None,
) -> Task:  # fmt: skip
    from dropscope.loading import load_data, load_model
    from dropscope.studies.where_to_drop.own_task import own_task

    loaded = load_model(model)
    found = load_data(data, loaded, label_column=label_column, labels=labels, image_size=image_size)
    named = words(sites) if sites else None
    return own_task(loaded.module, found, named, size.test)


def _described(task: Task, seeds: int, device: str) -> dict[str, Any]:
    networks = seeds if task.train is not None else 0
    return {"task": task.name, "layers": ", ".join(task.layers), "networks to train": networks, "device": device}
