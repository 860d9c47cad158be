"""`dropscope study where-to-drop`: reads the options, runs the study, prints its claims."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dropscope.cli.app import AsJson, DryRun, ImageSize, LabelColumn, Labels, words
from dropscope.cli.console import print_json, stderr, stdout
from dropscope.cli.studies.group import Preset, print_claims, study

if TYPE_CHECKING:
    from dropscope.studies.where_to_drop import Plan


Task = Literal["cifar10", "mammography"]
Network = Literal["cnn", "vit", "efficientnet"]
Augment = Literal["normal", "all", "none"]
Split = Literal["by_patient", "by_image"]


@study.command("where-to-drop")
def run_where_to_drop(
    data: Annotated[
        str, typer.Option(help="CIFAR-10's folder or hub name, a folder of mammograms, or data for --model.")
    ],
    task: Annotated[Task, typer.Option(help="Which of the paper's tasks.")] = "cifar10",
    network: Annotated[Network, typer.Option(help="The paper's network for CIFAR-10, or another.")] = "cnn",
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
    ] = "by_patient",
    augment: Annotated[
        Augment, typer.Option(help="Mammography: which training images are augmented; the paper's are the normal ones.")
    ] = "normal",
    preset: Annotated[Preset, typer.Option(help="How large: the paper's, 15 minutes, or seconds.")] = "small",
    seeds: Annotated[int, typer.Option(help="Networks to train, with seeds 0, 1, …")] = 1,
    epochs: Annotated[int | None, typer.Option(help="Epochs of training; the preset's if not given.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="A trained network instead: safetensors, or a plain state_dict.")
    ] = None,
    train_dropout: Annotated[
        bool, typer.Option("--train-dropout", help="Also train with dropout on, and repeat the study for it.")
    ] = False,
    out: Annotated[str, typer.Option(help="Folder of the results; a killed run continues there.")] = "where-to-drop",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Where should dropout go in an image classifier? Trains, sweeps the grid of placements, judges each claim."""
    # Imported here: the other commands need none of it.
    from dropscope.studies.where_to_drop import Options, plan, run

    options = Options(
        data=data,
        task=task,
        network=network,
        model=model,
        sites=tuple(words(sites)) if sites else None,
        labels=labels,
        label_column=label_column,
        image_size=image_size,
        side=side,
        split=split,
        augment=augment,
        preset=preset,
        seeds=seeds,
        epochs=epochs,
        weights=weights,
        out=out,
        device=device,
    )
    chosen = [options]
    if train_dropout:
        chosen.append(replace(options, train_dropout=True, out=Path(out) / "trained-with-dropout"))
    plans = [plan(each, dry=dry_run) for each in chosen]
    if dry_run:
        _print_plans(plans, as_json)
        return
    answers = []
    for each in plans:
        outcome = run(each, say=stderr().print if as_json else stdout().print)
        answers.append({"folder": str(outcome.folder), "claims": [asdict(claim) for claim in outcome.claims]})
        if not as_json:
            print_claims(outcome.claims)
            stdout().print(f"summary, figures and tables in {outcome.folder}")
    if as_json:
        print_json({"studies": answers})


def _print_plans(plans: list[Plan], as_json: bool) -> None:
    from dropscope.studies.where_to_drop import estimate

    if as_json:
        print_json({"studies": [{**plan.facts(), "sweep": asdict(estimate(plan))} for plan in plans]})
        return
    for plan in plans:
        sweep = estimate(plan)
        for key, value in plan.facts().items():
            stdout().print(f"{key}: {value}")
        stdout().print(f"per network, and two smaller sweeps besides:\n{sweep}", soft_wrap=True)
