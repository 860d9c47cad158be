"""Masks of the forwards that run: the keys of all points, and the factors of small values, each made for many at once.

To hash a key or a small mask takes dozens of operations on a few numbers. Points whose masks have one shape, rate and
noise share them, and so do consecutive passes over the same examples. The numbers are those of `noise.disturb`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dropscope.injection.resolution import ResolvedPlacement, SiteNoise
from dropscope.model import writes
from dropscope.noise import Keys, in_blocks, multiplier, site_key, spread, start, streams_of_all, unit_shape
from dropscope.tracing import Point

_SMALL = 1 << 15  # factors of one value, at most: more are no faster together
_AT_ONCE = 1 << 17  # factors of all values and passes that are made together
_AHEAD = 16  # passes whose keys are made together, once forwards come in the order of passes
_TOGETHER = ("bernoulli", "gaussian")

Style = tuple[float, str, tuple[int, ...]]  # rate, noise, shape of an example's units


class _Learned(NamedTuple):
    """What an earlier forward showed of a point."""

    shape: torch.Size  # of its value
    style: Style | None  # None where its mask is not made with others


class Masks:
    """Keys and factors of the forward that runs, and of those that are expected after it."""

    def __init__(self, seed: int, draws: str) -> None:
        self._seed, self._draws = seed, draws
        self._points: dict[Point, int] = {}
        self._starts: Tensor | None = None
        self._passes = self._examples = torch.zeros(0, dtype=torch.int64)  # passes broadcast against [passes, examples]
        self._written = 0  # how often the examples' keys were written to
        self._keys: Keys | None = None  # [points, passes, examples]
        self._first, self._ahead, self._pass = 0, 0, 0  # passes that keys are for, and which of them runs
        self._learned: dict[Point, _Learned] = {}
        self._groups: dict[Style, list[Point]] = {}
        self._factors: dict[Style, tuple[int, dict[Point, Tensor]]] = {}  # from which of those passes on

    def begin(self, resolved: ResolvedPlacement, passes: Tensor, examples: Tensor, number: int | None) -> None:
        """A forward begins: `passes` holds one number, or one per example; `number` is the one, where it is known."""
        written = writes(examples)
        same = examples is self._examples and written == self._written and resolved.keys() == self._points.keys()
        if same and number is not None and self._first <= number < self._first + self._ahead:
            self._pass = number - self._first
            return
        follows = same and number is not None and number == self._first + self._ahead
        if resolved.keys() != self._points.keys():
            self._points, self._starts = {point: i for i, point in enumerate(resolved)}, None
        self._examples, self._written, self._keys = examples, written, None
        self._factors.clear()
        self._first, self._ahead, self._pass = number or 0, 0, 0
        self._passes = passes
        if number is not None:
            self._ahead = _AHEAD if follows else 1
            if follows:
                self._passes = torch.arange(number, number + _AHEAD, device=passes.device).unsqueeze(-1)

    def keys(self, point: Point, device: torch.device) -> Keys | None:
        """One key per example; None for a point that the placement does not name, a further call of a module."""
        if point not in self._points:
            return None
        return self._all_keys(device)[self._points[point], self._pass]

    def _all_keys(self, device: torch.device) -> Keys:
        if self._keys is None or self._keys.states.device != device:
            if self._starts is None or self._starts.device != device:
                begun = [start(self._seed, site_key(known.name, known.call)) for known in self._points]
                self._starts = torch.tensor(begun, dtype=torch.int64, device=device).unsqueeze(-1)
            numbers, places = in_blocks(self._passes.to(device), self._draws)
            self._keys = Keys.of(streams_of_all(self._starts, numbers, self._examples.to(device)), places)
        return self._keys

    def factor(self, point: Point, value: Tensor, spec: SiteNoise) -> Tensor | None:
        """λ for a small value whose kind was seen in an earlier forward, hashed with its like; None for others."""
        known = self._learned.get(point)
        if known is None or known.shape != value.shape:
            self._learn(point, value, spec)
            return None
        if known.style is None:
            return None
        begin, made = self._factors.get(known.style, (0, {}))
        if point not in made or not begin <= self._pass < begin + len(made[point]):
            begin, made = self._factors[known.style] = self._pass, self._made(known.style, value.device)
        return spread(made[point][self._pass - begin], value, spec.mask, spec.layout).to(value.dtype)

    def _made(self, style: Style, device: torch.device) -> dict[Point, Tensor]:
        """The factors of all points of a style, for the pass that runs and some of those that follow."""
        group, (rate, noise, shape) = self._groups[style], style
        each = len(group) * len(self._examples) * math.prod(shape)
        passes = slice(self._pass, self._pass + max(1, _AT_ONCE // each))
        keys = self._all_keys(device)[[self._points[p] for p in group], passes]
        return dict(zip(group, multiplier(keys, shape, rate, noise), strict=True))

    def _style_of(self, point: Point, value: Tensor, spec: SiteNoise) -> Style | None:
        layout = spec.layout
        if spec.noise not in _TOGETHER or point not in self._points or layout.batch_dim is None:
            return None
        if layout.centred is not None and spec.mask == "element":
            return None
        shape, _ = unit_shape(value, spec.mask, layout)
        small = math.prod(shape) * len(self._examples) <= _SMALL
        return (spec.rate, spec.noise, tuple(shape)) if small else None

    def _learn(self, point: Point, value: Tensor, spec: SiteNoise) -> None:
        """Joins the points of its style, from the next forward on."""
        known, style = self._learned.get(point), self._style_of(point, value, spec)
        if known is not None and known.style is not None:
            self._groups[known.style].remove(point)
        self._learned[point] = _Learned(value.shape, style)
        if style is not None:
            self._groups.setdefault(style, []).append(point)
            self._factors.pop(style, None)
