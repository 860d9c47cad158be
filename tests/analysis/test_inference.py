"""Inference: scipy, closed forms, simulations with a known answer, and what is undefined."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dropscope.analysis.contrasts import cohens_d, difference_of_means, paired_d, rank_correlation, sign_test
from dropscope.analysis.inference import bootstrap_p, holm, log_over_networks, over_clusters, over_networks
from dropscope.analysis.resampling import simultaneous_intervals

DRAW = np.random.default_rng(7)
NAN = float("nan")


def undefined(*values: float) -> bool:
    return all(math.isnan(value) for value in values)


class TestOverNetworks:
    def test_identical_networks_are_no_certainty(self) -> None:
        for values in ([0.1] * 5, [0.1 + 0.2, 0.3, 0.3]):
            same = over_networks(values)
            assert undefined(same.low, same.high, same.p)
        assert undefined(log_over_networks([2.0, 2.0, 2.0]).p)
        assert undefined(over_clusters([0.5, 0.5, 0.5], list("abc")).p)
        assert over_networks([0.0] * 3).p == 1.0  # equal by identity

    def test_is_scipys_t_test(self) -> None:
        x = DRAW.normal(0.3, 1, 12)
        found, reference = over_networks(x), stats.ttest_1samp(x, 0)
        ends = reference.confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
        assert found.p == pytest.approx(reference.pvalue)

    def test_one_network_has_a_mean_and_no_interval(self) -> None:
        found = over_networks([0.7, NAN])
        assert (found.value, found.n) == (0.7, 1)
        assert undefined(found.low, found.high, found.p)


class TestOverClusters:
    def test_p_is_the_t_test_of_cluster_means_where_clusters_are_equal(self) -> None:
        means = DRAW.normal(0.1, 0.4, 30)
        values = np.repeat(means, 2) + np.tile([0.2, -0.2], 30)
        found = over_clusters(values, np.repeat(np.arange(30), 2))
        assert found.p == pytest.approx(stats.ttest_1samp(means, 0).pvalue)
        assert found.n == 30

    def test_interval_is_that_of_the_central_limit_theorem(self) -> None:
        means = DRAW.normal(0, 1, 400)
        found = over_clusters(np.repeat(means, 3), np.repeat(np.arange(400), 3), replicates=20_000)
        half = 1.96 * means.std() / 20
        assert (found.low, found.high) == pytest.approx((means.mean() - half, means.mean() + half), abs=0.006)

    def test_clusters_of_unequal_size_weigh_by_size(self) -> None:
        found = over_clusters([1.0, 1.0, 1.0, 5.0], ["a", "a", "a", "b"])
        assert found.value == 2
        assert (found.low, found.high) == (1, 5)

    def test_ignoring_the_clusters_would_reject_too_often(self) -> None:
        """Pairs that are copies: the test over clusters keeps its level, the one over values does not."""
        rejected = np.zeros(2)
        for seed in range(300):
            x = np.repeat(np.random.default_rng(seed).normal(size=20), 4)
            rejected += [over_clusters(x, np.repeat(np.arange(20), 4), replicates=10).p < 0.05,
                         over_clusters(x, replicates=10).p < 0.05]  # fmt: skip
        assert 0.02 < rejected[0] / 300 < 0.09
        assert rejected[1] / 300 > 0.25

    def test_nothing_and_one_cluster(self) -> None:
        assert undefined(over_clusters([]).value, bootstrap_p([]), over_clusters([], []).value)
        assert undefined(over_clusters([1.0, 2.0], ["a", "a"]).low, bootstrap_p([1.0, 2.0], ["a", "a"]))


class TestBootstrapP:
    def test_is_near_the_t_test_of_many_values(self) -> None:
        for shift in (0.0, 0.05, 0.1):
            x = np.random.default_rng(3).normal(shift, 1, 900)
            assert bootstrap_p(x, replicates=20_000) == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=0.02)

    def test_agrees_with_the_percentile_interval(self) -> None:
        """Below .05 exactly where the 95 % interval of the same replicates leaves zero out."""
        for seed in range(40):
            x = np.random.default_rng(seed).normal(0.3, 1, 40)
            found = over_clusters(x, replicates=1_999)
            outside = found.low > 0 or found.high < 0
            assert outside == (bootstrap_p(x, replicates=1_999) <= 0.05)

    def test_the_smallest_and_the_largest(self) -> None:
        assert bootstrap_p(range(1, 21), replicates=199) == 2 / 200
        assert bootstrap_p([1.0, 2.0, 3.0], replicates=199) == 2 / 8  # three of one sign prove no more than a sign test
        assert bootstrap_p([0.0, 0.0, 0.0]) == 1


class TestSimultaneous:
    def test_factor_is_sidaks_for_independent_values(self) -> None:
        draws = np.random.default_rng(0).normal(size=(8, 40_000)) * np.arange(1, 9)[:, None]
        sidak = stats.norm.ppf((1 + 0.95 ** (1 / 8)) / 2)
        for (low, high), scale in zip(simultaneous_intervals([0.0] * 8, draws), range(1, 9), strict=True):
            assert (low / scale, high / scale) == pytest.approx((-sidak, sidak), rel=0.03)

    def test_equal_values_cost_nothing(self) -> None:
        draws = np.tile(np.random.default_rng(0).normal(size=(1, 20_000)), (5, 1))
        assert simultaneous_intervals([0.0] * 5, draws)[4] == pytest.approx((-1.96, 1.96), abs=0.05)

    def test_few_degrees_of_freedom_widen_by_students_quantile(self) -> None:
        draws = np.random.default_rng(0).normal(size=(3, 500))
        plain, wide = (simultaneous_intervals([0.0] * 3, draws, freedom=freedom) for freedom in (None, 9))
        assert wide[0][1] / plain[0][1] == pytest.approx(stats.t.ppf(0.975, 9) / stats.norm.ppf(0.975), rel=1e-4)

    def test_constant_and_undefined_replicates(self) -> None:
        constant, missing = simultaneous_intervals([0.5, 0.5], np.array([[0.5, 0.5, 0.5], [0.4, NAN, 0.6]]))
        assert constant == (0.5, 0.5)
        assert undefined(*missing)
        assert undefined(*simultaneous_intervals([0.5], np.empty((1, 0)))[0])


class TestSignTest:
    def test_the_papers_counts(self) -> None:
        assert sign_test(10, 9).p == pytest.approx(1)
        assert sign_test(16, 3).p == pytest.approx(2 * stats.binom.cdf(3, 19, 0.5))

    def test_interval_is_clopper_and_pearsons(self) -> None:
        found = sign_test(16, 3)
        assert (found.low, found.high) == pytest.approx((stats.beta.ppf(0.025, 16, 4), stats.beta.ppf(0.975, 17, 3)))

    def test_no_pairs(self) -> None:
        assert undefined(sign_test(0, 0).p, sign_test(0, 0).value)


class TestDifferenceOfMeans:
    def test_exact_p_and_interval_are_scipys(self) -> None:
        a, b = DRAW.normal(0.6, 1, 5), DRAW.normal(0, 2, 6)
        found = difference_of_means(a, b)
        reference = stats.permutation_test(
            (a, b), lambda x, y: abs(x.mean() - y.mean()), alternative="greater", n_resamples=np.inf
        )
        ends = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
        assert found.p == pytest.approx(reference.pvalue)
        assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
        assert found.method.startswith("exact")

    def test_random_p_is_near_the_exact_one(self) -> None:
        a, b = DRAW.normal(0.8, 1, 7), DRAW.normal(0, 1, 8)
        exact, random = difference_of_means(a, b), difference_of_means(a, b, permutations=5_000)
        assert random.method.startswith("random")
        assert random.p == pytest.approx(exact.p, abs=0.02)

    def test_quarters_of_nineteen_can_reach_the_corrected_level(self) -> None:
        assert difference_of_means([5.0, 6, 7, 8, 9], [0.0, 1, 2, 3, 4]).p == pytest.approx(2 / 252)

    def test_too_few(self) -> None:
        assert undefined(difference_of_means([], [1.0]).value, difference_of_means([1.0], [2.0, 3.0]).low)
        same = difference_of_means([1.0, 1.0], [1.0, 1.0])
        assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)


class TestRankCorrelation:
    def test_value_is_spearmans_with_ties(self) -> None:
        x, y = [1, 2, 2, 3, 5, 5, 9, 10], [3, 1, 4, 4, 4, 8, 7, 9]
        assert rank_correlation(x, y).value == pytest.approx(stats.spearmanr(x, y).statistic)

    def test_exact_p_is_scipys(self) -> None:
        x, y = DRAW.normal(size=(2, 6))
        reference = stats.permutation_test(
            (x,), lambda a: stats.spearmanr(a, y).statistic, permutation_type="pairings", n_resamples=np.inf
        )
        assert rank_correlation(x, y).p == pytest.approx(reference.pvalue)

    def test_random_p_is_near_that_of_students_approximation(self) -> None:
        x = np.random.default_rng(1).normal(size=60)
        y = x + 3.5 * np.random.default_rng(2).normal(size=60)
        assert rank_correlation(x, y).p == pytest.approx(stats.spearmanr(x, y).pvalue, abs=0.01)

    def test_interval_covers_as_often_as_it_says(self) -> None:
        """Rank correlation of a bivariate normal with ρ: (6/π)·asin(ρ/2)."""
        rho, inside = 0.5, 0
        truth = 6 / math.pi * math.asin(rho / 2)
        for seed in range(400):
            z = np.random.default_rng(seed).normal(size=(2, 30))
            found = rank_correlation(z[0], rho * z[0] + math.sqrt(1 - rho**2) * z[1], permutations=2)
            inside += found.low <= truth <= found.high
        assert 0.91 < inside / 400 < 0.985

    def test_undefined(self) -> None:
        assert undefined(rank_correlation([1.0, 2], [1.0, 2]).value, rank_correlation([1.0] * 9, range(9)).p)
        assert rank_correlation([1.0, 2, 3, NAN], [1.0, 2, 3, 4]).n == 3


class TestEffectSizes:
    def test_d_is_students_t_without_the_sizes(self) -> None:
        a, b = DRAW.normal(1, 1, 9), DRAW.normal(0, 2, 14)
        t = stats.ttest_ind(a, b).statistic
        assert cohens_d(a, b) == pytest.approx(t * math.sqrt(1 / 9 + 1 / 14))
        assert paired_d(a) == pytest.approx(stats.ttest_1samp(a, 0).statistic / 3)

    def test_no_spread(self) -> None:
        assert cohens_d([1.0, 1.0], [1.0, 1.0]) == 0
        assert paired_d([0.0, 0.0]) == 0
        assert undefined(cohens_d([1.0, 1.0], [2.0, 2.0]), paired_d([1.0, 1.0]), paired_d([1.0]), cohens_d([], [1.0]))


def test_holm_is_the_step_down_procedure() -> None:
    p = DRAW.beta(0.3, 2, 25)
    adjusted = np.array(holm(p))
    for alpha in (0.01, 0.05, 0.2, 0.5):
        rejected, order = set(), np.argsort(p)
        for place, index in enumerate(order):
            if p[index] > alpha / (25 - place):
                break
            rejected.add(int(index))
        assert set(np.flatnonzero(adjusted <= alpha).tolist()) == rejected
    assert undefined(holm([NAN, 0.01])[0])
    assert holm([NAN, 0.01])[1] == 0.01
