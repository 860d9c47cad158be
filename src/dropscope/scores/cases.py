"""Scores of whole cases (images or volumes): their uncertainty from a voxel-wise map, and how it predicts a loss.

The loss is that of a segmentation, such as 1 − Dice. A case's uncertainty can also come from the label maps of passes:
see `agreement`. Higher is more uncertain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.scores.ranking import checked_uncertainty
from dropscope.scores.voxels import image_dims, images, like, valid_voxels


def foreground_mean(
    uncertainty: Tensor,
    prediction: Tensor,
    background: int = 0,
    *,
    valid_mask: Tensor | None = None,
    spatial: int | None = None,
) -> Tensor:
    """Mean uncertainty of the voxels predicted as anything but background.

    In the measure's own range. Higher is more uncertain.

    Not the mean over the image, which shrinks with the margin of background around an object.
    Reference: Roy et al. (2019).

    Args:
        uncertainty: `[..., *image]`.
        prediction: Class indices of the same shape.
        background: The class that is left out.
        valid_mask: False leaves a voxel out.
        spatial: How many last dimensions are one image; by default all but the first.

    Returns:
        `[...]`, float64; NaN where no foreground is predicted.

    Raises:
        BadInput: Where shapes differ.

    Examples:
        >>> foreground_mean(torch.tensor([[0.1, 0.25, 0.75]]), torch.tensor([[0, 1, 2]])).tolist()
        [0.5]
    """
    u = images(uncertainty, spatial, "uncertainty")
    inside = like(prediction, uncertainty, "prediction") != background
    inside = inside & valid_voxels(valid_mask, uncertainty)
    return _masked_mean(u.double(), inside.reshape(u.shape))


def worst_patch(
    uncertainty: Tensor,
    size: int | Sequence[int] = 8,
    *,
    valid_mask: Tensor | None = None,
    spatial: int | None = None,
) -> Tensor:
    """The highest mean uncertainty of any patch.

    In the measure's own range. Higher is more uncertain. A side is cut to the image's; patches of which less than half
    is valid do not count.

    Not the highest voxel, which one stray voxel decides.

    Args:
        uncertainty: `[..., *image]`.
        size: Voxels a side, one number or one per dimension.
        valid_mask: False leaves a voxel out.
        spatial: How many last dimensions are one image; by default all but the first.

    Returns:
        `[...]`, float64; NaN where no patch counts.

    Raises:
        BadInput: Where `size` does not fit the image's dimensions, or shapes differ.

    Examples:
        >>> worst_patch(torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.0]]), size=2).tolist()
        [1.0]
    """
    dims = image_dims(uncertainty, spatial, "uncertainty")
    sides = (size,) * dims if isinstance(size, int) else tuple(size)
    if len(sides) != dims or any(side < 1 for side in sides):
        raise BadInput(f"size must have {dims} sides of at least 1", "size", size, "write size=8")
    valid = valid_voxels(valid_mask, uncertainty)
    total = torch.where(valid, uncertainty.double(), 0.0)
    count = valid.double()
    voxels = 1
    for axis, side in enumerate(sides, -dims):
        cut = min(side, uncertainty.shape[axis])
        total, count, voxels = _box_sum(total, axis, cut), _box_sum(count, axis, cut), voxels * cut
    means = torch.where(count >= voxels / 2, total / count.clamp_min(1), -torch.inf).flatten(-dims).amax(-1)
    return torch.where(means == -torch.inf, torch.nan, means)


def loss_correlation(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Spearman's rank correlation of the cases' uncertainty with their loss, such as 1 − Dice.

    In [−1, 1]. Higher is better. Ties have their mean rank.

    Not a share of bad cases that are found; for that, `loss_aurc`. Reference: Spearman (1904).

    Args:
        uncertainty: `[..., n]`, one value per case.
        loss: Of the same shape.

    Returns:
        `[...]`, float64; NaN where either is constant.

    Raises:
        BadInput: Where shapes differ, or a value is not finite.

    Examples:
        >>> loss_correlation(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.2, 0.3, 0.4])).item()
        1.0
    """
    u, v = (_ranks(values) for values in _both(uncertainty, loss))
    u, v = u - u.mean(-1, keepdim=True), v - v.mean(-1, keepdim=True)
    return (u * v).sum(-1) / (u.square().sum(-1) * v.square().sum(-1)).sqrt()


def loss_aurc(uncertainty: Tensor, loss: Tensor) -> Tensor:
    """Mean loss of the most certain cases, averaged over how many are kept.

    (1/n) Σ_k mean loss of the k most certain cases. In the range of the loss; a useless uncertainty has about its mean.
    Lower is better. Equal uncertainties share their mean loss.

    Not `aurc`, whose loss is 0 or 1. Reference: Geifman and El-Yaniv (2017), for a loss of any kind.

    Args:
        uncertainty: `[..., n]`, one value per case.
        loss: Of the same shape.

    Returns:
        `[...]`, float64.

    Raises:
        BadInput: Where shapes differ, or a value is not finite.

    Examples:
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
        raise BadInput(f"loss must hold finite numbers {tuple(u.shape)}", "loss", tuple(loss.shape), remedy)
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
