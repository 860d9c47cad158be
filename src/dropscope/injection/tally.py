"""Tallies of noise: drops and factors, counted on values before and after it and compared with the asked rate.

Owns the counting and the intervals, which `audits` uses for our noise and `observer` for a model's own. It looks at
values only: a mask that is never applied does not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from dropscope.model import raw, writes
from dropscope.noise import Layout

_SATURATION = -1.7580993408473766  # of SELU: where alpha dropout moves a dropped unit, before it rescales all of them
_SCALE_TOLERANCE = 0.01  # of the factor on kept units: a value in half precision is rounded by up to 0.004
_FALSE_ALARM = 1e-6  # chance that an audit of any number of sound sites reports a wrong rate


@dataclass
class Tally:
    """What happened to the units of one value, over any number of passes. Units that were 0 before do not count."""

    units: int = 0
    dropped: int = 0
    total: float = 0.0  # of the factors
    squares: float = 0.0  # of the factors' distance from 1
    energy: float = 0.0  # squares of the values before
    lost: float = 0.0  # those of dropped units

    def add(self, before: Tensor, after: Tensor, mask: str, layout: Layout | None) -> None:
        """Counts one pass of noise that multiplies units."""
        tiny = torch.finfo(before.dtype).tiny  # below it a factor is lost in rounding: attention weights of masked keys
        before, after = before.detach().double(), after.detach().double()
        if mask != "element" and layout is not None and layout.batch_dim is not None:
            size = _per_unit(before.abs(), mask, layout)
            alive = size >= tiny
            # The factor that a unit's values have in common keeps its sign: Gaussian ones may be negative.
            factor = _per_unit(after * before.sign(), mask, layout)[alive] / size[alive]
            gone = _per_unit(after.abs(), mask, layout)[alive] == 0
            energy = _per_unit(before.square(), mask, layout)[alive]
        else:
            alive = before.abs() >= tiny
            factor = after[alive] / before[alive]
            gone = factor == 0
            energy = before[alive].square()
        self.units += int(alive.sum())
        self.dropped += int(gone.sum())
        self.total += float(factor.sum())
        self.squares += float((factor - 1).square().sum())
        self.energy += float(energy.sum())
        self.lost += float(energy[gone].sum())

    def add_alpha(self, before: Tensor, after: Tensor, rate: float, mask: str, layout: Layout) -> None:
        """Counts one pass of alpha dropout, which moves dropped units to one value; units already there say nothing."""
        scale = ((1 - rate) * (1 + rate * _SATURATION**2)) ** -0.5
        there = torch.isclose(
            after.detach().double(), after.new_tensor(_SATURATION * scale * (1 - rate)).double(), rtol=1e-4
        )
        alive = ~torch.isclose(before.detach().double(), before.new_tensor(_SATURATION).double(), rtol=1e-3)
        kept = alive & ~there
        if mask != "element":
            kept, alive = (_per_unit(units.double(), mask, layout) > 0 for units in (kept, alive))
        self.units += int(alive.sum())
        self.dropped += int((alive & ~kept).sum())

    @property
    def rate(self) -> float | None:
        """The dropped fraction."""
        return self.dropped / self.units if self.units else None

    @property
    def loss(self) -> float | None:
        """The share of the values' squares that dropped units had."""
        return self.lost / self.energy if self.energy else None

    @property
    def shift(self) -> float | None:
        """By how much the mean of the factors is off 1; None where that may be chance, were nine units one draw."""
        if not self.units or not math.isfinite(self.squares):
            return None
        off = self.total / self.units - 1
        return off if abs(off) > 0.01 + 12 * math.sqrt(self.squares) / self.units else None

    @property
    def variance(self) -> float | None:
        """Of the factors around 1, the mean that every noise keeps."""
        return self.squares / self.units if self.units else None


