"""Batches in which both classes come equally often: of the larger class each epoch sees another part.

Owns the sampler and where augmentation happens. What augmentation does is `augmentation.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dropscope.studies.where_to_drop.augmentation import Amounts, augmented


class UndersampledBatches:
    """Shuffled batches `(images [n, 1, side, side], labels [n])` on the device, for one training.

    An epoch has all images of the smallest class and as many of every other, drawn without replacement. Images whose
    label is in `vary` are augmented. What an epoch holds is a function of the seed and the epoch's number.
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
        return augmented(self._images[index], np.random.default_rng([self._seed, epoch, index]), self._amounts)
