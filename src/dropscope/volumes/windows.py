"""Passes over a whole volume by windows: in every pass each window runs under masks of its own, keyed by volume and
window; probabilities are averaged where windows overlap, and only then counted.

So a pass is one answer for the whole volume, and what is measured does not depend on batch size, on the order of
windows, or on the slabs a large volume is taken in. Owns the windows and the slabs; files are `volumes.py`'s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dropscope.device import free_bytes
from dropscope.engine import Session, precise
from dropscope.errors import BadInput
from dropscope.injection import SiteNoise, disturbed
from dropscope.measures import Measure
from dropscope.model import example_keys, id_keys
from dropscope.scores import PassLabels
from dropscope.statistics import PassStatistics, statistics_bytes
from dropscope.tracing import Point

Origin = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """Windows of one size over a volume, which is padded with zeros on both sides where it is smaller."""

    shape: tuple[int, ...]  # of the volume
    size: tuple[int, ...]  # of a window; 1 along the axis that a 2-D network does not see
    overlap: float
    flat: bool = False  # the network is 2-D: the last axis is not shown to it

    @property
    def padded(self) -> tuple[int, ...]:
        return tuple(max(have, want) for have, want in zip(self.shape, self.size, strict=True))

    @property
    def before(self) -> tuple[int, ...]:
        """Voxels of padding before the volume, per axis."""
        return tuple((want - have) // 2 for have, want in zip(self.shape, self.padded, strict=True))

    def origins(self, first: int = 0, last: int | None = None) -> list[Origin]:
        """Corners of the windows that touch rows `first` to `last` of axis 0 of the padded volume, in a fixed order.

        >>> Windows((5, 2), (2, 2), 0.5).origins()
        [(0, 0), (1, 0), (2, 0), (3, 0)]
        """
        starts = [_starts(n, w, self.overlap) for n, w in zip(self.padded, self.size, strict=True)]
        end = self.padded[0] if last is None else last
        starts[0] = [start for start in starts[0] if start < end and start + self.size[0] > first]
        return list(itertools.product(*starts))


def plan_windows(shape: Sequence[int], roi: Sequence[int] | None, overlap: float) -> Windows:
    """Windows of `roi` voxels over a volume; two sides mean slices for a 2-D network, None the whole volume at once."""
    sides = tuple(shape) if roi is None else tuple(roi)
    if not (isinstance(overlap, float | int) and 0 <= overlap < 1):
        raise BadInput("windows overlap by a share of at least 0 and below 1", "overlap", overlap, "write 0.25")
    if any(not isinstance(side, int) or side < 1 for side in sides) or len(sides) not in (2, 3):
        raise BadInput("a window has two or three sides", "roi", roi, "write 128x128x16, or 128x128 for slices")
    flat = roi is not None and len(sides) == 2
    return Windows(tuple(shape), (*sides, 1) if flat else sides, float(overlap), flat)


@dataclass(frozen=True, eq=False)
class Predicted:
    """What was found for one volume, on the CPU."""

    prediction: Tensor  # int64 [*shape], argmax of the mean over passes
    maps: dict[str, Tensor]  # measure → float32 [*shape]
    labels: PassLabels  # volumes and votes of the label map of every pass


def predict_volume(
    setting: Session,
    live: dict[Point, SiteNoise],
    image: Tensor,
    windows: Windows,
    rows: Sequence[Measure],
    passes: int,
    batch_size: int = 4,
    memory: int | None = None,
    tick: Callable[[int], None] = lambda count: None,
) -> Predicted:
    """Label map and uncertainty maps of `image[channels, *shape]`. Statistics are kept for as many rows of axis 0 at
    once as fit into `memory` (60 % of what is free, if not said): more slabs, the same answer."""
    needs = {"sum_p"}.union(*(row.needs for row in rows))
    padded = pad(image, windows).to(setting.device)
    key = int(example_keys((image[None],), {})[0])
    slabs = _slabs(windows, statistics_bytes(needs, setting.classes) + 12 * setting.classes, memory, setting.device)
    found: dict[str, list[Tensor]] = {}
    labels: PassLabels | None = None
    for rows_from, rows_to in slabs:
        run = _Slab(setting, padded, windows, key, batch_size, rows_from, rows_to, tick)
        plain = run.blended({}, None) if any(row.needs_plain for row in rows) else None
        kept = PassStatistics(needs, None if plain is None else plain.movedim(1, -1))
        answers = PassLabels(setting.classes)
        for p in run.passes(live, passes):
            kept.update(p.movedim(1, -1), check=False)
            answers.update(p.argmax(1))
        for row in rows:
            found.setdefault(row.name, []).append(row(kept)[0].float().cpu())
        found.setdefault("prediction", []).append(kept.mean[0].argmax(-1).cpu())
        labels = answers if labels is None else labels.beside(answers)
    assert labels is not None
    whole = {name: torch.cat(parts) for name, parts in found.items()}
    return Predicted(whole.pop("prediction"), whole, labels)


class _Slab:
    """Some rows of axis 0 of the volume, and every window that touches them."""

    def __init__(
        self,
        setting: Session,
        padded: Tensor,
        windows: Windows,
        key: int,
        batch_size: int,
        first: int,
        last: int,
        tick: Callable[[int], None],
    ) -> None:
        self.setting, self.padded, self.windows, self.tick = setting, padded, windows, tick
        self.first, self.last = first + windows.before[0], last + windows.before[0]  # in the padded volume
        origins = windows.origins(self.first, self.last)
        self.batches = [origins[i : i + batch_size] for i in range(0, len(origins), batch_size)]
        self.keys = [id_keys([f"{key}:{origin}" for origin in batch]) for batch in self.batches]

    def passes(self, live: dict[Point, SiteNoise], passes: int) -> Iterator[Tensor]:
        """Probabilities `[1, C, *slab]` of each pass."""
        setting = self.setting
        with disturbed(setting.model, live, setting.site_map, setting.seed, setting.masks) as noise:
            for number in range(passes):
                yield self._blended(noise, number)

    def blended(self, live: dict[Point, SiteNoise], number: int | None) -> Tensor:
        with disturbed(self.setting.model, live, self.setting.site_map) as noise:
            return self._blended(noise, number)

    def _blended(self, noise: Any, number: int | None) -> Tensor:
        windows, setting = self.windows, self.setting
        rows = self.last - self.first
        total = torch.zeros((setting.classes, rows, *windows.padded[1:]), device=setting.device)
        count = torch.zeros((rows, *windows.padded[1:]), device=setting.device)
        with torch.no_grad(), precise():
            for batch, keys in zip(self.batches, self.keys, strict=True):
                noise.at(pass_=number, ids=keys)
                given = torch.stack([cut_out(self.padded, windows, origin) for origin in batch])
                p = setting.call((given,), {})
                for origin, one in zip(batch, p.unsqueeze(-1) if windows.flat else p, strict=True):
                    low, high = max(origin[0], self.first), min(origin[0] + windows.size[0], self.last)
                    inside = (slice(low - self.first, high - self.first), *_span(origin, windows)[1:])
                    total[(slice(None), *inside)] += one[:, low - origin[0] : high - origin[0]]
                    count[inside] += 1
                self.tick(len(batch))
        crop = tuple(slice(b, b + n) for b, n in zip(windows.before[1:], windows.shape[1:], strict=True))
        return (total / count)[(slice(None), slice(None), *crop)].unsqueeze(0)


def pad(image: Tensor, windows: Windows) -> Tensor:
    """`image[channels, *shape]` with zeros around it, where it is smaller than a window."""
    made = image.new_zeros((len(image), *windows.padded))
    inside = tuple(slice(b, b + n) for b, n in zip(windows.before, windows.shape, strict=True))
    made[(slice(None), *inside)] = image
    return made


def cut_out(padded: Tensor, windows: Windows, origin: Origin) -> Tensor:
    """One window of `padded[channels, *shape]`, as the network takes it."""
    part = padded[(slice(None), *_span(origin, windows))]
    return part.squeeze(-1) if windows.flat else part


def forwards(windows: Windows, per_voxel: int, memory: int | None, device: torch.device) -> int:
    """How many windows run in one pass over the volume, slab by slab."""
    slabs = _slabs(windows, per_voxel, memory, device)
    before = windows.before[0]
    return sum(len(windows.origins(first + before, last + before)) for first, last in slabs)


def _span(origin: Origin, windows: Windows) -> tuple[slice, ...]:
    return tuple(slice(start, start + side) for start, side in zip(origin, windows.size, strict=True))


def _slabs(windows: Windows, per_voxel: int, memory: int | None, device: torch.device) -> list[tuple[int, int]]:
    """Rows of axis 0 whose statistics fit into memory at once, the same number in each slab but the last."""
    budget = free_bytes(device) if memory is None else memory
    row = per_voxel * math.prod(windows.shape[1:])
    rows = min(windows.shape[0], budget // max(row, 1))
    if rows < 1:
        remedy = "ask for measures without a histogram, such as averaged_variance or predictive_entropy"
        raise BadInput("the statistics of one row of voxels fit into memory", "bytes of a row", row, remedy)
    return [(first, min(first + rows, windows.shape[0])) for first in range(0, windows.shape[0], rows)]


def _starts(length: int, side: int, overlap: float) -> list[int]:
    step = max(1, math.floor(side * (1 - overlap)))
    return [*range(0, length - side, step), length - side]
