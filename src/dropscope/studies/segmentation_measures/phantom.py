"""A generated carotid artery: lumen and wall through the bifurcation, as five MR sequences at three centres show it.

Owns anatomy, contrast and scanner of the phantom. The course, the plaque and the scanner of a case are functions of
(seed, number) alone. It stands in for the paper's private images: like them in form, not in distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.cases import Case, Volumes

SHAPE, SPACING = (128, 128, 16), (0.30, 0.30, 2.0)
SEQUENCES = ("T1w pre", "T1w post", "TOF", "IR-TFE", "T2w")
CLASSES = ("background", "wall", "lumen")
_TEST_SHARES = {"A": 15 / 52, "B": 24 / 52, "C": 13 / 52}  # centre A trains and validates
# Signal of each tissue in each sequence: black blood except in TOF; haemorrhage bright on T1 and on IR-TFE, which
# nulls fat; calcium dark everywhere; lipid dark after contrast while the fibrous wall enhances.
_SIGNAL = {
    "fat": (0.85, 0.90, 0.30, 0.18, 0.75),
    "muscle": (0.48, 0.55, 0.38, 0.42, 0.24),
    "gland": (0.60, 0.80, 0.45, 0.45, 0.60),
    "vein": (0.12, 0.30, 0.30, 0.20, 0.15),
    "air": (0.03, 0.03, 0.03, 0.03, 0.03),
    "wall": (0.52, 0.78, 0.36, 0.40, 0.62),
    "lipid": (0.58, 0.45, 0.38, 0.45, 0.38),
    "calcium": (0.08, 0.08, 0.10, 0.08, 0.06),
    "haemorrhage": (0.92, 0.92, 0.72, 1.00, 0.45),
    "lumen": (0.07, 0.10, 1.00, 0.14, 0.06),
}


@dataclass(frozen=True)
class Centre:
    """What a scanner does to the signal: noise, blur (pixels), unevenness, contrast, and how much blood it keeps."""

    noise: float
    blur: float
    bias: float
    gamma: float
    slow_flow: float  # signal left in black blood where flow is slow
    saturation: float  # TOF signal lost towards the top


CENTRES = {
    "A": Centre(0.045, 0.55, 0.20, 1.00, 0.10, 0.15),
    "B": Centre(0.060, 0.75, 0.35, 1.15, 0.25, 0.35),
    "C": Centre(0.080, 0.95, 0.30, 0.85, 0.20, 0.25),
}


def make_phantom(
    sizes: tuple[int, int, int] = published.PATIENTS,
    seed: int = 0,
    shape: tuple[int, int, int] = SHAPE,
    spacing: tuple[float, float, float] = SPACING,
) -> Volumes:
    """Cases for training and validation from centre A and for test from all three. The same for the same arguments."""
    if min(sizes) < 1:
        remedy = "write sizes=(69, 24, 52)"
        raise BadInput("sizes must be at least 1 for training, validation and test", "sizes", sizes, remedy)
    if min(shape) < 2:
        raise BadInput("shape must have sides of at least 2", "shape", shape, "write shape=(128, 128, 16)")
    centres = ["A"] * (sizes[0] + sizes[1]) + _test_centres(sizes[2])
    roles = ["train"] * sizes[0] + ["validation"] * sizes[1] + ["test"] * sizes[2]
    cases = [
        Case(
            f"phantom_{number:03d}",
            shape,
            lambda n=number, c=centre: _make_case(n, CENTRES[c], seed, shape, spacing),  # type: ignore[misc]
            f"patient {number:03d}",
            f"centre {centre}",
            role,
        )
        for number, (centre, role) in enumerate(zip(centres, roles, strict=True))
    ]
    remark = "the volumes are generated: they show that the study runs, not how measures rank on patients"
    return Volumes(f"phantom (seed {seed})", tuple(cases), SEQUENCES, CLASSES, spacing, (remark,))


def _test_centres(count: int) -> list[str]:
    """Centres of the test cases in the paper's proportions, each at least once where there are three or more."""
    numbers = {name: int(share * count) for name, share in _TEST_SHARES.items()}
    for name in sorted(numbers, key=lambda n: numbers[n] - _TEST_SHARES[n] * count)[: count - sum(numbers.values())]:
        numbers[name] += 1
    if count >= 3:
        for name in [n for n in numbers if numbers[n] == 0]:
            numbers[max(numbers, key=lambda n: numbers[n])] -= 1
            numbers[name] = 1
    return [name for name, number in numbers.items() for _ in range(number)]


