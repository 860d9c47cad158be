"""Workers: what the cluster's path costs with one, and what a second one brings; and runs whose nodes and drivers die.

    python benchmarks/cluster.py                  999 placements of a CNN: alone, one worker, two; one thread each
    python benchmarks/cluster.py --kills 10       a node killed at 10 random moments, then the driver at 10

Times are wall time of whole sweeps, set-up, Ray's start and finalists included: some minutes each, on an idle machine.
The three runs take turns, and the rows of all must be the same to the bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import pandas as pd
import torch
from torch import nn

import dropscope as ds

_PARTS = 20  # of the run that is killed


class Net(nn.Module):
    """The three sites of the 999 placements."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(32 * 64, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def swept(examples: int, passes: int, **options: object) -> ds.Run:
    torch.manual_seed(0)
    data = torch.randn(examples, 3, 32, 32), torch.randint(0, 10, (examples,))
    grid = ds.PlacementGrid(["conv1", "conv2", "fc1"], rates=[r / 10 for r in range(1, 10)])
    assert len(grid) == 999
    return ds.sweep(Net().eval(), grid, data, passes, engine="shared", progress=False, compile=False, **options)


def time_workers(examples: int, passes: int, repeats: int) -> None:
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"alone": [], "1 worker": [], "2 workers": []}
    rows: dict[str, pd.DataFrame] = {}
    for _ in range(repeats):
        for name, options in zip(seconds, ({}, {"workers": 1}, {"workers": 2}), strict=True):
            started = time.perf_counter()
            rows[name] = swept(examples, passes, **options).rows
            seconds[name].append(time.perf_counter() - started)
            print(f"{name:10} {seconds[name][-1]:8.1f} s", flush=True)
    alone, one, two = (median(times) for times in seconds.values())
    print(f"overhead of the cluster's path with one worker: {100 * (one / alone - 1):.1f} %")
    print(f"1 → 2 workers: {one / two:.2f} times as fast; alone → 2 workers: {alone / two:.2f} times")
    print("rows are the same to the bit:", all(table.equals(rows["alone"]) for table in rows.values()))


# --- killed at random moments -----------------------------------------------------------------------------------------


def killed_sweep(out: Path | None, **options: object) -> ds.Run:
    """Each first site of each kind of noise is a part of its own: ten layers, two kinds."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(10)), nn.Linear(64, 3)).eval()
    noises = ("bernoulli", "gaussian")
    grid = [f"{site}={rate} noise={noise}" for noise in noises for site in range(10) for rate in (0.2, 0.5)]
    data = torch.randn(400, 64), torch.randint(0, 3, (400,))
    return ds.sweep(net, grid, data, 400, engine="shared", progress=False, keep="top:3", out=out, **options)


def written(out: Path) -> set[str]:
    return {path.name for path in out.glob("rows/part-*")}


def kill_nodes(times: int, whole: ds.Run) -> None:
    import ray
    from ray.cluster_utils import Cluster

    draw = random.Random(0)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            out, at = Path(folder) / "run", draw.randrange(1, _PARTS - 2)
            killer = threading.Thread(target=_kill_node, args=(nodes, out, at, draw.uniform(0, 0.3)))
            killer.start()
            run = killed_sweep(out, cluster="auto")
            killer.join()
            nodes.add_node(num_cpus=1)
            same = run.rows.equals(whole.rows) and run.intervals.equals(whole.intervals)
            print(
                f"node {number + 1}: killed after {at} parts; {len(written(out))} parts, same rows: {same}", flush=True
            )
    ray.shutdown()
    nodes.shutdown()


def _kill_node(nodes: object, out: Path, at: int, later: float) -> None:
    while len(written(out)) < at:
        time.sleep(0.002)
    time.sleep(later)
    nodes.remove_node(nodes.list_all_nodes()[1], allow_graceful=False)  # type: ignore[attr-defined]


def kill_drivers(times: int, whole: ds.Run) -> None:
    """A driver is killed, another takes the folder up; parts that were there are neither lost nor computed again."""
    draw = random.Random(1)
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            out, at = Path(folder) / "run", draw.randrange(1, _PARTS - 2)
            driver = subprocess.Popen([sys.executable, __file__, "--drive", str(out)])
            while len(written(out)) < at and driver.poll() is None:
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.3))
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
            before = {name: (out / "rows" / name).stat().st_mtime_ns for name in written(out)}
            run = killed_sweep(out, workers=2)
            kept = all((out / "rows" / name).stat().st_mtime_ns == when for name, when in before.items())
            same = run.rows.equals(whole.rows) and run.intervals.equals(whole.intervals)
            said = f"killed with {len(before)} parts; {len(written(out))} parts, those before untouched: {kept}"
            print(f"driver {number + 1}: {said}, same rows: {same}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--kills", type=int, default=0, help="nodes and drivers to kill, instead of times")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if given.drive is not None:
        killed_sweep(given.drive, workers=2)
    elif given.kills:
        whole = killed_sweep(None)
        kill_nodes(given.kills, whole)
        kill_drivers(given.kills, whole)
    else:
        time_workers(given.examples, given.passes, given.repeats)


if __name__ == "__main__":
    main()
