"""Preprocessing by the user's own code: a function of the array, or transforms of MONAI, of arrays or of dicts.

MONAI itself is not imported: its transforms are known by what they have. What comes back must lie on the voxels of the
image, because the maps do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope.errors import BadInput, DropscopeError, Phrase, first_line
from dropscope.volumes.nifti import VolumeCase, read_case, read_header

Transforms = Callable[[Any], Any]
_IMAGE = "image"
_AFFINE_TOLERANCE = 1e-3


def read_transformed(case: VolumeCase, scale: str, transforms: Transforms | None) -> Tensor:
    """The voxels of a case as the network takes them, float32 `[channels, *shape]`.

    Args:
        case: The case.
        scale: See `nifti.read_case`; comes before the transforms.
        transforms: Gets float32 `[channels, *shape]`, as an array or, for MONAI's dict transforms, under their key. A
            pipeline that begins with LoadImage or LoadImaged gets the path instead.

    Raises:
        BadInput: Where the transforms fail, or return something that does not lie on the voxels of the image.
    """
    if transforms is None:
        return read_case(case, scale)
    image = None if _loads(transforms) else read_case(case, scale).numpy()
    given: Any = str(case.files[0]) if image is None else image
    key = _key(transforms)
    made = run_transforms(transforms, {key: given} if key else given, case.place)
    return _on_the_voxels(made[key] if key and isinstance(made, Mapping) and key in made else made, case)


def run_transforms(transforms: Transforms, given: Any, place: str) -> Any:
    """What the user's own preprocessing makes of a volume.

    Raises:
        BadInput: Where it fails; `place` says on which volume.
    """
    try:
        return transforms(given)
    except DropscopeError:
        raise
    except Exception as error:
        remedy = "run them on that volume yourself; they get the image alone, float32 [channels, *shape]"
        received = Phrase(f"{type(error).__name__}: {first_line(error)}")
        raise BadInput(f"transforms must run on {place}", "transforms", received, remedy) from error


def _on_the_voxels(made: Any, case: VolumeCase) -> Tensor:
    what = f"transforms must return an array [channels, {', '.join(map(str, case.shape))}] for {case.place}"
    remedy = "leave out what crops, pads, turns or resamples: maps lie on the voxels of the image"
    try:
        values = np.asarray(made, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise BadInput(what, "transforms", Phrase(type(made).__name__), "return one array, or one tensor") from error
    if values.shape == case.shape:
        values = values[None]
    if values.ndim != 4 or values.shape[1:] != case.shape:
        raise BadInput(what, "transforms", Phrase(f"shape {values.shape}"), remedy)
    affine = getattr(made, "affine", None)  # of MONAI's MetaTensor, where a loader or a transform set it
    if affine is not None and _loaded(made):
        own = read_header(case.files[0]).affine
        if not np.allclose(np.asarray(affine), own, atol=_AFFINE_TOLERANCE):
            received = Phrase("an image that was turned, flipped or resampled")
            raise BadInput(f"transforms must leave {case.place} in its place", "transforms", received, remedy)
    bad = int((~np.isfinite(values)).sum())
    if bad:
        received = Phrase(f"{bad} NaN or infinite voxels for {case.place}")
        raise BadInput("transforms must return finite numbers", "transforms", received, "fix them for that volume")
    return torch.from_numpy(np.ascontiguousarray(values))


def _loaded(made: Any) -> bool:
    """Whether a MetaTensor knows the file that it was read from, and so has an affine that means something."""
    return "filename_or_obj" in getattr(made, "meta", {})


def _first(transforms: Transforms) -> Any:
    """The first step of a Compose; the transform itself otherwise."""
    steps = getattr(transforms, "transforms", None)
    return steps[0] if isinstance(steps, list | tuple) and steps else transforms


def _loads(transforms: Transforms) -> bool:
    return type(_first(transforms)).__name__.startswith("LoadImage")


def _key(transforms: Transforms) -> str | None:
    """The key of the image, for MONAI's dict transforms; None for transforms of arrays."""
    first = _first(transforms)
    keys = getattr(first, "keys", None)
    if not hasattr(first, "key_iterator") or not isinstance(keys, tuple | list) or not keys:
        return None
    return _IMAGE if _IMAGE in keys else str(keys[0])
