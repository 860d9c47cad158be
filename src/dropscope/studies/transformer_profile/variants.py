"""Variants: the networks that a study makes of each checkpoint, one per depth and training seed.

Owns their names. A checkpoint that is taken once, as it is, keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """One network to train and evaluate.

    Attributes:
        checkpoint: Folder or Hub name.
        model: What it counts as in claims about models: the checkpoint at its depth, whatever the seed.
        name: Its own name.
        seed: Of its head, its batches and, from scratch, all its weights.
        layers: How many of the checkpoint's layers it has; all of them if None.
        scratch: Whether its weights are drawn anew.
    """

    checkpoint: str
    model: str
    name: str
    seed: int
    layers: int | None = None
    scratch: bool = False


def list_variants(
    checkpoints: Sequence[str], layers: Sequence[int] | None, seeds: Sequence[int], *, scratch: bool = False
) -> tuple[Variant, ...]:
    """Every checkpoint at every depth with every seed.

    >>> [v.name for v in list_variants(["a/bert"], [2, 4], [42, 43])][:2]
    ['a/bert (2 layers, seed 42)', 'a/bert (2 layers, seed 43)']
    >>> list_variants(["a/bert"], None, [42])[0].name
    'a/bert'
    """
    found = []
    for checkpoint in checkpoints:
        for depth in layers or (None,):
            words = ["from scratch"] if scratch else []
            words += [] if depth is None else [f"{depth} layer{'s' if depth > 1 else ''}"]
            for seed in seeds:
                more = [*words, f"seed {seed}"] if len(seeds) > 1 else words
                names = (f"{checkpoint} ({', '.join(w)})" if w else checkpoint for w in (words, more))
                model, name = names
                found.append(Variant(checkpoint, model, name, seed, depth, scratch))
    return tuple(found)
