"""Noises as a user would write them, registered for the tests that name them in placements."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dropscope.placement import register_noise


@register_noise
def even_noise(uniforms: Tensor, rate: float) -> Tensor:
    """Uniform around 1 with the variance of the others."""
    return 1 + (2 * uniforms - 1) * (3 * rate / (1 - rate)) ** 0.5


@register_noise
def block_noise(uniforms: Tensor, rate: float) -> Tensor:
    """Squares of 3 × 3 units drop together; what is kept of an example keeps its mean."""
    hit = uniforms < 1 - (1 - rate) ** (1 / 9)
    kept = 1 - F.max_pool2d(hit.float(), 3, stride=1, padding=1)
    return kept / kept.mean((1, 2, 3), keepdim=True).clamp_min(1e-3)


@register_noise
def batch_noise(uniforms: Tensor, rate: float) -> Tensor:
    """Mixes examples, which no noise may."""
    return 1 + uniforms - uniforms.mean(0, keepdim=True)


@register_noise
def idle_noise(uniforms: Tensor, rate: float) -> Tensor:
    """Does nothing."""
    return torch.ones_like(uniforms)


@register_noise
def broken_noise(uniforms: Tensor, rate: float) -> Tensor:
    """Infinite where a unit drops."""
    return 1 / (uniforms >= rate).float()
