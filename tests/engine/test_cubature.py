"""Points in place of passes: their moments are exact, and what follows from them is right where the answer is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from dropscope.engine.analytic.cubature import NOISES, UnitNoise, contributions, points, probabilities_at, size, spread

CPU = torch.device("cpu")


def subject(units: int, classes: int, examples: int = 3, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Features, weights and plain logits."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(examples, units, generator=generator).relu()
    weight = scale * torch.randn(classes, units, generator=generator) / units**0.5
    return features, weight, features @ weight.T


def found(noise: UnitNoise, features: Tensor, weight: Tensor, logits: Tensor) -> Tensor:
    """Probabilities at all points, `[points, n, C]`."""
    spreads = spread(contributions(features, weight, noise.units), noise)
    return torch.cat(list(probabilities_at(logits, spreads, points(noise, len(weight), CPU))))


def covariance(noise: UnitNoise) -> Tensor:
    own, shared = noise.covariance
    return own * torch.eye(noise.units) - shared


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("classes", [2, 10])
def test_logits_at_the_points_have_the_exact_mean_and_covariance(kind: str, classes: int) -> None:
    noise = UnitNoise(kind, 0.3, 40)
    features, weight, _ = subject(40, classes)
    moved = contributions(features, weight, 40)
    at = points(noise, classes, CPU)
    logits = torch.einsum("pd,ndc->npc", at, spread(moved, noise))
    exact = torch.einsum("ncu,uv,ndv->ncd", moved, covariance(noise), moved)
    assert at.shape == (size(noise, classes), noise.drawn + classes - 1)
    torch.testing.assert_close(logits.mean(1), torch.zeros(3, classes), atol=1e-5, rtol=0)
    torch.testing.assert_close(logits.mT @ logits / len(at), exact, atol=1e-4, rtol=1e-4)


def test_multinomial_factors_have_the_stated_covariance() -> None:
    noise, generator = UnitNoise("multinomial", 0.3, 12), np.random.default_rng(0)
    draws = round(11 * 0.7 / 0.3)
    factors = generator.multinomial(draws, [1 / 12] * 12, 200_000) * 12 / draws
    np.testing.assert_allclose(np.cov(factors.T), covariance(noise).numpy(), atol=0.01)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_binary_head_under_gaussian_noise_is_a_quadrature(rate: float) -> None:
    noise = UnitNoise("gaussian", rate, 30)
    features, row, _ = subject(30, 1, scale=2.0)
    weight = torch.cat([torch.zeros_like(row), row])
    p = found(noise, features, weight, features @ weight.T)[..., 1].double()
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    deviation = (features * row).square().sum(1).mul(rate / (1 - rate)).sqrt()
    exact = torch.sigmoid((features @ row.T).double() + deviation[:, None] * torch.tensor(nodes))
    shares = torch.tensor(weights / weights.sum())
    torch.testing.assert_close(p.mean(0), exact @ shares, atol=5e-4, rtol=0)
    torch.testing.assert_close(p.square().mean(0), exact.square() @ shares, atol=5e-4, rtol=0)


def test_few_units_are_drawn_one_by_one() -> None:
    """With no unit left for the Gaussian, every mask counts by its probability."""
    noise, rate = UnitNoise("bernoulli", 0.3, 6), 0.3
    features, weight, logits = subject(6, 3, scale=3.0)
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=6)))
    shares = torch.where(masks > 0, 1 - rate, rate).prod(1).double()
    exact = ((features * masks[:, None] / (1 - rate)) @ weight.T).softmax(2).double()
    mean = (exact * shares[:, None, None]).sum(0)
    torch.testing.assert_close(found(noise, features, weight, logits).double().mean(0), mean, atol=0.01, rtol=0)


def test_units_of_several_features_move_together() -> None:
    noise = UnitNoise("bernoulli", 0.5, 4)
    features, weight, _ = subject(12, 5)
    moved = contributions(features, weight, 4)
    factors = torch.tensor([0.0, 2.0, 0.0, 2.0])
    noisy = (features.view(3, 4, 3) * factors[:, None]).flatten(1) @ weight.T
    expected = torch.einsum("u,ncu->nc", factors, moved)
    torch.testing.assert_close(noisy - noisy.mean(1, keepdim=True), expected, atol=1e-5, rtol=0)
    assert spread(moved, noise).shape == (3, 4 + 4, 5)


def test_dead_units_leave_the_plain_pass() -> None:
    noise = UnitNoise("bernoulli", 0.5, 20)
    _, weight, _ = subject(20, 4)
    logits = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    p = found(noise, torch.zeros(2, 20), weight, logits)
    torch.testing.assert_close(p, logits.softmax(1).expand_as(p), atol=1e-5, rtol=0)


def test_points_are_the_same_every_time() -> None:
    noise, state = UnitNoise("bernoulli", 0.25, 50), torch.random.get_rng_state()
    first = points(noise, 10, CPU)
    points.cache_clear()
    assert torch.equal(first, points(noise, 10, CPU))
    assert torch.equal(state, torch.random.get_rng_state())
    assert size(noise, 10) < size(noise, 100)


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.99])
def test_rates_at_which_hardly_any_unit_changes_leave_finite_numbers(rate: float) -> None:
    noise = UnitNoise("bernoulli", rate, 20)
    features, weight, logits = subject(20, 4)
    p = found(noise, features, weight, logits)
    assert bool(p.isfinite().all())
    torch.testing.assert_close(p.sum(2), torch.ones(p.shape[:2]))
