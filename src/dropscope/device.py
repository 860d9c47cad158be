"""Device selection and memory budgets."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from dropscope.errors import BadInput

_SHARE = 0.6  # of what is free
# glibc's numbers for two of its settings, and their values: the largest block that it takes from the heap at all, and
# what may lie free at the end of the heap before it goes back to the system.
_HEAP_SETTINGS = {-3: 32 << 20, -1: 256 << 20}
_OWN_HEAP_SETTINGS = ("MALLOC_", "GLIBC_TUNABLES")  # of a user who has chosen, in the environment
_UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "": 1}
# Files with the memory limit and the memory in use of a container's control group: version 2, then version 1.
_CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def as_device(device: str | torch.device | None) -> torch.device:
    """The device, with its index. None takes the GPU if there is one.

    Raises:
        BadInput: If torch does not know the device, or this machine does not have it.

    >>> as_device("cpu")
    device(type='cpu')
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with warnings.catch_warnings():  # torch warns of names that it keeps from its past
            warnings.simplefilter("ignore")
            parsed = torch.device(device)
    except RuntimeError as error:
        remedy = "write device='cpu' or device='cuda'"
        raise BadInput("device must be one that torch knows", "device", str(device), remedy) from error
    if parsed.type == "cuda":
        if not torch.cuda.is_available():
            remedy = "use device='cpu'"
            raise BadInput("device must be available on this machine", "device", str(device), remedy)
        if parsed.index is not None and parsed.index >= torch.cuda.device_count():
            remedy = f"this machine has {torch.cuda.device_count()}: use device='cuda:0'"
            raise BadInput("device must be available on this machine", "device", str(device), remedy)
        return torch.device("cuda", parsed.index if parsed.index is not None else torch.cuda.current_device())
    if parsed.type != "cpu":
        try:
            torch.zeros(1, device=parsed).item()  # a device without values, such as meta, has no item
        except Exception as error:  # each backend that is missing says so in its own way
            remedy = "use device='cpu'"
            raise BadInput("device must be available on this machine", "device", str(device), remedy) from error
    return parsed


def runs_kernels(device: torch.device) -> bool:
    """Whether our Triton kernels run on the device."""
    return device.type == "cuda" and has_triton()


def multiplies_in_parts(device: torch.device) -> bool:
    """Whether an fp32 product is faster as three of TF32: so it was measured on Hopper, and on nothing else yet."""
    return runs_kernels(device) and torch.cuda.get_device_capability(device)[0] == 9


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def keep_heap() -> bool:
    """Lets freed memory stay with the process, up to 256 MiB, where the C library is glibc; whether it does.

    Every pass asks for the same sizes again. glibc gives them back to the system in between, and then the system clears
    them page by page: a third of the time of a convolutional network on a CPU. The setting stays: glibc does not tell
    what it was before.
    """
    if any(name.startswith(_OWN_HEAP_SETTINGS) for name in os.environ):
        return False
    try:
        set_option = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(bool(set_option(option, value)) for option, value in _HEAP_SETTINGS.items())


def free_bytes(device: torch.device, control_groups: Sequence[tuple[str | Path, str | Path]] = _CONTROL_GROUPS) -> int:
    """Bytes that a run may plan with: 60 % of what is free now, within the limits of a container.

    Args:
        device: Where the memory is.
        control_groups: For each control group, the file of its limit and the file of its use.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # ours, and unused
        return int((torch.cuda.mem_get_info(device)[0] + cached) * _SHARE)
    return int(min([psutil.virtual_memory().available, *_left_in_container(control_groups)]) * _SHARE)


def _left_in_container(control_groups: Sequence[tuple[str | Path, str | Path]]) -> list[int]:
    """Bytes that each control group leaves, of those that have a limit."""
    left = []
    for limit, used in control_groups:
        try:
            text = Path(limit).read_text().strip()
            if text != "max":
                left.append(max(int(text) - int(Path(used).read_text()), 1 << 20))
        except (OSError, ValueError):
            continue
    return left


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
    except (ValueError, KeyError, OverflowError):
        value = 0
    if value < 1 << 20:
        remedy = "write memory='4GiB', a number of bytes, or memory='auto'"
        raise BadInput("memory must be a size of at least 1 MiB", "memory", memory, remedy)
    return value
