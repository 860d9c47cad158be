"""What this machine can do."""

from __future__ import annotations

import functools
import importlib.util

import torch

from dropscope.errors import BadInput


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
