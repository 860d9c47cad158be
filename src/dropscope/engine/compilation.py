"""Compilation of segments by torch.compile, where a compiler is at hand; whatever it cannot do runs as it is."""

from __future__ import annotations

import logging
import os
import shutil
from typing import Any

import torch
from torch import nn

from dropscope.device import runs_kernels
from dropscope.errors import first_line

log = logging.getLogger("dropscope")


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile can work here: on a CPU it needs a C++ compiler, on a GPU Triton."""
    if device.type == "cuda":
        return runs_kernels(device)
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


class Compiled(nn.Module):
    """A module compiled at its first call, for rows of any number."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.eager = module
        self._fast: Any = torch.compile(module, dynamic=True)

    def forward(self, *given: Any) -> Any:
        if self._fast is not None:
            try:
                return self._fast(*given)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler raises, the eager module does the same work
                log.warning("a segment runs uncompiled: %s", first_line(error))
                self._fast = None
        return self.eager(*given)