def _make_case(
    number: int, centre: Centre, seed: int, shape: tuple[int, int, int], spacing: tuple[float, float, float]
) -> tuple[Tensor, Tensor]:
    """(image [5, *shape], label [*shape]) of one patient."""
    draw = np.random.default_rng([seed, number])
    x, y, z = (
        (np.arange(n) - (n - 1) / 2) * step for n, step in zip(shape, spacing, strict=True)
    )  # mm from the middle
    x, y, z = x[:, None, None], y[None, :, None], z[None, None, :]
    lumen, outer, towards_plaque = _vessel(draw, x, y, z)
    tissues = _surroundings(draw, x, y, z)
    tissues |= _plaque(draw, lumen, outer, towards_plaque, spacing)
    edge = 0.5 * spacing[0]  # boundaries are as sharp as the voxels allow
    tissues["wall"] = _inside(outer, edge)
    image = np.stack([_painted(tissues, lumen, s, edge) for s in range(len(SEQUENCES))])
    for s in range(len(SEQUENCES)):
        image[s] = _scanned(draw, image[s], _inside(lumen, edge), s, centre, z)
    label = np.where(lumen < 0, 2, np.where(outer < 0, 1, 0))
    return torch.from_numpy(image.astype(np.float32)), torch.from_numpy(label.astype(np.int64))


# --- anatomy (distances in mm, negative inside) -----------------------------------------------------------------------


