"""Parts of a subtree: leaves cut out, picked or dealt into pieces, each with just the variants that lead to them.

Owns this arithmetic on parent and choice numbers. Every leaf is in exactly one piece.
"""

from __future__ import annotations

import numpy as np

from dropscope.plan import Level, Subtree


def cut(subtree: Subtree, low: int, high: int) -> Subtree:
    """The part of a subtree that leads to the leaves [low, high)."""
    levels = []
    leaf = subtree.leaf[low:high]
    for level in reversed(subtree.levels):
        parent, choice = level.parent[low:high], level.choice[low:high]
        low, high = int(parent[0]), int(parent[-1]) + 1
        levels.append(Level(parent - low, choice))
    return Subtree(subtree.first, tuple(reversed(levels)), leaf)


def pick(subtree: Subtree, leaves: np.ndarray) -> Subtree:
    """The part of a subtree that leads to these leaves (sorted), and to no other."""
    levels, kept = [], leaves
    for level in reversed(subtree.levels):
        parents, local = np.unique(level.parent[kept], return_inverse=True)
        levels.append(Level(local.reshape(-1), level.choice[kept]))
        kept = parents
    return Subtree(subtree.first, tuple(reversed(levels)), subtree.leaf[leaves])


def pieces(subtree: Subtree, at_most: int) -> list[tuple[int, int]]:
    """Leaf ranges of at most `at_most`, cut as high up the tree as that allows, so that little is computed twice."""
    for cuts in _bounds(subtree):
        if int(np.diff(cuts).max()) <= at_most:
            break
    else:
        cuts = np.arange(len(subtree.leaf) + 1)
    found, low = [], 0
    for i in range(1, len(cuts)):
        if int(cuts[i]) - low > at_most:
            found.append((low, int(cuts[i - 1])))
            low = int(cuts[i - 1])
    found.append((low, int(cuts[-1])))
    return found


def _bounds(subtree: Subtree) -> list[np.ndarray]:
    """For each level, where the leaves of its variants begin, and the end."""
    leaves = len(subtree.leaf)
    owner = np.arange(leaves)
    found = [np.append(np.arange(leaves), leaves)]
    for level in reversed(subtree.levels):
        owner = level.parent[owner]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        found.append(np.append(first, leaves))
    return found[::-1][1:]
