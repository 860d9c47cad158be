"""Drawn mammograms with a known breast: half an ellipse with a faint edge, a muscle, a marker, a frame, film noise.

Written as PNG files in the layouts that users have. An abnormal one has a bright round mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True, eq=False)
class Drawn:
    image: NDArray[np.uint8]
    breast: NDArray[np.bool_]
    marker: NDArray[np.bool_]


def draw(seed: int, abnormal: bool = False, scale: int = 1, marker: int = 255) -> Drawn:
    """One mammogram of 260 × 320 pixels times the scale, the breast at the left or at the right edge. `marker` is the
    grey value of its marker, which has a dark letter unless it is white."""
    height, width = 320 * scale, 260 * scale
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width].astype(float)
    centre, reach = height * rng.uniform(0.48, 0.56), width * rng.uniform(0.5, 0.62)
    half = height * rng.uniform(0.28, 0.34)
    wall = 34.0  # the chest wall lies inside the border that is cut off
    depth = 1 - ((rows - centre) / half) ** 2 - ((columns - wall) / reach) ** 2
    breast = (depth > 0) & (columns >= wall)
    image = np.full((height, width), 12.0)
    image[breast] = 40 + 130 * np.sqrt(np.clip(depth[breast], 0, 1))  # fat and skin are faint, the middle is dense
    if abnormal:
        mass = (rows - centre) ** 2 + (columns - wall - 0.45 * reach) ** 2 < (0.07 * height) ** 2
        image[mass & breast] += 60
    image += rng.normal(0, 3, image.shape)
    label = np.zeros(image.shape, bool)
    top, left = 40, width - 36 - 36 * scale
    label[top : top + 24 * scale, left : left + 36 * scale] = True
    image[label] = marker
    image[top + 6 * scale : top + 18 * scale, left + 10 * scale : left + 14 * scale] = 20 if marker < 255 else marker
    image[:6] = image[-6:] = 255  # a scanner's frame
    flip = bool(rng.random() < 0.5)
    parts = [np.clip(image, 0, 255).astype(np.uint8), breast, label]
    return Drawn(*(np.ascontiguousarray(part[:, ::-1] if flip else part) for part in parts))


def write_tree(root: Path, patients: int = 12, masks: bool = True) -> Path:
    """The Mini-DDSM tree: patients in turn normal, benign, cancer, normal; two images each."""
    number = 0
    for patient in range(1, patients + 1):
        finding = ("Normal", "Benign", "Cancer", "Normal")[patient % 4]
        folder = root / finding / f"{patient:04d}"
        folder.mkdir(parents=True)
        for view in ("LEFT_CC", "RIGHT_MLO"):
            number += 1
            name = f"{'ABCD'[patient % 4]}_{patient:04d}_1.{view}"
            Image.fromarray(draw(number, finding != "Normal").image).save(folder / f"{name}.png")
            if masks and finding != "Normal":
                Image.new("L", (20, 20)).save(folder / f"{name}_Mask.png")
    return root


def write_table(root: Path, patients: int = 12) -> Path:
    """A plain folder with labels.csv: two images per patient, the first abnormal in every other patient."""
    root.mkdir(parents=True, exist_ok=True)
    lines = ["file,patient,abnormal"]
    for number in range(2 * patients):
        patient, abnormal = number // 2, number % 4 == 0
        Image.fromarray(draw(1000 + number, abnormal).image).save(root / f"m{number:03d}.png")
        lines.append(f"m{number:03d}.png,p{patient},{int(abnormal)}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root
