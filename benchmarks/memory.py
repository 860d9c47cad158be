"""Resident memory over a long sweep: does it grow with passes or placements?

    python benchmarks/memory.py [--passes 10 100 1000] [--engine auto|loop] [--images 64]

One process for each number of passes runs a sweep over the CIFAR network of the tests. The table has the memory of the
process before the sweep, in each quarter of its progress (the highest seen there), at its peak and afterwards.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch

import dropscope as ds
from timing import machine, table

sys.path.append(str(Path(__file__).parents[1] / "tests"))
MIB = 1 << 20


def sweep(passes: int, options: argparse.Namespace, pipe: Any) -> None:
    from support import zoo

    torch.set_num_threads(1)
    net, images = zoo.cifar(), zoo.images(options.images)
    data, grid = (images, torch.arange(options.images) % 10), ds.PlacementGrid(["conv2", "fc1"])
    process, seen, done = psutil.Process(), list[tuple[float, int]](), threading.Event()
    ds.sweep(net, grid[:2], data, passes=2, engine=options.engine, keep="none", progress=False)  # what it loads at all

    def watch() -> None:
        while not done.wait(0.02):
            seen.append((time.monotonic(), process.memory_info().rss))

    before, watcher = process.memory_info().rss, threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    ds.sweep(net, grid, data, passes=passes, engine=options.engine, keep="none", progress=False)
    took = time.monotonic() - started
    done.set()
    watcher.join()
    quarters = [
        max((rss for at, rss in seen if q <= 4 * (at - started) / took <= q + 1), default=before) for q in range(4)
    ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    pipe.send([len(grid), took, *(rss // MIB for rss in (before, *quarters, peak, process.memory_info().rss))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--images", type=int, default=64)
    options = parser.parse_args()
    print(machine(time.monotonic), f"engine {options.engine}, MiB\n")
    rows = []
    for passes in options.passes:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=sweep, args=(passes, options, theirs))
        process.start()
        placements, took, *found = ours.recv()
        process.join()
        rows.append([f"{placements} × {passes}", f"{took:.1f}", *map(str, found)])
    quarters = [f"quarter {q}" for q in (1, 2, 3, 4)]
    print(table(["placements × passes", "seconds", "before", *quarters, "peak", "after"], rows))


if __name__ == "__main__":
    main()
