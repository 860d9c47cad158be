"""Doors of the studies: what runs a study is imported on first use, so that its options do not wait for torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any


def late_imports(module: str, names: Sequence[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a room: those of its names that it does not import itself are in `module`."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module.rpartition('.')[0]!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    return find
