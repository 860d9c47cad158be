"""Small volumes for tests of the segmentation study: prepared ones in memory, and Decathlon folders on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dropscope.studies.segmentation_measures.phantom import make_phantom
from dropscope.studies.segmentation_measures.preparation import Prepared, prepare_volumes


def prepared_phantom(sizes: tuple[int, int, int] = (3, 1, 3)) -> Prepared:
    return prepare_volumes(make_phantom(sizes, 0, (24, 24, 4), (1.2, 1.2, 6.0)), (24, 24, 4), show=False)


def save(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> Path:
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine), path)
    return path


def decathlon_folder(root: Path, cases: int = 3, shape: tuple[int, ...] = (10, 12, 6), channels: int = 1) -> Path:
    """A folder of random images whose labels are boxes of classes 1 and 2."""
    draw = np.random.default_rng(0)
    for number in range(cases):
        image = draw.normal(100, 20, (*shape, channels) if channels > 1 else shape).astype(np.float32)
        label = np.zeros(shape, np.uint8)
        label[2:6, 3:8], label[6:8, 3:8] = 1, 2
        save(root / "imagesTr" / f"case_{number}.nii.gz", image)
        save(root / "labelsTr" / f"case_{number}.nii.gz", label)
    return root


def about(n: int, **changes: Any) -> dict[str, Any]:
    """The words that go with `n` prepared cases."""
    names = [f"case {i}" for i in range(n)]
    words = {"source": "test", "names": names, "patients": names, "centres": ["all"] * n, "roles": [None] * n}
    words |= {"channels": ["one"], "classes": ["background", "organ"], "spacing": [1.0], "lost": {}, "remarks": []}
    return words | changes


def plain_prepared(
    images: torch.Tensor, labels: torch.Tensor, valid: torch.Tensor | None = None, **words: Any
) -> Prepared:
    counted = torch.ones_like(labels, dtype=torch.bool) if valid is None else valid
    return Prepared(images.float(), labels.to(torch.uint8), counted, about(len(images), **words))
