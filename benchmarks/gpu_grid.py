"""The whole CIFAR-10 grid on one GPU: 9,999 placements × 100 passes × 10,000 images, five measures, all scores.

    python benchmarks/gpu_grid.py --data DIR --weights FILE [--images N] [--passes T] [--check] [--profile] [--growth]

DIR holds cifar-10-batches-bin/test_batch.bin. `--check` compares all scores of some placements with the plain loop in
true fp32; `--growth` times halves of passes, sites, images, placements. Kernels compile in small runs, timed apart.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dropscope as ds

SITES = ["conv1", "conv2", "conv3", "fc1"]


class CifarNet(nn.Module):
    """The network of the study `where-to-drop`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(1024, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.max_pool2d(F.relu(self.conv3(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def test_images(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    rows = np.fromfile(folder / "cifar-10-batches-bin" / "test_batch.bin", np.uint8).reshape(-1, 3073)[:count]
    images = torch.tensor(rows[:, 1:].reshape(-1, 3, 32, 32), dtype=torch.float32)
    return (images / 255 - 0.5) / 0.5, torch.tensor(rows[:, 0], dtype=torch.long)


def timed(
    net: nn.Module, data: tuple[Tensor, Tensor], grid: list, passes: int, **options: object
) -> tuple[ds.Run, float, float]:
    torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    run = ds.sweep(net, grid, data, passes=passes, device="cuda", keep="none", progress=False, **options)  # type: ignore[arg-type]
    return run, time.monotonic() - started, torch.cuda.max_memory_allocated() / 2**30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--growth", action="store_true")
    options = parser.parse_args()
    net = CifarNet()
    net.load_state_dict(torch.load(options.weights, weights_only=True))
    data = test_images(options.data, options.images)
    grid = list(ds.PlacementGrid(SITES))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(grid)} placements")
    _, first, _ = timed(net, tuple(part[:512] for part in data), grid[::50], 4)
    _, second, _ = timed(net, tuple(part[:1100] for part in data), grid, options.passes)
    print(f"first small runs, kernels compiled: {first:.1f} s, {second:.1f} s")
    if options.profile:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
            timed(net, tuple(part[:512] for part in data), grid, options.passes)
        print(trace.key_averages().table(sort_by="self_cuda_time_total", row_limit=22, max_name_column_width=60))
    run, whole, memory = timed(net, data, grid, options.passes)
    predictions = len(grid) * options.passes * len(data[0])
    seconds = run.seconds["passes, scores and rows"]
    stages = f"passes {run.seconds['passes']:.2f} s, scores {run.seconds['scores']:.2f} s"
    print(f"grid: {seconds:.2f} s ({stages}), {whole:.1f} s with set-up and baselines")
    print(f"{predictions / seconds:.3g} predictions/s, peak {memory:.1f} GiB")
    best = run.best("aurc", 1).iloc[0]
    plain = f"plain entropy {run.baseline.aurc.iloc[1]:.5f}, accuracy {run.baseline.accuracy.iloc[0]:.4f}"
    print(f"best by AURC: {best.placement} {best.measure} {best.aurc:.5f}; {plain}")
    if options.growth:
        for name, parts in {
            "half the passes": (data, grid, options.passes // 2),
            "half the images": (tuple(part[: len(part) // 2] for part in data), grid, options.passes),
            "half the placements": (data, grid[::2], options.passes),
            "three sites": (data, list(ds.PlacementGrid(SITES[1:])), options.passes),
        }.items():
            part, _, peak = timed(net, *parts)
            print(f"{name}: {part.seconds['passes, scores and rows']:.2f} s, peak {peak:.1f} GiB")
    if options.check:
        few = [grid[i] for i in (4, 2345, 6789, 9998)]
        slow, seconds, _ = timed(net, data, few, options.passes, engine="loop", batch_size=5000)
        minutes = seconds / len(few) * len(grid) / 60
        print(f"plain loop, {len(few)} placements: {seconds:.1f} s, so {minutes:.0f} min for the grid")
        fast = run.rows.set_index(["placement", "measure"]).loc[
            list(map(tuple, slow.rows[["placement", "measure"]].to_numpy()))
        ]
        for name in slow.rows.select_dtypes("number").columns:
            if name in fast and name != "cost":
                worst = float(np.nanmax(np.abs(fast[name].to_numpy() - slow.rows[name].to_numpy())))
                print(f"  {name:<26} largest difference {worst:.2e}")


if __name__ == "__main__":
    main()
