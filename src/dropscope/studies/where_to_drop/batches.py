"""Batches that lie on the device from the start: an epoch is a shuffle of indices, not a trip through the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


class Resident:
    """Shuffled batches `(inputs, labels)` of tensors; each epoch has its own order, fixed by the seed.

    `prepare(images, generator)` turns a batch into the network's input (scaling, augmentation), on the device.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch: int,
        seed: int,
        device: torch.device,
        prepare: Callable[[Tensor, torch.Generator], Tensor],
    ) -> None:
        self._images, self._labels = images.to(device), labels.to(device)
        self._batch, self._prepare = batch, prepare
        self._order = torch.Generator().manual_seed(seed)
        self._draws = torch.Generator(device).manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self._labels) // self._batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._labels), generator=self._order).to(self._labels.device)
        for chosen in order.split(self._batch):
            yield self._prepare(self._images[chosen], self._draws), self._labels[chosen]


def cropped_and_flipped(images: Tensor, draws: torch.Generator, margin: int = 4) -> Tensor:
    """Random shift by up to `margin` pixels (zeros beyond the border) and a mirror image half the time."""
    n, _, height, width = images.shape
    padded = F.pad(images, (margin,) * 4)
    shift = torch.randint(0, 2 * margin + 1, (2, n, 1), generator=draws, device=images.device)
    rows = shift[0] + torch.arange(height, device=images.device)
    columns = shift[1] + torch.arange(width, device=images.device)
    mirrored = torch.rand(n, 1, generator=draws, device=images.device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    first = torch.arange(n, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[first, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
