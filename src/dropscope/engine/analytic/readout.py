"""The readout of a model: its last linear layer, where all noise enters just before it.

Owns how the layer is found, and the checks that logits are affine in the noise. Each raises `ReadoutFailed`, with what
stands against it. See `cubature` for what is computed then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.data import Batch
from dropscope.engine.analytic.cubature import NOISES, UnitNoise
from dropscope.engine.loop import LoopEngine
from dropscope.engine.session import Session, sealed
from dropscope.injection import ResolvedPlacement, SiteNoise
from dropscope.noise import Keys, in_blocks, multiplier, site_key, streams, unit_shape
from dropscope.tracing import Point

_CLASSES = 128  # at most: the covariance of more costs more than passes of the layer
_TOLERANCE = 1e-5
_STRONG = 0.9  # a rate at which factors of Gaussian noise are often below 0


class ReadoutFailed(Exception):
    """Logits are not known to be affine in the noise. The text is what stands against it, as a noun."""


@dataclass(frozen=True, eq=False)
class Reading:
    """Plain passes of some examples, with what goes into the last layer and what comes out of it."""

    plain: Tensor  # probabilities [n, C]
    features: Tensor  # [n, D]
    logits: Tensor  # [n, C]


@dataclass(frozen=True, eq=False)
class Readout:
    """The last linear layer of a session's model."""

    session: Session
    path: str
    weight: Tensor  # [C, D]; two rows, the first of zeros, where the model has one logit

    def read(self, batch: Batch) -> Reading:
        with _heard(self.session.running, self.path) as heard:
            plain = self.session.plain(batch)
        return Reading(plain, *self._checked(heard, batch.n))

    def _checked(self, heard: list[tuple[Any, Any]], n: int) -> tuple[Tensor, Tensor]:
        if len(heard) != 1:
            raise ReadoutFailed(f"{self.path}, which is called {len(heard)} times in a forward")
        features, logits = heard[0]
        if not isinstance(features, Tensor) or features.shape != (n, self.weight.shape[1]):
            raise ReadoutFailed(f"{self.path}, which does not take one row of features per example")
        return features, torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits


def find_readout(session: Session) -> Readout:
    """The last layer, where the outputs are the softmax (or, of one logit, the sigmoid) of what it returns.

    Raises:
        ReadoutFailed: If it is something else.
    """
    if session.dense:
        raise ReadoutFailed("a model that predicts more than one class per example")
    if session.half:
        raise ReadoutFailed("precision='bf16', which rounds what the last layer returns")
    head = session.site_map.head()
    module = None if head is None else dict(session.running.named_modules()).get(head.module)
    if head is None or not isinstance(module, nn.Linear):
        raise ReadoutFailed("a last layer that is no nn.Linear")
    if session.classes > _CLASSES:
        raise ReadoutFailed(f"{session.classes} classes, whose covariance costs more than passes of the last layer")
    weight = module.weight.detach().float()
    if len(weight) == 1:
        weight = torch.cat([torch.zeros_like(weight), weight])
    readout = Readout(session, head.module, weight)
    with torch.no_grad(), sealed():
        reading = readout.read(session.data.batches[0].first_two())
    alike = reading.plain.shape == reading.logits.shape
    if not alike or not torch.allclose(reading.plain, reading.logits.softmax(1), rtol=0, atol=_TOLERANCE):
        raise ReadoutFailed(f"outputs that are not the softmax of what {head.module} returns")
    return readout


def unit_noises(readout: Readout, placements: Sequence[ResolvedPlacement]) -> list[UnitNoise | None]:
    """The noise of each placement on the units of an example; None for the plain placement.

    Raises:
        ReadoutFailed: If noise of one of them does anything but scale what goes into the last layer.
    """
    found: list[UnitNoise | None] = []
    seen: set[tuple[Point, tuple[str, str]]] = set()
    for resolved in placements:
        if not resolved:
            found.append(None)
            continue
        if len(resolved) > 1:
            first, second, *_ = resolved
            raise ReadoutFailed(f"noise at {first.address} and at {second.address}")
        ((point, spec),) = resolved.items()
        found.append(_unit_noise(readout, point, spec))
        if (point, spec.style) not in seen:
            seen.add((point, spec.style))
            _check_scaling(readout, point, spec)
    return found


def _unit_noise(readout: Readout, point: Point, spec: SiteNoise) -> UnitNoise:
    if spec.noise not in NOISES:
        raise ReadoutFailed(f"{spec.noise} noise, whose mean and variance are not known")
    if spec.layout.batch_dim != 0 or spec.layout.folded > 1:
        raise ReadoutFailed(f"noise at {point.address}, which has no row per example")
    shape = _units(readout.session, point, spec)
    if readout.weight.shape[1] % math.prod(shape) or (spec.noise == "multinomial" and shape[-1] != math.prod(shape)):
        raise ReadoutFailed(f"noise at {point.address}, which is not what goes into {readout.path}")
    return UnitNoise(spec.noise, spec.rate, math.prod(shape))


def _units(session: Session, point: Point, spec: SiteNoise) -> list[int]:
    value = torch.empty((1, *session.site_map.values[point].shape), device="meta")
    return unit_shape(value, spec.mask, spec.layout)[0]


def unit_factors(session: Session, resolved: ResolvedPlacement, passes: Tensor, examples: Tensor, draws: str) -> Tensor:
    """The factors of a placement with noise at one point, `[passes, examples, units]`."""
    ((point, spec),) = resolved.items()
    keys = torch.zeros_like(examples) if session.masks == "per_pass" else examples
    numbers, places = in_blocks(passes[:, None], draws)
    states = streams(session.seed, site_key(point.name, point.call), numbers, keys)
    shape = _units(session, point, spec)
    return multiplier(Keys.of(states, places), shape, spec.rate, spec.noise).flatten(2)


def _check_scaling(readout: Readout, point: Point, spec: SiteNoise) -> None:
    """Two examples × two passes of the plain loop: noise must scale the features, as it is asked for and when strong.

    An activation behind the noise passes factors of 0 and more only: strong Gaussian noise shows it.
    """
    session = readout.session.in_fp32()
    few, two = session.data.batches[0].first_two(), torch.arange(2, device=session.device)
    strong = spec if spec.noise == "multinomial" else replace(spec, rate=_STRONG)
    for placement in ({point: spec}, {point: strong}):
        loop = LoopEngine(session, [placement], 2, traced=True)
        with torch.no_grad(), sealed():
            plain = replace(readout, session=session).read(few).features
            with _heard(session.running, readout.path) as heard:
                for _ in loop.samples(0, few, range(2)):
                    pass
            factors = unit_factors(session, placement, two, few.keys.to(session.device), session.draws)
            expected = plain.reshape(1, few.n, factors.shape[2], -1) * factors[..., None]
        for (features, _), scaled in zip(heard, expected.flatten(2), strict=True):
            if features.shape != scaled.shape or not torch.allclose(features, scaled, rtol=1e-4, atol=_TOLERANCE):
                raise ReadoutFailed(
                    f"noise at {point.address}, which does more than scale what goes into {readout.path}"
                )


@contextmanager
def _heard(model: nn.Module, path: str) -> Iterator[list[tuple[Any, Any]]]:
    """What a module is given first and what it returns, call by call."""
    heard: list[tuple[Any, Any]] = []
    module = model.get_submodule(path)
    handle = module.register_forward_hook(lambda _, args, output: heard.append((args[0] if args else None, output)))
    try:
        yield heard
    finally:
        handle.remove()
