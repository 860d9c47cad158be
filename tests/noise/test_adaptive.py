"""Dropout at the rate at which a draw loses a share of the information: per example, keyed, and with a mean of 1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dropscope.noise.adaptive import HIGHEST, rates_of_loss
from dropscope.noise.keyed import Layout, disturb, factors, site_key, streams

SHARE = 0.2


def drawn(count: int, units: int) -> tuple[Tensor, Tensor]:
    """Energies, some of them 0, and words."""
    generator = torch.Generator().manual_seed(0)
    energy = torch.randn(count, units, generator=generator).relu().square()
    words = torch.randint(-(2**31), 2**31, (count, units), generator=generator).to(torch.int32)
    return energy, words


def keys_of(examples: Tensor, pass_: int = 0) -> Tensor:
    return streams(3, site_key("fc1", 0), torch.tensor(pass_), examples)


def loss(energy: Tensor, words: Tensor, rate: Tensor) -> Tensor:
    dropped = (words.double() + 2**31) / 2**32 < rate[:, None]
    return (energy * dropped).sum(1) / energy.sum(1)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_the_rate_is_where_the_loss_of_nested_masks_reaches_the_share(share: float) -> None:
    energy, words = drawn(200, 64)
    found = rates_of_loss(energy, words, share)
    largest = energy.amax(1) / energy.sum(1)
    # At the rate, all units but one have been dropped that make up the share; the next one makes it more.
    assert bool((loss(energy, words, found) <= share + 1e-9).all())
    assert bool((loss(energy, words, found + 0.2) >= (share - largest).clamp_min(0)).all())
    low, high = torch.zeros(200).double(), torch.ones(200).double()
    for _ in range(40):  # the bisection that the sort stands for
        middle = (low + high) / 2
        below = loss(energy, words, middle) < share
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    gap = torch.cat([torch.zeros(200, 1), (words.double().sort(1).values + 2**31) / 2**32], 1).diff(dim=1).amax(1)
    assert bool(((found - low).abs() <= gap + 1e-9).all())


def test_more_is_lost_at_a_higher_rate() -> None:
    energy, words = drawn(100, 32)
    found = torch.stack([rates_of_loss(energy, words, share) for share in (0.01, 0.1, 0.3, 0.5, 0.9)])
    assert bool((found.diff(dim=0) >= 0).all())


def test_rounding_moves_a_rate_by_rounding() -> None:
    energy, words = drawn(500, 32)
    nudged = energy.double() * (
        1 + 1e-6 * torch.randn(energy.shape, generator=torch.Generator().manual_seed(1)).double()
    )
    apart = rates_of_loss(energy, words, SHARE) - rates_of_loss(nudged, words, SHARE)
    assert float(apart.abs().max()) < 1e-4


def test_nothing_to_lose_means_nothing_to_drop() -> None:
    _, words = drawn(2, 8)
    assert rates_of_loss(torch.zeros(2, 8), words, SHARE).tolist() == [0.0, 0.0]
    assert float(rates_of_loss(torch.ones(2, 8), words, 0.999).max()) <= HIGHEST


@pytest.mark.parametrize(("mask", "channel"), [("element", -1), ("channel", 1), ("example", 1)])
def test_an_example_gets_the_same_in_any_batch(mask: str, channel: int) -> None:
    value = torch.randn(6, 5, 4, 4, generator=torch.Generator().manual_seed(2)).relu()
    examples, layout = torch.arange(6), Layout(0, 1, channel)
    whole = disturb(value, keys_of(examples), SHARE, "rate_in", mask, layout)
    for some in ([0], [5, 2], [3, 1, 4]):
        alone = disturb(value[some], keys_of(examples[some]), SHARE, "rate_in", mask, layout)
        assert torch.equal(alone, whole[some])


def test_the_mean_is_kept_and_rates_differ() -> None:
    value = torch.randn(1, 64, generator=torch.Generator().manual_seed(3)).abs().expand(4000, -1)
    found = factors(value, keys_of(torch.arange(4000)), SHARE, "rate_in", "element", Layout())
    torch.testing.assert_close(found.mean(0), torch.ones(64), atol=0.06, rtol=0)
    assert len(found.amax(1).unique()) > 100
    lost = ((found == 0) * value.square()).sum(1) / value.square().sum(1)
    assert abs(float(lost.mean()) - SHARE) < 0.03


def test_feature_maps_are_lost_whole() -> None:
    value = torch.randn(20, 12, 3, 3, generator=torch.Generator().manual_seed(4))
    found = disturb(value, keys_of(torch.arange(20)), SHARE, "rate_in", "channel", Layout(0, 1, 1))
    gone = (found == 0).flatten(2)
    assert bool((gone.all(2) == gone.any(2)).all())
    assert bool(gone.any())


def test_values_that_all_examples_share_and_folded_ones_take_it() -> None:
    shared = torch.randn(7, 5, generator=torch.Generator().manual_seed(5))
    assert disturb(shared, keys_of(torch.zeros(1).long()), SHARE, "rate_in", "element", Layout(None)).shape == (7, 5)
    folded = torch.randn(6, 5, generator=torch.Generator().manual_seed(6))
    keys = keys_of(torch.arange(3))
    whole = disturb(folded, keys, SHARE, "rate_in", "element", Layout(0, 2))
    assert torch.equal(disturb(folded[2:4], keys[1:2], SHARE, "rate_in", "element", Layout(0, 2)), whole[2:4])
