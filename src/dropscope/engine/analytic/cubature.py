"""Cubature over the noise before a last linear layer: points that all examples share, and what each makes of them.

Logits are affine in the factors of the units. The units that move them most are drawn as they are, unit by unit; what
the many others add is Gaussian, with its exact covariance. Tensors only: see `readout` for where they come from.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dropscope.device import runs_kernels
from dropscope.noise import multinomial_draws

NOISES = ("bernoulli", "gaussian", "multinomial")
_DRAWN = 8  # units that are drawn, at most
_POINTS = 256
_POINTS_PER_DIMENSION = 8
_CALM = 0.5  # variance of a factor
_EVENTS = 4  # points at least at which a unit drops, and at which it stays, if it is drawn
_ROUNDING = 1e-6  # of the total variance, added to each: where few units are live, the covariance has no full rank
_AT_ONCE_CPU, _AT_ONCE_CUDA = 1 << 19, 1 << 26  # logits at once: what a cache holds, what keeps a GPU busy


@dataclass(frozen=True)
class UnitNoise:
    """Noise on the units of an example: factors of mean 1 whose covariance is known."""

    noise: str  # one of NOISES
    rate: float
    units: int

    @property
    def drawn(self) -> int:
        """How many units are drawn as they are: none where a factor is Gaussian itself, or depends on the others.

        Nor where units drop too rarely, or stay too rarely, for the points to show it.
        """
        rare = min(self.rate, 1 - self.rate) * _POINTS < _EVENTS
        return min(_DRAWN, self.units) if self.noise == "bernoulli" and not rare else 0

    @property
    def covariance(self) -> tuple[float, float]:
        """The variance v of a factor apart from what all share, and w: the covariance of factors i and j is v·δij − w.

        >>> UnitNoise("bernoulli", 0.5, 100).covariance, UnitNoise("multinomial", 0.5, 101).covariance
        ((1.0, 0.0), (1.01, 0.01))
        """
        if self.noise == "multinomial":
            draws = multinomial_draws(self.units, self.rate)
            return self.units / draws, 1 / draws
        return self.rate / (1 - self.rate), 0.0


def contributions(features: Tensor, weight: Tensor, units: int) -> Tensor:
    """What each unit adds to the logits, `[n, C, units]`, less what it adds to all of them: softmax sees no more.

    Args:
        features: Inputs of the layer `[n, D]`; unit u has the u-th D / units of them.
        weight: `[C, D]`.
        units: How many units an example has.
    """
    centred = weight - weight.mean(0)
    if units == features.shape[1]:
        return features[:, None] * centred
    return torch.einsum("nug,cug->ncu", features.unflatten(1, (units, -1)), centred.unflatten(1, (units, -1)))


def spread(moved: Tensor, noise: UnitNoise) -> Tensor:
    """What turns points into logits, `[n, drawn + C − 1, C]`: a row per drawn unit, then those of the Gaussian rest."""
    own, shared = noise.covariance
    rows = []
    if noise.drawn:
        sizes = moved.square().sum(1)
        largest = sizes.topk(noise.drawn, 1).indices
        rows.append(moved.gather(2, largest[:, None].expand(-1, moved.shape[1], -1)).mT)
        moved = moved * torch.ones_like(sizes).scatter_(1, largest, 0.0)[:, None]
    covariance = own * torch.bmm(moved, moved.mT)
    if shared:
        together = moved.sum(2)
        covariance -= shared * together[:, :, None] * together[:, None]
    covariance = covariance[:, :-1, :-1].double()  # the last logit is minus the sum of the others
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    diagonal += _ROUNDING * diagonal.sum(1, keepdim=True) + 1e-12
    root, failed = torch.linalg.cholesky_ex(covariance)  # unlike `cholesky`, it does not wait for the device
    root = root.masked_fill(failed[:, None, None] > 0, torch.nan).mT.to(moved.dtype)
    return torch.cat([*rows, torch.cat([root, -root.sum(2, keepdim=True)], 2)], 1)


def size(noise: UnitNoise, classes: int) -> int:
    """How many points there are: twice as many where factors vary much."""
    least = max(_POINTS, 2 ** math.ceil(math.log2(_POINTS_PER_DIMENSION * (noise.drawn + classes - 1))))
    return int(least if noise.covariance[0] <= _CALM else 2 * least)


@functools.lru_cache(64)
def points(noise: UnitNoise, classes: int, device: torch.device) -> Tensor:
    """Factors less their mean, `[points, drawn + C − 1]`: those of the drawn units, then standard normal ones.

    Scrambled Sobol points, the same in every process. Mean and covariance over them are exact: they are whitened.
    """
    drawn, count = noise.drawn, size(noise, classes)
    sobol = torch.quasirandom.SobolEngine(drawn + classes - 1, scramble=True, seed=0)
    uniform = (sobol.draw(count, dtype=torch.float64) * count).floor().add(0.5).div(count)
    kept = (uniform[:, :drawn] >= noise.rate).double()
    found = torch.cat([kept, torch.special.ndtri(uniform[:, drawn:])], 1)
    found -= found.mean(0)
    values, vectors = torch.linalg.eigh(found.T @ found / count / _outer(found.std(0, correction=0)))
    found = found / found.std(0, correction=0) @ (vectors * values.rsqrt()) @ vectors.T
    found[:, :drawn] *= math.sqrt(noise.covariance[0])
    return found.float().to(device)


def _outer(deviation: Tensor) -> Tensor:
    return deviation[:, None] * deviation


def probabilities_at(logits: Tensor, spreads: Tensor, at: Tensor) -> Iterator[Tensor]:
    """Probabilities at the points, some points at a time: `[some, n, C]`, each point of equal weight.

    Args:
        logits: Without noise, `[n, C]`.
        spreads: Of `spread`.
        at: Of `points`.
    """
    for values in _logits_at(logits, spreads, at):
        values.exp_()
        values /= values.sum(1, keepdim=True)
        yield values.mT


def sums_at(logits: Tensor, spreads: Tensor, at: Tensor, plain: Tensor) -> Tensor:
    """The sums over all points that `PassStatistics.add_sums` takes, `[n, C + 4]`, from plain probabilities `plain`."""
    if runs_kernels(logits.device):
        from dropscope.engine.analytic import kernels

        return kernels.sums_at(logits, spreads, at, plain)
    highest, chosen = plain.max(1)
    total = torch.zeros(logits.shape[1] + 4, len(logits), device=logits.device)
    held: Tensor | None = None
    for values in _logits_at(logits, spreads, at):
        held = torch.empty_like(values) if held is None else held
        p = torch.exp(values, out=held[: len(values)])
        share = p.sum(1).reciprocal_()  # of the most probable class, whose logit is 0
        information = values.mul_(p).sum(1).mul_(share).add_(share.log())
        p *= share[:, None]
        predicted = p.gather(1, chosen.expand(len(p), 1, -1)).squeeze(1).sub_(highest)
        share -= highest
        rows = information, share, share.square(), predicted.square()
        total += torch.cat([p.sum(0), torch.stack([row.sum(0) for row in rows])])
    return total.T


def _logits_at(logits: Tensor, spreads: Tensor, at: Tensor) -> Iterator[Tensor]:
    """Logits at some points at a time, `[some, C, n]`, the highest being 0; all in the same memory.

    Examples come last: on a CPU a softmax over few neighbours is no vector code.
    """
    most = _AT_ONCE_CPU if logits.device.type == "cpu" else _AT_ONCE_CUDA
    rows, plain = spreads.permute(1, 2, 0).flatten(1), logits.T.reshape(1, -1)
    together = min(len(at), max(1, most // logits.numel()))
    held = rows.new_empty(together, rows.shape[1])
    for some in at.split(together):
        values = torch.addmm(plain, some, rows, out=held[: len(some)]).view(len(some), logits.shape[1], -1)
        values -= values.amax(1, keepdim=True)
        yield values
