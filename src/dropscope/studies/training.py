"""Training for every study: a plain loop that keeps the weights of the best validation score.

Owns the loop, its seed and progress, and the files of a trained network (safetensors, written atomically, so a network
that is there is finished). Losses, optimizers and data belong to the studies.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dropscope.atomic import atomic_write, read_json, same_spec
from dropscope.errors import BadInput
from dropscope.loading import load_weights
from dropscope.model import evaluating, random_state_kept
from dropscope.progress import track
from dropscope.report import write_text

Batch = Any
Optimizer = torch.optim.Optimizer
Schedule = Any  # torch.optim.lr_scheduler.LRScheduler

_PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. `loss(net, batch)` is minimised; `score(net)`, higher is better, picks the epoch."""

    epochs: int
    loss: Callable[[nn.Module, Batch], Tensor]
    score: Callable[[nn.Module], float]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    schedule: Callable[[Optimizer, int], Schedule] | None = None  # of (optimizer, steps in all); stepped every batch
    clip: float | None = None  # largest norm of the gradients
    precision: str = "32-true"  # or "bf16-mixed", or "16-mixed" with a scaled loss (on a CPU, bf16)


@dataclass(frozen=True)
class History:
    """Mean training loss and validation score of every epoch, and which epoch was kept."""

    losses: tuple[float, ...]
    scores: tuple[float, ...]
    best: int


def fit(
    net: nn.Module,
    recipe: Recipe,
    batches: Iterable[Batch],
    seed: int,
    device: str | torch.device = "cpu",
    *,
    show: bool | None = None,
    what: str = "training",
    tick: Callable[[int], None] | None = None,
) -> History:
    """Trains `net` in place and leaves it in eval mode on the CPU with the weights of its best epoch.

    Modules are trained in the mode they come in, so one in eval mode stays so. `batches` has a length and is iterated
    once per epoch; its batches are on the device. With `tick`, called after every batch, the caller shows the progress.
    Global random state is restored.
    """
    if recipe.epochs < 1:
        raise BadInput("epochs must be at least 1", "epochs", recipe.epochs, "write epochs=1")
    if recipe.precision not in _PRECISIONS:
        remedy = f"write one of {', '.join(_PRECISIONS)}"
        raise BadInput("precision must be known", "precision", recipe.precision, remedy)
    with random_state_kept():
        torch.manual_seed(seed)
        total = recipe.epochs * len(batches)  # type: ignore[arg-type]
        with track(what, total, "batches", show=show) if tick is None else nullcontext(tick) as count:
            history, best = _run_epochs(net, recipe, batches, total, torch.device(device), count)
    net.cpu().load_state_dict(best)
    net.eval()
    return history


def _run_epochs(
    net: nn.Module,
    recipe: Recipe,
    batches: Iterable[Batch],
    total: int,
    device: torch.device,
    tick: Callable[[int], None],
) -> tuple[History, dict[str, Tensor]]:
    net.to(device)
    optimizer = recipe.optimizer(net.parameters())
    schedule = None if recipe.schedule is None else recipe.schedule(optimizer, total)
    dtype = _PRECISIONS[recipe.precision]
    if device.type == "cpu" and dtype is torch.float16:
        dtype = torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)  # where disabled it does nothing
    best, best_epoch, best_score = dict[str, Tensor](), -1, -math.inf
    losses: list[float] = []
    scores: list[float] = []
    for epoch in range(recipe.epochs):
        running = []
        for batch in batches:
            with torch.autocast(device.type, dtype, cache_enabled=False) if dtype is not None else nullcontext():
                loss = recipe.loss(net, batch)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if recipe.clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
            scaler.step(optimizer)  # skipped where a scaled gradient overflows
            scaler.update()
            if schedule is not None:
                _advance(schedule)
            running.append(loss.detach())
            tick(1)
        losses.append(float(torch.stack(running).mean()))
        with evaluating(net), torch.no_grad():
            scores.append(float(recipe.score(net)))
        if epoch == 0 or scores[-1] > best_score:  # a NaN never is
            best_score = scores[-1] if math.isfinite(scores[-1]) else -math.inf
            best_epoch = epoch
            best = {name: value.detach().cpu().clone() for name, value in net.state_dict().items()}
    return History(tuple(losses), tuple(scores), best_epoch), best


def _advance(schedule: Schedule) -> None:
    with warnings.catch_warnings():
        # Torch takes a step that the scaler skipped for a schedule that runs ahead of its optimizer.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        schedule.step()


def trained_once(
    path: Path, build: Callable[[], nn.Module], train: Callable[[nn.Module], History], about: dict[str, Any]
) -> nn.Module:
    """The network at `path`; built, trained and written there where it is missing.

    Args:
        path: A .safetensors file. The .json beside it holds `about` and the history.
        build: Makes the network.
        train: Trains it in place.
        about: What the network is; it must agree with the network that is there.
    """
    record = path.with_suffix(".json")
    if path.exists() and record.exists():
        same_spec(read_json(record)["about"], about, record, "choose another out")
        return load_weights(build(), path)
    net = build()
    history = train(net)
    save_weights(net, path)
    facts = {"about": about, "losses": history.losses, "scores": history.scores, "best_epoch": history.best}
    write_text(record, json.dumps(facts, indent=2) + "\n")
    return net


def save_weights(net: nn.Module, path: Path) -> Path:
    # Copies: a network may call one module by two names, and safetensors refuses values that share their memory.
    state = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
             for name, value in net.state_dict().items()}  # fmt: skip
    return atomic_write(path, lambda part: save_file(state, part))
