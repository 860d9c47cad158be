"""What a dropout class that torch does not know really does, tried on ones of the shape it gets.

Owns that trial. A name and a rate field say little: a `SpatialDropout` drops whole channels, a `p` may be a keep
probability. What turns out to be no Bernoulli dropout is told, and never replaced by one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from dropscope.visitor import OwnDropout

_TRIALS = 16


def tried(module: nn.Module, shape: tuple[int, ...], batch_dim: int | None, found: OwnDropout) -> OwnDropout | None:
    """`found` with the rate and mask that `module` shows in train mode; None where it is no Bernoulli dropout."""
    module.training = True
    try:
        factors = torch.stack([module(torch.ones(shape)) for _ in range(_TRIALS)])
    except (TypeError, RuntimeError):
        return found  # it takes more than a value: its own word is all there is
    kept = factors != 0
    if not bool(kept.any()):
        return None
    low, high = float(factors[kept].min()), float(factors[kept].max())
    if not (math.isclose(low, high, rel_tol=1e-4) and low > 0.9999):
        return None
    rate = 1 - 1 / max(low, 1.0)
    rate = found.rate if math.isclose(rate, found.rate, abs_tol=1e-4) else rate
    mask = _mask(kept, shape, batch_dim) or found.mask
    rows = _TRIALS * (1 if batch_dim is None else shape[batch_dim])
    units = {"example": rows, "channel": rows * shape[1] if len(shape) > 1 else rows}.get(mask, kept.numel())
    dropped = 1 - float(kept.double().mean())
    if mask == "mixed" or abs(dropped - rate) > 6 * math.sqrt(max(rate, 1e-3) / units):
        return None
    return replace(found, rate=rate, mask=mask)


def _mask(kept: Tensor, shape: tuple[int, ...], batch_dim: int | None) -> str | None:
    """How drops lie over an example: `kept` has a leading dimension of trials. None where nothing was dropped."""
    if bool(kept.all()):
        return None
    own = [dim for dim in range(len(shape)) if dim != batch_dim and shape[dim] > 1]
    alike = [dim for dim in own if bool((kept == kept.narrow(dim + 1, 0, 1)).all())]
    if not alike:
        return "element"
    if alike == own:
        return "example"
    return "channel" if own[0] == 1 and alike == own[1:] else "mixed"
