"""Sliding windows over a volume, and passes over all of them.

In every pass each window runs under masks of its own, keyed by volume and window; probabilities are averaged where
windows overlap, and only then counted. So a pass is one answer for the whole volume, and no measure depends on batch
size, on the order of windows, or on the slabs that a large volume is cut into. See `nifti` for the files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dropscope.data import Batch
from dropscope.device import free_bytes
from dropscope.engine import Engine, Session, Tick, choose_engine, quiet, sealed
from dropscope.errors import BadInput, Phrase
from dropscope.injection import ResolvedPlacement
from dropscope.measures import Measure
from dropscope.measures.statistics import PassStatistics, statistics_bytes
from dropscope.model import Call, id_keys
from dropscope.scores import PassLabels

Origin = tuple[int, ...]
_BLENDED_BYTES = 256 << 20  # of the passes over a slab that are blended side by side
_MOST_VOXELS = 1 << 30  # of a window: 4 GiB per channel


@dataclass(frozen=True)
class Windows:
    """Windows of one size over a volume, which is padded on both sides where it is smaller (see `pad`)."""

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
        """Corners of the windows that touch planes `first` to `last` of axis 0 of the padded volume, in a fixed order.

        >>> Windows((5, 2), (2, 2), 0.5).origins()
        [(0, 0), (1, 0), (2, 0), (3, 0)]
        """
        starts = [_starts(n, w, self.overlap) for n, w in zip(self.padded, self.size, strict=True)]
        end = self.padded[0] if last is None else last
        starts[0] = [start for start in starts[0] if start < end and start + self.size[0] > first]
        return list(itertools.product(*starts))


def plan_windows(
    shape: Sequence[int], roi: Sequence[int] | None, overlap: float, multiples: Sequence[int] = (1, 1, 1)
) -> Windows:
    """Windows of `roi` voxels over a volume; two sides mean slices for a 2-D network, None the whole volume at once.

    Sides are rounded up to the multiples that the network takes.

    >>> plan_windows((35, 51, 35), None, 0.25, (16, 16, 16)).size
    (48, 64, 48)
    """
    sides = tuple(shape) if roi is None else tuple(roi)
    if not (isinstance(overlap, float | int) and 0 <= overlap < 1):
        raise BadInput("overlap must be in [0, 1)", "overlap", overlap, "write overlap=0.25")
    if any(not isinstance(side, int) or side < 1 for side in sides) or len(sides) not in (2, 3):
        remedy = "write roi=(128, 128, 16), or roi=(128, 128) for the slices of a 2-D network"
        raise BadInput("roi must have two or three sides of at least 1", "roi", roi, remedy)
    if math.prod(sides) > _MOST_VOXELS:
        what, remedy = f"roi must hold at most {_MOST_VOXELS:,} voxels", "write roi=(128, 128, 16)"
        raise BadInput(what, "roi", sides, remedy)
    flat = roi is not None and len(sides) == 2
    sides = tuple(math.ceil(side / of) * of for side, of in zip(sides, multiples, strict=False))
    return Windows(tuple(shape), (*sides, 1) if flat else sides, float(overlap), flat)


@dataclass(frozen=True, eq=False)
class VolumePrediction:
    """Label map and uncertainty maps of one volume, on the CPU."""

    labels: Tensor  # int64 [*shape], argmax of the mean over passes
    confidence: Tensor  # float32 [*shape], the mean probability of that label
    entropy: Tensor  # float32 [*shape], the predictive entropy
    maps: dict[str, Tensor]  # measure → float32 [*shape]
    pass_labels: PassLabels  # volumes and votes of the label map of every pass


def predict_volume(
    session: Session,
    resolved: ResolvedPlacement,
    image: Tensor,
    windows: Windows,
    measures: Sequence[Measure],
    passes: int,
    batch_size: int = 4,
    memory: int | None = None,
    tick: Tick = quiet,
    engine: str = "loop",
) -> VolumePrediction:
    """Label map and uncertainty maps of `image[channels, *shape]`.

    Statistics are kept for as many planes of axis 0 at once as fit into `memory` (60 % of what is free if None): more
    slabs, the same answer. The shared engine repays where noise enters late; by default the plain loop runs.
    """
    needs = {"sum_p"}.union(*(measure.needs for measure in measures))
    padded = pad(image, windows).to(session.device)
    key = int(Call((image[None],)).keys()[0])
    running = choose_engine(session, [resolved], passes, engine)
    slabs = _slabs(windows, bytes_per_voxel(measures, session.classes), memory, session.device)
    parts: dict[str, list[Tensor]] = {measure.name: [] for measure in measures}
    means: list[Tensor] = []
    pass_labels: PassLabels | None = None
    for first, last in slabs:
        slab = _Slab.of(padded, windows, key, batch_size, first, last)
        plain = slab.plain(session) if any(measure.needs_plain for measure in measures) else None
        statistics = PassStatistics(needs, None if plain is None else plain.movedim(1, -1))
        votes = PassLabels(session.classes)
        for p in slab.passes(running, passes, tick):
            statistics.update(p.movedim(1, -1), check=False)
            votes.update(p.argmax(1))
        for measure in measures:
            value = measure(plain if measure.of == "plain" and plain is not None else statistics)
            parts[measure.name].append(value[0].float().cpu())
        means.append(statistics.mean[0].cpu())
        pass_labels = votes if pass_labels is None else pass_labels.beside(votes)
    assert pass_labels is not None
    mean = torch.cat(means)
    confidence, labels = mean.max(-1)
    entropy = torch.special.entr(mean).sum(-1)
    maps = {name: torch.cat(slabs_of_map) for name, slabs_of_map in parts.items()}
    return VolumePrediction(labels, confidence.float(), entropy.float(), maps, pass_labels)


def plain_labels(session: Session, image: Tensor, windows: Windows, batch_size: int = 4) -> Tensor:
    """The label map `[*shape]` of one plain pass over `image[channels, *shape]`, on the CPU."""
    slab = _Slab.of(pad(image, windows).to(session.device), windows, 0, batch_size, 0, windows.shape[0])
    return slab.plain(session)[0].argmax(0).cpu()


def bytes_per_voxel(measures: Sequence[Measure], classes: int) -> int:
    """Memory of the statistics of one voxel, and of the probabilities of the pass that updates them."""
    needs = {"sum_p"}.union(*(measure.needs for measure in measures))
    return statistics_bytes(needs, classes) + 12 * classes


@dataclass(frozen=True, eq=False)
class _Slab:
    """Planes of axis 0 of the volume, and every window that touches them, in batches."""

    padded: Tensor
    windows: Windows
    batches: list[list[Origin]]
    key: int  # of the volume
    first: int  # planes, in the padded volume
    last: int

    @classmethod
    def of(cls, padded: Tensor, windows: Windows, key: int, batch_size: int, first: int, last: int) -> _Slab:
        begin, end = first + windows.before[0], last + windows.before[0]
        origins = windows.origins(begin, end)
        batches = [origins[i : i + batch_size] for i in range(0, len(origins), batch_size)]
        return cls(padded, windows, batches, key, begin, end)

    def passes(self, engine: Engine, passes: int, tick: Tick) -> Iterator[Tensor]:
        """Probabilities `[1, C, *slab]` of each pass."""
        session = engine.session
        at_once = max(1, min(passes, _BLENDED_BYTES // (4 * session.classes * self._voxels)))
        for first in range(0, passes, at_once):
            numbers = range(first, min(first + at_once, passes))
            blends = [_Blend(self, session) for _ in numbers]
            for origins in self.batches:
                for block in engine.samples(0, self._batch(origins), numbers, tick):
                    for number, p in enumerate(block.probabilities, block.first - first):
                        blends[number].add(origins[block.rows], p)
            for blend in blends:
                yield blend.mean()

    def plain(self, session: Session) -> Tensor:
        """Probabilities `[1, C, *slab]` of the plain pass."""
        blend = _Blend(self, session)
        with torch.no_grad(), sealed():
            for origins in self.batches:
                blend.add(origins, session.plain(self._batch(origins)))
        return blend.mean()

    def _batch(self, origins: list[Origin]) -> Batch:
        ids = [f"{self.key}:{origin}" for origin in origins]
        inputs = torch.stack([cut_out(self.padded, self.windows, origin) for origin in origins])
        return Batch(Call((inputs,)), None, id_keys(ids), ids, None)

    @property
    def _voxels(self) -> int:
        return (self.last - self.first) * math.prod(self.windows.padded[1:])


class _Blend:
    """One pass over a slab: probabilities of its windows, averaged where they overlap."""

    def __init__(self, slab: _Slab, session: Session) -> None:
        self._slab = slab
        shape = (slab.last - slab.first, *slab.windows.padded[1:])
        self._total = torch.zeros((session.classes, *shape), device=session.device)
        self._count = torch.zeros(shape, device=session.device)

    def add(self, origins: Sequence[Origin], p: Tensor) -> None:
        slab, windows = self._slab, self._slab.windows
        for origin, one in zip(origins, p.unsqueeze(-1) if windows.flat else p, strict=True):
            low, high = max(origin[0], slab.first), min(origin[0] + windows.size[0], slab.last)
            inside = (slice(low - slab.first, high - slab.first), *_span(origin, windows)[1:])
            self._total[(slice(None), *inside)] += one[:, low - origin[0] : high - origin[0]]
            self._count[inside] += 1

    def mean(self) -> Tensor:
        """`[1, C, *slab]`, without the padding."""
        windows = self._slab.windows
        crop = tuple(slice(b, b + n) for b, n in zip(windows.before[1:], windows.shape[1:], strict=True))
        return (self._total / self._count)[(slice(None), slice(None), *crop)].unsqueeze(0)


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


def count_windows(windows: Windows, voxel_bytes: int, memory: int | None, device: torch.device) -> int:
    """How many windows run in one pass over the volume, slab by slab."""
    slabs = _slabs(windows, voxel_bytes, memory, device)
    before = windows.before[0]
    return sum(len(windows.origins(first + before, last + before)) for first, last in slabs)


def _span(origin: Origin, windows: Windows) -> tuple[slice, ...]:
    return tuple(slice(start, start + side) for start, side in zip(origin, windows.size, strict=True))


def _slabs(windows: Windows, voxel_bytes: int, memory: int | None, device: torch.device) -> list[tuple[int, int]]:
    """Planes of axis 0 whose statistics fit into memory at once, the same number in each slab but the last."""
    budget = free_bytes(device) if memory is None else memory
    plane_bytes = voxel_bytes * math.prod(windows.shape[1:])
    planes = min(windows.shape[0], budget // max(plane_bytes, 1))
    if planes < 1:
        what = f"memory must hold the statistics of one plane of voxels, {plane_bytes} bytes"
        remedy = "ask for measures without a histogram, such as averaged_variance or predictive_entropy"
        raise BadInput(what, "memory", Phrase(f"{budget} bytes"), remedy)
    return [(first, min(first + planes, windows.shape[0])) for first in range(0, windows.shape[0], planes)]


def _starts(length: int, side: int, overlap: float) -> list[int]:
    step = max(1, math.floor(side * (1 - overlap)))
    return [*range(0, length - side, step), length - side]
