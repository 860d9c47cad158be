"""The uncertainty of a whole case (an image or a volume), and how well it foretells a bad segmentation (1 − Dice).

A case's uncertainty comes from a voxel-wise map (`foreground_mean`, `worst_patch`) or from the label maps of passes
(`volume_variation`, `pairwise_dice`). Higher is more uncertain, but for `pairwise_dice`, which is agreement.
`PassLabels` keeps what the last two need while passes come, in memory that does not grow with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.scores.ranking import checked_uncertainty

_VOXELS_AT_ONCE = 1 << 16


def foreground_mean(
    uncertainty: Tensor,
    prediction: Tensor,
    background: int = 0,
    valid_mask: Tensor | None = None,
    spatial: int | None = None,
) -> Tensor:
    """Mean uncertainty of the voxels predicted as anything but `background`. `[..., *image]` → `[...]`, float64.

    In the measure's own range. Higher is more uncertain. NaN where no foreground is predicted. NOT the mean over the
    image, which shrinks with the margin of background around an object. Reference: Roy et al. (2019).

    >>> foreground_mean(torch.tensor([[0.1, 0.25, 0.75]]), torch.tensor([[0, 1, 2]])).tolist()
    [0.5]
    """
    u, inside = _image(uncertainty, spatial, "uncertainty"), _like(prediction, uncertainty, "prediction") != background
    inside = inside & _valid(valid_mask, uncertainty)
    return _masked_mean(u.double(), inside.reshape(u.shape))


def worst_patch(
    uncertainty: Tensor, size: int | Sequence[int] = 8, valid_mask: Tensor | None = None, spatial: int | None = None
) -> Tensor:
    """The highest mean uncertainty of any patch of `size` voxels a side. `[..., *image]` → `[...]`, float64.

    In the measure's own range. Higher is more uncertain. A side is cut to the image's; patches of which less than half
    is valid do not count (NaN where none does). NOT the highest voxel, which one stray voxel decides.

    >>> worst_patch(torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.0]]), size=2).tolist()
    [1.0]
    """
    dims = _dims(uncertainty, spatial, "uncertainty")
    sides = (size,) * dims if isinstance(size, int) else tuple(size)
    if len(sides) != dims or any(side < 1 for side in sides):
        raise BadInput(f"a patch has {dims} sides of at least 1", "size", size, "write size=8")
    valid = _valid(valid_mask, uncertainty)
    total = torch.where(valid, uncertainty.double(), 0.0)
    count = valid.double()
    voxels = 1
    for axis, side in enumerate(sides, -dims):
        cut = min(side, uncertainty.shape[axis])
        total, count, voxels = _box_sum(total, axis, cut), _box_sum(count, axis, cut), voxels * cut
    means = torch.where(count >= voxels / 2, total / count.clamp_min(1), -torch.inf).flatten(-dims).amax(-1)
    return torch.where(means == -torch.inf, torch.nan, means)


def volume_variation(volumes: Tensor) -> Tensor:
    """Std over passes of a class's volume, over its mean. `volumes[passes, ..., C]` in voxels → `[..., C]`, float64.

    ≥ 0, population std. Higher is more uncertain. NaN for a class that no pass predicts. NOT comparable between a small
    and a large structure. Reference: Roy et al. (2019), coefficient of variation.

    >>> volume_variation(torch.tensor([[[10, 5]], [[10, 15]]])).tolist()
    [[0.0, 0.5]]
    """
    if volumes.dim() < 2 or 0 in volumes.shape:
        raise BadInput("volumes are [passes, ..., classes]", "volumes", tuple(volumes.shape), "stack those of passes")
    values = volumes.double()
    return values.std(0, correction=0) / values.mean(0)  # 0/0, a class that is nowhere, is NaN


def pairwise_dice(labels: Tensor, classes: int, valid_mask: Tensor | None = None, spatial: int | None = None) -> Tensor:
    """Mean over pairs of passes of the Dice of their label maps. `labels[passes, ..., *image]` → `[..., C]`, float64.

    In [0, 1]; 1 − it is an uncertainty. A pair in which neither pass has the class is left out, and without pairs it is
    NaN. Needs the label maps of all passes; `PassLabels.pairwise_dice` does not. NOT the Dice with the mean prediction.
    Reference: Roy et al. (2019).

    >>> pairwise_dice(torch.tensor([[[0, 1, 1]], [[0, 1, 0]]]), classes=2).tolist()
    [[0.6666666666666666, 0.6666666666666666]]
    """
    if labels.dim() < 2 or len(labels) < 2:
        raise BadInput("pairs need two passes", "labels", tuple(labels.shape), "stack label maps of two passes or more")
    passes = len(labels)
    maps = _image(labels, labels.dim() - 2 if spatial is None else spatial, "labels")  # [passes, ..., voxels]
    valid = None if valid_mask is None else _valid(valid_mask, labels[0]).reshape(maps.shape[1:])
    columns = []
    for c in range(classes):
        shared = torch.zeros((*maps.shape[1:-1], passes, passes), dtype=torch.float64, device=labels.device)
        for begin in range(0, maps.shape[-1], _VOXELS_AT_ONCE):
            some = slice(begin, begin + _VOXELS_AT_ONCE)
            members = (maps[..., some] == c) if valid is None else (maps[..., some] == c) & valid[..., some]
            rows = members.float().movedim(0, -2)
            shared += (rows @ rows.mT).double()  # counts below 2^24: exact in float32
        sizes = shared.diagonal(dim1=-2, dim2=-1)
        pair = torch.triu_indices(passes, passes, 1, device=labels.device)
        both = sizes[..., pair[0]] + sizes[..., pair[1]]
        overlap = 2 * shared[..., pair[0], pair[1]] / both  # NaN where both are empty
        columns.append(overlap.nanmean(-1))
    return torch.stack(columns, -1)


class PassLabels:
    """Volumes and votes of label maps `[..., *image]` that come pass by pass; nothing else of the passes is kept.

    >>> kept = PassLabels(classes=2)
    >>> for labels in ([[0, 1, 1]], [[0, 1, 0]]):
    ...     kept.update(torch.tensor(labels))
    >>> kept.volume_variation.tolist(), kept.pairwise_dice.tolist()
    ([[0.3333333333333333, 0.3333333333333333]], [[0.6666666666666666, 0.6666666666666666]])
    """

    def __init__(self, classes: int, valid_mask: Tensor | None = None, spatial: int | None = None) -> None:
        if classes < 1:
            raise BadInput("there is at least one class", "classes", classes, "write classes=2")
        self.classes, self._valid, self._spatial = classes, valid_mask, spatial
        self._votes = torch.empty(0)  # int32 [C, ..., voxels]
        self._volumes: list[Tensor] = []

    @property
    def passes(self) -> int:
        return len(self._volumes)

    def update(self, labels: Tensor) -> None:
        if labels.is_floating_point():
            raise BadInput("a label map holds class indices", "labels", labels.dtype, "take argmax over classes first")
        maps = _image(labels, self._spatial, "labels")
        valid = _valid(self._valid, labels).reshape(maps.shape)
        if not self._volumes:
            self._votes = torch.zeros((self.classes, *maps.shape), dtype=torch.int32, device=labels.device)
        elif maps.shape != self._votes.shape[1:]:
            rule = f"every pass has maps of {tuple(self._votes.shape[1:])} voxels"
            raise BadInput(rule, "labels", tuple(maps.shape), "give every pass the same images")
        sizes = []
        for c in range(self.classes):
            member = (maps == c) & valid
            self._votes[c] += member
            sizes.append(member.sum(-1))
        self._volumes.append(torch.stack(sizes, -1))

    def beside(self, other: PassLabels) -> PassLabels:
        """Both together, `other` holding further voxels of the same images in the same passes."""
        if (self.passes, self.classes) != (other.passes, other.classes) or not self.passes:
            received = (other.passes, other.classes)
            raise BadInput(f"parts have {self.passes} passes and {self.classes} classes", "other", received, "run both")
        joined = PassLabels(self.classes, None, self._spatial)
        joined._votes = torch.cat([self._votes, other._votes], -1)
        joined._volumes = [a + b for a, b in zip(self._volumes, other._volumes, strict=True)]
        return joined

    @property
    def volumes(self) -> Tensor:
        """Voxels of each class in each pass, `[passes, ..., C]`, int64."""
        if not self._volumes:
            raise BadInput("label maps are read after at least one pass", "passes", 0, "call update(labels) first")
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
            raise BadInput("pairs need two passes", "passes", self.passes, "call update(labels) again")
        votes = self._votes.double()
        return ((votes * (votes - 1)).sum(-1) / ((self.passes - 1) * votes.sum(-1))).movedim(0, -1)


def loss_correlation(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Spearman's rank correlation of case-level uncertainty with a loss such as 1 − Dice. `[..., n]` twice → `[...]`.

    In [−1, 1]. Higher is better. Ties have their mean rank; NaN where either is constant. NOT a share of cases found;
    for that, `loss_aurc`. Reference: Spearman (1904).

    >>> loss_correlation(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.2, 0.3, 0.4])).item()
    1.0
    """
    u, v = (_ranks(values) for values in _both(uncertainty, loss))
    u, v = u - u.mean(-1, keepdim=True), v - v.mean(-1, keepdim=True)
    return (u * v).sum(-1) / (u.square().sum(-1) * v.square().sum(-1)).sqrt()