def _per_unit(value: Tensor, mask: str, layout: Layout) -> Tensor:
    """One number per (example, channel), or per example: the sum."""
    batch = layout.batch_dim or 0
    kept = {batch, layout.channel_dim % value.dim()} if mask == "channel" else {batch}
    others = [dim for dim in range(value.dim()) if dim not in kept]
    return value.sum(others) if others else value


def _judge_scale(tally: Tally, rate: float) -> str | None:
    kept = tally.units - tally.dropped
    mean = tally.total / kept if kept else 1 / (1 - rate)
    return (
        None
        if math.isclose(mean * (1 - rate), 1, abs_tol=_SCALE_TOLERANCE)
        else f"kept units are scaled by {mean:.4f}, not {1 / (1 - rate):.4f}"
    )


def disagreement(tally: Tally, rate: float, noise: str, sites: int) -> str | None:
    """Why the tally does not fit `rate`, with a chance of false alarm of 10⁻⁶ over all `sites`; None if it fits."""
    if tally.units == 0:
        return "no unit was above 0, so nothing could be dropped"
    alpha = _FALSE_ALARM / max(sites, 1)
    if noise in ("bernoulli", "alpha"):
        # The interval holds the rate exactly if neither tail is too unlikely, which is much faster to compute.
        tails = stats.binom.sf(tally.dropped - 1, tally.units, rate), stats.binom.cdf(tally.dropped, tally.units, rate)
        if min(tails) < alpha / 2:
            low, high = stats.binomtest(tally.dropped, tally.units).proportion_ci(1 - alpha)
            return f"dropped {tally.dropped} of {tally.units}: a rate between {low:.4f} and {high:.4f}"
        return _judge_scale(tally, rate) if noise == "bernoulli" else None
    variance = rate / (1 - rate)
    far = float(stats.norm.isf(alpha / 2))
    mean = tally.total / tally.units
    if abs(mean - 1) > far * math.sqrt(variance / tally.units) + 1e-6:
        return f"factors average {mean:.4f}, not 1"
    # Var of a sample variance is (fourth moment − σ⁴)/n: 3σ⁴ for a Gaussian; multinomial counts add σ² times λ's scale.
    fourth = 3 * variance**2 + (variance * (1 + variance) if noise == "multinomial" else 0.0)
    spread = far * math.sqrt((fourth - variance**2) / tally.units)
    seen = tally.squares / tally.units
    if abs(seen - variance) > spread + 1e-6:
        return f"factors vary by {seen:.4f}, not {variance:.4f}"
    return None


def disagreement_of_own(tally: Tally, rate: float, sites: int) -> str | None:
    """Why a noise of the user's own took no effect; None if it did. What its rate means is its author's to say."""
    if tally.units == 0:
        return "no unit was above 0, so nothing could be disturbed"
    if not math.isfinite(tally.squares):
        return "its factors are not finite: bound what it takes the logarithm of, or divides by"
    # Whatever the noise, at its rate or more of the units something happens: none of many is no chance.
    if tally.squares == 0 and tally.units * math.log1p(-rate) < math.log(_FALSE_ALARM / max(sites, 1)):
        return f"every factor on {tally.units} units is 1: let it return other factors at a rate above 0"
    return None


def disagreement_of_adaptive(tally: Tally, share: float, sites: int) -> str | None:
    """Why dropout that is to lose a share of the information does not; None if it may. Its rates differ by example."""
    problem = disagreement_of_own(tally, share, sites)
    if problem is None and tally.shift is not None:
        return f"factors average {1 + tally.shift:.4f}, not 1"
    return problem


def state_mark(model: torch.nn.Module) -> dict[str, tuple[int, int, bytes]]:
    """A mark of every parameter and buffer that changes when it does: buffers by value, parameters by write counter."""
    mark = {name: (id(p), writes(p), b"") for name, p in model.named_parameters()}
    for name, buffer in model.named_buffers():
        mark[name] = id(buffer), 0, raw(buffer).tobytes()
    return mark
