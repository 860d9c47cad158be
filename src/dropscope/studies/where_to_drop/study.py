"""Study S1, "Where to Drop" (Benyamina, Jemelen): where should dropout go in an image classifier?

Owns the order of the work: `plan(options)` reads and checks everything, `run(plan)` trains, sweeps the grid of
placements and writes the report. Killed at any moment, the same run continues where it was: networks and sweeps are
kept in the study's folder.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope.atomic import output_folder
from dropscope.device import as_device
from dropscope.engine import PlanSummary
from dropscope.errors import BadInput
from dropscope.loading import load_data, load_model, load_weights
from dropscope.model import random_state_kept, weights_fingerprint
from dropscope.progress import track
from dropscope.report import Claim, Registration, Summary, claim_folder, write_claims
from dropscope.runs import plan_sweep, sample
from dropscope.studies.training import trained_once
from dropscope.studies.where_to_drop import published
from dropscope.studies.where_to_drop.cifar import cifar_task
from dropscope.studies.where_to_drop.cifar_files import read_cifar
from dropscope.studies.where_to_drop.claims import numbers, penultimate, trends, usefulness, verdicts
from dropscope.studies.where_to_drop.evaluation import Evaluation
from dropscope.studies.where_to_drop.mammography import Protocol, mammography_task
from dropscope.studies.where_to_drop.options import Options
from dropscope.studies.where_to_drop.own_model import own_task, read_groups
from dropscope.studies.where_to_drop.preprocessing import Settings
from dropscope.studies.where_to_drop.presets import SIDES, Preset, find_preset
from dropscope.studies.where_to_drop.report import write_report
from dropscope.studies.where_to_drop.rows import (
    NetworkResult,
    StudyRows,
    load_result,
    load_study,
    save_result,
    save_task,
)
from dropscope.studies.where_to_drop.rules import RULES
from dropscope.studies.where_to_drop.tasks import Task, TrainingRun, accuracy, with_noise

STUDY = "where-to-drop"
_TRAINED_AT_ONCE = 4  # networks on one GPU
_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Plan:
    """What a run will do, with its data read and checked."""

    task: Task
    size: Preset
    folder: Path
    seeds: tuple[int, ...] = (0,)
    weights: tuple[Path, ...] = ()  # trained networks instead of one per seed
    device: torch.device = _CPU
    progress: bool | None = None
    options: Options | None = None
    beside: StudyRows | None = None  # of another task, for figures

    def facts(self) -> dict[str, Any]:
        """The plan in words, for a dry run."""
        return {
            "task": self.task.name,
            "layers": ", ".join(self.task.layers),
            "networks to train": len(self.seeds) if self.task.train is not None else 0,
            "device": str(self.device),
        }

    def evaluation(self) -> Evaluation:
        return Evaluation(self.task, self.size, self.device, self.progress)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run leaves: its folder, the judged claims, the tables by name, the result of each network, and what its
    summary says first."""

    folder: Path
    claims: tuple[Claim, ...]
    tables: dict[str, pd.DataFrame]
    results: tuple[NetworkResult, ...]
    summary: Summary


def plan(options: Options, *, dry: bool = False) -> Plan:
    """Reads and checks everything that was asked for. Where `dry`, nothing is written, not even cached images."""
    device, folder = as_device(options.device), output_folder(options.out)
    beside = None if options.beside is None else load_study(Path(options.beside))
    size = find_preset(options.preset, "own" if options.model else options.task)
    size = size if options.epochs is None else replace(size, epochs=options.epochs)
    if options.model is not None:
        task = _own(options, size)
    elif options.task == "mammography":
        task = _mammography(options, size, None if dry else folder / "prepared")
    else:
        task = _cifar(options, size)
    task = with_noise(task, options.noise)
    weights = _files(options.weights)
    for file in weights:
        load_weights(task.build(), file)  # a wrong file is refused here
    seeds = tuple(range(options.seeds))
    return Plan(task, size, folder, seeds, weights, device, options.progress, options, beside)


