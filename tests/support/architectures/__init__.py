"""Architectures that people use, small and with random weights, each with the engine that runs its placements."""

from __future__ import annotations

from importlib.util import find_spec

from support.architectures.architecture import Architecture, placement
from support.architectures.others import OTHERS
from support.architectures.text import TEXT
from support.architectures.vision import VISION

__all__ = ["ARCHITECTURES", "Architecture", "available", "placement"]

ARCHITECTURES: dict[str, Architecture] = {entry.name: entry for entry in (*TEXT, *VISION, *OTHERS)}


def available(entry: Architecture) -> bool:
    """Whether the package that it comes from is installed."""
    return find_spec(entry.needs) is not None
