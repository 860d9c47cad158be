"""Device selection and memory budgets."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

import torch

from dropscope.errors import BadInput

_SHARE = 0.6
_UNKNOWN = 2 << 30
_UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "": 1}


def runs_kernels(device: torch.device) -> bool:
    """Whether our Triton kernels run there."""
    return device.type == "cuda" and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def device_named(device: str | torch.device | None) -> torch.device:
    """The device that was asked for, if this machine has it; else the GPU where there is one.

    >>> device_named("cpu")
    device(type='cpu')
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise BadInput("a device is one torch knows", "--device", str(device), "write cpu or cuda") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("a device is one this machine has", "--device", str(device), "write --device cpu")
    return found


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