def estimate(plan: Plan) -> PlanSummary:
    """What the sweep of one network will do, and in what time; an untrained network stands for it."""
    net = _initialised(plan.task, 0).eval().to(plan.device)
    return plan_sweep(net, plan.evaluation().grid, plan.task.test, plan.size.passes, device=plan.device)


def run(plan: Plan, say: Callable[[str], None] = lambda line: None) -> Outcome:
    """Runs the study for one network per seed, or for the given weights, and writes everything into its folder.

    Args:
        plan: From `plan(options)`.
        say: Gets a line about every network.
    """
    task, folder = plan.task, plan.folder
    new = not (folder / "study.json").exists()
    claim_folder(folder, _spec(plan))
    if plan.options is not None:
        _registration(plan, plan.options).check(plan.options.preregister, folder)
    try:
        results = _evaluate(plan, say)
    except BadInput:
        if new and not (folder / "results").exists():  # refused at first sight: the folder is free again
            (folder / "study.json").unlink()
        raise
    if task.exhibits is not None:
        task.exhibits(folder)
    save_task(folder, task, plan.size.passes)
    placements = len(plan.evaluation().grid)
    summary, tables = write_report(folder, task, results, plan.size, placements, plan.beside)
    write_claims(folder, STUDY, str(task.about.get("data", task.about.get("fingerprint"))), summary.claims)
    return Outcome(folder, summary.claims, tables, tuple(results), summary)


def preregister(plan: Plan) -> str:
    """Writes the claims, margins, seeds and options of a run that has not begun; returns their hash."""
    assert plan.options is not None
    assert plan.options.preregister is not None
    return _registration(plan, plan.options).write(plan.options.preregister, plan.folder)


def _spec(plan: Plan) -> dict[str, Any]:
    """What all networks of a folder have in common."""
    spec: dict[str, Any] = {"study": STUDY, "task": plan.task.about, "size": asdict(plan.size)}
    if plan.weights:  # another file has another folder
        prints = [weights_fingerprint(load_weights(plan.task.build(), file)) for file in plan.weights]
        spec["weights"] = prints[0] if len(prints) == 1 else prints
    return spec


def _registration(plan: Plan, options: Options) -> Registration:
    sources = (numbers, penultimate, trends, usefulness, verdicts, published)
    files = ("data", "labels", "weights")
    return Registration.of(STUDY, options, _spec(plan), plan.seeds, RULES, sources, files)


def _evaluate(plan: Plan, say: Callable[[str], None]) -> list[NetworkResult]:
    """The result of each network, made where it is missing."""
    _train_ahead(plan)
    results = []
    labels = plan.task.test[1]
    which = range(len(plan.weights)) if plan.weights else plan.seeds
    for seed, name in zip(which, _names(plan), strict=True):
        net = _network(plan, seed).to(plan.device)
        plain = _plain_accuracy(net, plan)
        say(f"{name}: accuracy {100 * plain:.2f} % on {len(labels):,} test examples")
        place = name.replace(" ", "-")
        result = load_result(plan.folder / "results" / place)
        if result is None:
            result = plan.evaluation().run(net, name, plain, plan.folder / "sweeps" / place)
            save_result(plan.folder / "results" / place, result)
        results.append(result)
        net.cpu()
    return results


def _train_ahead(plan: Plan) -> None:
    """Trains the networks that are missing, several at once on a GPU: a small network leaves most of it idle.

    Each has a process of its own, which makes what it would make alone. Sweeps fill a GPU, and follow one by one.
    """
    missing = [seed for seed in plan.seeds if not _weights_of(plan, seed).with_suffix(".json").exists()]
    alone = not _has_room(plan.device) or bool(plan.weights) or plan.task.train is None
    if alone or plan.options is None or len(missing) < 2:
        return
    spawning = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    options = replace(plan.options, progress=False)
    with (
        suppress(BrokenProcessPool),  # where memory is short; what is missing is then trained one by one
        track(f"training {len(missing)} networks", len(missing), "networks", show=plan.progress) as tick,
        ProcessPoolExecutor(
            min(_TRAINED_AT_ONCE, len(missing)), spawning, torch.set_num_threads, (torch.get_num_threads(),)
        ) as pool,
    ):
        for _ in pool.map(_train_one, [options] * len(missing), missing):
            tick(1)


