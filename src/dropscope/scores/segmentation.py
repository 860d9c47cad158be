"""Scores of dense predictions, per image: overlap with the label, and detection of wrong voxels (S3).

An image is the last `spatial` dimensions; by default all but the first. Averages over images are for the caller, who
must say how many had no value (NaN).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.scores.detection import detection_of
from dropscope.scores.ranking import checked_correct, rank


def dice(
    prediction: Tensor, label: Tensor, classes: int, ignore_label: int | None = None, spatial: int | None = None
) -> Tensor:
    """2|P_c ∩ L_c| / (|P_c| + |L_c|) per image and class. `[..., *image]` class indices → `[..., classes]`, float64.

    In [0, 1]. Higher is better. NaN where a class is in neither. Voxels labelled `ignore_label` are left out. NOT the
    Dice loss, which is over probabilities; NOT pooled over images. Reference: Dice (1945); S3.

    >>> dice(torch.tensor([[0, 1, 1, 0]]), torch.tensor([[0, 1, 0, 0]]), classes=3).tolist()
    [[0.8, 0.6666666666666666, nan]]
    """
    if prediction.shape != label.shape or prediction.is_floating_point() or label.is_floating_point():
        received = (tuple(prediction.shape), prediction.dtype, tuple(label.shape), label.dtype)
        remedy = "take argmax over classes first"
        raise BadInput("prediction and label are class indices of one shape", "(prediction, label)", received, remedy)
    found, truth = _images(prediction, spatial, "prediction"), _images(label.to(prediction.device), spatial, "label")
    valid = torch.ones_like(truth, dtype=torch.bool) if ignore_label is None else truth != ignore_label
    inside = (found >= 0) & (found < classes) & (truth >= 0) & (truth < classes)
    if not bool((inside | ~valid).all()):
        remedy = "raise classes=, or name the ignore_label"
        extremes = [[int(x) for x in torch.aminmax(indices)] for indices in (label, prediction)]
        raise BadInput(
            f"class indices lie in 0 … {classes - 1}", "label, prediction (smallest, largest)", extremes, remedy
        )
    columns = []
    for c in range(classes):
        p, t = (found == c) & valid, (truth == c) & valid
        columns.append(2 * (p & t).sum(-1).double() / (p.sum(-1) + t.sum(-1)))
    return torch.stack(columns, -1)


def voxel_auprc(
    uncertainty: Tensor, wrong: Tensor, valid_mask: Tensor | None = None, spatial: int | None = None
) -> Tensor:
    """Average precision of finding the misclassified voxels, per image. `[..., *image]` → `[...]`, float64.

    Σ_i Pr(u_i)(Rc(u_i) − Rc(u_{i+1})) over distinct thresholds u ≥ u_i. In [0, 1]. Higher is better; useless is about
    the share of errors. NaN for an image without errors. `valid_mask` False: the voxel is left out (and may be NaN).
    NOT comparable between models of different error share. Reference: S3 eq 7.

    >>> voxel_auprc(torch.tensor([[0.1, 0.9, 0.8, 0.2]]), torch.tensor([[0, 1, 0, 0]])).tolist()
    [1.0]
    """
    if wrong.shape != uncertainty.shape or (valid_mask is not None and valid_mask.shape != uncertainty.shape):
        received = (tuple(wrong.shape), None if valid_mask is None else tuple(valid_mask.shape))
        remedy = "give one value per voxel"
        raise BadInput(f"masks have the shape {tuple(uncertainty.shape)}", "(wrong, valid_mask)", received, remedy)
    u = _images(uncertainty, spatial, "uncertainty")
    mistaken = checked_correct(wrong.to(u.device), wrong.shape, "wrong").reshape(u.shape)
    if valid_mask is not None:
        valid = valid_mask.to(u.device).bool().reshape(u.shape)
        if bool(((u == -torch.inf) & valid).any()):
            raise BadInput("an uncertainty is above −∞", "uncertainty", "-inf", "mend the measure")
        # Below everything and never wrong: such voxels change neither precision nor recall of the others.
        u, mistaken = torch.where(valid, u, -torch.inf), mistaken & valid
    return detection_of(rank(u, ~mistaken))["error_auprc"]


def _images(values: Tensor, spatial: int | None, name: str) -> Tensor:
    dims = values.dim() - 1 if spatial is None else spatial
    if dims < 1 or dims > values.dim() or 0 in values.shape:
        remedy = "give [images, ...], or say how many last dimensions are one image with spatial="
        raise BadInput("an image has one dimension or more, and voxels", name, (tuple(values.shape), spatial), remedy)
    return values.flatten(-dims)
