"""Comparisons of measures over experiments: Beta posteriors of "A beats B", and a bootstrap over patients.

The posterior counts experiments as independent trials, as the segmentation paper does, which they are not where they
share test patients; the bootstrap resamples the patients. So studies report the two side by side.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
import pandas as pd
from scipy import stats

from dropscope.analysis.resampling import draw_counts, group_numbers, interval


@dataclass(frozen=True)
class Posterior:
    """The probability that A beats B in an experiment, after `wins` of `n`: Beta(1 + wins, 1 + n − wins)."""

    wins: float
    n: int
    low: float
    high: float

    @property
    def mean(self) -> float:
        return (1 + self.wins) / (2 + self.n)

    @property
    def significant(self) -> bool:
        """Whether one half lies outside the interval."""
        return not self.low <= 0.5 <= self.high

    def density(self, x: np.ndarray) -> np.ndarray:
        return stats.beta.pdf(x, 1 + self.wins, 1 + self.n - self.wins)


def posterior(wins: float, n: int, level: float = 0.95) -> Posterior:
    """From a uniform prior; an equal-tailed interval. A tie counts ½ to each side, so `wins` may be half a number.

    >>> p = posterior(84, 144); round(p.mean, 4), round(p.low, 4), p.significant
    (0.5822, 0.5015, True)
    """
    if not 0 <= wins <= n:
        raise ValueError(f"{wins} wins of {n}")
    low, high = stats.beta.ppf([(1 - level) / 2, (1 + level) / 2], 1 + wins, 1 + n - wins)
    return Posterior(wins, n, float(low), float(high))


def win_posterior(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Posterior:
    """The posterior of "A beats B" from one value each per experiment; experiments without a value are left out.

    >>> win_posterior([0.3, 0.4, 0.5, float("nan")], [0.2, 0.4, 0.6, 0.1]).wins
    1.5
    """
    x, y = np.asarray(a, float), np.asarray(b, float)
    known = np.isfinite(x) & np.isfinite(y)
    wins = float((x[known] > y[known]).sum() + 0.5 * (x[known] == y[known]).sum())
    return posterior(wins, int(known.sum()), level)


def ordered_pairs(values: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Every ordered pair of the columns of `values` (a row per experiment, a column per measure)."""
    rows = []
    for a, b in permutations(values.columns, 2):
        p = win_posterior(values[a].to_numpy(), values[b].to_numpy(), level)
        row = {"better": a, "than": b, "wins": p.wins, "experiments": p.n, "mean": p.mean, "low": p.low, "high": p.high}
        rows.append(row | {"significant": p.significant})
    return pd.DataFrame(rows)


def differences_over_patients(
    values: np.ndarray,
    measures: Sequence[str],
    patients: Sequence[Hashable],
    level: float = 1 - 0.05 / 6,
    replicates: int = 10_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Differences of mean value for every pair of measures, with percentile intervals over resampled patients.

    `values[experiments, images, measures]`, NaN where an image has none. The mean is over the images of an experiment,
    then over experiments, as the study's; patients are drawn with all their images. The default level shares 5 % among
    the six pairs of four measures (Bonferroni).
    """
    known = np.isfinite(values).all(-1)
    filled = np.where(known[..., None], values, 0.0)
    member = group_numbers(patients)
    groups = int(member.max()) + 1
    telling = len(set(member[known.any(0)]))  # patients with a value: the others are drawn, and tell nothing
    weights = draw_counts(groups, replicates, seed)[:, member]  # [replicates, images]
    whole = np.ones((1, len(member)))
    pairs = list(combinations(range(len(measures)), 2))
    differences = np.stack([filled[..., a] - filled[..., b] for a, b in pairs], -1)
    (value,), drawn = (_mean_difference(w, differences, known) for w in (whole, weights))
    rows = []
    for i, (a, b) in enumerate(pairs):
        low, high = interval(drawn[:, i], level) if telling > 1 else (float("nan"), float("nan"))
        row = {"better": measures[a], "than": measures[b], "difference": float(value[i]), "low": low, "high": high}
        rows.append(row | {"patients": telling, "level": level, "significant": low > 0 or high < 0})
    return pd.DataFrame(rows)


def _mean_difference(weights: np.ndarray, differences: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Over the weighted images of each experiment, then over the experiments that have any: `[replicates, pairs]`."""
    sums = np.einsum("ri,eip->rep", weights, differences, optimize=True)
    counts = (weights @ known.T)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums / counts
    present = counts > 0
    total = np.where(present, means, 0.0).sum(1)
    with np.errstate(invalid="ignore"):
        return total / present.sum(1)
