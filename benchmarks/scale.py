"""How the cost of a sweep grows with sites, rates, passes, examples and the model: measured, and the plan's own count.

    python benchmarks/scale.py [--figure docs/figures/scale.png]

One number is changed at a time, the others stay as in the middle. Time is processor time of a whole `sweep` on one
thread, the second of two: the first has loaded what there is to load. Work is what `--dry-run` counts, multiply-adds
and bytes written. The fitted model is the dry run's: what is done once, plus a price per unit of work, plus one per
placement and example for measures and scores.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import dropscope as ds
from timing import machine, table

SITES = ("fc1", "conv3", "conv2", "conv1")  # the latest first
AXES = {"sites": (1, 2, 3, 4), "rates": (1, 3, 6, 9), "passes": (5, 10, 20, 40), "examples": (32, 64, 128, 256),
        "width": (4, 8, 16, 32)}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A sweep: every subset of the last `sites` sites at `rates` rates."""

    sites: int = 3
    rates: int = 3
    passes: int = 10
    examples: int = 64
    width: int = 8


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.conv3, self.fc1 = nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.Linear(32 * width, 8 * width)
        self.fc2 = nn.Linear(8 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution in (self.conv1, self.conv2, self.conv3):
            x = nn.functional.max_pool2d(torch.relu(convolution(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


@dataclass(frozen=True)
class Measured:
    """What a point took, and what the plan says of it."""

    seconds: float
    work: int
    naive: int
    placements: int
    expected: float


def measure(point: Point) -> Measured:
    torch.manual_seed(0)
    net = Net(point.width).eval()
    inputs = torch.randn(point.examples, 3, 32, 32)
    data = inputs, torch.arange(point.examples) % 10
    grid = ds.PlacementGrid(SITES[: point.sites], [0.1 * (i + 1) for i in range(point.rates)])
    options = {"passes": point.passes, "engine": "shared", "keep": "none", "progress": False}
    plan = ds.plan_sweep(net, grid, data, **options)
    ds.sweep(net, grid, data, **options)
    began = time.process_time()
    ds.sweep(net, grid, data, **options)
    taken = time.process_time() - began
    return Measured(
        taken, plan.multiply_adds + plan.bytes_moved, plan.naive + plan.naive_bytes, len(grid), plan.seconds
    )


def fit(found: dict[Point, Measured]) -> np.ndarray:
    """Seconds once, per unit of work, and per placement and example; relative errors are squared."""
    rows = np.array([[1, m.work, m.placements * point.examples] for point, m in found.items()], float)
    seconds = np.array([m.seconds for m in found.values()])
    from scipy.optimize import nnls

    scaled = rows / seconds[:, None]
    size = scaled.max(0)
    return nnls(scaled / size, np.ones(len(seconds)))[0] / size


def draw(found: dict[Point, Measured], prices: np.ndarray, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(AXES), figsize=(13, 3), sharey=True, layout="constrained")
    for axis, (name, values) in zip(axes, AXES.items(), strict=True):
        points = [replace(Point(), **{name: value}) for value in values]
        axis.loglog(values, [found[point].seconds for point in points], "o", color="#0072B2", label="measured")
        model = [prices @ (1, found[p].work, found[p].placements * p.examples) for p in points]
        axis.loglog(values, model, "-", color="#D55E00", label="fitted to all points")
        naive = [found[p].naive * prices[1] for p in points]
        axis.loglog(values, naive, ":", color="#666666", label="work without sharing")
        axis.set_xticks(values, [str(value) for value in values])
        axis.minorticks_off()
        axis.set_xlabel(name)
        axis.grid(visible=True, alpha=0.3)
    axes[0].set_ylabel("processor seconds")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(time.process_time))
    found: dict[Point, Measured] = {}
    for name, values in AXES.items():
        for value in values:
            point = replace(Point(), **{name: value})
            if point not in found:
                found[point] = measure(point)
                print(point, found[point], flush=True)
    prices = fit(found)
    lines = []
    for name, values in AXES.items():
        first = found[replace(Point(), **{name: values[0]})]
        for value in values:
            point = replace(Point(), **{name: value})
            m = found[point]
            model = prices @ (1, m.work, m.placements * point.examples)
            lines.append([name, str(value), str(m.placements), f"{m.seconds:.2f}", f"{m.seconds / first.seconds:.1f}×",
                          f"{m.work / first.work:.1f}×", f"{model:.2f}", f"{model / m.seconds:.2f}"])  # fmt: skip
    head = ["changed", "to", "placements", "measured, s", "grows by", "work grows by", "fitted, s", "ratio"]
    print(table(head, lines))
    print(f"once {prices[0]:.3f} s, {prices[1]:.3g} s per unit of work, {prices[2]:.3g} s per placement and example")
    if given.figure:
        draw(found, prices, given.figure)


if __name__ == "__main__":
    main()
