"""Memory: a budget in words or numbers, and a peak that grows neither with passes nor with placements."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from dropscope.device import free_bytes, memory_bytes
from support.errors import refused

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [
        ("1GiB", 1 << 30),
        ("1.5 GiB", 3 << 29),
        ("2mb", 2 * 10**6),
        (4 << 20, 4 << 20),
        ("4194304", 4 << 20),
        (2e6, 2 * 10**6),
    ],
)
def test_budgets_in_words_and_numbers(given: int | str, bytes_: int) -> None:
    assert memory_bytes(given, CPU) == bytes_


@pytest.mark.parametrize("wrong", ["", "lots", "4 parsecs", "-1GiB", 0, 1000, "nan", "inf", None, True])
def test_no_budget(wrong: object) -> None:
    with refused("memory"):
        memory_bytes(wrong, CPU)  # type: ignore[arg-type]


def test_auto_is_part_of_what_is_free() -> None:
    free = free_bytes(CPU)
    assert 1 << 26 < free < 1 << 50
    assert memory_bytes("auto", CPU) == pytest.approx(free, rel=0.2)


# In a process of its own: a peak never falls, so each run is held against the one before it.
SCRIPT = textwrap.dedent("""
    import resource, sys
    import torch
    torch.set_num_threads(1)
    sys.path.insert(0, {tests!r})
    from support import zoo
    from torch import nn
    import dropscope as ds
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)))
    data = zoo.vectors(30), torch.arange(30) % 3
    grid = ds.PlacementGrid(["0", "2", "4@input"])
    for engine, memory, placements, passes in {asked!r}:
        some = grid[:: len(grid) // placements][:placements]
        ds.sweep(net, some, data, passes=passes, engine=engine, keep="none", progress=False, memory=memory)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
""")


def peaks(*asked: tuple[str, str, int, int]) -> list[int]:
    """KiB after each run: engine, memory, placements, passes."""
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), asked=asked)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return [int(line) for line in done.stdout.split()]


def test_the_peak_grows_neither_with_passes_nor_with_placements() -> None:
    small, passes, placements, loop = peaks(
        ("shared", "8MiB", 10, 10), ("shared", "8MiB", 10, 1000), ("shared", "8MiB", 999, 10),
        ("loop", "8MiB", 5, 100),
    )  # fmt: skip
    assert passes <= 1.1 * small
    assert placements <= 1.1 * small
    assert loop <= 1.1 * small


def test_the_peak_does_not_grow_with_passes_whatever_is_free() -> None:
    few, many, more = peaks(("shared", "auto", 10, 10), ("shared", "auto", 10, 1000), ("shared", "auto", 10, 3000))
    assert many <= 1.1 * few
    assert more <= 1.02 * many
