"""Study S1, "Where to Drop" (Benyamina, Jemelen): train, sweep the whole grid of placements, judge every claim.

Owns the order of the work and its presets. Data and networks come as a `Task`; what rows say is `judged`'s.
Killed at any moment, the same command goes on where it was: networks and sweeps are kept in the study's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from dropscope import measures
from dropscope.analysis import REPLICATES, bootstrap_scores, paired_interval, resamples
from dropscope.engine import Explanation
from dropscope.errors import BadInput, nearest
from dropscope.model import random_state_kept, weights_fingerprint
from dropscope.placement import RATES, PlacementGrid
from dropscope.report import Claim, claim_folder, write_summary
from dropscope.runs import Run, sample, sweep, uncertainty
from dropscope.runs import planned as planned_sweep
from dropscope.studies.training import load_weights, trained_once
from dropscope.studies.where_to_drop.cifar_task import accuracy
from dropscope.studies.where_to_drop.published import published_for
from dropscope.studies.where_to_drop.reports import write_reports
from dropscope.studies.where_to_drop.results import load_result, save_result
from dropscope.studies.where_to_drop.task import NetworkResult, Task

log = logging.getLogger("dropscope")

_FRESH_SEED = 1  # the choice is made under seed 0: the report sees other masks


@dataclass(frozen=True)
class Preset:
    """How large the study is. `None` means all there is."""

    rates: tuple[float, ...] = RATES
    input_rates: tuple[float, ...] = (0.1, 0.5, 0.9)
    passes: int = 100
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    epochs: int | None = None


PRESETS = {
    "paper": Preset(),
    "small": Preset((0.1, 0.3, 0.5, 0.7, 0.9), (0.3, 0.7), 50, validation=1_000, test=1_000, epochs=8),
    "smoke": Preset((0.3, 0.7), (0.3,), 5, train=512, validation=100, test=128, epochs=1),
}

# EffNet works at the full size of its images, so `small` is smaller there.
MAMMOGRAPHY = PRESETS | {
    "small": Preset((0.1, 0.5, 0.9), (0.5,), 20, train=400, validation=60, test=100, epochs=8),
}
SIDES = {"paper": 200, "small": 100, "smoke": 48}  # of a mammogram


def preset(name: str, task: str = "cifar10") -> Preset:
    if name not in PRESETS:
        raise BadInput("a preset is paper, small or smoke", "--preset", name, nearest(name, PRESETS))
    return (MAMMOGRAPHY if task == "mammography" else PRESETS)[name]


@dataclass(frozen=True, eq=False)
class Findings:
    """What the study leaves: its folder, its claims, and what was found out about each network."""

    folder: Path
    claims: list[Claim]
    results: list[NetworkResult]


def where_to_drop(
    task: Task,
    out: str | Path,
    size: Preset,
    *,
    seeds: Sequence[int] = (0,),
    weights: Path | None = None,
    device: str | torch.device = "cpu",
    show: bool | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Runs the study for one network per seed, or for the given weights, and writes everything into `out`."""
    folder, where = Path(out), torch.device(device)
    spec: dict[str, Any] = {"study": "where-to-drop", "task": task.about, "size": asdict(size)}
    if weights is not None:  # a wrong file is refused before anything is written; another one has another folder
        spec["weights"] = weights_fingerprint(load_weights(task.build(), weights))
    new = not (folder / "study.json").exists()
    claim_folder(folder, spec)
    try:
        results = _results(task, folder, size, seeds, weights, where, show, say)
    except BadInput:
        if new and not (folder / "results").exists():  # refused at its first sight: the folder is free again
            (folder / "study.json").unlink()
        raise
    if task.exhibits is not None:
        task.exhibits(folder)
    claims = write_reports(folder, task, results)
    write_summary(folder, f"Where to drop: {task.name}", _paragraphs(task, size, results), claims, _smaller(task, size))
    return Findings(folder, claims, results)


