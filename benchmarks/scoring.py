"""Offline scoring of many rows: one hash for any number of shards, and the throughput of plain forwards beside it.

    python benchmarks/scoring.py [--rows N] [--shards 1,2,8] [--width W] [--folder DIR]

Rows are 64 standard normal features, in files of a million. The network has three hidden layers, W, W and 32 wide, and
two classes; noise is `last=0.1`, without passes. Both predictors go through the same files, columns, hashes and parts,
turn by turn, so that their ratio does not depend on what else the machine does. The resident memory is that of this
process after the first turn and at the end.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from dropscope.deploy import UncertaintyPredictor, score

FEATURES, FILE_ROWS, GROUP_ROWS = 64, 1_000_000, 65_536
_TURNS = 10  # of each, at most: what else runs on the machine falls on both


def write_rows(folder: Path, rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - first)
        values = np.random.default_rng(number).standard_normal(count * FEATURES, dtype=np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(values), FEATURES)
        table = pa.table({"id": np.arange(first, first + count), "features": lists})
        pq.write_table(table, folder / f"rows-{number:04}.parquet", row_group_size=GROUP_ROWS, compression="none")


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = (FEATURES, width, width, 32)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(32, 2)).eval()


def predictors(net: nn.Module) -> dict[str, UncertaintyPredictor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1000, FEATURES, generator=draw)
    with torch.no_grad():
        y = torch.multinomial((8 * net(x)).softmax(1), 1, generator=draw)[:, 0]
    return {
        "plain": UncertaintyPredictor.fit(net, (x, y), None, max_error=None, progress=False),
        "last": UncertaintyPredictor.fit(net, (x, y), "last=0.1", max_error=None, engine="analytic", progress=False),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--shards", default="1,2,8")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="dropscope-scoring-"))
    rows, made = folder / "rows", predictors(network(given.width))
    write_rows(rows, given.rows)
    files, process = sorted(rows.iterdir()), psutil.Process()
    spent = dict.fromkeys(made, (0.0, 0.0))
    memory: list[float] = []
    for number, some in enumerate(np.array_split(np.array(files, dtype=object), min(_TURNS, len(files)))):
        for name in sorted(made, reverse=number % 2 == 1):
            wall, cpu = time.perf_counter(), time.process_time()
            score(made[name], list(some), folder / "turns" / name / str(number), id_column="id", progress=False)
            now = time.perf_counter() - wall, time.process_time() - cpu
            spent[name] = (spent[name][0] + now[0], spent[name][1] + now[1])
        memory.append(process.memory_info().rss / 2**20)
    for name, (wall, cpu) in spent.items():
        print(f"{name:6} {given.rows / wall:10,.0f} rows/s, {1e6 * cpu / given.rows:.1f} µs of CPU a row", flush=True)
    (wall, cpu), (plain_wall, plain_cpu) = spent["last"], spent["plain"]
    print(f"last reaches {plain_wall / wall:.1%} of plain by the clock, {plain_cpu / cpu:.1%} by CPU time")
    print(f"RSS {memory[0]:.0f} MiB after the first turn, {memory[-1]:.0f} MiB at the end")
    hashes = {}
    for of in map(int, given.shards.split(",")):
        for number in range(1, of + 1):
            found = score(
                made["last"], rows, folder / f"of-{of}", id_column="id", shard=f"{number}/{of}", progress=False
            )
        hashes[of] = found.hash
        print(f"{of} shards: {found.rows:,} rows in {found.parts} parts, hash {found.hash}", flush=True)
    print("one hash" if len({*hashes.values()}) == 1 else "HASHES DIFFER")
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
