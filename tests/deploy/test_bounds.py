"""Tests of limits: closed forms, and how often they pass where they must not."""

import numpy as np
import pytest
from scipy import stats

from dropscope.deploy.bounds import betting_p, binomial_p, least_kept, least_limit, lower_bound, upper_bound


def test_the_fewest_examples_that_pass_are_those_of_the_closed_form():
    for limit, delta in ((0.05, 0.1), (0.1, 0.05), (0.01, 0.1)):
        least = least_kept(limit, delta)
        assert binomial_p(0, least, limit) <= delta < binomial_p(0, least - 1, limit)


def test_nothing_kept_is_no_evidence():
    assert binomial_p([0], [0], 0.05).tolist() == [1.0]


def test_bounds_are_those_of_scipy():
    test = stats.binomtest(7, 100).proportion_ci(0.8, "exact")
    assert upper_bound(7, 100, 0.1) == pytest.approx(test.high)
    assert lower_bound(7, 100, 0.1) == pytest.approx(test.low)
    assert upper_bound(5, 5, 0.1) == 1.0
    assert lower_bound(0, 5, 0.1) == 0.0
    assert least_limit(lambda limit: float(binomial_p(7, 100, limit)), 0.1) == pytest.approx(test.high)


@pytest.mark.parametrize("size", [1, 5])
def test_bets_at_the_limit_pass_no_more_often_than_they_may(size):
    """Units whose rows are wrong together, at exactly the limit."""
    rng, limit, delta = np.random.default_rng(0), 0.1, 0.1
    wrong = rng.random((300, 1000)) < limit
    excess = size * (wrong - limit)
    assert (betting_p(excess, size * (1 - limit), delta) <= delta).mean() <= delta


def test_bets_find_a_risk_that_is_half_its_limit():
    wrong = np.random.default_rng(0).random((400, 200)) < 0.05
    assert (betting_p(wrong - 0.1, 0.9, 0.1) <= 0.1).mean() >= 0.8