def _results(
    task: Task, folder: Path, size: Preset, seeds: Sequence[int], weights: Path | None, where: torch.device,
    show: bool | None, say: Callable[[str], None],
) -> list[NetworkResult]:  # fmt: skip
    """What was found out about each network, made where it is missing."""
    results = []
    for seed in seeds if weights is None else (0,):
        name = f"seed {seed}" if weights is None else weights.stem
        net = _network(folder, task, seed, weights, where, show).to(where)
        with torch.no_grad():
            plain = accuracy(net, task.test[0].to(where), task.test[1].to(where))
        say(f"{name}: accuracy {100 * plain:.2f} % on {len(task.test[1]):,} test examples")
        place = name.replace(" ", "-")
        result = load_result(folder / "results" / place)
        if result is None:
            result = _studied(net, name, plain, folder / "sweeps" / place, task, size, where, show)
            save_result(folder / "results" / place, result)
        results.append(result)
        net.cpu()
    return results


def _studied(
    net: nn.Module, name: str, plain: float, folder: Path, task: Task, size: Preset, device: torch.device,
    show: bool | None,
) -> NetworkResult:  # fmt: skip
    options: dict[str, Any] = {"passes": size.passes, "device": device, "progress": show, "groups": task.test_groups}
    full = sweep(net, full_grid(task, size), task.test, out=folder / "grid", keep="top:20", **options)
    inputs = _on_inputs(net, task, size, folder, options)
    chosen = _chosen(net, task, size, folder, device, show)
    curves = _curves(net, task, size, options)
    return NetworkResult(
        name, plain, full.rows, full.baseline, full.levels, curves, None if inputs is None else inputs.rows, chosen
    )


def planned(task: Task, size: Preset, device: torch.device) -> Explanation:
    """What the sweep of one network will do, and in what time; an untrained network stands for it."""
    net = _initialised(task, 0).eval().to(device)
    return planned_sweep(net, full_grid(task, size), task.test, size.passes, device=device)


def full_grid(task: Task, size: Preset) -> Sequence[Any]:
    """Every subset of the layers at every rate, before and after the activation where there is one."""
    return PlacementGrid(task.layers, size.rates, task.positions)


def _on_inputs(net: nn.Module, task: Task, size: Preset, folder: Path, options: dict[str, Any]) -> Run | None:
    """The grid again with masks on what the layers take in, which is what the authors' code masks."""
    if not task.masks_inputs:
        return None
    grid = PlacementGrid(task.layers, size.input_rates, ("input",))
    return sweep(net, grid, task.test, out=folder / "inputs", keep="none", **options)


