"""Volumes in a report: a few slices of scan, label, prediction and uncertainty, a byte a voxel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from dropscope.report.page.content import Layer, Section, Volume
from dropscope.report.page.packing import pack

_SIDE, _DEEP, _SHOWN = 112, 24, 3  # at most: pixels of a side, slices, volumes
_NOT_OVERLAID = ("image", "label", "prediction", "valid")


def volume_sections(file: Path) -> list[Section]:
    """The volumes that a segmentation study keeps as exhibits; nothing where there are none."""
    if not file.exists():
        return []
    tensors = load_file(file)
    cases = sorted({name.partition("/")[0] for name in tensors})
    shown = []
    for case in cases[:_SHOWN]:
        layers = {name.partition("/")[2]: value for name, value in tensors.items() if name.partition("/")[0] == case}
        shown.append(volume_of(f"volume {case}", {**layers, "image": layers["image"][0]}))
    lead = "Wrong voxels are red beside the label, and outlined on the uncertainty."
    return [Section("Look through the volumes", shown, lead)]


def volume_of(case: str, layers: dict[str, NDArray[Any]]) -> Volume:
    """A volume of `image`, `prediction`, maps and maybe `label`, of one shape, opened at its most doubtful slice."""
    label, prediction = (
        _fewer(layers.get(name, layers["prediction"]).astype(np.uint8)) for name in ("label", "prediction")
    )
    overlays = sorted(name for name in layers if name not in _NOT_OVERLAID)
    shown = {"image": _bytes(_fewer(layers["image"].astype(float)), 0.5), "label": label, "prediction": prediction}
    shown |= {name: _bytes(_fewer(layers[name].astype(float)), 0.0) for name in overlays}
    wrong = (label != prediction).sum((0, 1), dtype=float)
    if not wrong.any() and overlays:
        wrong = shown[overlays[0]].sum((0, 1), dtype=float)
    packed = [
        Layer(name, pack(np.ascontiguousarray(values.transpose(2, 1, 0)).tobytes())) for name, values in shown.items()
    ]
    return Volume(case, list(label.shape), int(wrong.argmax()), packed, overlays, "label" in layers)


def _fewer(values: NDArray[Any]) -> NDArray[Any]:
    steps = [max(1, -(-size // most)) for size, most in zip(values.shape, (_SIDE, _SIDE, _DEEP), strict=True)]
    return values[tuple(slice(None, None, step) for step in steps)]


def _bytes(values: NDArray[np.floating], tail: float) -> NDArray[np.uint8]:
    low, high = np.percentile(values, [tail, 99.8])
    return (255 * np.clip((values - low) / ((high - low) or 1.0), 0, 1)).astype(np.uint8)
