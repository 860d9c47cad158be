"""Stratified draws: within a block of 16 passes, the 16 uniforms of a unit lie in 16 different sixteenths of [0, 1).

A unit has one word for a block. Its low byte chooses a ≠ 0, its highest bits are b, and pass j of the block goes to
stratum a·j + b in the field of 16 elements. Two passes lie in any two different strata alike, and of a Latin hypercube
the variance of a mean knows no more; nothing is sorted. Each pass maps words one to one: alone, it is independent.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

BLOCK = 16  # passes
DRAWS = ("independent", "stratified")
INSIDE = (1 << 28) - 1  # the bits of a word that say where in its stratum it lies
_MODULUS = 0b10011  # x⁴ + x + 1


def product(a: int, b: int) -> int:
    """The product in the field of 16 elements.

    >>> sorted(product(7, j) for j in range(16)) == list(range(16)), product(7, 1), product(2, 8)
    (True, 7, 3)
    """
    found = 0
    for bit in range(4):
        found ^= (a << bit) * (b >> bit & 1)
    for bit in (6, 5, 4):
        found ^= (_MODULUS << (bit - 4)) * (found >> bit & 1)
    return found


# For each power of two as the place of a pass: its products with a = 1 … 15, four bits each. Those of other places are
# sums (exclusive or) of these.
PRODUCTS = tuple(sum(product(a, 1 << bit) << 4 * (a - 1) for a in range(1, BLOCK)) for bit in range(4))


def _rows() -> Tensor:
    """place × 256 + the low byte of a word → a·place in the highest four bits of an int32; a from 1 to 15."""
    rows = [product(1 + (low * 15 >> 8), place) << 28 for place in range(BLOCK) for low in range(256)]
    return torch.tensor([row - (1 << 32) if row >> 31 else row for row in rows], dtype=torch.int32)


_TABLE = _rows()  # at import: made within an export, it would be none of real numbers


@functools.cache
def _kept(device: torch.device) -> Tensor:
    return _TABLE.to(device)


def _products(device: torch.device) -> Tensor:
    """The table on a device; an export gets a copy of its own, which is not kept."""
    return _TABLE.to(device) if torch.compiler.is_exporting() else _kept(device)


def stratify(words: Tensor, places: Tensor, shifts: Tensor) -> Tensor:
    """Words of a block as the words of its passes, in place. `places` and `shifts` are int32 and broadcast to them.

    >>> words = torch.tensor([123456789, -987654321], dtype=torch.int32).repeat(16, 1)
    >>> drawn = stratify(words, torch.arange(16, dtype=torch.int32)[:, None], torch.zeros(16, 1, dtype=torch.int32))
    >>> [sorted(((unit >> 28) + 8).tolist()) == list(range(16)) for unit in drawn.T]
    [True, True]
    """
    index = (words & 255).add_(places * 256)
    moved = _products(words.device).index_select(0, index.flatten()).view(words.shape)
    return words.bitwise_xor_(moved).bitwise_xor_(shifts)
