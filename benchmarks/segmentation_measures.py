"""The four measures of the segmentation study for one volume: speed against NumPy, memory over passes, share on a GPU.

    python benchmarks/segmentation_measures.py [--rounds 3] [--threads N] [--skip-memory] [--device cuda]

A volume is 128 × 128 × 16 voxels, 3 classes, 50 passes. On a CPU: ours, passes coming one by one or in tens, against
vectorised NumPy and against one numpy.histogram per voxel and class (timed on a sample of voxels), in one run, with the
largest differences; then the peak memory of two processes with 50 and 500 passes. With `--device cuda`: taking passes
in and reading measures off, against the forwards of the study's U-Net. Needs torch and NumPy alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dropscope.engine.session import sealed
from dropscope.measures import SEGMENTATION, TABLE
from dropscope.measures.statistics.running import PassStatistics
from dropscope.studies.segmentation_measures.networks import UNet
from timing import machine, milliseconds, ratio, table

SHAPE, CLASSES, PASSES, BINS, FLOOR = (128, 128, 16), 3, 50, 100, 1e-7
NEEDS = {"sum_p"}.union(*(TABLE[name].needs for name in SEGMENTATION))
SAMPLE = 1000  # voxels, for what is too slow to run on all


class Passes:
    """Passes over a made-up volume: a blurred random label map, its borders uncertain, the rest hardly."""

    def __init__(self, device: str = "cpu") -> None:
        self.generator = torch.Generator(device).manual_seed(0)
        coarse = torch.randn(1, CLASSES, 16, 16, 4, generator=self.generator, device=device)
        self.centre = torch.nn.functional.interpolate(coarse, SHAPE, mode="trilinear") * 6

    def __call__(self) -> Tensor:
        """The probabilities of one more pass, `[1, C, *shape]`."""
        noise = torch.randn(self.centre.shape, generator=self.generator, device=self.centre.device)
        return (self.centre + noise).softmax(1)


def ours(samples: Tensor, at_once: int) -> dict[str, Tensor]:
    kept = PassStatistics(NEEDS)
    for begin in range(0, len(samples), at_once):
        kept.update(samples[begin : begin + at_once].movedim(2, -1), passes_dim=0, check=False)
    return {name: TABLE[name](kept) for name in SEGMENTATION}


def vectorised(samples: np.ndarray) -> dict[str, np.ndarray]:
    """`samples[passes, C, voxels]`, every voxel at once."""
    passes, classes, voxels = samples.shape
    mean = samples.mean(0)
    found = {"averaged_variance": samples.var(0).mean(0)}
    numbers = np.minimum((samples * np.float32(BINS)).astype(np.int64), BINS - 1)
    numbers += np.arange(classes * voxels).reshape(classes, voxels) * BINS
    shares = np.bincount(numbers.ravel(), minlength=classes * voxels * BINS).reshape(classes, voxels, BINS) / passes
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    found["averaged_entropy"] = -(shares * logs).sum(-1).mean(0)
    top = np.argsort(-mean, axis=0, kind="stable")[:2]
    first, second = (shares[c, np.arange(voxels)] for c in top)
    found["bhattacharyya"] = np.sqrt(first * second).sum(-1)
    first, second = (np.where(f > 0, f, FLOOR) for f in (first, second))
    first, second = (f / f.sum(-1, keepdims=True) for f in (first, second))
    found["kullback_leibler"] = ((second - first) * np.log(first / second)).sum(-1)
    return found


def voxel_by_voxel(samples: np.ndarray, voxels: np.ndarray) -> dict[str, np.ndarray]:
    """The same for some voxels, one after the other, with numpy.histogram."""
    found = {name: np.empty(len(voxels)) for name in SEGMENTATION}
    for i, v in enumerate(voxels):
        one = samples[:, :, v]
        shares = [np.histogram(one[:, c], bins=BINS, range=(0, 1))[0] / len(one) for c in range(one.shape[1])]
        found["averaged_variance"][i] = one.var(0).mean()
        found["averaged_entropy"][i] = np.mean([-(f[f > 0] * np.log(f[f > 0])).sum() for f in shares])
        a, b = np.argsort(-one.mean(0), kind="stable")[:2]
        found["bhattacharyya"][i] = np.sqrt(shares[a] * shares[b]).sum()
        f, g = (np.where(shares[c] > 0, shares[c], FLOOR) for c in (a, b))
        f, g = f / f.sum(), g / g.sum()
        found["kullback_leibler"][i] = ((g - f) * np.log(f / g)).sum()
    return found


def on_cpu(rounds: int) -> None:
    make = Passes()
    samples = torch.stack([make() for _ in range(PASSES)])
    arrays = samples.flatten(3)[:, 0].numpy()
    few = np.random.default_rng(0).choice(arrays.shape[-1], SAMPLE, replace=False)
    scale = arrays.shape[-1] / SAMPLE
    work: dict[str, tuple[Callable[[], Any], float]] = {
        "ours, pass by pass": (lambda: ours(samples, 1), 1),
        "ours, ten passes at once": (lambda: ours(samples, 10), 1),
        "NumPy, vectorised": (lambda: vectorised(arrays), 1),
        f"numpy.histogram per voxel (from {SAMPLE})": (lambda: voxel_by_voxel(arrays, few), scale),
    }
    wall, processor = dict.fromkeys(work, np.inf), dict.fromkeys(work, np.inf)
    last: dict[str, Any] = {}
    for _ in range(rounds):
        for name, (function, times) in work.items():
            started, began = time.perf_counter(), time.process_time()
            last[name] = function()
            wall[name] = min(wall[name], (time.perf_counter() - started) * times)
            processor[name] = min(processor[name], (time.process_time() - began) * times)
    names = list(work)
    rows = [
        [name, milliseconds(wall[name]), ratio(wall[name] / wall[names[0]]), milliseconds(processor[name]),
         ratio(processor[name] / processor[names[0]])]
        for name in names
    ]  # fmt: skip
    print(table(["", "wall, ms", "", "processor, ms", ""], rows))
    for name in SEGMENTATION:
        got = last[names[0]][name].flatten().numpy()
        off = np.abs(got - last[names[2]][name]).max()
        edge = np.abs(got[few] - last[names[3]][name]).max()
        print(f"{name}: largest difference from NumPy {off:.1e}, from numpy.histogram {edge:.1e}")


def peak(passes: int) -> None:
    """The work of one process whose memory is looked at: passes are made, taken in and forgotten."""
    make, kept = Passes(), PassStatistics(NEEDS)
    for _ in range(passes):
        kept.update(make().movedim(1, -1), check=False)
    for name in SEGMENTATION:
        TABLE[name](kept)
    # Not ru_maxrss: a process starts with that of the one that started it.
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))


def memory() -> None:
    found = {}
    for passes in (PASSES, 10 * PASSES):
        command = [sys.executable, __file__, "--peak", str(passes)]
        found[passes] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024
    low, high = found.values()
    shown = ", ".join(f"{passes} passes {size:.0f} MiB" for passes, size in found.items())
    print(f"peak memory of the process: {shown} ({high / low - 1:+.1%})")


def on_cuda(rounds: int) -> None:
    torch.manual_seed(0)
    net = UNet(5, CLASSES, rate=0.3).cuda().eval()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout3d):
            module.train()
    image = torch.randn(1, 5, *SHAPE, device="cuda")
    make = Passes("cuda")
    samples = [make() for _ in range(PASSES)]

    def forward(at_once: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(PASSES // at_once):
                net(image.expand(at_once, -1, -1, -1, -1)).softmax(1)

        return run

    def take_in() -> PassStatistics:
        kept = PassStatistics(NEEDS)
        for p in samples:
            kept.update(p.movedim(1, -1), check=False)
        return kept

    kept = take_in()

    def read() -> None:
        kept.derived.clear()
        for name in SEGMENTATION:
            TABLE[name](kept)

    with torch.no_grad(), sealed():
        times = {
            "forwards, one by one": _device_ms(forward(1), rounds),
            "forwards, ten at once": _device_ms(forward(10), rounds),
            "passes taken in": _device_ms(take_in, rounds),
            "measures read off": _device_ms(read, rounds),
        }
    with torch.no_grad():
        torch.backends.cudnn.allow_tf32 = True
        times["forwards, one by one, TF32"] = _device_ms(forward(1), rounds)
        times["forwards, ten at once, TF32"] = _device_ms(forward(10), rounds)
    stage = times["passes taken in"] + times["measures read off"]
    rows = [
        [name, f"{value:.2f}", f"{value / PASSES * 1e3:.0f}", f"{stage / value:.1%}" if name.startswith("forw") else ""]
        for name, value in times.items()
    ]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(table([f"{PASSES} passes", "ms", "µs a pass", "measure stage, of it"], rows))
    slow = ours(torch.stack(samples).cpu(), 10)
    for name in SEGMENTATION:
        print(
            f"{name}: largest difference from the CPU {float((TABLE[name](kept).cpu() - slow[name]).abs().max()):.1e}"
        )


def _device_ms(function: Callable[[], Any], rounds: int) -> float:
    """Milliseconds of wall time until the device is done: the best of the rounds, after one that compiles."""
    function()
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        function()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - started) * 1e3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.peak:
        peak(options.peak)
    elif options.device == "cuda":
        on_cuda(options.rounds)
    else:
        print(machine(time.perf_counter))
        on_cpu(options.rounds)
        if not options.skip_memory:
            memory()


if __name__ == "__main__":
    main()
