"""What every run starts from: the model ready on its device, the data read, the sites known, every argument checked.

Owns the checks that come before any work, and the one way a model is called on a batch. Nothing is run twice for them.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.data import Batch, Data, check_labels, read_data
from dropscope.errors import BadInput
from dropscope.injection import Live, SiteMap, disturbed, examine, resolve
from dropscope.model import Outputs, copied, device_of, moved, probabilities, state_kept, take, taken, unwrap
from dropscope.placement import Placement, as_placement
from dropscope.tracing import Point


@dataclass(frozen=True, eq=False)
class Setting:
    model: nn.Module
    data: Data
    site_map: SiteMap
    outputs: Outputs
    device: torch.device
    seed: int
    masks: str
    classes: int
    dense: bool  # a prediction per voxel, pixel or label, not per example
    ignore_label: int | None = None  # marks what has no label

    def on_device(self, batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return moved(batch.args, batch.kwargs, self.device)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Probabilities [examples, classes, …] of one forward, noise or none, as the open context has it."""
        args, kwargs = copied(args, kwargs)
        return probabilities(self.model(*args, **kwargs), self.outputs)

    def plain(self, batch: Batch) -> Tensor:
        with disturbed(self.model, {}, self.site_map):
            return self.call(*self.on_device(batch))

    def resolve(self, placements: Sequence[Placement | str]) -> list[dict[Point, Live]]:
        return [resolve(as_placement(placement), self.site_map) for placement in placements]

    def with_data(self, data: Data) -> Setting:
        return replace(self, data=data)


def prepare(
    model: nn.Module,
    data: Any,
    *,
    seed: int = 0,
    masks: str = "per_example",
    outputs: Outputs = "logits",
    ids: Sequence[Any] | str | None = None,
    groups: Sequence[Hashable] | str | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    keys: Any = None,
    ignore_label: int | None = None,
) -> Setting:
    """Reads and checks everything; raises `BadInput` before any pass is run."""
    model = unwrap(model)
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        raise BadInput("passes run at the stated precision", "autocast", "on", "leave the autocast context")
    if precision != "fp32":
        raise BadInput("precision is fp32", "precision", precision, "write precision='fp32'")
    if masks not in ("per_example", "per_pass"):
        raise BadInput("masks are drawn per_example or per_pass", "masks", masks, "write masks='per_example'")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise BadInput("a seed is a whole number", "seed", seed, "write seed=0")
    where = device_of(model)
    if device is not None and _device(device) != where:
        model, where = copy.deepcopy(model).to(_device(device)), _device(device)
    read = data if isinstance(data, Data) else read_data(data, ids=ids, groups=groups, batch_size=batch_size, keys=keys)
    first = read.batches[0]
    some = take(*moved(first.args, first.kwargs, where), range(min(2, first.n)))
    site_map, shown = _seen(model, *some, outputs)
    if len(shown) != min(2, first.n):
        remedy = "return one row per example along axis 0"
        raise BadInput("the output has a row per example", "its shape", tuple(shown.shape), remedy)
    labels = [batch.labels for batch in read.batches if batch.labels is not None]
    for part in labels:
        check_labels(part, shown.shape[1], ignore_label)
    if labels and labels[0].shape[1:] != shown.shape[2:]:
        remedy = "one class index per prediction: [N] for classification, [N, *spatial] for dense outputs"
        raise BadInput("labels have the shape of the predictions", "labels", tuple(labels[0].shape), remedy)
    return Setting(model, read, site_map, outputs, where, seed, masks, shown.shape[1], shown.dim() > 2, ignore_label)


def _seen(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Outputs) -> tuple[SiteMap, Tensor]:
    """The sites, and the probabilities of a plain forward."""
    with taken(args, kwargs), torch.no_grad(), precise(), state_kept(model):
        site_map = examine(model, args, kwargs)
        own_args, own_kwargs = copied(args, kwargs)
        with disturbed(model, {}, site_map):
            return site_map, probabilities(model(*own_args, **own_kwargs), outputs)


def _device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise BadInput("a device is one torch knows", "device", device, "write device='cpu' or 'cuda'") from error
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise BadInput("a device is one this machine has", "device", str(device), "write device='cpu'")
        return torch.device("cuda", found.index if found.index is not None else torch.cuda.current_device())
    return found


@contextmanager
def precise() -> Iterator[None]:
    """True fp32 in convolutions and products: cuDNN takes TF32 by default, which moves scores."""
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept
