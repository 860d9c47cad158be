"""Keyed noise on tensors: masks, factors and words as functions of a key. Nothing here knows a model."""

import importlib
from types import ModuleType

from dropscope.noise.keyed import (
    Keys,
    Layout,
    bits,
    bits_of_blocks,
    bits_of_passes,
    disturb,
    in_blocks,
    multinomial_draws,
    multiplier,
    site_key,
    spread,
    standard_normal,
    start,
    streams,
    streams_of_all,
    threshold,
    unit_shape,
)
from dropscope.noise.own import OwnNoise
from dropscope.noise.strata import BLOCK, DRAWS

__all__ = [
    "BLOCK",
    "DRAWS",
    "Keys",
    "Layout",
    "OwnNoise",
    "bits",
    "bits_of_blocks",
    "bits_of_passes",
    "disturb",
    "in_blocks",
    "multinomial_draws",
    "multiplier",
    "noise_kernels",
    "site_key",
    "spread",
    "standard_normal",
    "start",
    "streams",
    "streams_of_all",
    "threshold",
    "unit_shape",
]


def noise_kernels() -> ModuleType:
    """The module of Triton kernels. Imported when called, because Triton is installed on GPU machines alone."""
    return importlib.import_module("dropscope.noise.kernels")
