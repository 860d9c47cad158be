"""Stratified draws: each pass alone is independent noise, the 16 of a block fill all sixteenths of every unit."""

from __future__ import annotations

import itertools
import math
import shutil

import pytest
import torch
from scipy import stats
from torch import Tensor

from dropscope.noise import keyed as noise
from dropscope.noise.keyed import Keys, Layout
from dropscope.noise.own import OwnNoise
from dropscope.noise.strata import BLOCK, PRODUCTS, product, stratify

LEVEL = 1e-6  # every random bound below is exceeded by a perfect generator with at most this probability
SITE = noise.site_key("fc1", 0)
NOISES = ("bernoulli", "gaussian", "multinomial")


def keys_of(passes: list[int] | range | Tensor, examples: list[int] | range, seed: int = 0) -> Keys:
    """Keys `[passes, examples]`."""
    numbers, places = noise.in_blocks(torch.as_tensor(list(passes))[:, None], "stratified")
    return Keys.of(noise.streams(seed, SITE, numbers, torch.tensor(list(examples))), places)


def strata_of(words: Tensor) -> Tensor:
    return (words >> 28) + 8


# --- closed forms


def reference_word(seed: int, pass_: int, example: int, coordinates: tuple[int, ...]) -> int:
    """The definition in Python's integers, one word at a time."""
    wide, narrow = (1 << 64) - 1, (1 << 32) - 1

    def absorb(state: int, value: int) -> int:
        x = (state ^ (value * 0x9E3779B97F4A7C15)) & wide
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & wide
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & wide
        return ((x ^ (x >> 31)) + 0x9E3779B97F4A7C15) & wide

    state = 0
    for value in (seed, SITE, -1 - pass_ // 16, example):
        state = absorb(state, value)
    shift = absorb(state, pass_ % 16) % 2**28
    for value in coordinates[:-1]:
        state = absorb(state, value)
    v = ((coordinates[-1] * 0x9E3779B1) ^ state) & narrow
    v = ((v ^ (v >> 16)) * 0x7FEB352D) & narrow
    v = (((v ^ (v >> 15)) + (state >> 32)) * 0x846CA68B) & narrow
    v = ((v ^ (v >> 16)) * 0xC2B2AE35) & narrow
    v ^= v >> 15
    # Powers of the generator x of the field, and their logarithms.
    powers = [1]
    for _ in range(14):
        doubled = powers[-1] << 1
        powers.append(doubled ^ 0b10011 if doubled & 16 else doubled)
    a, j = 1 + v % 256 * 15 // 256, pass_ % 16
    moved = powers[(powers.index(a) + powers.index(j)) % 15] if j else 0
    v ^= (moved << 28) ^ shift
    return v - (1 << 32) if v >> 31 else v


@pytest.mark.parametrize("seed", [0, -1, 2**63 + 12345])
def test_words_are_those_of_the_definition(seed: int) -> None:
    passes, examples = [0, 1, 15, 16, 37, 10**6 + 5], [0, -3, 2**63 - 1]
    words = noise.bits(keys_of(passes, examples, seed), (2, 3))
    assert words.dtype == torch.int32
    for (p, pass_), (e, example), c in itertools.product(
        enumerate(passes), enumerate(examples), itertools.product(range(2), range(3))
    ):
        assert words[(p, e, *c)].item() == reference_word(seed, pass_, example, c)


def test_products_of_places_are_sums_of_those_of_powers_of_two() -> None:
    for a, place in itertools.product(range(1, BLOCK), range(BLOCK)):
        found = 0
        for bit in range(4):
            found ^= PRODUCTS[bit] * (place >> bit & 1)
        assert found >> 4 * (a - 1) & 15 == product(a, place)


def test_the_sixteen_words_of_a_block_lie_in_sixteen_strata() -> None:
    words = noise.bits(keys_of(range(48), range(5)), (3, 100))
    for block in strata_of(words).split(BLOCK):
        assert torch.equal(block.sort(0).values, torch.arange(BLOCK)[:, None, None, None].expand_as(block))


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_a_unit_drops_as_often_in_a_block_as_it_can_at_its_rate(rate: float) -> None:
    factor = noise.multiplier(keys_of(range(64), range(20)), (200,), rate, "bernoulli")
    drops = (factor == 0).unflatten(0, (-1, BLOCK)).sum(1)
    assert set(drops.unique().tolist()) <= {math.floor(BLOCK * rate), math.ceil(BLOCK * rate)}


# --- each pass alone


@pytest.mark.parametrize("pass_", [0, 7, 15, 16, 100])
def test_a_pass_is_one_to_one_in_the_words_of_its_block(pass_: int) -> None:
    words = torch.arange(-(2**31), 2**31, 4099).to(torch.int32)
    place = torch.tensor(pass_ % BLOCK, dtype=torch.int32)
    drawn = stratify(words.clone(), place, torch.tensor(pass_ * 99991 % 2**28, dtype=torch.int32))
    assert len(drawn.unique()) == len(words)
    counts = torch.bincount(strata_of(drawn).long(), minlength=BLOCK)
    assert counts.max() - counts.min() <= len(words) // 1000


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5])
@pytest.mark.parametrize("pass_", [0, 9, 31])
def test_a_pass_drops_the_rate(pass_: int, rate: float) -> None:
    factor = noise.multiplier(keys_of([pass_], range(256)), (4096,), rate, "bernoulli")
    low, high = stats.binom.interval(1 - LEVEL, factor.numel(), rate)
    assert low <= int((factor == 0).sum()) <= high


