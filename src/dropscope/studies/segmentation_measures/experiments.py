"""The grid of trained networks: n_train × rate × noise. Each network is a unit of work that is kept and never redone.

Owns the grid, what one unit does (train, evaluate, write), and how several units run at once in processes of their own.
Nothing is shared between units but the prepared volumes, and on a CPU all have the same number of threads (sums depend
on it, and training magnifies that), so order and number of workers change no row.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from dropscope.atomic import atomic_write
from dropscope.checks import check_rate
from dropscope.device import free_bytes
from dropscope.errors import BadInput, nearest
from dropscope.loading import load_model
from dropscope.model import random_state_kept
from dropscope.progress import track
from dropscope.studies.segmentation_measures.dice_training import Regime, train
from dropscope.studies.segmentation_measures.estimates import worker_bytes
from dropscope.studies.segmentation_measures.evaluation import evaluate
from dropscope.studies.segmentation_measures.preparing import Prepared, read_prepared
from dropscope.studies.segmentation_measures.unet import NOISES, UNet, feature_dropout
from dropscope.studies.segmentation_measures.volumes import Split
from dropscope.studies.training import load_weights, trained_once
from dropscope.tracing import is_dropout

DROPOUT = ("training", "inference")
PREPARED = "prepared.safetensors"
_MOST_WORKERS = 8
_LOOK = 1.0  # seconds between two looks at what the workers have done
Tick = Callable[[int], None]


@dataclass(frozen=True)
class Experiment:
    """One cell of the grid: how many patients it learns from, and the noise at inference."""

    n_train: int
    rate: float
    noise: str

    @property
    def name(self) -> str:
        return f"n{self.n_train:03d}-{self.noise}-{self.rate:g}"


@dataclass(frozen=True)
class Network:
    """A unit of work: one network to train, and the experiments that it serves."""

    name: str
    n_train: int
    rate: float  # of the dropout that is on during training
    noise: str
    experiments: tuple[Experiment, ...]


def grid(n_train: Sequence[int], rates: Sequence[float], noises: Sequence[str]) -> list[Experiment]:
    """Every combination, in a fixed order.

    >>> [e.name for e in grid([5], [0.1, 0.5], ["gaussian"])]
    ['n005-gaussian-0.1', 'n005-gaussian-0.5']
    """
    for name, values in (("--n-train", n_train), ("--rates", rates), ("--noise", noises)):
        if not values or len({*values}) < len(values):
            raise BadInput("each axis of the grid has values, each once", name, list(values), "list each value once")
    for noise in noises:
        if noise not in NOISES:
            raise BadInput("noise is bernoulli or gaussian", "--noise", noise, nearest(noise, NOISES))
    for rate in rates:
        if check_rate(rate, "--rates") == 0:
            raise BadInput("an experiment needs noise", "--rates", rate, "write rates above 0")
    return [Experiment(n, float(rate), noise) for n in n_train for noise in noises for rate in rates]


def networks(experiments: Sequence[Experiment], dropout: str) -> list[Network]:
    """The networks that the experiments need: one each, or one per n_train where dropout is at inference only."""
    if dropout not in DROPOUT:
        raise BadInput(
            "dropout is on in training, or at inference only", "--dropout", dropout, nearest(dropout, DROPOUT)
        )
    if dropout == "training":
        return [Network(e.name, e.n_train, e.rate, e.noise, (e,)) for e in experiments]
    sizes = dict.fromkeys(e.n_train for e in experiments)
    return [
        Network(f"n{n:03d}-plain", n, 0.0, "bernoulli", tuple(e for e in experiments if e.n_train == n)) for n in sizes
    ]


@dataclass(frozen=True)
class Work:
    """Everything a worker needs besides the name of its unit; plain values, so that it travels to other processes."""

    folder: str
    split: Split
    regime: Regime
    features: tuple[int, ...]
    passes: int
    seed: int
    device: str
    model: str | None = None  # file.py:callable instead of the study's U-Net
    placement: str = "dropout={rate} noise={noise}"
    threads: int | None = None

    @classmethod
    def of_folder(cls, folder: Path, about: dict[str, Any]) -> Work:
        """As a finished study's `study.json` has it: enough to build and name its networks."""
        nothing, features = Split((), (), ()), tuple(about["features"])
        regime, passes, seed = Regime(**about["regime"]), about["passes"], about["seed"]
        return cls(str(folder), nothing, regime, features, passes, seed, "cpu", about["model"], about["placement"])

    def build(self, network: Network, channels: int, classes: int, dims: int) -> nn.Module:
        """The untrained network: the same weights for every unit, its own dropout at the unit's rate and noise."""
        with random_state_kept():
            torch.manual_seed(self.seed)
            if self.model is None:
                return UNet(channels, classes, network.rate, network.noise, self.features, dims)
            return with_dropout(load_model(self.model).module, network.rate, network.noise, dims)

    def fresh(self, network: Network, prepared: Prepared) -> nn.Module:
        return self.build(network, prepared.channels, prepared.classes, len(prepared.roi))

    def text(self, experiment: Experiment) -> str:
        """The placement of an experiment."""
        return self.placement.format(rate=f"{experiment.rate:g}", noise=experiment.noise)

    def rows_file(self, experiment: Experiment) -> Path:
        return Path(self.folder) / "rows" / f"{experiment.name}.parquet"

    def weights_file(self, network: Network) -> Path:
        return Path(self.folder) / "networks" / f"{network.name}.safetensors"

    def trained(self, network: Network, prepared: Prepared) -> nn.Module:
        return load_weights(self.fresh(network, prepared), self.weights_file(network))

    def validation_loss(self, network: Network) -> float:
        """The best validation Dice loss, from the record of a trained network."""
        record = json.loads(self.weights_file(network).with_suffix(".json").read_text())
        return -float(record["scores"][record["best_epoch"]])


