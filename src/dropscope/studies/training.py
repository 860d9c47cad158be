"""Training as every study does it: Lightning drives the epochs, the weights of the best validation score are kept.

Owns the loop, its seed, its progress and the files of a trained network (safetensors, written whole, so that a network
that is there is finished). Losses, optimizers and data are the study's.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dropscope.atomic import atomic_write
from dropscope.errors import BadInput, MissingExtra
from dropscope.model import evaluating, random_state_kept
from dropscope.progress import track
from dropscope.report import write_text

Batch = Any
Optimizer = torch.optim.Optimizer
Schedule = Any  # torch.optim.lr_scheduler.LRScheduler


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. `loss(net, batch)` is minimised; `score(net)`, higher is better, picks the epoch."""

    epochs: int
    loss: Callable[[nn.Module, Batch], Tensor]
    score: Callable[[nn.Module], float]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    schedule: Callable[[Optimizer, int], Schedule] | None = None  # of (optimizer, steps in all); stepped every batch
    clip: float | None = None
    precision: str = "32-true"  # Lightning's words: "16-mixed", "bf16-mixed"


@dataclass(frozen=True)
class History:
    """What an epoch cost and brought: mean training loss and validation score, and which epoch was kept."""

    losses: tuple[float, ...]
    scores: tuple[float, ...]
    best: int


def fit(
    net: nn.Module,
    recipe: Recipe,
    batches: Iterable[Batch],
    seed: int,
    device: str | torch.device = "cpu",
    show: bool | None = None,
    what: str = "training",
    tick: Callable[[int], None] | None = None,
) -> History:
    """Trains `net` in place and leaves it in eval mode on the CPU with the weights of its best epoch.

    `batches` is iterated once per epoch (a DataLoader, or anything with a length that yields batches already on the
    device). With `tick`, called after every batch, somebody else shows the progress. Global random state is afterwards
    what it was.
    """
    lightning = _lightning()
    where = torch.device(device)
    with random_state_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about workers and logging does not concern the user
        torch.manual_seed(seed)
        trained = _module(lightning, net, recipe)
        total = recipe.epochs * len(batches)  # type: ignore[arg-type]
        with track(what, total, "batches", show) if tick is None else nullcontext(tick) as trained.tick:
            _trainer(lightning, recipe, where).fit(trained, train_dataloaders=_Epochs(batches))
    if trained.best_state is None:
        raise BadInput("a network is trained for at least one epoch", "epochs", recipe.epochs, "write epochs=1 or more")
    net.cpu().load_state_dict(trained.best_state)
    net.eval()
    return History(tuple(trained.losses), tuple(trained.scores), trained.best_epoch)


def trained_once(
    path: Path, build: Callable[[], nn.Module], train: Callable[[nn.Module], History], about: dict[str, Any]
) -> nn.Module:
    """The network at `path` if it is there, else built, trained and written there. `about` says what it is and must
    agree with what is there."""
    record = path.with_suffix(".json")
    if path.exists() and record.exists():
        known, wanted = json.loads(record.read_text())["about"], json.loads(json.dumps(about))
        differing = sorted(key for key in {*known, *wanted} if known.get(key) != wanted.get(key))
        if differing:
            remedy = "choose another folder with --out"
            raise BadInput("a folder holds one study", f"what differs from {record}", differing, remedy)
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


def load_weights(net: nn.Module, path: Path) -> nn.Module:
    """Weights from safetensors or a plain state_dict (`weights_only`), names and shapes checked; in eval mode."""
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except FileNotFoundError as error:
        raise BadInput("a weights file exists", "--weights", str(path), "check the path") from error
    except Exception as error:
        # What torch says of a pickled model is how to load it all the same, which is not to be advised.
        pickled = "weights only load failed" in str(error).lower()
        reason = "a pickled object that is not tensors alone" if pickled else str(error).splitlines()[0][:120]
        raise BadInput(
            "weights are safetensors or a plain state_dict",
            str(path),
            reason,
            "save model.state_dict() with torch.save",
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise BadInput("weights are a dict of tensors", str(path), type(state).__name__, "save model.state_dict()")
    wanted = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    got = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted({*wanted, *got}):
        if wanted.get(name) != got.get(name):
            here, there = (str(shapes.get(name, "absent")) for shapes in (wanted, got))
            raise BadInput(
                "weights fit the network", f"{name!r} in {path}", there, f"pass weights in which it is {here}"
            )
    net.load_state_dict(state)
    return net.eval()


class _Epochs:
    """Batches as one loader, whatever they are: Lightning takes a list for several loaders."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


def _lightning() -> Any:
    try:
        import lightning.pytorch as lightning
    except ImportError as error:
        raise MissingExtra("training", "lightning", "training") from error
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return lightning


def _trainer(lightning: Any, recipe: Recipe, device: torch.device) -> Any:
    index = [device.index or 0] if device.type == "cuda" else 1
    return lightning.Trainer(
        max_epochs=recipe.epochs, accelerator="gpu" if device.type == "cuda" else "cpu", devices=index,
        precision=recipe.precision, gradient_clip_val=recipe.clip, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, barebones=False,
    )  # fmt: skip


def _module(lightning: Any, net: nn.Module, recipe: Recipe) -> Any:
    """The LightningModule. Made here, because its base class exists only where Lightning is installed."""

    class Training(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.losses: list[float] = []
            self.scores: list[float] = []
            self.best_epoch = -1
            self.best_state: dict[str, Tensor] | None = None
            self.best_score = -math.inf
            self.running: list[Tensor] = []
            self.tick: Callable[[int], None] = lambda count: None

        def training_step(self, batch: Batch, index: int) -> Tensor:
            loss = recipe.loss(self.net, batch)
            self.running.append(loss.detach())
            self.tick(1)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = recipe.optimizer(self.net.parameters())
            if recipe.schedule is None:
                return optimizer
            steps = int(self.trainer.estimated_stepping_batches)
            return [optimizer], [{"scheduler": recipe.schedule(optimizer, steps), "interval": "step"}]

        def on_train_epoch_end(self) -> None:
            self.losses.append(float(torch.stack(self.running).mean()))
            self.running = []
            with evaluating(self.net), torch.no_grad():
                score = float(recipe.score(self.net))
            self.scores.append(score)
            if self.best_state is None or score > self.best_score:  # a NaN never is
                self.best_score = score if math.isfinite(score) else -math.inf
                self.best_epoch = len(self.scores) - 1
                self.best_state = {name: value.detach().cpu().clone() for name, value in self.net.state_dict().items()}

    return Training()
