"""Stability: run-level accuracy by hand, flip rate under ties, Monte Carlo error."""

import math

import pytest
import torch

from dropscope import scores
from dropscope.measures import bald, predictive_entropy
from dropscope.measures.statistics.running import PassStatistics
from support.errors import refused


def some_correct(passes=20, n=50, leading=(), seed=0):
    return torch.rand(*leading, passes, n, generator=torch.Generator().manual_seed(seed)) < 0.7


def test_run_level_accuracy_by_hand():
    correct = some_correct(leading=(3,))
    groups = ["memory" if i % 5 else "reasoning" for i in range(50)]
    memory = torch.tensor([g == "memory" for g in groups])
    level = scores.run_level_accuracy(correct, groups)
    each = correct.double().mean(-1)
    torch.testing.assert_close(level.mean, each.mean(-1))
    torch.testing.assert_close(level.std, each.std(-1))
    assert level.groups == ("reasoning", "memory")
    assert level.passes == 20
    for name, inside in (("memory", memory), ("reasoning", ~memory)):
        of_group = correct[..., inside].double().mean(-1)
        torch.testing.assert_close(level.of(name)[0], of_group.mean(-1))
        torch.testing.assert_close(level.of(name)[1], of_group.std(-1))
    difference = scores.group_difference(level, "memory", "reasoning")
    torch.testing.assert_close(difference, level.of("memory")[0] - level.of("reasoning")[0])


def test_counts_of_pass_statistics_give_the_same():
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(20, 30, 4, generator=generator).softmax(-1)
    labels, groups = torch.arange(30) % 4, torch.arange(30) % 2
    kept = PassStatistics(("correct",), labels=labels, groups=groups)
    kept.update(p, passes_dim=0)
    of_counts = scores.run_level_accuracy_of_counts(kept.correct_per_pass, kept.group_sizes, ["even", "odd"])
    level = scores.run_level_accuracy(p.argmax(-1) == labels, groups)
    for name in ("mean", "std", "group_mean", "group_std"):
        torch.testing.assert_close(getattr(of_counts, name), getattr(level, name))


def test_equal_halves_obey_the_consistency_check():
    level = scores.run_level_accuracy(some_correct(100, 200), [i % 2 for i in range(200)])
    first, second = level.of(0)[1], level.of(1)[1]
    assert level.std >= (first - second).abs() / 2


def test_one_pass_has_no_spread():
    level = scores.run_level_accuracy(some_correct(1))
    assert math.isnan(level.std)
    assert math.isnan(level.group_std)
    assert 0 <= level.mean <= 1


def test_flip_rate_closed_forms():
    u = torch.arange(10.0)
    assert scores.flip_rate(u, u, 0.2) == 0
    assert scores.flip_rate(u, -u, 0.2) == 1
    assert scores.flip_rate(u, u.roll(1), 0.2) == 0.5
    assert scores.flip_rate(u, -u, 1.0) == 0


def test_flip_rate_of_unrelated_runs_is_one_minus_the_fraction():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 20000, generator=generator)
    assert scores.flip_rate(first, second, 0.2).item() == pytest.approx(0.8, abs=0.02)


def test_flip_rate_under_ties_is_order_free_and_zero_for_equal_runs():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, 4, (2, 3, 101), generator=generator)
    assert scores.flip_rate(first, first, 0.2).tolist() == [0, 0, 0]
    order = torch.randperm(101, generator=generator)
    expected = scores.flip_rate(first, second, 0.2)
    torch.testing.assert_close(scores.flip_rate(first[:, order], second[:, order], 0.2), expected)
    for i in range(3):
        torch.testing.assert_close(scores.flip_rate(first[i], second[i], 0.2), expected[i])


def test_more_passes_flip_less_and_bald_flips_more_than_entropy():
    """Fewer passes flip more decisions, on simulated passes."""
    generator = torch.Generator().manual_seed(0)
    centre = 2 * torch.randn(1, 2000, 5, generator=generator)
    passes = [(centre + torch.randn(200, 2000, 5, generator=generator)).softmax(-1) for _ in range(2)]

    def flips(measure, count):
        return scores.flip_rate(*(measure(run[:count]) for run in passes), 0.2).item()

    assert flips(bald, 10) > flips(bald, 200)
    assert flips(bald, 10) > flips(predictive_entropy, 10)


def test_monte_carlo_error():
    values = torch.randn(7, 100, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scores.monte_carlo_error(values), values.double().std(-1) / 10)
    torch.testing.assert_close(scores.monte_carlo_error(values.T, dim=0), values.double().std(-1) / 10)
    assert math.isnan(scores.monte_carlo_error(torch.ones(1)))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: scores.run_level_accuracy(torch.ones(5)), "correct"),
        (lambda: scores.run_level_accuracy(torch.full((2, 5), 0.5)), "correct"),
        (lambda: scores.run_level_accuracy(torch.ones(2, 5), ["a"] * 4), "groups"),
        (lambda: scores.run_level_accuracy(torch.ones(2, 5), ["a"] * 5).of("b"), "group"),
        (lambda: scores.run_level_accuracy_of_counts(torch.ones(2, 3), torch.ones(2)), "sizes"),
        (lambda: scores.run_level_accuracy_of_counts(torch.ones(2, 3), torch.ones(3), ["a"]), "groups"),
        (lambda: scores.run_level_accuracy_of_counts(torch.ones(3), torch.ones(3)), "counts"),
        (lambda: scores.flip_rate(torch.ones(3), torch.ones(4), 0.5), "second"),
        (lambda: scores.flip_rate(torch.ones(3), torch.ones(3), 0.0), "fraction"),
        (lambda: scores.flip_rate(torch.ones(3), torch.full((3,), torch.nan), 0.5), "second"),
        (lambda: scores.monte_carlo_error(torch.ones(0)), "values"),
    ],
)
def test_refusals(call, name):
    with refused(name):
        call()