def loss_aurc(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Mean over k of the mean loss of the k most certain cases. `[..., n]` twice → `[...]`, float64.

    In the range of the loss; a useless uncertainty has about its mean. Lower is better. Equal uncertainties share their
    mean loss. NOT `aurc`, whose loss is 0 or 1. Reference: Geifman and El-Yaniv (2017), for a loss of any kind.

    >>> loss_aurc(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 0.5])).item()
    0.125
    """
    u, v = _both(uncertainty, loss)
    ranked, order = u.sort(-1)
    kept = v.gather(-1, order)
    group = torch.cat([torch.zeros_like(order[..., :1]), (ranked[..., 1:] != ranked[..., :-1]).cumsum(-1)], -1)
    sums = torch.zeros_like(kept).scatter_add_(-1, group, kept)
    sizes = torch.zeros_like(kept).scatter_add_(-1, group, torch.ones_like(kept))
    shared = (sums / sizes.clamp_min(1)).gather(-1, group)
    return (shared.cumsum(-1) / torch.arange(1, kept.shape[-1] + 1, device=u.device)).mean(-1)


def _both(uncertainty: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    u = checked_uncertainty(uncertainty, "uncertainty")
    if loss.shape != u.shape or not bool(loss.isfinite().all()):
        remedy = "give one finite loss per case, such as 1 - dice(...)[:, 1:].mean(1); leave cases without one out"
        raise BadInput(f"losses are finite numbers {tuple(u.shape)}", "loss", tuple(loss.shape), remedy)
    return u.double(), loss.to(u.device).double()


def _ranks(values: Tensor) -> Tensor:
    """Ranks along the last dimension, ties at their mean."""
    flat = values.reshape(-1, values.shape[-1])
    ranks = torch.empty_like(flat)
    for row, into in zip(flat, ranks, strict=True):
        _, inverse, counts = torch.unique(row, return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        into.copy_((last - (counts - 1) / 2)[inverse])
    return ranks.reshape(values.shape)


def _masked_mean(values: Tensor, inside: Tensor) -> Tensor:
    return torch.where(inside, values, 0.0).sum(-1) / inside.sum(-1)  # 0/0, where nothing is inside, is NaN


def _box_sum(values: Tensor, axis: int, side: int) -> Tensor:
    """Sums of `side` neighbours along an axis, for every place where they fit."""
    padded = torch.cat([torch.zeros_like(values.narrow(axis, 0, 1)), values.cumsum(axis)], axis)
    places = values.shape[axis] - side + 1
    return padded.narrow(axis, side, places) - padded.narrow(axis, 0, places)


def _dims(values: Tensor, spatial: int | None, name: str) -> int:
    dims = values.dim() - 1 if spatial is None else spatial
    if dims < 1 or dims > values.dim() or 0 in values.shape:
        remedy = "give [images, ...], or say how many last dimensions are one image with spatial="
        raise BadInput("an image has one dimension or more, and voxels", name, (tuple(values.shape), spatial), remedy)
    return dims


def _image(values: Tensor, spatial: int | None, name: str) -> Tensor:
    return values.flatten(-_dims(values, spatial, name))


def _like(values: Tensor, to: Tensor, name: str) -> Tensor:
    if values.shape != to.shape:
        raise BadInput(f"maps have the shape {tuple(to.shape)}", name, tuple(values.shape), "give one value per voxel")
    return values.to(to.device)


def _valid(valid_mask: Tensor | None, of: Tensor) -> Tensor:
    if valid_mask is None:
        return torch.ones(of.shape, dtype=torch.bool, device=of.device)
    return _like(valid_mask, of, "valid_mask").bool()
