"""Voxels of images within tensors: the last `spatial` dimensions, by default all but the first, as one dimension.

Owns the checks that dense scores share: shape, masks of valid voxels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dropscope.errors import BadInput


def image_dims(values: Tensor, spatial: int | None, name: str) -> int:
    """How many last dimensions are one image."""
    dims = values.dim() - 1 if spatial is None else spatial
    if dims < 1 or dims > values.dim() or 0 in values.shape:
        remedy = "give [images, ...], or say how many last dimensions are one image with spatial="
        received = (tuple(values.shape), spatial)
        raise BadInput(f"{name} must have images of one dimension or more, with voxels", name, received, remedy)
    return dims


def images(values: Tensor, spatial: int | None, name: str) -> Tensor:
    """The values with each image as one dimension, `[..., voxels]`.

    >>> images(torch.zeros(2, 3, 4), None, "uncertainty").shape
    torch.Size([2, 12])
    """
    return values.flatten(-image_dims(values, spatial, name))


def like(values: Tensor, to: Tensor, name: str) -> Tensor:
    """The values on the device of `to`, if they have its shape."""
    if values.shape != to.shape:
        rule = f"{name} must have the shape {tuple(to.shape)}"
        raise BadInput(rule, name, tuple(values.shape), "give one value per voxel")
    return values.to(to.device)


def valid_voxels(valid_mask: Tensor | None, of: Tensor) -> Tensor:
    """The mask as bool, in the shape of `of`; all True without one."""
    if valid_mask is None:
        return torch.ones(of.shape, dtype=torch.bool, device=of.device)
    return like(valid_mask, of, "valid_mask").bool()
