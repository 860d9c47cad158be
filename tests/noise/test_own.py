"""Noise of a user's own: what its function gets, what it may return, and that only an example's key decides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dropscope.noise import keyed
from dropscope.noise.keyed import Layout
from dropscope.noise.own import OwnNoise, uniforms
from support.errors import refused
from support.noises import block_noise, even_noise


def drop(given: Tensor, rate: float) -> Tensor:
    return (given >= rate).float() / (1 - rate)


def keys_of(examples: int) -> Tensor:
    return keyed.streams(0, keyed.site_key("fc1", 0), torch.tensor(3), torch.arange(examples))


def test_uniforms_are_uniform_and_never_0_or_1():
    drawn = uniforms(keyed.bits(keys_of(64), (64, 64))).double()
    assert 0 < float(drawn.min()) < float(drawn.max()) < 1
    assert abs(float(drawn.mean()) - 0.5) < 6 * (1 / 12 / drawn.numel()) ** 0.5
    assert abs(float(drawn.var()) - 1 / 12) < 6 * (1 / 180 / drawn.numel()) ** 0.5


@pytest.mark.parametrize("mask", ["element", "channel"])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [((6, 5), Layout()), ((6, 4, 3, 3), Layout(0, 1, 1)), ((3, 6, 4), Layout(1)), ((12, 3, 5), Layout(0, 2))],
    ids=["flat", "maps", "sequence first", "heads folded"],
)
def test_dropping_by_the_uniforms_is_bernoulli_noise(shape, layout, mask):
    """The same words decide, in every layout and under both masks."""
    value, keys = torch.rand(shape) + 1, keys_of(6)
    own = keyed.disturb(value, keys, 0.5, OwnNoise("drop", drop), mask, layout)
    assert torch.equal(own, keyed.disturb(value, keys, 0.5, "bernoulli", mask, layout))


def test_the_function_gets_a_row_per_example():
    seen: list[tuple[int, ...]] = []

    def look(given: Tensor, rate: float) -> Tensor:
        seen.append((*given.shape, rate))
        return given

    value, keys = torch.ones(6, 4, 3, 2), keys_of(6)
    for mask in ("element", "channel"):
        keyed.disturb(value, keys, 0.3, OwnNoise("look", look), mask, Layout(0, 1, 1))
    keyed.disturb(torch.ones(4, 2), keys[:1], 0.3, OwnNoise("look", look), "element", Layout(None))
    assert seen == [(6, 4, 3, 2, 0.3), (6, 4, 0.3), (1, 4, 2, 0.3)]


@pytest.mark.parametrize("function", [even_noise, block_noise])
def test_half_of_a_batch_has_the_noise_it_has_in_the_whole(function):
    value, keys, own = torch.rand(6, 4, 8, 8), keys_of(6), OwnNoise("own", function)
    whole = keyed.disturb(value, keys, 0.3, own, "element", Layout(0, 1, 1))
    half = keyed.disturb(value[3:], keys[3:], 0.3, own, "element", Layout(0, 1, 1))
    assert torch.equal(half, whole[3:])


def test_neighbours_share_their_fate_in_blocks():
    lost = block_noise(uniforms(keyed.bits(keys_of(32), (4, 16, 16))), 0.2) == 0
    assert 0.15 < float(lost.float().mean()) < 0.25
    beside = lost[..., 1:] & lost[..., :-1]
    assert float(beside.float().mean()) > 0.6 * float(lost.float().mean())  # 0.2 of it, were they independent


@pytest.mark.parametrize(
    "function",
    [lambda given, rate: given.sum(), lambda given, rate: 1.0, lambda given: given, lambda given, rate: given[0, 0, 0]],
    ids=["another shape", "a number", "one argument", "an error of its own"],
)
def test_what_cannot_be_a_factor_is_refused(function):
    with refused("noise"):
        keyed.disturb(torch.ones(2, 3), keys_of(2), 0.5, OwnNoise("odd", function), "element", Layout())
