"""Monte Carlo error: the jackknife over blocks against closed forms, one stream and repeated runs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from dropscope import measures
from dropscope.measures.statistics.blocks import (
    BLOCKS,
    BlockedStatistics,
    begin_statistics,
    block_shares,
    block_size,
    growing_block,
    split_error,
    splits,
)
from dropscope.measures.statistics.running import PassStatistics
from support.errors import refused

NEEDS = ("sum_p", "sum_plogp", "max_moments", "class_moments", "votes", "histogram", "predicted_deviation")
MEASURES = ("bald", "predictive_entropy", "expected_entropy", "variation_max", "averaged_variance", "averaged_entropy")


def some_passes(passes: int, cells: int = 9, seed: int = 0) -> Tensor:
    # Off the uniform: where an entropy has its maximum, it moves by second-order terms alone.
    logits = torch.randn(passes, cells, 4, generator=torch.Generator().manual_seed(seed)) + torch.tensor([2.0, 1, 0, 0])
    return logits.softmax(-1)


def kept_of(p: Tensor, block: int, at_once: int | None = None) -> BlockedStatistics:
    kept = BlockedStatistics(NEEDS, some_passes(1, p.shape[1], 99)[0], block=block)
    for part in p.split(at_once or len(p)):
        kept.update(part, passes_dim=0)
    return kept


def test_the_error_of_a_mean_is_its_spread_over_the_root_of_its_passes() -> None:
    p = some_passes(40)
    error = kept_of(p, 1).jackknife(lambda stats: stats.mean[..., 0])
    torch.testing.assert_close(error, p[..., 0].double().std(0) / math.sqrt(40))


def test_of_blocks_it_is_that_of_their_means() -> None:
    p = some_passes(40)
    error = kept_of(p, 8).jackknife(lambda stats: stats.mean[..., 0])
    torch.testing.assert_close(error, p[..., 0].double().unflatten(0, (5, 8)).mean(1).std(0) / math.sqrt(5))


@pytest.mark.parametrize("block", [1, 7, 16])
def test_leaving_a_block_out_is_never_having_seen_it(block: int) -> None:
    p, seen = some_passes(37), []
    kept = kept_of(p, block)
    kept.jackknife(lambda stats: seen.append(stats) or stats.mean[..., 0])  # type: ignore[func-returns-value]
    plain = some_passes(1, 9, 99)[0]
    for stats, begin in zip(seen[1:], range(0, 37, block), strict=True):
        rest = PassStatistics(NEEDS, plain)
        rest.update(torch.cat([p[:begin], p[begin + block :]]), passes_dim=0)
        assert stats.passes == rest.passes
        for name in MEASURES:
            torch.testing.assert_close(measures.TABLE[name](stats), measures.TABLE[name](rest), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MEASURES)
def test_how_passes_come_in_changes_nothing(name: str) -> None:
    p, row = some_passes(37), measures.TABLE[name]
    whole = kept_of(p, 7)
    for at_once in (1, 5, 20):
        parts = kept_of(p, 7, at_once)
        torch.testing.assert_close(row(parts), row(whole))
        torch.testing.assert_close(parts.jackknife(row), whole.jackknife(row), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["bald", "predictive_entropy", "expected_entropy", "variation_max"])
def test_it_is_the_spread_over_repeated_runs(name: str) -> None:
    p, row = some_passes(100 * 50, cells=40), measures.TABLE[name]
    runs = [kept_of(part, block_size(100, "independent")) for part in p.split(100)]
    values = torch.stack([row(kept).double() for kept in runs])
    errors = torch.stack([kept.jackknife(row) for kept in runs])
    assert errors.square().mean().sqrt() == pytest.approx(values.var(0).mean().sqrt().item(), rel=0.1)


def test_sizes_of_blocks() -> None:
    assert [block_size(passes, "independent") for passes in (1, 16, 17, 100)] == [1, 1, 2, 7]
    assert [block_size(passes, "stratified") for passes in (1, 16, 100, 256, 257)] == [16, 16, 16, 16, 32]
    for passes in (5, 100, 1000, 12345):
        for draws in ("independent", "stratified"):
            assert math.ceil(passes / block_size(passes, draws)) <= 16


def test_one_block_tells_nothing() -> None:
    assert kept_of(some_passes(10), 16).jackknife(measures.TABLE["bald"]).isnan().all()
    assert kept_of(some_passes(2), 1).jackknife(measures.TABLE["bald_corrected"]).isnan().all()
    assert kept_of(some_passes(3), 1).jackknife(measures.TABLE["bald_corrected"]).isfinite().all()


def test_blocks_are_kept_where_they_are_asked_for() -> None:
    assert type(begin_statistics({"sum_p"}, None, 100, "stratified")) is PassStatistics
    kept = begin_statistics({"sum_p", BLOCKS}, None, 100, "stratified")
    assert isinstance(kept, BlockedStatistics)
    assert (kept.block, kept.needs) == (16, {"sum_p"})
    with refused("passes"):
        kept.add_sums(torch.zeros(3, 8), 4)


# --- runs whose length is open ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEASURES)
def test_joined_blocks_are_those_of_a_run_of_that_block(name: str) -> None:
    p, row = some_passes(48), measures.TABLE[name]
    joined = kept_of(p[:16], 1)
    joined.join(4)
    joined.update(p[16:], passes_dim=0)
    assert (joined.block, joined.blocks) == (4, 12)
    torch.testing.assert_close(joined.jackknife(row), kept_of(p, 4).jackknife(row), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", MEASURES)
def test_chosen_examples_go_on_as_if_they_had_been_alone(name: str) -> None:
    p, chosen, row = some_passes(40).unsqueeze(1), torch.tensor([7, 2, 5]), measures.TABLE[name]
    plain = some_passes(1, 9, 99)[0]

    def begun(of: Tensor) -> BlockedStatistics:
        return BlockedStatistics(NEEDS, plain[of], block=5)

    whole, alone = begun(torch.arange(9)), begun(chosen)
    whole.update(p[:15], passes_dim=0)
    taken = whole.take(chosen)
    whole.update(p[15:], passes_dim=0)
    taken.update(p[15:, :, chosen], passes_dim=0)
    alone.update(p[:, :, chosen], passes_dim=0)
    for found in (row(taken), row(whole)[:, chosen]):
        torch.testing.assert_close(found, row(alone))
    torch.testing.assert_close(taken.jackknife(row), alone.jackknife(row), rtol=1e-4, atol=1e-9)


def test_the_correction_takes_the_bias_of_few_passes_away() -> None:
    p, row = some_passes(8 * 400, cells=40), measures.TABLE["predictive_entropy"]
    runs = [kept_of(part, 1) for part in p.split(8)]
    limit = row(kept_of(p, 400))
    plain, corrected = (
        torch.stack([of(kept).double() for kept in runs]).mean(0) - limit
        for of in (row, lambda kept: kept.corrected(row)[0])
    )
    assert corrected.abs().mean() < 0.2 * plain.abs().mean()


def test_growing_blocks_divide_each_other_and_are_at_most_sixteen() -> None:
    for draws in ("independent", "stratified"):
        sizes = [growing_block(passes, draws) for passes in range(8, 600)]
        assert all(later % earlier == 0 for earlier, later in itertools.pairwise(sizes))
        assert all(passes / size <= 16 for passes, size in zip(range(8, 600), sizes, strict=True))
    assert growing_block(128, "stratified") == 16


# --- halves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passes", "block"), [(64, 4), (100, 7), (100, 16), (37, 5)])
def test_halves_are_those_of_the_blocks_that_a_split_names(passes: int, block: int) -> None:
    p, plain = some_passes(passes), some_passes(1, 9, 99)[0]
    kept = kept_of(p, block)
    of_pass = torch.arange(passes) // block
    pairs = list(kept.halves())
    assert len(pairs) == len(splits(kept.blocks)) >= 7
    for first, pair in zip(splits(kept.blocks), pairs, strict=True):
        inside = torch.tensor(first)[of_pass]
        for half, of in zip(pair, (inside, ~inside), strict=True):
            alone = PassStatistics(NEEDS, plain)
            alone.update(p[of], passes_dim=0)
            assert half.passes == alone.passes
            for name in MEASURES:
                found, expected = (measures.TABLE[name](stats) for stats in (half, alone))
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_splits_are_even_and_differ() -> None:
    for blocks in range(2, 17):
        found = splits(blocks)
        assert len(set(found)) == len(found)
        assert all(1 < sum(first) < blocks - 1 for first in found)
        assert bool(found) == (blocks > 3)
    assert all(
        sum(a == b for a, b in zip(one, other, strict=True)) == 8
        for one in splits(16)
        for other in splits(16)
        if one != other
    )


def test_few_blocks_have_no_halves() -> None:
    assert not list(kept_of(some_passes(48), 16).halves())
    assert not list(kept_of(some_passes(3), 1).halves())
    assert list(kept_of(some_passes(64), 16).halves())


def test_the_spread_of_halves_is_that_over_repeated_runs_of_means_and_of_steps() -> None:
    p = some_passes(40 * 200, cells=30)
    runs = [kept_of(part, 3) for part in p.split(40)]  # the last block is cut short

    def smooth(stats: PassStatistics) -> Tensor:
        return stats.mean[..., 0].mean()

    def stepped(stats: PassStatistics) -> Tensor:
        return (stats.mean[..., 0] > 0.48).double().mean()  # a few cells lie there

    for statistic in (smooth, stepped):
        values = torch.stack([statistic(kept).double() for kept in runs])
        pairs = [
            torch.stack([torch.stack([statistic(half).double() for half in pair]) for pair in kept.halves()])
            for kept in runs
        ]
        errors = torch.stack([split_error(found, block_shares(40, 3)) for found in pairs])
        assert errors.square().mean().sqrt() == pytest.approx(values.std().item(), rel=0.2)
