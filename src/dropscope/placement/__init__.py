"""Placements as values, texts and sequences: which sites get which noise at which rate. Nothing here knows a model."""

from dropscope.placement.grid import RATES, PlacementGrid, PlacementSpace
from dropscope.placement.noises import own_noise, register_noise
from dropscope.placement.placement import GROUPS, Own, Placement, Term, as_placement, parse_address

__all__ = [
    "GROUPS",
    "RATES",
    "Own",
    "Placement",
    "PlacementGrid",
    "PlacementSpace",
    "Term",
    "as_placement",
    "own_noise",
    "parse_address",
    "register_noise",
]
