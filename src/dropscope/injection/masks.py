"""Masks of one forward: the keys of all its points, and the factors of small values, each made for many at once.

To hash a key or a small mask takes dozens of operations on a few numbers. Points whose masks have one shape, rate and
noise share them. The numbers are those of `noise.disturb`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dropscope.injection.resolution import ResolvedPlacement, SiteNoise
from dropscope.noise import Keys, in_blocks, multiplier, site_key, spread, start, streams_of_all, unit_shape
from dropscope.tracing import Point

_SMALL = 1 << 15  # factors of one value, at most: more are no faster together
_TOGETHER = ("bernoulli", "gaussian")

Style = tuple[float, str, tuple[int, ...]]  # rate, noise, shape of an example's units


class Masks:
    """Keys and factors of the forward that runs."""

    def __init__(self, seed: int, draws: str) -> None:
        self._seed, self._draws = seed, draws
        self._points: dict[Point, int] = {}
        self._starts: Tensor | None = None
        self._passes = self._examples = torch.zeros(0, dtype=torch.int64)
        self._keys: Keys | None = None  # [points, examples]
        self._style: dict[Point, Style] = {}  # of the points that were small in an earlier forward
        self._groups: dict[Style, list[Point]] = {}
        self._factors: dict[Style, dict[Point, Tensor]] = {}

    def begin(self, resolved: ResolvedPlacement, passes: Tensor, examples: Tensor) -> None:
        """A forward begins: `passes` holds one number, or one per example."""
        if resolved.keys() != self._points.keys():
            self._points, self._starts = {point: i for i, point in enumerate(resolved)}, None
        self._passes, self._examples, self._keys = passes, examples, None
        self._factors.clear()

    def keys(self, point: Point, device: torch.device) -> Keys | None:
        """One key per example; None for a point that the placement does not name, a further call of a module."""
        if point not in self._points:
            return None
        if self._keys is None or self._keys.states.device != device:
            if self._starts is None or self._starts.device != device:
                begun = [start(self._seed, site_key(known.name, known.call)) for known in self._points]
                self._starts = torch.tensor(begun, dtype=torch.int64, device=device)
            numbers, places = in_blocks(self._passes.to(device), self._draws)
            self._keys = Keys.of(streams_of_all(self._starts, numbers, self._examples.to(device)), places)
        return self._keys[self._points[point]]

    def factor(self, point: Point, value: Tensor, spec: SiteNoise) -> Tensor | None:
        """λ for a small value whose kind was seen in an earlier forward, hashed with its like; None for others."""
        style = self._style_of(point, value, spec)
        if style is None:
            return None
        if self._style.get(point) != style:
            self._learn(point, style)
            return None
        if style not in self._factors:
            assert self._keys is not None
            group = self._groups[style]
            rate, noise, shape = style
            made = multiplier(self._keys[[self._points[p] for p in group]], shape, rate, noise)
            self._factors[style] = dict(zip(group, made, strict=True))
        return spread(self._factors[style][point], value, spec.mask, spec.layout).to(value.dtype)

    def _style_of(self, point: Point, value: Tensor, spec: SiteNoise) -> Style | None:
        layout = spec.layout
        if spec.noise not in _TOGETHER or point not in self._points or layout.batch_dim is None:
            return None
        if layout.centred is not None and spec.mask == "element":
            return None
        shape, _ = unit_shape(value, spec.mask, layout)
        small = math.prod(shape) * len(self._examples) <= _SMALL
        return (spec.rate, spec.noise, tuple(shape)) if small else None

    def _learn(self, point: Point, style: Style) -> None:
        """Joins the points of its style, from the next forward on."""
        known = self._style.get(point)
        if known is not None:
            self._groups[known].remove(point)
        self._style[point] = style
        self._groups.setdefault(style, []).append(point)
        self._factors.pop(style, None)