@pytest.mark.parametrize("pass_", [0, 5, 15])
def test_units_and_examples_of_a_pass_agree_as_coins_do(pass_: int) -> None:
    units = 1 << 14
    for words in (
        noise.bits(keys_of([pass_], range(64)), (units,))[0],
        noise.bits(keys_of([pass_], range(units)), (64,))[0].T,
        noise.bits(keys_of(range(pass_, pass_ + 64 * BLOCK, BLOCK), [7]), (units,))[:, 0],  # one pass of each block
    ):
        for bit in (31, 30, 28, 27, 0):
            signs = ((words >> bit) & 1).float() * 2 - 1
            agreements = ((signs @ signs.T + units) / 2)[tuple(torch.triu_indices(64, 64, 1))]
            low, high = stats.binom.interval(1 - LEVEL / 15 / agreements.numel(), units, 0.5)
            assert low <= agreements.min()
            assert agreements.max() <= high


# --- two passes of a block


def test_two_passes_of_a_block_lie_in_any_two_strata_equally_often() -> None:
    strata = strata_of(noise.bits(keys_of(range(BLOCK), range(64)), (4096,))).long().flatten(1)
    level = stats.chi2.isf(LEVEL / 120, 239)
    for i, j in itertools.combinations(range(BLOCK), 2):
        counts = torch.bincount(strata[i] * BLOCK + strata[j], minlength=256).view(BLOCK, BLOCK)
        assert not counts.diagonal().any()
        expected = strata.shape[1] / 240
        apart = counts.double()[~torch.eye(BLOCK, dtype=torch.bool)]
        assert ((apart - expected) ** 2 / expected).sum() < level


def test_two_units_are_stratified_independently() -> None:
    strata = strata_of(noise.bits(keys_of(range(BLOCK), range(1 << 14)), (8,))).long()
    first, second = strata[:, :, 0::2], strata[:, :, 1::2]
    for pass_ in (0, 1, 15):
        counts = torch.bincount((first[pass_] * BLOCK + second[pass_]).flatten(), minlength=256).double()
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < stats.chi2.isf(LEVEL / 3, 255)
    # What unit 0 does from one pass to another says nothing of what unit 1 does.
    moves = [(unit[3] ^ unit[9]) - 1 for unit in (first, second)]
    counts = torch.bincount((moves[0] * 15 + moves[1]).flatten(), minlength=225).double()
    expected = counts.sum() / 225
    assert ((counts - expected) ** 2 / expected).sum() < stats.chi2.isf(LEVEL, 224)


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_means_over_a_block_are_unbiased_and_vary_less(kind: str) -> None:
    rate, units = 0.3, 1 << 16
    factor = noise.multiplier(keys_of(range(BLOCK), range(8)), (units,), rate, kind).double()
    means = factor.mean(0).flatten()
    independent = rate / (1 - rate) / BLOCK
    assert abs(means.mean().item() - 1) < stats.norm.isf(LEVEL / 2) * math.sqrt(independent / means.numel())
    # Left to chance: of Bernoulli noise the stratum that its rate cuts, of Gaussian noise the place in a stratum.
    assert means.var().item() < {"bernoulli": 0.08, "gaussian": 0.06}[kind] * independent


