"""Label maps beside the images, and names of classes: for Dice per structure, contours and columns."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dropscope.errors import BadInput, Phrase
from dropscope.volumes.nifti import ENDINGS, VolumeCase, check_aligned, read_header, read_voxels

_CASE = "{case}"
_BACKGROUND = ("background", "bg")  # as the first of too few names, a class was forgotten


def find_labels(labels: str | Path | None, cases: Sequence[VolumeCase]) -> dict[str, Path]:
    """Case → its label file, for the cases that have one.

    Args:
        labels: A folder of files named like the cases, a pattern with `{case}` or `*` for the case's name, or the file
            of a single case.
        cases: The cases.

    Raises:
        BadInput: Where no case has a label, or one does not lie on the voxels of its image.
    """
    if labels is None:
        return {}
    found = {case.name: path for case in cases if (path := _label_of(case, labels, alone=len(cases) == 1))}
    if not found:
        remedy = "name a folder of files CASE.nii.gz, or a pattern such as 'labels/{case}_seg.nii.gz'"
        received = Phrase(f"none for {cases[0].name!r} or any other in {str(labels)!r}")
        raise BadInput("labels must hold a file for at least one case", "labels", received, remedy)
    for case in cases:
        if case.name in found:
            check_aligned(read_header(found[case.name]), read_header(case.files[0]), dims=3)
    return found


def _label_of(case: VolumeCase, labels: str | Path, *, alone: bool) -> Path | None:
    path = Path(labels)
    if path.is_dir():
        return next((at for ending in ENDINGS if (at := path / (case.name + ending)).is_file()), None)
    if path.is_file() and alone:
        return path
    text = str(labels)
    if _CASE in text:
        at = Path(text.replace(_CASE, case.name))
        return at if at.is_file() else None
    if text.count("*") == 1:
        at = Path(text.replace("*", case.name))
        return at if at.is_file() else None
    remedy = "write a folder, or a pattern such as 'labels/{case}_seg.nii.gz'"
    received = Phrase(f"{text!r}, which is neither" + (" for several cases" if glob.glob(text) else ""))
    raise BadInput("labels must be a folder, or a pattern with {case}", "labels", received, remedy)


def read_label(path: Path, case: VolumeCase, classes: int) -> Tensor:
    """The label map of a case, int64 `[*shape]`."""
    values = read_voxels(path)
    whole = np.isfinite(values).all() and (values == np.round(values)).all()
    if not whole or values.min() < 0 or values.max() >= classes:
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        received = Phrase(f"{'whole numbers' if whole else 'values'} from {low:g} to {high:g} in {path}")
        what = f"labels must be classes 0 … {classes - 1}, as the network has them"
        raise BadInput(what, "labels", received, "map them to the numbers of the network's outputs")
    if values.size != int(np.prod(case.shape)):
        raise BadInput(f"{path} must hold one label map", "labels", values.shape, "save it as a 3-D volume")
    return torch.from_numpy(values.reshape(case.shape)).long()


def structure_text(name: str) -> str:
    """A structure in a sentence: its name, or its class where it has none."""
    return f"class {name}" if name.isdigit() else name


def structure_names(class_names: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    """Names of the classes but the background, from names of all of them or of these; numbers without names.

    >>> structure_names(["background", "anterior", "posterior"], 3), structure_names(None, 3)
    (('anterior', 'posterior'), ('1', '2'))
    """
    if class_names is None:
        return tuple(str(c) for c in range(1, classes))
    names = (class_names,) if isinstance(class_names, str) else tuple(class_names)
    short = len(names) == classes - 1 and names[0].lower() not in _BACKGROUND
    if not (short or len(names) == classes) or len(set(names)) < len(names) or not all(names):
        what = f"class_names must be {classes} distinct names, or {classes - 1} without the background"
        example = ",".join(["background", *(f"structure{c}" for c in range(1, classes))][:4])
        raise BadInput(what, "class_names", list(names), f"write class_names={example!r}")
    return names if short else names[1:]
