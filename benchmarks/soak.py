"""Robustness: hardships at random moments, then the same small work over and over, while nothing may grow.

    python benchmarks/soak.py [--seconds 600] [--hardships 10] [--seed 0]     # or: make soak

First each hardship of tests/support/hardships.py (full disk, read-only folder, damaged files, Ctrl-C, little memory) is
met so many times, and the rows compared with those of a run that met nothing. Then uncertainty, sweep, predict and a
predictor run in turn, for so many seconds; resident memory, file descriptors, threads and temporary files are counted
once a round. Exit code 1 where rows differ or anything grows.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch
from torch import nn

import dropscope as ds
from timing import machine, table

sys.path.append(str(Path(__file__).parents[1] / "tests"))
MIB = 1 << 20
SETTLED = 0.2  # of the time: until then caches fill
GROWTH = 0.02  # of the memory, from the second fifth to the last


def meet_hardships(count: int, seed: int) -> bool:
    """Each so many times; prints how the runs ended, and whether rows were right."""
    from support import hardships

    whole, right = hardships.small_sweep(), True
    for name in hardships.HARDSHIPS:
        ended: Counter[str] = Counter()
        for number in range(count):
            with tempfile.TemporaryDirectory() as root:
                try:
                    ended[hardships.meet(name, Path(root), seed + number, whole)] += 1
                except AssertionError as error:
                    right = False
                    ended[f"WRONG: {str(error).strip()[:200]}"] += 1
        print(f"{name}: {count} times, {'rows as they should be' if right else 'NOT AS THEY SHOULD BE'}", flush=True)
        for said, times in ended.most_common():
            print(f"    {times:>4}  {said}", flush=True)
    return right


def chores(root: Path) -> dict[str, Callable[[], object]]:
    """Small work of each kind."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)).eval()
    inputs = torch.randn(200, 8)
    labels = (net(inputs).argmax(1) + (torch.arange(200) % 4 == 0)) % 3
    dense = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 2, 1)).eval()
    import nibabel

    values = np.random.default_rng(0).normal(100, 30, (12, 12, 8)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), root / "scan.nii.gz")
    saved = ds.UncertaintyPredictor.fit(net, (inputs, labels), "last=0.5", 10, max_error=0.5, progress=False)
    saved.save(root / "predictor")

    def sweep() -> None:
        ds.sweep(net, ds.PlacementGrid(["0", "last"]), (inputs, labels), passes=5, out=root / "run", progress=False)
        ds.open_run(root / "run")
        shutil.rmtree(root / "run")

    def predict() -> None:
        from dropscope import volumes

        volumes.predict(dense, "0=0.3", [root / "scan.nii.gz"], root / "maps", passes=4, progress=False)
        shutil.rmtree(root / "maps")

    return {
        "uncertainty": lambda: ds.uncertainty(net, "own", (inputs, labels), passes=20, progress=False),
        "sweep": sweep,
        "predict": predict,
        "predictor": lambda: ds.UncertaintyPredictor.load(root / "predictor", net)(inputs[:50]),
    }


def soak(seconds: float) -> bool:
    """Runs the chores in turn; prints what the process holds over time, and whether it grew."""
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as top:
        root, temporary = Path(top) / "work", Path(top) / "tmp"
        root.mkdir()
        temporary.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        work = chores(root)
        seen: list[tuple[float, float, int, int, int]] = []
        started = time.monotonic()
        while time.monotonic() - started < seconds or len(seen) < 10:
            for chore in work.values():
                chore()
            gc.collect()
            files = sum(path.is_file() for path in temporary.rglob("*"))
            held = process.memory_info().rss / MIB, process.num_fds(), threading.active_count(), files
            seen.append((time.monotonic() - started, *held))
        tempfile.tempdir = None
    names = ("minutes", "memory, MiB", "file descriptors", "threads", "temporary files")
    shown = seen[:: max(1, len(seen) // 12)]
    print(f"{len(seen)} rounds of {', '.join(work)} in {seen[-1][0]:.0f} s")
    print(table(list(names), [[f"{t / 60:.1f}", f"{m:.0f}", *map(str, rest)] for t, m, *rest in shown]))
    settled = [each for each in seen if each[0] >= SETTLED * seen[-1][0]]
    first, last = settled[: max(1, len(settled) // 4)], settled[-max(1, len(settled) // 4) :]
    early, late = ([median(each[i] for each in part) for i in range(1, 5)] for part in (first, last))
    growth = late[0] / early[0] - 1
    flat = growth < GROWTH and late[1:] == early[1:]
    print(f"memory {100 * growth:+.2f} % from the second fifth to the last; {'flat' if flat else 'NOT FLAT'}")
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--hardships", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(time.monotonic))
    right = meet_hardships(given.hardships, given.seed) if given.hardships else True
    flat = soak(given.seconds) if given.seconds else True
    return int(not (right and flat))


if __name__ == "__main__":
    sys.exit(main())