def with_dropout(net: nn.Module, rate: float, noise: str, dims: int) -> nn.Module:
    """The network with every dropout module of its own replaced by one on feature maps, of this rate and noise."""
    found = [name for name, module in net.named_modules() if is_dropout(module)]
    if not found and rate > 0:
        remedy = "build it with dropout (MONAI: dropout=0.1), or write --dropout inference with a --placement"
        raise BadInput(
            "dropout during training needs dropout modules in the network", "--model", type(net).__name__, remedy
        )
    for name in found:
        parent, _, child = name.rpartition(".")
        setattr(net.get_submodule(parent), child, feature_dropout(dims, rate, noise))
    return net


def _steps(work: Work, network: Network) -> int:
    """What is left to do of a unit: training steps and forwards of test cases."""
    rounds, each = work.regime.rounds(network.n_train)
    training = 0 if work.weights_file(network).exists() else rounds * each
    missing = [e for e in network.experiments if not work.rows_file(e).exists()]
    return training + len(missing) * work.passes * len(work.split.test)


def do(work: Work, network: Network, prepared: Prepared, tick: Tick) -> str:
    """One unit: trains the network if it is not there, evaluates each experiment whose rows are not there."""
    device = torch.device(work.device)
    cases = work.split.first(network.n_train)
    about: dict[str, Any] = {
        "network": network.name, "data": prepared.fingerprint(), "seed": work.seed, "regime": asdict(work.regime),
        "features": list(work.features), "model": work.model, "train": [prepared.names[i] for i in cases],
    }  # fmt: skip
    net = trained_once(
        work.weights_file(network),
        lambda: work.fresh(network, prepared),
        lambda net: train(net, prepared, cases, work.split.validation, work.regime, work.seed, device, tick),
        about,
    )
    for experiment in network.experiments:
        path = work.rows_file(experiment)
        if not path.exists():
            rows = evaluate(net, prepared, work.split.test, work.text(experiment), work.passes, work.seed, device, tick)
            rows = pd.DataFrame({"experiment": experiment.name, **asdict(experiment)}, index=rows.index).join(rows)
            atomic_write(path, lambda part, rows=rows: rows.to_parquet(part, index=False))  # type: ignore[misc]
    return network.name


def run_all(work: Work, units: Sequence[Network], workers: int, show: bool | None = None) -> pd.DataFrame:
    """Does what is missing, several units at once; the rows of every experiment, in the order of the grid."""
    todo = [unit for unit in units if not all(work.rows_file(e).exists() for e in unit.experiments)]
    # The longest first, so that no worker is left with one at the end.
    todo.sort(key=lambda unit: -unit.n_train if work.regime.steps is None else 0)
    with track(f"{len(todo)} networks", sum(_steps(work, unit) for unit in todo), "steps", show) as tick:
        _run(work, todo, min(workers, max(1, len(todo))), tick)
    return pd.concat(
        [pd.read_parquet(work.rows_file(e)) for unit in units for e in unit.experiments], ignore_index=True
    )


def _run(work: Work, todo: Sequence[Network], workers: int, tick: Tick) -> None:
    if workers == 1:
        prepared = read_prepared(Path(work.folder) / PREPARED) if todo else None
        with _threads(work.threads):
            for unit in todo:
                assert prepared is not None
                _in_memory(lambda unit=unit: do(work, unit, prepared, tick), workers)  # type: ignore[misc]
        return
    spawning = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    steps, seen = spawning.Value("q", 0), 0
    with ProcessPoolExecutor(workers, spawning, _start, (work, steps, os.getpid())) as pool:
        futures = [pool.submit(_do_here, unit) for unit in todo]
        waiting = set(futures)
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
                done = steps.value
                tick(done - seen)
                seen = done
                for future in finished:
                    _in_memory(future.result, workers)
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_memory(result: Callable[[], str], workers: int) -> str:
    try:
        return result()
    except (torch.OutOfMemoryError, BrokenProcessPool) as error:
        remedy = f"write --workers {max(1, workers // 2)}, a smaller --batch or --roi; what is finished is kept"
        reason = str(error).splitlines()[0][:120]
        raise BadInput(
            "units that run at once fit into memory", "--workers", f"{workers} ({reason})", remedy
        ) from error


_here: dict[str, Any] = {}  # of a worker process: its work and volumes, read once, and the steps that all have done


def _start(work: Work, steps: Any, parent: int) -> None:
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    if work.threads:
        torch.set_num_threads(work.threads)
    _here.update(work=work, prepared=read_prepared(Path(work.folder) / PREPARED), steps=steps)


def _leave_with(parent: int) -> None:
    """A worker whose study was killed stops: the next run would do the same unit beside it."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)


def _do_here(unit: Network) -> str:
    return do(_here["work"], unit, _here["prepared"], _tick_here)


def _tick_here(count: int) -> None:
    with _here["steps"].get_lock():
        _here["steps"].value += count


def fitting_workers(
    units: int, device: torch.device, roi: Sequence[int], classes: int, regime: Regime, features: Sequence[int]
) -> int:
    """How many units at once: on a GPU as many as memory holds, at most eight; on a CPU one per eight cores."""
    cores = os.cpu_count() or 1
    if device.type != "cuda":
        return max(1, min(units, cores // 8))
    each = worker_bytes(roi, classes, regime, features, device)
    return max(1, min(units, cores, _MOST_WORKERS, free_bytes(device) // each))
