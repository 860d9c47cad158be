"""Memory: a budget in words or numbers, and a peak that grows neither with passes nor with placements."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from dropscope.errors import BadInput
from dropscope.memory import free_bytes, memory_bytes

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
    with pytest.raises(BadInput, match="at least 1 MiB"):
        memory_bytes(wrong, CPU)  # type: ignore[arg-type]


def test_auto_is_part_of_what_is_free() -> None:
    free = free_bytes(CPU)
    assert 1 << 26 < free < 1 << 50
    assert memory_bytes("auto", CPU) == pytest.approx(free, rel=0.2)


SCRIPT = textwrap.dedent("""
    import resource, sys
    import torch
    torch.set_num_threads(1)
    sys.path.insert(0, {tests!r})
    import zoo
    from torch import nn
    import dropscope as ds
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)))
    data = zoo.vectors(30), torch.arange(30) % 3
    grid = ds.PlacementGrid(["0", "2", "4@input"])
    options = dict(engine="{engine}", keep="none", progress=False, memory="32MiB")
    ds.sweep(net, grid[:10], data, passes=10, **options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ds.sweep(net, grid[:{placements}], data, passes={passes}, **options)
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
""")


def peak(placements: int, passes: int, engine: str = "shared") -> tuple[int, int]:
    """KiB after a small sweep and after this one, in a process of its own."""
    script = SCRIPT.format(tests=str(Path(__file__).parent), placements=placements, passes=passes, engine=engine)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    before, after = (int(text) for text in done.stdout.split())
    return before, after


@pytest.mark.parametrize(("placements", "passes"), [(10, 1000), (999, 10)], ids=["passes", "placements"])
def test_the_peak_does_not_grow_with_the_work(placements: int, passes: int) -> None:
    before, after = peak(placements, passes)
    assert after - before <= 48 * 1024  # of some 500 MiB: the budget of 32 MiB, which ten passes do not fill, and slack
    assert after <= 1.1 * before


def test_the_loop_does_not_keep_passes_either() -> None:
    before, after = peak(3, 300, "reference")
    assert after - before <= 16 * 1024