def _vessel(
    draw: np.random.Generator, x: np.ndarray, y: np.ndarray, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distances to lumen and outer wall of the common artery that parts into internal and external, and how near a
    point's direction is to the plaque's middle (0 … 1)."""
    fork = draw.uniform(-7, 2)  # where the artery parts
    side = draw.uniform(0, 2 * np.pi)  # in which direction
    above = 1 / (1 + np.exp(-(z - fork) / 2.2))
    apart = 0.33 * np.maximum(z - fork, 0) * draw.uniform(0.75, 1.15) + 2.4 * above
    drift = draw.normal(0, 0.9, 2)[:, None, None, None] + draw.normal(0, 0.05, 2)[:, None, None, None] * z
    common, internal, external = draw.uniform(2.9, 3.4), draw.uniform(2.1, 2.6), draw.uniform(1.5, 1.9)
    bulb = draw.uniform(0.5, 1.0) * np.exp(-(((z - fork - 3) / 4.0) ** 2))  # the sinus of the internal artery
    thickness = draw.uniform(0.75, 1.0)
    strength, middle, reach = draw.uniform(0.3, 2.6), fork + draw.normal(1.5, 3.0), draw.uniform(3.0, 6.0)
    angle, focus = draw.uniform(0, 2 * np.pi), draw.uniform(1.2, 3.0)
    distances = []
    for branch, radius in ((1, internal), (-1, external)):
        cx = drift[0] + branch * apart * np.cos(side) * (0.55 if branch > 0 else 0.75)
        cy = drift[1] + branch * apart * np.sin(side) * (0.55 if branch > 0 else 0.75)
        theta = np.arctan2(y - cy, x - cx)
        round_ = common + (radius + (bulb if branch > 0 else 0.0) - common) * above
        uneven = 1 + _wobble(draw, theta, 0.045)
        near = np.exp(focus * (np.cos(theta - angle) - 1)) * (1.0 if branch > 0 else 0.35)
        plaque = strength * near * np.exp(-(((z - middle) / reach) ** 2) / 2)
        taken = np.minimum(0.45 * plaque, 0.55 * round_)  # what the plaque takes from the lumen; the rest bulges out
        from_centre = np.hypot(x - cx, y - cy)
        lumen = from_centre - (round_ - taken) * uneven
        distances.append((lumen, lumen - thickness - plaque, near))
    (lumen_i, outer_i, near_i), (lumen_e, outer_e, near_e) = distances
    towards = np.where(outer_i < outer_e, near_i, near_e * 0.5)
    return _joined(lumen_i, lumen_e, 0.5), _joined(outer_i, outer_e, 0.8), towards


def _wobble(draw: np.random.Generator, theta: np.ndarray, size: float) -> np.ndarray:
    parts = [draw.normal(0, size / k) * np.cos(k * theta + draw.uniform(0, 2 * np.pi)) for k in (2, 3, 4)]
    return np.sum(parts, axis=0)


def _joined(a: np.ndarray, b: np.ndarray, softness: float) -> np.ndarray:
    """The union of two shapes with a rounded seam."""
    h = np.clip(0.5 + 0.5 * (b - a) / softness, 0, 1)
    return b + (a - b) * h - softness * h * (1 - h)


def _plaque(
    draw: np.random.Generator, lumen: np.ndarray, outer: np.ndarray, near: np.ndarray, spacing: tuple[float, ...]
) -> dict[str, np.ndarray]:
    """Shares of what lies inside a thick wall: a lipid core, calcium, in some patients haemorrhage."""
    thickness = lumen - outer
    core = _inside(np.maximum(np.maximum(0.6 - lumen, outer + 0.5), 1.6 - thickness), 0.5 * spacing[0])
    core = core * (near > 0.35)
    spots = _smooth_field(draw, lumen.shape, (2.0, 2.0, 0.7)) > 1.5
    wall = _inside(np.maximum(-lumen, outer), 0.5 * spacing[0])
    bled = draw.random() < 0.4
    return {
        "lipid": core * (0.0 if bled else 1.0),
        "haemorrhage": core * (0.9 if bled else 0.0),
        "calcium": wall * (thickness > 1.4) * ndimage.gaussian_filter(spots.astype(float), (0.7, 0.7, 0)),
    }


def _surroundings(draw: np.random.Generator, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> dict[str, np.ndarray]:
    """Shares of the neck around the artery, in fat: muscles, a gland, the jugular vein, the airway."""

    def ellipse(cx: float, cy: float, rx: float, ry: float, turn: float, lean: float = 0.0) -> np.ndarray:
        dx, dy = x - cx - lean * z, y - cy + 0.5 * lean * z
        u, v = dx * np.cos(turn) + dy * np.sin(turn), -dx * np.sin(turn) + dy * np.cos(turn)
        theta = np.arctan2(v, u)
        radius = np.hypot(u / rx, v / ry) / (1 + _wobble(draw, theta, 0.08))
        return _inside((radius - 1) * min(rx, ry), 0.25)

    jitter = draw.normal
    muscle = ellipse(-14 + jitter(0, 1), 6 + jitter(0, 1), 6.5, 13, 0.5 + jitter(0, 0.1), jitter(0, 0.04))
    deep = ellipse(8 + jitter(0, 1), 17 + jitter(0, 1), 11, 6.0, jitter(0, 0.15), jitter(0, 0.04))
    small = ellipse(jitter(-4, 2), jitter(-15, 1), 5.5, 3.0, jitter(0, 0.4), jitter(0, 0.04))
    gland = ellipse(11 + jitter(0, 1), -12 + jitter(0, 1), 4.5, 6.5, jitter(0, 0.3), jitter(0, 0.06))
    vein = ellipse(
        -8.2 + jitter(0, 0.7), -2 + jitter(0, 1.2), draw.uniform(1.6, 3.0), draw.uniform(2.6, 4.2), 0.3, 0.05
    )
    airway = ellipse(19 + jitter(0, 0.7), -3 + jitter(0, 1), 4.0, 6.0, 0.0)
    return {"muscle": np.maximum.reduce([muscle, deep, small]), "gland": gland, "vein": vein, "air": airway}


# --- signal -----------------------------------------------------------------------------------------------------------


def _inside(distance: np.ndarray, edge: float) -> np.ndarray:
    """The share of a voxel inside a boundary (partial volume): 1 within, 0 outside, over about two `edge`."""
    return 1 / (1 + np.exp(np.clip(distance / (0.5 * edge), -40, 40)))


def _painted(tissues: dict[str, np.ndarray], lumen: np.ndarray, sequence: int, edge: float) -> np.ndarray:
    signal = np.full(lumen.shape, _SIGNAL["fat"][sequence])
    for name in ("muscle", "gland", "vein", "air", "wall", "lipid", "haemorrhage", "calcium"):
        signal += tissues[name] * (_SIGNAL[name][sequence] - signal)
    return signal + _inside(lumen, edge) * (_SIGNAL["lumen"][sequence] - signal)


def _smooth_field(draw: np.random.Generator, shape: tuple[int, ...], scale: tuple[float, ...]) -> np.ndarray:
    """A random field of unit spread, smooth over `scale` voxels."""
    field = ndimage.gaussian_filter(draw.standard_normal(shape), scale, mode="reflect")
    return field / max(float(field.std()), 1e-12)


def _uneven(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A polynomial of second degree over the field of view, of unit spread: how strongly a coil hears each place."""
    axes = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij", sparse=True)
    terms = [*axes, *(a * b for i, a in enumerate(axes) for b in axes[i:])]
    field = np.broadcast_to(sum(draw.standard_normal() * term for term in terms), shape)
    return (field - field.mean()) / max(float(field.std()), 1e-12)


def _scanned(
    draw: np.random.Generator, signal: np.ndarray, blood: np.ndarray, sequence: int, centre: Centre, z: np.ndarray
) -> np.ndarray:
    """What the scanner makes of it: texture, flow, motion between sequences, blur, coils, Rician noise, scale."""
    shape = signal.shape
    signal = signal * (1 + 0.06 * (1 - blood) * _smooth_field(draw, shape, (2.5, 2.5, 0.6)))
    slow = np.clip(_smooth_field(draw, shape, (6.0, 6.0, 1.5)) - 0.6, 0, 1.5)
    if SEQUENCES[sequence] == "TOF":
        height = (z - z.min()) / max(float(np.ptp(z)), 1e-9)
        signal = signal * (1 - blood * (centre.saturation * height + 0.25 * slow))
    else:
        signal = signal + blood * centre.slow_flow * slow
    moved = draw.normal(0, 0.35, 2)  # pixels: the patient between two sequences
    signal = ndimage.shift(signal, (*moved, 0), order=1, mode="nearest")
    signal = ndimage.gaussian_filter(signal, (centre.blur, centre.blur, 0.25))
    signal = np.clip(signal, 0, None) ** (centre.gamma * draw.uniform(0.93, 1.07))
    coils = np.exp(centre.bias * _uneven(draw, shape) * draw.uniform(0.5, 1.0))
    sigma = centre.noise * draw.uniform(0.8, 1.2)
    noisy = np.hypot(signal * coils + sigma * draw.standard_normal(shape), sigma * draw.standard_normal(shape))
    return noisy * draw.uniform(300, 900)  # scanners have no common unit
