"""Beta posteriors over experiments and the bootstrap over patients: closed forms, then what they leave out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats

from dropscope.analysis.posteriors import differences_over_patients, ordered_pairs, posterior, win_posterior


def test_of_144_experiments_84_wins_or_60_are_significant_and_nothing_between() -> None:
    significant = {k for k in range(145) if posterior(k, 144).significant}
    assert significant == {k for k in range(145) if k >= 84 or k <= 60}


@pytest.mark.parametrize(("wins", "n"), [(0, 5), (3, 7), (7.5, 12), (84, 144)])
def test_an_interval_leaves_out_a_fortieth_on_each_side(wins: float, n: int) -> None:
    p = posterior(wins, n)

    def density(x: float) -> float:  # the unnormalised posterior of wins Bernoulli successes under a flat prior
        return x**wins * (1 - x) ** (n - wins)

    whole, below, above = (integrate.quad(density, *ends)[0] for ends in ((0, 1), (0, p.low), (p.high, 1)))
    assert below / whole == pytest.approx(0.025, abs=1e-6)
    assert above / whole == pytest.approx(0.025, abs=1e-6)
    assert p.mean == pytest.approx((1 + wins) / (2 + n))


def test_ties_count_half_and_missing_experiments_do_not_count() -> None:
    p = win_posterior([0.5, 0.5, 0.9, np.nan, 0.1], [0.5, 0.5, 0.1, 0.2, np.nan])
    assert (p.wins, p.n) == (2.0, 3)


def test_both_orders_of_a_pair_share_the_experiments() -> None:
    draw = np.random.default_rng(0)
    values = pd.DataFrame(draw.random((20, 4)), columns=list("abcd"))
    values.loc[3, "b"] = values.loc[3, "a"]
    pairs = ordered_pairs(values)
    assert len(pairs) == 12
    one, other = (pairs[(pairs.better == x) & (pairs.than == y)].iloc[0] for x, y in ("ab", "ba"))
    assert one.wins + other.wins == 20
    assert one.low == pytest.approx(1 - other.high)
    assert one.low == pytest.approx(stats.beta.ppf(0.025, 1 + one.wins, 1 + 20 - one.wins))


def test_the_difference_is_the_mean_over_images_then_over_experiments() -> None:
    values = np.zeros((2, 3, 2))
    values[0, :, 0] = [0.3, 0.5, np.nan]  # the third image has no error under the first network
    values[0, 2, 1] = np.nan
    values[1, :, 0] = [0.1, 0.1, 0.4]
    found = differences_over_patients(values, ["a", "b"], ["p", "q", "r"], replicates=200).iloc[0]
    assert found.difference == pytest.approx(((0.3 + 0.5) / 2 + (0.1 + 0.1 + 0.4) / 3) / 2)
    assert found.patients == 3


def test_the_interval_is_that_of_resampling_patients_one_by_one() -> None:
    draw = np.random.default_rng(1)
    values = draw.random((3, 8, 2))
    values[1, 2] = np.nan
    patients = ["a", "a", "b", "c", "d", "e", "e", "f"]
    found = differences_over_patients(values, ["x", "y"], patients, level=0.9, replicates=20_000, seed=0).iloc[0]
    slow, groups = [], np.unique(patients)
    for _ in range(4000):
        chosen = np.concatenate([np.flatnonzero(np.array(patients) == g) for g in draw.choice(groups, len(groups))])
        slow.append(np.nanmean(np.nanmean(values[:, chosen, 0] - values[:, chosen, 1], axis=1)))
    low, high = np.quantile(slow, [0.05, 0.95])
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)


def test_equal_measures_differ_by_nothing_and_one_patient_decides_nothing() -> None:
    values = np.full((2, 4, 2), 0.5)
    same = differences_over_patients(values, ["a", "b"], list("pqrs"), replicates=100).iloc[0]
    assert (same.difference, same.low, same.high, same.significant) == (0, 0, 0, False)
    alone = differences_over_patients(values + np.array([0.1, 0.0]), ["a", "b"], ["p"] * 4, replicates=100).iloc[0]
    assert alone.difference == pytest.approx(0.1)
    assert np.isnan(alone.low)
    assert not alone.significant


def test_patients_without_a_value_do_not_make_an_interval() -> None:
    """One patient of four has errors: resampling draws its value or nothing, never a spread."""
    values = np.full((1, 4, 2), np.nan)
    values[0, 0] = 0.4, 0.5
    found = differences_over_patients(values, ["a", "b"], list("pqrs"), replicates=200).iloc[0]
    assert found.difference == pytest.approx(-0.1)
    assert found.patients == 1
    assert np.isnan(found.low)
    assert not found.significant
