"""The plain loop: one placement, one batch, one pass after the other. Obviously right; faster ways must equal it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dropscope.data import Batch
from dropscope.engine.session import Session, precise
from dropscope.injection import SiteNoise, disturbed
from dropscope.statistics import PassStatistics
from dropscope.tracing import Point


@dataclass(frozen=True, eq=False)
class Block:
    """Some examples under some placements. `parts` pairs placement numbers `[v]` with statistics `[v, n, …]`."""

    batch: Batch
    plain: Tensor  # [n, classes, …]
    parts: list[tuple[np.ndarray, PassStatistics]]


def run_reference(
    setting: Session,
    lives: Sequence[dict[Point, SiteNoise]],
    passes: int,
    needs: Collection[str],
    tick: Callable[[int], None] = lambda predictions: None,
) -> Iterator[Block]:
    """Statistics of every placement in `lives` on every batch, pass by pass."""
    for batch in setting.data.batches:
        with torch.no_grad(), precise():
            plain = setting.plain(batch)
            parts = []
            for number, live in enumerate(lives):
                kept = PassStatistics(needs, plain.movedim(1, -1))
                for p in passes_of(setting, live, batch, passes):
                    kept.update(p.movedim(1, -1).unsqueeze(0))
                    tick(batch.n)
                parts.append((np.array([number]), kept))
        yield Block(batch, plain, parts)


def passes_of(setting: Session, live: dict[Point, SiteNoise], batch: Batch, passes: int) -> Iterator[Tensor]:
    """The probabilities of each pass of one placement on one batch."""
    args, kwargs = setting.on_device(batch)
    with disturbed(setting.model, live, setting.site_map, setting.seed, setting.masks) as noise:
        for number in range(passes):
            noise.at(pass_=number, ids=batch.keys)
            yield setting.call(args, kwargs)
