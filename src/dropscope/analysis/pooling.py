"""Random-effects pooling: one number from several studies that estimate the same thing, each with its error.

Owns the between-study variance (restricted maximum likelihood), the interval of the mean (Hartung and Knapp, never
narrower than without their factor) and the heterogeneity. Studies must be independent; nothing here can check that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

LEAST_STUDIES = 3  # below, a pooled number decides nothing


@dataclass(frozen=True)
class PooledEffect:
    """What several studies say together.

    Attributes:
        value: The mean effect over studies of this kind.
        low: Lower end of its interval; NaN for a single study.
        high: Upper end of its interval; NaN likewise.
        p: Two-sided p-value of "the mean effect is the null"; NaN likewise.
        error: Standard error of the mean effect, as the interval uses it.
        tau2: Variance of the true effects between studies.
        i2: Share of the variation between estimates that is not their own error, as τ² against a typical one (Higgins
            and Thompson).
        q: Cochran's Q.
        p_q: p-value of "all studies have one true effect".
        predicted: Interval of the true effect in a further study; NaN for fewer than three.
        weights: Of the studies in the mean; their sum is 1.
    """

    value: float
    low: float
    high: float
    p: float
    error: float
    tau2: float
    i2: float
    q: float
    p_q: float
    predicted: tuple[float, float]
    weights: tuple[float, ...]

    @property
    def studies(self) -> int:
        """How many studies were pooled."""
        return len(self.weights)


def pool_effects(
    values: Sequence[float] | np.ndarray,
    errors: Sequence[float] | np.ndarray,
    *,
    null: float = 0.0,
    level: float = 0.95,
) -> PooledEffect:
    """Random-effects mean of independent studies: REML, with the interval of Hartung and Knapp.

    Their factor is not let below 1 (Röver, Knapp and Friede 2015): studies that agree by chance would make the interval
    too narrow. Errors are themselves estimates, often of three to five networks, which makes weights uneven by chance:
    so the t quantile has one degree of freedom less than the effective number of studies, 1/Σw² (Kish), instead of
    their number. For equal weights that is the same.

    Args:
        values: The estimate of each study.
        errors: Its standard error, above 0.
        null: What the p-value tests.
        level: Of the intervals.

    Returns:
        The pooled effect.

    Raises:
        ValueError: Where there is no study, or an error is not above 0.

    Examples:
        >>> e = pool_effects([0.1, 0.3, 0.2, 0.6], [0.05, 0.06, 0.05, 0.1])
        >>> round(e.value, 3), round(e.low, 3), round(e.high, 3), round(e.tau2, 4), round(e.i2, 2)
        (0.287, -0.047, 0.621, 0.0366, 0.91)
    """
    y, variance = np.asarray(values, float), np.square(np.asarray(errors, float))
    if not len(y) or len(y) != len(variance):
        raise ValueError(f"{len(y)} values, {len(variance)} errors")
    if not (np.isfinite(y).all() and np.isfinite(variance).all() and (variance > 0).all()):
        raise ValueError("values and errors must be finite, errors above 0")
    k, nan = len(y), math.nan
    if k == 1:
        return PooledEffect(float(y[0]), nan, nan, nan, float(errors[0]), nan, nan, nan, nan, (nan, nan), (1.0,))
    tau2 = between_variance(y, variance)
    weight = 1 / (variance + tau2)
    mean = float((weight * y).sum() / weight.sum())
    spread = float((weight * (y - mean) ** 2).sum() / (k - 1))
    error = math.sqrt(max(1.0, spread) / weight.sum())
    shares = weight / weight.sum()
    freedom = max(1.0, 1 / float((shares**2).sum()) - 1)
    half = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    p = float(2 * stats.t.sf(abs(mean - null) / error, freedom))
    q, p_q, typical = _heterogeneity(y, variance)
    predicted = (nan, nan)
    if k > 2:
        wide = float(stats.t.ppf((1 + level) / 2, max(1.0, freedom - 1))) * math.sqrt(tau2 + error**2)
        predicted = (mean - wide, mean + wide)
    i2 = tau2 / (tau2 + typical)
    weights = tuple(float(share) for share in shares)
    return PooledEffect(mean, mean - half, mean + half, p, error, tau2, i2, q, p_q, predicted, weights)


def between_variance(values: np.ndarray, variances: np.ndarray) -> float:
    """The variance of true effects between studies by restricted maximum likelihood, at least 0.

    The likelihood may have two peaks: it is searched over a grid first.
    """

    def loss(tau2: float) -> float:
        weight = 1 / (variances + tau2)
        mean = (weight * values).sum() / weight.sum()
        fit = np.log(variances + tau2).sum() + (weight * (values - mean) ** 2).sum()
        return float(fit + math.log(weight.sum())) / 2

    largest = 10 * float(np.ptp(values)) ** 2
    if largest == 0:
        return 0.0
    grid = np.concatenate([[0.0], np.geomspace(1e-6 * largest, largest, 60)])
    best = int(np.argmin([loss(float(tau2)) for tau2 in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-10 * largest})
    return float(found.x) if found.fun < loss(0.0) else 0.0


def _heterogeneity(values: np.ndarray, variances: np.ndarray) -> tuple[float, float, float]:
    """Cochran's Q, its p-value, and the typical variance of an estimate."""
    weight = 1 / variances
    mean = (weight * values).sum() / weight.sum()
    q = float((weight * (values - mean) ** 2).sum())
    typical = (len(values) - 1) * weight.sum() / (weight.sum() ** 2 - (weight**2).sum())
    return q, float(stats.chi2.sf(q, len(values) - 1)), float(typical)