def _chosen(
    net: nn.Module, task: Task, size: Preset, folder: Path, device: torch.device, show: bool | None
) -> pd.DataFrame:
    """For each measure, the placement of the least AURC on the validation examples, judged on the test examples.

    Labels are the plain pass's, so that every candidate ranks the same errors; the masks of the report are fresh ones.
    """
    grid = PlacementGrid(task.layers, size.rates)
    run = sweep(
        net, grid, task.validation, size.passes, label="plain", device=device, out=folder / "choice", keep="none",
        progress=show,
    )  # fmt: skip
    best = run.rows.sort_values("aurc", kind="stable").groupby("measure", sort=False).head(1)
    plain = sample(net, "none", task.test[0], passes=1, device=device, progress=False)[0].cpu()
    right = plain.argmax(1) == task.test[1]
    entropy = measures.plain_entropy(plain)
    indices = resamples(len(right), task.test_groups, REPLICATES, 0)
    reference = bootstrap_scores(entropy, right, indices)["aurc"]
    rows = []
    for row in best.itertuples(index=False):
        table = uncertainty(
            net, row.placement, task.test, size.passes, [row.measure], seed=_FRESH_SEED, label="plain", device=device,
            progress=False,
        )  # fmt: skip
        values = torch.tensor(table[row.measure].to_numpy(copy=True))
        ours, theirs = (float(_aurc(u, right)) for u in (values, entropy))
        low, high = paired_interval(bootstrap_scores(values, right, indices)["aurc"], reference)
        rows.append(
            {"placement": row.placement, "measure": row.measure, "aurc": ours, "plain_aurc": theirs,
             "difference": ours - theirs, "low": low, "high": high}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _aurc(uncertainty_: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return bootstrap_scores(uncertainty_, right, [torch.arange(len(right))])["aurc"][0]


def _curves(net: nn.Module, task: Task, size: Preset, options: dict[str, Any]) -> pd.DataFrame:
    """Per-example values of the placements of table 3 (in this task's layers) and of one layer alone each."""
    tables = []
    for placement in curve_placements(task):
        found = uncertainty(net, placement, task.test, **{**options, "progress": False})
        names = [name for name in measures.DEFAULT if name in found]
        long = found.melt(id_vars=["id", "correct"], value_vars=names, var_name="measure", value_name="uncertainty")
        tables.append(long.assign(placement=placement).rename(columns={"id": "example"}))
    return pd.concat(tables, ignore_index=True)[["placement", "measure", "example", "uncertainty", "correct"]]


def curve_placements(task: Task) -> list[str]:
    """Table 3's two placements, with the last three layers standing for conv2, conv3 and fc1; and the first layer."""
    layers = task.layers
    second = ",".join(
        f"{name}={rate}" for name, rate in zip(layers[-3:], (0.7, 0.8, 0.4)[-len(layers[-3:]) :], strict=True)
    )
    return list(dict.fromkeys([f"{layers[-1]}=0.8", second, f"{layers[0]}=0.5"]))


def _network(
    folder: Path, task: Task, seed: int, weights: Path | None, device: torch.device, show: bool | None
) -> nn.Module:
    if weights is not None:
        return load_weights(task.build(), weights)
    if task.train is None:
        return task.build().eval()
    train = task.train
    return trained_once(
        folder / "weights" / f"seed-{seed}.safetensors",
        lambda: _initialised(task, seed),
        lambda net: train(net, seed, device, show),
        {**task.about, "seed": seed},
    )


def _initialised(task: Task, seed: int) -> nn.Module:
    with random_state_kept():
        torch.manual_seed(seed)
        return task.build()


def _paragraphs(task: Task, size: Preset, results: Sequence[NetworkResult]) -> list[str]:
    accuracies = ", ".join(f"{result.name} {100 * result.accuracy:.2f} %" for result in results)
    grid = full_grid(task, size)
    work = f"{len(grid):,} placements × {size.passes} passes × {len(task.test[1]):,} test examples per network"
    return [f"Accuracy of one plain pass: {accuracies}.", f"Work: {work}.", *task.remarks]


def _smaller(task: Task, size: Preset) -> list[str]:
    """Each way in which this run is smaller than the paper's."""
    paper, lines = PRESETS["paper"], []
    if size.rates != paper.rates:
        lines.append(f"rates {', '.join(f'{rate:g}' for rate in size.rates)} instead of .1 to .9")
    if size.passes != paper.passes:
        lines.append(f"{size.passes} passes instead of {paper.passes}")
    for name, what in (("train", "training"), ("validation", "validation"), ("test", "test")):
        count = getattr(size, name)
        if count is not None:
            lines.append(f"at most {count:,} {what} examples instead of all")
    lines += _fewer(task, size)
    if size.epochs is not None and task.train is not None:
        lines.append(f"{size.epochs} epochs of training instead of the recipe's own number (20 in the paper)")
    return lines


def _fewer(task: Task, size: Preset) -> list[str]:
    """Where the data themselves, not the preset, are fewer than the paper's."""
    published = published_for(task)
    if published is None:
        return []
    counts = {"validation": len(task.validation[1]), "test": len(task.test[1])}
    return [
        f"{count:,} {name} examples instead of the paper's {published.examples[name]:,}"
        for name, count in counts.items()
        if count < published.examples[name] and getattr(size, name) is None
    ]


def with_epochs(size: Preset, epochs: int | None) -> Preset:
    if epochs is not None and epochs < 1:
        raise BadInput("a network is trained for at least one epoch", "--epochs", epochs, "write --epochs 1 or more")
    return size if epochs is None else replace(size, epochs=epochs)
