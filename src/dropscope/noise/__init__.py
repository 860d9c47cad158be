"""Keyed noise on tensors: masks, factors and words as functions of a key. Nothing here knows a model."""

import importlib
from types import ModuleType

from dropscope.noise.keyed import (
    Layout,
    bits,
    disturb,
    multinomial_draws,
    site_key,
    standard_normal,
    start,
    streams,
    threshold,
)
from dropscope.noise.own import OwnNoise

__all__ = [
    "Layout",
    "OwnNoise",
    "bits",
    "disturb",
    "multinomial_draws",
    "noise_kernels",
    "site_key",
    "standard_normal",
    "start",
    "streams",
    "threshold",
]


def noise_kernels() -> ModuleType:
    """The module of Triton kernels. Imported when called, because Triton is installed on GPU machines alone."""
    return importlib.import_module("dropscope.noise.kernels")
