"""Random-effects pooling: textbook numbers, an independent computation, and what it decides by chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from dropscope.analysis import pool_effects

# The 13 trials of BCG vaccine (Colditz et al. 1994): cases and others among the vaccinated, and among the controls.
BCG = np.array(
    [(4, 119, 11, 128), (6, 300, 29, 274), (3, 228, 11, 209), (62, 13536, 248, 12619), (33, 5036, 47, 5761),
     (180, 1361, 372, 1079), (8, 2537, 10, 619), (505, 87886, 499, 87892), (29, 7470, 45, 7232), (17, 1699, 65, 1600),
     (186, 50448, 141, 27197), (5, 2493, 3, 2338), (27, 16886, 29, 17825)], float,
)  # fmt: skip


def log_risk_ratios() -> tuple[np.ndarray, np.ndarray]:
    a, b, c, d = BCG.T
    return np.log(a / (a + b) / (c / (c + d))), np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))


def test_the_textbook_example_has_its_published_numbers() -> None:
    """As the R package metafor gives them (Viechtbauer 2010): REML with the test of Knapp and Hartung."""
    pooled = pool_effects(*log_risk_ratios())
    found = (pooled.value, pooled.tau2, pooled.q, 100 * pooled.i2, pooled.error)
    assert found == pytest.approx((-0.7145, 0.3132, 152.233, 92.22, 0.1808), abs=5e-3)
    assert pooled.value == pytest.approx(-0.7145, abs=5e-5)
    assert pooled.tau2 == pytest.approx(0.3132, abs=5e-5)
    assert pooled.error == pytest.approx(0.1808, abs=5e-5)
    freedom = 1 / np.square(pooled.weights).sum() - 1
    assert 11 < freedom < 12
    assert pooled.high - pooled.value == pytest.approx(stats.t.ppf(0.975, freedom) * pooled.error)


@pytest.mark.parametrize("seed", range(6))
def test_the_variance_between_studies_maximises_the_restricted_likelihood(seed: int) -> None:
    draw = np.random.default_rng(seed)
    k = int(draw.integers(2, 9))
    errors = np.exp(draw.normal(-1, 0.6, k))
    values = draw.normal(0.3, 0.5 * (seed % 3), k) + errors * draw.normal(size=k)
    design = np.ones((k, 1))

    def loss(tau2: float) -> float:
        covariance = np.diag(errors**2 + tau2)
        inverse = np.linalg.inv(covariance)
        information = design.T @ inverse @ design
        mean = np.linalg.solve(information, design.T @ inverse @ values)
        rest = values - design @ mean
        parts = np.linalg.slogdet(covariance)[1], np.linalg.slogdet(information)[1], rest @ inverse @ rest
        return float(sum(parts)) / 2

    found = pool_effects(values, errors).tau2
    tried = [loss(float(tau2)) for tau2 in np.linspace(0, 20 * np.ptp(values) ** 2 + 1, 4000)]
    finest = optimize.minimize_scalar(loss, bounds=(0, 4), method="bounded", options={"xatol": 1e-10})
    assert loss(found) <= min([*tried, finest.fun]) + 1e-9


def test_equal_studies_have_no_heterogeneity_and_the_fixed_error() -> None:
    pooled = pool_effects([0.2, 0.2, 0.2], [0.1, 0.1, 0.1])
    assert pooled.value == pytest.approx(0.2)
    assert (pooled.tau2, pooled.i2) == (0, 0)
    assert pooled.error == pytest.approx(0.1 / np.sqrt(3))  # a factor of Hartung and Knapp of 0 would make it 0
    assert pooled.high == pytest.approx(0.2 + stats.t.ppf(0.975, 2) * pooled.error)
    assert pooled.predicted[0] < pooled.low < pooled.high < pooled.predicted[1]


def test_order_does_not_matter_and_units_only_scale() -> None:
    values, errors = np.array([0.1, 0.3, 0.2, 0.6]), np.array([0.05, 0.06, 0.05, 0.1])
    one, turned = pool_effects(values, errors), pool_effects(values[::-1], errors[::-1])
    scaled = pool_effects(1e-6 * values, 1e-6 * errors)
    assert one.value == pytest.approx(turned.value)
    assert (1e6 * scaled.value, 1e12 * scaled.tau2, scaled.p) == pytest.approx((one.value, one.tau2, one.p), rel=1e-4)


def test_one_study_has_no_interval_and_bad_errors_are_refused() -> None:
    assert np.isnan(pool_effects([0.1], [0.1]).low)
    for values, errors in (([], []), ([1.0], [0.0]), ([1.0, 2.0], [1.0]), ([1.0, np.nan], [1.0, 1.0])):
        with pytest.raises(ValueError, match="errors"):
            pool_effects(values, errors)


@pytest.mark.parametrize(("studies", "networks"), [(3, 5), (5, 3), (10, 5)])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_without_an_effect_it_is_rarely_decided(studies: int, networks: int, tau: float) -> None:
    draw = np.random.default_rng(17)
    decided, runs = 0, 240
    for _ in range(runs):
        spread = np.exp(draw.normal(0, 0.5, studies))
        cells = draw.normal(tau / np.sqrt(networks) * draw.normal(size=studies), spread, (networks, studies))
        pooled = pool_effects(cells.mean(0), stats.sem(cells))
        decided += pooled.p < 0.05
        assert pooled.low < pooled.value < pooled.high
    assert decided / runs <= 0.07
