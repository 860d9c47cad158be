"""Do checks without labels see a shift, and stay quiet without one? A real network on CIFAR-10, corrupted and not.

    python benchmarks/drift.py --data DIR --weights FILE [--placement TEXT] [--passes T] [--draws N] [--only SHIFT]

DIR holds cifar-10-batches-bin/test_batch.bin, FILE weights of the network of the study `where-to-drop`. Each corruption
is the weakest of a ladder that costs five points of accuracy. A draw takes some test images for the calibration and
others, corrupted or not, as recent ones; the answers of all images are computed once.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from dropscope.deploy import defer
from dropscope.deploy.calibration import Calibration
from dropscope.deploy.drift import DriftCheck, Seen, check_drift, frequent_classes
from dropscope.deploy.recipes import Answers, Recipe, answer
from gpu_grid import CifarNet, test_images

COST, ALPHA = 0.05, 0.05
FIELDS = ("labels", "predictions", "probabilities", "uncertainty", "disagreement")


def blurred(x: Tensor, sigma: float) -> Tensor:
    at = torch.arange(-4.0, 5.0)
    line = torch.exp(-(at**2) / (2 * sigma**2))
    kernel = torch.outer(line, line) / line.sum() ** 2
    return F.conv2d(F.pad(x, (4,) * 4, mode="reflect"), kernel.expand(3, 1, 9, 9).contiguous(), groups=3)


def noisy(x: Tensor, sigma: float) -> Tensor:
    return (x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))).clamp(-1, 1)


def compressed(x: Tensor, quality: float) -> Tensor:
    found = []
    for pixels in ((x / 2 + 0.5) * 255).round().byte().permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=int(quality))
        found.append(np.asarray(Image.open(buffer)))
    return (torch.tensor(np.stack(found)).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5


LADDERS: dict[str, tuple[Callable[[Tensor, float], Tensor], tuple[float, ...]]] = {
    "blur": (blurred, (0.5, 0.52, 0.54, 0.56, 0.58, 0.6)),
    "noise": (noisy, (0.08, 0.09, 0.095, 0.1, 0.105, 0.11)),
    "JPEG": (compressed, (40, 30, 25, 20, 15, 10)),
}


def weakest(net: torch.nn.Module, x: Tensor, y: Tensor, name: str) -> tuple[str, Tensor]:
    """The first rung that costs enough, in words and as images."""

    def accuracy(images: Tensor) -> float:
        with torch.no_grad():
            return float((torch.cat([net(part).argmax(1) for part in images.split(500)]) == y).float().mean())

    clean, (corrupt, rungs) = accuracy(x), LADDERS[name]
    for rung in rungs:
        images = corrupt(x, rung)
        if accuracy(images) <= clean - COST:
            return f"{name} {rung:g}", images
    raise ValueError(f"no rung of {name} costs {COST:g}")


def taken(found: Answers, which: np.ndarray) -> Answers:
    parts = {name: getattr(found, name)[which] for name in FIELDS}
    return Answers([found.ids[i] for i in which], groups=None, class_names=None, **parts)


def checks(clean: Answers, recent: Answers, draws: int, known: int, count: int) -> Iterator[tuple[DriftCheck, float]]:
    """The check of every draw, and the true accuracy of its recent images."""
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(clean.uncertainty))
        before = Calibration.of(taken(clean, order[:known]), np.arange(known))
        now = taken(recent, order[known : known + count])
        rule = defer(before.uncertainty, before.right, 0.1)
        looks = frequent_classes(before.predictions, before.probabilities)
        known, new = (
            Seen(one.uncertainty, one.probabilities[:, looks], one.disagreement, rule(one.uncertainty))
            for one in (before, now)
        )
        check = check_drift(known, new, ALPHA, curve=before.curve, accuracy=float(before.right.mean()))
        yield check, float((now.predictions == now.labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--placement")
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--only", choices=("none", *LADDERS))
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--known", type=int, default=2000)
    parser.add_argument("--recent", type=int, default=500)
    asked = parser.parse_args()
    x, y = test_images(asked.data, 10_000)
    net = CifarNet().eval()
    net.load_state_dict(load_file(asked.weights))
    recipe = Recipe.of(asked.placement, None, asked.passes, "plain")
    print(f"{recipe}; {asked.known} known, {asked.recent} recent, {asked.draws} draws, alpha {ALPHA}")
    clean = answer(net, recipe, (x, y), progress=False)
    shifts = {"none": clean}
    for name in LADDERS:
        if asked.only not in (None, name):
            continue
        words, images = weakest(net, x, y, name)
        shifts[words] = answer(net, recipe, (images, y), progress=False)
    looks = ("uncertainty", "deferral rate", "class probabilities")
    head = " ".join(f"{look:>20}" for look in looks)
    print(f"{'shift':<12} {'accuracy':>8} {'alarms':>7} {head} {'estimate':>9} {'off by':>7}")
    for name, recent in shifts.items():
        if asked.only not in (None, "none") and name == "none":
            continue
        found = list(checks(clean, recent, asked.draws, asked.known, asked.recent))
        alarms = np.mean([check.drifted for check, _ in found])
        each = " ".join(f"{np.mean([check.p_values[look] <= ALPHA for check, _ in found]):>20.1%}" for look in looks)
        true = float((recent.predictions == recent.labels).mean())
        estimate = np.mean([check.accuracy for check, _ in found])
        off = np.mean([abs(check.accuracy - right) for check, right in found])
        print(f"{name:<12} {true:>8.4f} {alarms:>7.1%} {each} {estimate:>9.4f} {off:>7.4f}", flush=True)


if __name__ == "__main__":
    main()
