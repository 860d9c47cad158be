"""Agreement of the label maps of passes: variation of volumes, and Dice between passes.

From label maps of all passes (`volume_variation`, `pairwise_dice`), or while passes come (`PassLabels`), in memory that
does not grow with their number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.scores.voxels import images, valid_voxels

_VOXELS_AT_ONCE = 1 << 16


def volume_variation(volumes: Tensor) -> Tensor:
    """Coefficient of variation of each class's volume over passes.

    std_t(volume) / mean_t(volume), population std. At least 0. Higher is more uncertain.

    Not comparable between a small and a large structure. Reference: Roy et al. (2019).

    Args:
        volumes: Voxels of each class in each pass, `[passes, ..., C]`.

    Returns:
        `[..., C]`, float64; NaN for a class that no pass predicts.

    Raises:
        BadInput: Where there are no passes or classes.

    Examples:
        >>> volume_variation(torch.tensor([[[10, 5]], [[10, 15]]])).tolist()
        [[0.0, 0.5]]
    """
    if volumes.dim() < 2 or 0 in volumes.shape:
        remedy = "stack the volumes of the passes in a new first dimension"
        raise BadInput("volumes must be [passes, ..., classes]", "volumes", tuple(volumes.shape), remedy)
    values = volumes.double()
    return values.std(0, correction=0) / values.mean(0)  # 0/0, a class that is nowhere, is NaN


def pairwise_dice(
    labels: Tensor, classes: int, *, valid_mask: Tensor | None = None, spatial: int | None = None
) -> Tensor:
    """Mean over pairs of passes of the Dice of their label maps.

    In [0, 1]; higher is more agreement, and 1 − it is an uncertainty. A pair in which neither pass has the class is
    left out.

    Not the Dice with the mean prediction. `PassLabels.pairwise_dice` needs no stored label maps.
    Reference: Roy et al. (2019).

    Args:
        labels: Class indices `[passes, ..., *image]`.
        classes: How many classes there are.
        valid_mask: `[..., *image]`; False leaves a voxel out.
        spatial: How many last dimensions are one image; by default all but the first two.

    Returns:
        `[..., C]`, float64; NaN for a class without pairs.

    Raises:
        BadInput: Where there are fewer than two passes, or shapes differ.

    Examples:
        >>> pairwise_dice(torch.tensor([[[0, 1, 1]], [[0, 1, 0]]]), classes=2).tolist()
        [[0.6666666666666666, 0.6666666666666666]]
    """
    if labels.dim() < 2 or len(labels) < 2:
        remedy = "stack the label maps of two passes or more"
        raise BadInput("labels must hold two passes or more", "labels", tuple(labels.shape), remedy)
    passes = len(labels)
    maps = images(labels, labels.dim() - 2 if spatial is None else spatial, "labels")  # [passes, ..., voxels]
    valid = None if valid_mask is None else valid_voxels(valid_mask, labels[0]).reshape(maps.shape[1:])
    columns = []
    for c in range(classes):
        shared = torch.zeros((*maps.shape[1:-1], passes, passes), dtype=torch.float64, device=labels.device)
        for begin in range(0, maps.shape[-1], _VOXELS_AT_ONCE):
            block = slice(begin, begin + _VOXELS_AT_ONCE)
            members = (maps[..., block] == c) if valid is None else (maps[..., block] == c) & valid[..., block]
            rows = members.float().movedim(0, -2)
            shared += (rows @ rows.mT).double()  # counts below 2^24: exact in float32
        sizes = shared.diagonal(dim1=-2, dim2=-1)
        pair = torch.triu_indices(passes, passes, 1, device=labels.device)
        both = sizes[..., pair[0]] + sizes[..., pair[1]]
        overlap = 2 * shared[..., pair[0], pair[1]] / both  # NaN where both are empty
        columns.append(overlap.nanmean(-1))
    return torch.stack(columns, -1)


class PassLabels:
    """Volumes and votes of label maps that come pass by pass; nothing else of the passes is kept.

    Args:
        classes: How many classes there are.
        valid_mask: `[..., *image]`; False leaves a voxel out.
        spatial: How many last dimensions are one image; by default all but the first.

    Attributes:
        classes: As given.

    Raises:
        BadInput: Where there is no class.

    Examples:
        >>> kept = PassLabels(classes=2)
        >>> for labels in ([[0, 1, 1]], [[0, 1, 0]]):
        ...     kept.update(torch.tensor(labels))
        >>> kept.volume_variation.tolist(), kept.pairwise_dice.tolist()
        ([[0.3333333333333333, 0.3333333333333333]], [[0.6666666666666666, 0.6666666666666666]])
    """

    def __init__(self, classes: int, valid_mask: Tensor | None = None, spatial: int | None = None) -> None:
        if classes < 1:
            raise BadInput("classes must be at least 1", "classes", classes, "write classes=2")
        self.classes, self._valid, self._spatial = classes, valid_mask, spatial
        self._votes = torch.empty(0)  # int32 [C, ..., voxels]
        self._volumes: list[Tensor] = []

    @property
    def passes(self) -> int:
        """How many passes have been taken in."""
        return len(self._volumes)

    def update(self, labels: Tensor) -> None:
        """Takes in the label map of one pass.

        Args:
            labels: Class indices `[..., *image]`.

        Raises:
            BadInput: Where these are no class indices, or have another shape than earlier passes.
        """
        if labels.is_floating_point():
            raise BadInput("labels must hold class indices", "labels", labels.dtype, "take argmax over classes first")
        maps = images(labels, self._spatial, "labels")
        valid = valid_voxels(self._valid, labels).reshape(maps.shape)
        if not self._volumes:
            self._votes = torch.zeros((self.classes, *maps.shape), dtype=torch.int32, device=labels.device)
        elif maps.shape != self._votes.shape[1:]:
            rule = f"labels must have {tuple(self._votes.shape[1:])} voxels in every pass"
            raise BadInput(rule, "labels", tuple(maps.shape), "give every pass the same images")
        sizes = []
        for c in range(self.classes):
            member = (maps == c) & valid
            self._votes[c] += member
            sizes.append(member.sum(-1))
        self._volumes.append(torch.stack(sizes, -1))

    def beside(self, other: PassLabels) -> PassLabels:
        """Both together, where `other` holds further voxels of the same images in the same passes.

        Args:
            other: Label maps of as many passes and classes.

        Raises:
            BadInput: Where passes or classes differ, or there are no passes.
        """
        if (self.passes, self.classes) != (other.passes, other.classes) or not self.passes:
            rule = f"other must have {self.passes} passes (at least 1) and {self.classes} classes"
            raise BadInput(rule, "other", (other.passes, other.classes), "take in the same passes on both sides")
        joined = PassLabels(self.classes, None, self._spatial)
        joined._votes = torch.cat([self._votes, other._votes], -1)
        joined._volumes = [a + b for a, b in zip(self._volumes, other._volumes, strict=True)]
        return joined

    @property
    def volumes(self) -> Tensor:
        """Voxels of each class in each pass, `[passes, ..., C]`, int64."""
        if not self._volumes:
            rule = "passes must be at least 1 before label maps are read"
            raise BadInput(rule, "passes", 0, "call update(labels) first")
        return torch.stack(self._volumes)

    @property
    def volume_variation(self) -> Tensor:
        """`volume_variation` of the volumes, `[..., C]`."""
        return volume_variation(self.volumes)

    @property
    def pairwise_dice(self) -> Tensor:
        """Σ_pairs 2|A ∩ B| / Σ_pairs (|A| + |B|), `[..., C]`: the pairs' Dice weighted by size, from votes alone.

        With n_v passes that vote for a class at voxel v, this is Σ_v n_v (n_v − 1) / ((T − 1) Σ_v n_v). It equals the
        mean over pairs where passes have equal volumes. NaN for a class that no pass predicts.
        """
        if self.passes < 2:
            rule = "passes must be at least 2 for pairs"
            raise BadInput(rule, "passes", self.passes, "call update(labels) again")
        votes = self._votes.double()
        return ((votes * (votes - 1)).sum(-1) / ((self.passes - 1) * votes.sum(-1))).movedim(0, -1)
