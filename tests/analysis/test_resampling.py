"""Bootstrap: percentile intervals that cover, whole groups, pairs that cancel, one stream of draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dropscope import scores
from dropscope.analysis import resampling
from dropscope.analysis.resampling import bootstrap, bootstrap_scores, interval, paired_interval, resamples


def test_quantiles_of_known_replicates() -> None:
    assert interval(torch.arange(101) / 100, 0.9) == pytest.approx((0.05, 0.95))
    low, high = interval(torch.tensor([float("nan"), 1.0, 1.0]))
    assert (low, high) == (1.0, 1.0)
    assert all(np.isnan(interval(torch.tensor([float("nan")]))))


def test_the_interval_covers_a_known_mean() -> None:
    """Accuracy .8 on 200 examples: 95 % intervals hold the truth in about 95 of 100 data sets."""
    draw, covered = np.random.default_rng(0), 0
    for seed in range(100):
        correct = torch.from_numpy(draw.random(200) < 0.8)
        low, high = interval(bootstrap_scores(torch.rand(200), correct, resamples(200, None, 200, seed))["accuracy"])
        covered += low <= 0.8 <= high
    assert 0.88 <= covered / 100 <= 1.0


@pytest.mark.parametrize("groups", [None, [i // 3 for i in range(40)]])
def test_replicates_are_the_scores_of_resampled_examples(groups: list[int] | None) -> None:
    generator = torch.Generator().manual_seed(0)
    u, right = torch.rand(40, generator=generator), torch.rand(40, generator=generator) < 0.7
    indices = resamples(40, groups, 7, 0)
    drawn = bootstrap_scores(u, right, indices)
    for i, chosen in enumerate(indices):
        for name, value in scores.ranking_scores(u[chosen], right[chosen]).items():
            torch.testing.assert_close(drawn[name][i], value, equal_nan=True)
        assert float(drawn["accuracy"][i]) == pytest.approx(float(right[chosen].double().mean()))


def test_whole_groups_are_drawn() -> None:
    groups = ["a"] * 5 + ["b"] * 2 + ["c"] * 3
    members = {"a": set(range(5)), "b": {5, 6}, "c": {7, 8, 9}}
    sizes = set()
    for chosen in resamples(10, groups, 50, 0):
        counts = np.bincount(chosen.numpy(), minlength=10)
        for who in members.values():
            assert len({counts[i] for i in who}) == 1
        sizes.add(len(chosen))
    assert len(sizes) > 1
    drawn = bootstrap_scores(torch.rand(10), torch.rand(10) < 0.5, resamples(10, groups, 50, 0))
    assert drawn["aurc"].shape == (50,)


def test_groups_widen_the_interval_of_what_they_share() -> None:
    """Outcomes equal within a group: fewer independent replicates, a wider interval."""
    right = torch.arange(20).repeat_interleave(10) % 3 > 0
    u = torch.rand(200, generator=torch.Generator().manual_seed(0))
    alone = interval(bootstrap_scores(u, right, resamples(200, None, 400, 0))["accuracy"])
    grouped = interval(bootstrap_scores(u, right, resamples(200, [i // 10 for i in range(200)], 400, 0))["accuracy"])
    assert grouped[1] - grouped[0] > 2 * (alone[1] - alone[0])


def test_the_difference_of_identical_rankings_is_exactly_zero() -> None:
    generator = torch.Generator().manual_seed(1)
    u, right = torch.rand(60, generator=generator), torch.rand(60, generator=generator) < 0.7
    indices = resamples(60, None, 100, 3)
    first, second = bootstrap_scores(u, right, indices), bootstrap_scores(2 * u + 1, right, indices)
    for name in first:
        difference = first[name] - second[name]
        assert interval(difference) == (0.0, 0.0)


def test_a_seed_is_a_draw() -> None:
    first, again, other = (torch.stack(resamples(30, None, 5, seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_global_random_state_is_not_used() -> None:
    before = torch.get_rng_state().clone(), np.random.get_state()[1].copy()  # noqa: NPY002 - what must not move
    resamples(30, ["a", "b"] * 15, 5, 0)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_blocks_of_draws_do_not_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [i // 3 for i in range(40)]
    before = resamples(40, None, 9, 2), resamples(40, groups, 9, 2)
    monkeypatch.setattr(resampling, "_AT_ONCE", 50)
    after = resamples(40, None, 9, 2), resamples(40, groups, 9, 2)
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))


def test_statistics_come_back_in_the_order_of_the_replicates() -> None:
    x = torch.arange(10.0)
    indices = [torch.arange(3), torch.arange(5, 7), torch.arange(4, 7), torch.arange(10)]
    for at_once in (1, 6, 1000):
        drawn = bootstrap(lambda chosen: {"mean": x[chosen].mean(-1)}, indices, at_once)
        assert drawn["mean"].tolist() == [1.0, 5.5, 5.0, 4.5]


def test_the_bias_of_a_difference_is_taken_off() -> None:
    first, second = torch.linspace(1, 3, 101), torch.zeros(101)
    assert paired_interval(first, second) == pytest.approx((1.05, 2.95))
    assert paired_interval(first, second, difference=0.5) == pytest.approx((-0.45, 1.45))
