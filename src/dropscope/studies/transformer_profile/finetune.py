"""Fine-tuning as the paper does it: AdamW, a tenth of linear warm-up, linear decay, clipped gradients, a few epochs.

Owns the recipe and the two protocols: `once` (with the checkpoint's own dropout; five evaluations of one network) and
`per_configuration` (five networks, each trained with the dropout it is evaluated with). The loop is `training.fit`.
"""

from __future__ import annotations

import itertools
import json
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.injection import examine, injected
from dropscope.model import Call
from dropscope.report import write_text
from dropscope.studies.training import History, Recipe, fit, trained_once
from dropscope.studies.transformer_profile.checkpoints import Described, load
from dropscope.studies.transformer_profile.configurations import Configuration, placement_of
from dropscope.studies.transformer_profile.tokens import Encoded, Shuffled

_WARM_UP = 0.1
_BATCH = 16
_CLIP = 1.0


@dataclass(frozen=True)
class Tuning:
    """What may be chosen of the training; the rest is the paper's."""

    learning_rate: float = 2e-5
    epochs: int = 5
    precision: str = "16-mixed"  # on CUDA; float32 on a CPU


def fine_tuned(
    path: Path,
    described: Described,
    encoded: Encoded,
    classes: int,
    tuning: Tuning,
    about: dict[str, Any],
    seed: int,
    device: torch.device,
    configuration: Configuration | None = None,
    mode: str = "config",
    show: bool | None = None,
) -> nn.Module:
    """The trained classifier. Weights at `path` are not trained again; `.seconds.json` beside them has the time.

    With a `configuration` the network is trained with its dropout: in `config` mode built so, in `component` mode with
    the same noise that evaluates it, at another seed. Without one it keeps the checkpoint's own dropout.
    """
    rates = None
    if configuration is not None and mode == "config":
        rates = {"attention": configuration.attention, "hidden": configuration.ffn}
        rates |= {"head": 0.0} if configuration.deterministic else {}
    noisy = configuration if mode == "component" else None
    timing = path.with_suffix(".seconds.json")

    def train(net: nn.Module) -> History:
        started = time.perf_counter()
        with _noise(net, noisy, encoded, seed):
            batches = Shuffled(encoded, _BATCH, seed, device)
            history = fit(net, recipe(tuning, device), batches, seed, device, show, f"training {described.name}")
        write_text(timing, json.dumps({"seconds": time.perf_counter() - started}) + "\n")
        return history

    about = {**about, **asdict(tuning), "model": described.name, "configuration": configuration and configuration.name}
    return trained_once(path, lambda: load(described, classes, seed, rates), train, about)


def recipe(tuning: Tuning, device: torch.device) -> Recipe:
    epoch = itertools.count()
    return Recipe(
        epochs=tuning.epochs,
        loss=_loss,
        score=lambda net: next(epoch),  # the paper holds no items back to choose by: the last epoch is kept
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
    logits = net(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return nn.functional.cross_entropy(logits.float(), batch["labels"])


def _noise(
    net: nn.Module, configuration: Configuration | None, encoded: Encoded, seed: int
) -> AbstractContextManager[Any]:
    if configuration is None:
        return nullcontext()
    site_map = examine(net, Call.of(encoded.inputs(range(min(4, len(encoded.tokens))))))
    return injected(net, placement_of(configuration, "component", None), seed + 1, site_map=site_map)
