"""Scores of dense predictions, per image: overlap with the label, and detection of wrong voxels.

An image is the last `spatial` dimensions; by default all but the first. Averages over images are for the caller, who
must say how many had no value (NaN).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase
from dropscope.scores.detection import detection_of
from dropscope.scores.ranking import checked_correct, rank
from dropscope.scores.voxels import images, like


def dice(
    prediction: Tensor, label: Tensor, classes: int, *, ignore_label: int | None = None, spatial: int | None = None
) -> Tensor:
    """Overlap of prediction and label, per image and class.

    2|P_c ∩ L_c| / (|P_c| + |L_c|). In [0, 1]. Higher is better.

    Not the Dice loss, which is over probabilities; not pooled over images. Reference: Dice (1945).

    Args:
        prediction: Class indices `[..., *image]`.
        label: Class indices of the same shape.
        classes: How many classes there are.
        ignore_label: Voxels with this label are left out.
        spatial: How many last dimensions are one image; by default all but the first.

    Returns:
        `[..., classes]`, float64; NaN where a class is in neither.

    Raises:
        BadInput: Where the two differ in shape, are no class indices, or lie outside 0 … classes − 1.

    Examples:
        >>> dice(torch.tensor([[0, 1, 1, 0]]), torch.tensor([[0, 1, 0, 0]]), classes=3).tolist()
        [[0.8, 0.6666666666666666, nan]]
    """
    for name, indices in (("prediction", prediction), ("label", label)):
        if indices.is_floating_point():
            raise BadInput(f"{name} must hold class indices", name, indices.dtype, "take argmax over classes first")
    predicted = images(prediction, spatial, "prediction")
    truth = images(like(label, prediction, "label"), spatial, "label")
    valid = torch.ones_like(truth, dtype=torch.bool) if ignore_label is None else truth != ignore_label
    for name, indices in (("prediction", predicted), ("label", truth)):
        if not bool((((indices >= 0) & (indices < classes)) | ~valid).all()):
            extremes = Phrase("indices from {} to {}".format(*(int(x) for x in torch.aminmax(indices))))
            rule, remedy = f"{name} must lie in 0 … {classes - 1}", "raise classes=, or name the ignore_label"
            raise BadInput(rule, name, extremes, remedy)
    columns = []
    for c in range(classes):
        p, t = (predicted == c) & valid, (truth == c) & valid
        columns.append(2 * (p & t).sum(-1).double() / (p.sum(-1) + t.sum(-1)))
    return torch.stack(columns, -1)


def voxel_auprc(
    uncertainty: Tensor, wrong: Tensor, valid_mask: Tensor | None = None, *, spatial: int | None = None
) -> Tensor:
    """Average precision of finding the misclassified voxels, per image.

    Σ_i Pr(u_i)(Rc(u_i) − Rc(u_{i+1})) over distinct thresholds u ≥ u_i. In [0, 1]. Higher is better; a useless
    uncertainty has about the share of errors.

    Not comparable between models of different error share. Reference: Camarasa et al. (2020), eq 7.

    Args:
        uncertainty: `[..., *image]`.
        wrong: 0/1 of the same shape: whether the voxel is misclassified.
        valid_mask: False leaves a voxel out; its uncertainty may then be NaN.
        spatial: How many last dimensions are one image; by default all but the first.

    Returns:
        `[...]`, float64; NaN for an image without errors.

    Raises:
        BadInput: Where shapes differ, `wrong` is not 0/1, or the uncertainty is NaN or −∞.

    Examples:
        >>> voxel_auprc(torch.tensor([[0.1, 0.9, 0.8, 0.2]]), torch.tensor([[0, 1, 0, 0]])).tolist()
        [1.0]
    """
    u = images(uncertainty, spatial, "uncertainty")
    mistaken = checked_correct(like(wrong, uncertainty, "wrong"), wrong.shape, "wrong").reshape(u.shape)
    if valid_mask is not None:
        valid = like(valid_mask, uncertainty, "valid_mask").bool().reshape(u.shape)
        if bool(((u == -torch.inf) & valid).any()):
            raise BadInput("uncertainty must be above −∞", "uncertainty", Phrase("-inf"), "fix the measure")
        # Below everything and never wrong: such voxels change neither precision nor recall of the others.
        u, mistaken = torch.where(valid, u, -torch.inf), mistaken & valid
    return detection_of(rank(u, ~mistaken))["error_auprc"]