def _has_room(device: torch.device) -> bool:
    """For several trainings at once."""
    return device.type == "cuda"


def _train_one(options: Options, seed: int) -> None:
    """In a process of its own: reads the data and trains one network into the study's folder."""
    _network(plan(options), seed)


def _weights_of(plan: Plan, seed: int) -> Path:
    return plan.folder / "weights" / f"seed-{seed}.safetensors"


def _files(weights: Sequence[str] | str | Path | None) -> tuple[Path, ...]:
    """The files of weights, each once."""
    given = (weights,) if isinstance(weights, str | Path) else () if weights is None else weights
    files = tuple(Path(file) for file in given)
    if weights is not None and (not files or len({file.resolve() for file in files}) < len(files)):
        raise BadInput("weights must name each file once", "weights", [*map(str, files)], "name each file once")
    return files


def _names(plan: Plan) -> list[str]:
    """What each network is called: by its seed, or by its file."""
    if not plan.weights:
        return [f"seed {seed}" for seed in plan.seeds]
    stems = [file.stem for file in plan.weights]
    if len({*stems}) == len(stems):
        return stems
    return [f"{number} {stem}" for number, stem in enumerate(stems)]


def _plain_accuracy(net: nn.Module, plan: Plan) -> float:
    inputs, labels = plan.task.test
    if isinstance(inputs, Tensor) and plan.task.train is not None:
        with torch.no_grad():
            return accuracy(net, inputs.to(plan.device), labels.to(plan.device))
    plain = sample(net, "none", inputs, passes=1, device=plan.device, progress=False)[0].cpu()
    return float((plain.argmax(1) == labels).double().mean())


def _network(plan: Plan, seed: int) -> nn.Module:
    task, train = plan.task, plan.task.train
    if plan.weights:
        return load_weights(task.build(), plan.weights[seed])
    if train is None:
        return task.build().eval()
    return trained_once(
        _weights_of(plan, seed),
        lambda: _initialised(task, seed),
        lambda net: train(net, TrainingRun(seed, plan.device, plan.progress)),
        {**task.about, "seed": seed},
    )


def _initialised(task: Task, seed: int) -> nn.Module:
    with random_state_kept():
        torch.manual_seed(seed)
        return task.build()


def _cifar(options: Options, size: Preset) -> Task:
    network = f"{options.network}-dropout" if options.train_dropout else options.network
    limits = {"train": size.train, "validation": size.validation, "test": size.test, "epochs": size.epochs}
    return cifar_task(read_cifar(options.data), network, **limits)


def _mammography(options: Options, size: Preset, cache: Path | None) -> Task:
    protocol = Protocol(
        split=options.split,
        train=size.train,
        validation=size.validation,
        test=size.test,
        augment=options.augment,
        epochs=Protocol.epochs if size.epochs is None else size.epochs,
        positions=options.positions,
        preprocessing=Settings(
            side=options.side or SIDES[options.preset], whole_breast=options.preprocessing == "breast"
        ),
    )
    labels = None if options.labels is None else Path(options.labels)
    return mammography_task(Path(options.data), labels, protocol, cache, show=options.progress)


def _own(options: Options, size: Preset) -> Task:
    assert options.model is not None
    model, labels = load_model(options.model), None if options.labels is None else str(options.labels)
    data = load_data(
        str(options.data), model, keys=options.keys, tokenizer=options.tokenizer, text_column=options.text_column,
        label_column=options.label_column, labels=labels, image_size=options.image_size, mean=options.mean,
        std=options.std, transforms=options.transforms, class_names=options.class_names,
    )  # fmt: skip
    groups = read_groups(str(options.data), labels, options.group_column, data.names)
    task = own_task(model.module, data.dataset, options.sites, size.test, groups, data.keys)
    if options.weights is not None:  # those of the model do not count: a head may be new each time
        task = replace(task, about={name: value for name, value in task.about.items() if name != "weights"})
    return replace(task, remarks=(*model.remarks, *data.remarks, *task.remarks), untrained=model.remarks)
