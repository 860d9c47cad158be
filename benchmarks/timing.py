"""How the CPU benchmarks take times: every contestant once a round, a fresh input each round, the best of the rounds.

Owns the clock, the line that names the machine, and the Markdown. What is timed is the scripts' business.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

Contestant = Callable[[Any], Any]
Clock = Callable[[], float]


def seconds_of(work: Callable[[], Any], clock: Clock) -> tuple[float, Any]:
    gc.collect()
    started = clock()
    result = work()
    return clock() - started, result


def rounds(
    contestants: Mapping[str, Contestant], fresh: Callable[[int], Any], repeat: int, clock: Clock
) -> tuple[dict[str, float], dict[str, Any]]:
    """The best time of each contestant, and what each returned in the last round.

    They take turns, so that whatever else the machine does falls on all of them. The input is new in each round: one of
    the peers remembers its last input.
    """
    best = dict.fromkeys(contestants, float("inf"))
    last: dict[str, Any] = {}
    for number in range(repeat):
        given = fresh(number)
        for name, contestant in contestants.items():
            taken, last[name] = seconds_of(lambda run=contestant, x=given: run(x), clock)
            best[name] = min(best[name], taken)
        print(f"round {number + 1} of {repeat}", file=sys.stderr, flush=True)
    return best, last


def machine(clock: Clock) -> str:
    """Date, processor, cores, threads, versions and the clock, for the line above a table."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    load = f", load before the run {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{date.today().isoformat()}, {model}, {os.cpu_count()} cores, {torch.get_num_threads()} threads{load}; "
        f"Python {platform.python_version()}, torch {torch.__version__}; "
        + ("processor time" if clock is time.process_time else "wall time")
    )


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def ratio(value: float) -> str:
    return f"{value:.0f}×" if value >= 20 else f"{value:.1f}×" if value >= 2 else f"{value:.2f}×"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.1f}"
