"""How much memory a run may take: what is free on its device, less a margin; or the number that was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from dropscope.errors import BadInput

_SHARE = 0.6
_UNKNOWN = 2 << 30
_UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "": 1}


def free_bytes(device: torch.device) -> int:
    """What a run may plan with: 60 % of what is free now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # ours, and unused
        return int((torch.cuda.mem_get_info(device)[0] + cached) * _SHARE)
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(int(line.split()[1]) * 1024 * _SHARE)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _SHARE / 2)
    return _UNKNOWN


def memory_bytes(memory: int | str, device: torch.device) -> int:
    """A budget in bytes: "auto", a number of bytes, or a text such as "4GiB".

    >>> memory_bytes("1.5GiB", torch.device("cpu"))
    1610612736
    """
    if memory == "auto":
        return free_bytes(device)
    text = str(memory).strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip()
    try:
        value = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        value = 0
    if value < 1 << 20:
        raise BadInput(
            "a memory budget is at least 1 MiB", "memory", memory, "write memory='4GiB', a number of bytes, or 'auto'"
        )
    return value
