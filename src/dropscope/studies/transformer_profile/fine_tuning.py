"""Fine-tuning as the paper does it: AdamW, a tenth of linear warm-up, linear decay, clipped gradients, a few epochs.

Owns the recipe and the two protocols: `once` (with the checkpoint's own dropout; five evaluations of one network) and
`per_configuration` (five networks, each trained with the dropout it is evaluated with). See `studies.training` for the
loop.
"""

from __future__ import annotations

import itertools
import json
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.injection import examine, injected
from dropscope.loading import Checkpoint
from dropscope.model import Call
from dropscope.report import write_text
from dropscope.studies.training import History, Recipe, fit, trained_once
from dropscope.studies.transformer_profile.checkpoints import load_network
from dropscope.studies.transformer_profile.configurations import Configuration, placement_of
from dropscope.studies.transformer_profile.own_models import logits_of
from dropscope.studies.transformer_profile.tokens import Encoded, ShuffledBatches

_WARM_UP = 0.1
_BATCH = 16
_CLIP = 1.0


@dataclass(frozen=True)
class Tuning:
    """What may be chosen of the training; the rest is the paper's."""

    learning_rate: float = 2e-5
    epochs: int = 5
    precision: str = "16-mixed"  # on CUDA; float32 on a CPU


@dataclass(frozen=True, eq=False)
class Training:
    """One network to train.

    With a `configuration` the network is trained with its dropout: in `config` mode built so, in `component` mode with
    the same noise that evaluates it, at another seed. Without one it keeps the checkpoint's own dropout.
    """

    checkpoint: Checkpoint
    items: Encoded
    classes: int
    tuning: Tuning
    seed: int
    device: torch.device
    configuration: Configuration | None = None
    mode: str = "config"
    layers: int | None = None
    scratch: bool = False

    @property
    def rates(self) -> dict[str, float] | None:
        """Rates that the config is built with; None leaves the checkpoint's."""
        if self.configuration is None or self.mode != "config":
            return None
        rates = {"attention": self.configuration.attention, "hidden": self.configuration.ffn}
        return rates | ({"head": 0.0} if self.configuration.deterministic else {})


def fine_tune(path: Path, training: Training, about: dict[str, Any], *, show: bool | None = None) -> nn.Module:
    """The trained classifier. Weights at `path` are not trained again; `.seconds.json` beside them has the time.

    `about` says what the network was trained on, and must agree with what is there.
    """
    checkpoint, seed, device = training.checkpoint, training.seed, training.device
    timing = path.with_suffix(".seconds.json")

    def train(net: nn.Module) -> History:
        started = time.perf_counter()
        with _noise(net, training):
            batches = ShuffledBatches(training.items, _BATCH, seed, device)
            steps = recipe(training.tuning, device)
            history = fit(net, steps, batches, seed, device, show=show, what=f"training {checkpoint.name}")
        write_text(timing, json.dumps({"seconds": time.perf_counter() - started}) + "\n")
        return history

    name = training.configuration and training.configuration.name
    about = {**about, **asdict(training.tuning), "model": checkpoint.name, "configuration": name}
    about |= {"layers": training.layers} if training.layers is not None else {}
    about |= {"scratch": True} if training.scratch else {}
    build = partial(
        load_network, checkpoint, training.classes, seed, training.rates, training.layers, scratch=training.scratch
    )
    return trained_once(path, build, train, about)


def recipe(tuning: Tuning, device: torch.device) -> Recipe:
    epoch = itertools.count()
    return Recipe(
        epochs=tuning.epochs,
        loss=_loss,
        score=lambda net: next(epoch),  # the paper holds out no items to choose by: the last epoch is kept
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=tuning.learning_rate),
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warm_up_and_decay(step, steps)
        ),
        clip=_CLIP,
        precision=tuning.precision if device.type == "cuda" else "32-true",
    )


def warm_up_and_decay(step: int, steps: int) -> float:
    """The share of the learning rate at a step: linear up over the first tenth, linear down to 0 at the end.

    >>> [round(warm_up_and_decay(step, 20), 3) for step in (0, 1, 2, 11, 20)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rising = max(1, round(steps * _WARM_UP))
    return step / rising if step < rising else max(0.0, (steps - step) / max(1, steps - rising))


def _loss(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = logits_of(net(**{name: value for name, value in batch.items() if name != "labels"}))
    return nn.functional.cross_entropy(logits.float(), batch["labels"])


def _noise(net: nn.Module, training: Training) -> AbstractContextManager[Any]:
    if training.configuration is None or training.mode != "component":
        return nullcontext()
    items = training.items
    site_map = examine(net, Call.of(items.inputs(range(min(4, len(items.tokens))))))
    placement = placement_of(training.configuration, "component", None)
    return injected(net, placement, training.seed + 1, site_map=site_map)