# --- what may not change a mask

GOLDEN = {
    (0, 0, 0): [50132291, 9925500, 1893635090, -1188645513],
    (0, 37, 12345): [1146494231, 467670997, -1624047858, -614866012],
    (-7, 15, -4611686018427387905): [1388017484, 1572826902, -1440150343, 140229790],
}


def test_words_are_frozen() -> None:
    for (seed, pass_, example), words in GOLDEN.items():
        assert noise.bits(keys_of([pass_], [example], seed), (2, 2)).flatten().tolist() == words


@pytest.mark.parametrize("kind", NOISES)
def test_passes_examples_and_padding_in_any_number_and_order_change_nothing(kind: str) -> None:
    whole = noise.multiplier(keys_of(range(40), range(6)), (3, 40), 0.3, kind)
    some, few = [17, 3, 39, 16], [5, 0, 2]
    part = noise.multiplier(keys_of(some, few), (3, 40), 0.3, kind)
    assert torch.equal(part, whole[some][:, few])
    if kind != "multinomial":
        padded = noise.multiplier(keys_of(some, few), (5, 47), 0.3, kind)
        assert torch.equal(padded[:, :, :3, :40], part)


@pytest.mark.parametrize("draws", ["independent", "stratified"])
@pytest.mark.parametrize("passes", [range(7), range(5, 40), range(16, 32), range(15, 17)])
def test_words_of_many_passes_are_those_of_each(passes: range, draws: str) -> None:
    examples = torch.tensor([11, -4, 2**40])
    together = noise.bits_of_passes(3, SITE, torch.tensor(list(passes)), examples, (4, 9), draws, -2)
    for number, words in zip(passes, together.unflatten(0, (len(passes), -1)), strict=True):
        numbers, places = noise.in_blocks(torch.tensor([number]), draws)
        keys = Keys.of(noise.streams(3, SITE, numbers, examples), places)
        assert torch.equal(words, noise.bits(keys, (4, 9), -2))


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian", "alpha", OwnNoise("own", lambda u, rate: u + rate)])
@pytest.mark.parametrize("mask", ["element", "channel", "example"])
def test_an_example_alone_has_the_noise_it_has_among_others(kind: str | OwnNoise, mask: str) -> None:
    keys, value = keys_of([21], range(4))[0], torch.linspace(0.5, 2.0, 4 * 6 * 32).reshape(4, 6, 32)
    together = noise.disturb(value, keys, 0.3, kind, mask, Layout(0, 1, -1))
    for example in range(4):
        part = slice(example, example + 1)
        alone = noise.disturb(value[part], keys[part], 0.3, kind, mask, Layout(0, 1, -1))
        assert torch.equal(alone, together[part])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch 2.13 warns about itself
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile on a CPU needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools:UserWarning")  # a table per device
def test_compiled_words_are_eager_words() -> None:
    compiled = torch.compile(lambda states, places, shape: noise.bits(Keys(states, places), shape), dynamic=True)
    for passes, shape in (([3], (5, 17)), ([20, 4], (4, 33))):
        keys = keys_of(passes, range(3), seed=-5)
        assert torch.equal(compiled(keys.states, keys.places, shape), noise.bits(keys, shape))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_gives_the_words_of_the_cpu() -> None:
    here = keys_of(range(40), range(33))
    assert here.places is not None
    there = Keys(here.states.cuda(), here.places.cuda())
    assert torch.equal(noise.bits(there, (3, 129)).cpu(), noise.bits(here, (3, 129)))
