"""How the CPU benchmarks take times: every contestant once a round, a fresh input each round, the best of the rounds.

Owns the clock, the line that names the machine, and the Markdown. What is timed is the scripts' business.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

Contestant = Callable[[Any], Any]


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def rounds(
    contestants: Mapping[str, Contestant], fresh: Callable[[int], Any], repeat: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """The best time of each contestant, and what each returned in the last round.

    They take turns, so that whatever else the machine does falls on all of them. Round 0 warms up and is not counted. The
    input is new in each round: one of the peers remembers its last input.
    """
    best = dict.fromkeys(contestants, float("inf"))
    last: dict[str, Any] = {}
    for number in range(repeat + 1):
        given = fresh(number)
        for name, contestant in contestants.items():
            taken, last[name] = seconds_of(lambda run=contestant, x=given: run(x))
            if number:
                best[name] = min(best[name], taken)
    return best, last


def machine() -> str:
    """Date, processor, cores, threads and versions, for the line above a table."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    load = f", load before the run {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{date.today().isoformat()}, {model}, {os.cpu_count()} cores, {torch.get_num_threads()} threads{load}; "
        f"Python {platform.python_version()}, torch {torch.__version__}"
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
