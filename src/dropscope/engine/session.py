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

from dropscope.checks import check_seed
from dropscope.data import Batch, Data, check_labels, read_data
from dropscope.device import as_device
from dropscope.errors import BadInput
from dropscope.injection import SiteMap, SiteNoise, disturbed, examine, resolve
from dropscope.model import Outputs, copied, device_of, moved, probabilities, state_kept, take, taken, unwrap
from dropscope.placement import Placement, as_placement
from dropscope.tracing import Point


@dataclass(frozen=True, eq=False)
class Session:
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

    def resolve(self, placements: Sequence[Placement | str]) -> list[dict[Point, SiteNoise]]:
        return [resolve(as_placement(placement), self.site_map) for placement in placements]

    def with_data(self, data: Data) -> Session:
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
) -> Session:
    """Reads and checks everything; raises `BadInput` before any pass is run."""
    model = unwrap(model)
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        raise BadInput("passes run at the stated precision", "autocast", "on", "leave the autocast context")
    if precision != "fp32":
        raise BadInput("precision is fp32", "precision", precision, "write precision='fp32'")
    if masks not in ("per_example", "per_pass"):
        raise BadInput("masks are drawn per_example or per_pass", "masks", masks, "write masks='per_example'")
    check_seed(seed)
    where = device_of(model)
    if device is not None and as_device(device) != where:
        model, where = copy.deepcopy(model).to(as_device(device)), as_device(device)
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
    return Session(model, read, site_map, outputs, where, seed, masks, shown.shape[1], shown.dim() > 2, ignore_label)


def _seen(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Outputs) -> tuple[SiteMap, Tensor]:
    """The sites, and the probabilities of a plain forward."""
    with taken(args, kwargs), torch.no_grad(), precise(), state_kept(model):
        site_map = examine(model, args, kwargs)
        own_args, own_kwargs = copied(args, kwargs)
        with disturbed(model, {}, site_map):
            return site_map, probabilities(model(*own_args, **own_kwargs), outputs)


@contextmanager
def precise() -> Iterator[None]:
    """True fp32 in convolutions and products: cuDNN takes TF32 by default, which moves scores."""
    kept = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = kept
