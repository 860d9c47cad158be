"""Training batches: shuffled ones that stay on the device, and ones in which both classes come equally often.

Owns the order of an epoch, which is a function of the seed and the epoch's number. `augmentation` varies mammograms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dropscope.studies.where_to_drop.augmentation import Amounts, augment


class ShuffledBatches:
    """Shuffled batches `(inputs, labels)` of tensors on the device; each epoch has its own order, fixed by the seed.

    An epoch is a shuffle of indices, not a trip through the host. `prepare(images, generator)` turns a batch into the
    network's input (scaling, augmentation), on the device.
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


def shift_and_mirror(images: Tensor, draws: torch.Generator, margin: int = 4) -> Tensor:
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


class UndersampledBatches:
    """Shuffled batches `(images [n, 1, side, side], labels [n])` on the device, for one training.

    An epoch has all images of the smallest class and as many of every other, drawn without replacement, so it sees
    another part of the larger class than the last one. Images whose label is in `vary` are augmented.
    """

    def __init__(
        self,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        batch: int,
        seed: int,
        device: torch.device,
        vary: frozenset[int],
        amounts: Amounts | None = None,
    ) -> None:
        self._images, self._labels, self._batch, self._device = images, labels, batch, device
        self._seed, self._vary, self._amounts = seed, vary, amounts
        self._classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        self._each = min(map(len, self._classes))
        self._epoch = 0

    def __len__(self) -> int:
        return -(-self._each * len(self._classes) // self._batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        order = self.order(epoch)
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            images = np.stack([self._image(int(index), epoch) for index in chosen])[:, None]
            labels = torch.from_numpy(self._labels[chosen])
            yield torch.from_numpy(images).to(self._device), labels.to(self._device)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The images of an epoch, in the order in which they come."""
        draw = np.random.default_rng([self._seed, epoch])
        return draw.permutation(np.concatenate([draw.choice(c, self._each, replace=False) for c in self._classes]))

    def _image(self, index: int, epoch: int) -> NDArray[np.float32]:
        if int(self._labels[index]) not in self._vary:
            return self._images[index]
        return augment(self._images[index], np.random.default_rng([self._seed, epoch, index]), self._amounts)
