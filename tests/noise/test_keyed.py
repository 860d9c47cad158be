"""Noise as a function of a key: closed forms, what may not change a mask, independence along every axis."""

from __future__ import annotations

import itertools
import math
import shutil

import pytest
import torch
from scipy import special, stats
from torch import Tensor

from dropscope.noise import keyed as noise
from dropscope.noise.keyed import Layout

LEVEL = 1e-6  # every random bound below is exceeded by a perfect generator with at most this probability
RATES = (0.01, 0.1, 0.3, 0.5, 0.9)
NOISES = ("bernoulli", "gaussian", "multinomial")
SITE = noise.site_key("fc1", 0)


def keys_of(examples: int | list[int], pass_: int = 0, seed: int = 0, site: int = SITE) -> Tensor:
    ids = torch.arange(examples) if isinstance(examples, int) else torch.tensor(examples)
    return noise.streams(seed, site, torch.tensor(pass_), ids)


def inside_binomial(counts: Tensor, trials: int, probability: float, level: float = LEVEL) -> bool:
    """Every count inside the exact two-sided interval, at `level` for all of them together."""
    low, high = stats.binom.interval(1 - level / counts.numel(), trials, probability)
    return bool(low <= counts.min()) and bool(counts.max() <= high)


# --- closed forms


@pytest.mark.parametrize("rate", RATES)
def test_bernoulli_has_two_values_and_drops_the_rate(rate: float) -> None:
    factor = noise.multiplier(keys_of(64), (128, 128), rate, "bernoulli")
    kept = torch.tensor(1 / (1 - rate))
    assert torch.equal(factor.unique(), torch.stack([torch.tensor(0.0), kept]))
    # With two values, 0 and 1/(1 − rate), the drop fraction decides mean (1) and variance (rate/(1 − rate)) too.
    assert inside_binomial((factor == 0).sum(), factor.numel(), rate)


@pytest.mark.parametrize("rate", RATES)
def test_gaussian_has_mean_one_and_the_variance_of_bernoulli(rate: float) -> None:
    factor = noise.multiplier(keys_of(64), (128, 128), rate, "gaussian").double()
    n, variance = factor.numel(), rate / (1 - rate)
    assert abs(factor.mean().item() - 1) <= stats.norm.isf(LEVEL / 2) * math.sqrt(variance / n)
    low, high = stats.chi2.interval(1 - LEVEL, n - 1)
    assert low <= (n - 1) * factor.var().item() / variance <= high


@pytest.mark.parametrize("rate", RATES)
def test_multinomial_sums_to_its_units_and_has_the_variance_of_bernoulli(rate: float) -> None:
    rows, units = 512, 96
    draws = noise.multinomial_draws(units, rate)
    factor = noise.multiplier(keys_of(rows), (units,), rate, "multinomial").double()
    counts = (factor * draws / units).round()
    assert torch.equal(counts.sum(-1), torch.full((rows,), float(draws), dtype=torch.float64))
    assert torch.equal(factor.float(), counts.float() * (units / draws))
    # Σ(λ−1)²·k/d over a row is Pearson's statistic of d equal cells: mean d − 1, variance 2(d − 1)(1 − 1/k).
    pearson = (factor - 1).square().sum(-1) * draws / units
    deviation = math.sqrt(2 * (units - 1) * (1 - 1 / draws) / rows)
    assert abs(pearson.mean().item() - (units - 1)) <= stats.norm.isf(LEVEL / 2) * deviation
    assert (units - 1) / draws == pytest.approx(rate / (1 - rate), rel=0.5 / draws)  # k is a whole number


def test_multinomial_counts_every_unit_alike() -> None:
    rows, units, rate = 4096, 24, 0.5
    draws = noise.multinomial_draws(units, rate)
    factor = noise.multiplier(keys_of(rows), (units,), rate, "multinomial")
    assert inside_binomial((factor * draws / units).round().sum(0), rows * draws, 1 / units)


def test_normal_quantile_of_every_uniform_is_that_of_scipy() -> None:
    uniform = torch.arange(-(2**22), 2**22)
    ours = noise.standard_normal((uniform << 9).to(torch.int32)).double()
    exact = torch.from_numpy(special.ndtri(((uniform.double() + 0.5) / 2**23 + 0.5).numpy()))
    assert (ours - exact).abs().max() < 2e-6
    assert torch.equal(ours, -ours.flip(0))
    assert ours.max() < 5.3


def test_alpha_gives_the_two_values_of_nn_alpha_dropout() -> None:
    rate, value = 0.3, torch.full((64, 1024), 0.7)
    theirs = torch.nn.AlphaDropout(rate).train()(value).unique()
    ours = noise.disturb(value, keys_of(64), rate, "alpha", "element", Layout())
    assert len(theirs) == 2
    torch.testing.assert_close(ours.unique(), theirs, rtol=1e-6, atol=1e-6)
    assert inside_binomial((ours == ours.min()).sum(), ours.numel(), rate)


@pytest.mark.parametrize("rate", RATES)
def test_alpha_keeps_mean_zero_and_variance_one(rate: float) -> None:
    value = noise.standard_normal(noise.bits(keys_of(256, seed=5), (4096,)))
    result = noise.disturb(value, keys_of(256), rate, "alpha", "element", Layout()).double()
    bound = stats.norm.isf(LEVEL / 2) / math.sqrt(result.numel())
    assert abs(result.mean().item()) <= bound
    fourth = (result**4).mean().item()
    assert abs(result.square().mean().item() - 1) <= bound * math.sqrt(fourth - 1)


def test_rate_zero_drops_nothing() -> None:
    assert torch.equal(noise.multiplier(keys_of(8), (4096,), 0.0, "bernoulli"), torch.ones(8, 4096))
    assert noise.threshold(0.0) == -(2**31)
    assert noise.threshold(0.5) == 0
    assert noise.threshold(1.0) == 2**31 - 1


def test_unknown_noise_and_too_few_units_are_errors() -> None:
    with pytest.raises(ValueError, match="unknown noise 'poisson'"):
        noise.multiplier(keys_of(2), (8,), 0.5, "poisson")
    with pytest.raises(ValueError, match=r"rate 0\.9 needs more than 4 units"):
        noise.multiplier(keys_of(2), (4,), 0.9, "multinomial")


# --- coupled rates


def test_what_is_dropped_at_a_rate_is_dropped_at_every_higher_one() -> None:
    dropped = [noise.multiplier(keys_of(16), (64, 64), rate, "bernoulli") == 0 for rate in (0.05, 0.1, 0.3, 0.5, 0.9)]
    for fewer, more in itertools.pairwise(dropped):
        assert (fewer & ~more).sum() == 0
        assert fewer.sum() < more.sum()


def test_gaussian_rises_with_the_uniform_that_bernoulli_cuts() -> None:
    uniform = noise.bits(keys_of(16), (4096,)).flatten()
    gaussian = noise.multiplier(keys_of(16), (4096,), 0.3, "gaussian").flatten()
    steps = gaussian[uniform.argsort()].diff()
    assert steps.min() >= -1e-6  # the polynomial's last bit may waver between neighbouring uniforms
    dropped = noise.multiplier(keys_of(16), (4096,), 0.3, "bernoulli").flatten() == 0
    assert gaussian[dropped].max() <= gaussian[~dropped].min() + 1e-6


# --- what may not change a mask


def reference_word(seed: int, site: int, pass_: int, example: int, coordinates: tuple[int, ...]) -> int:
    """The definition of the bits in Python's integers, one at a time."""
    wide, narrow = (1 << 64) - 1, (1 << 32) - 1

    def absorb(state: int, value: int) -> int:
        x = (state ^ (value * 0x9E3779B97F4A7C15)) & wide
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & wide
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & wide
        return ((x ^ (x >> 31)) + 0x9E3779B97F4A7C15) & wide

    state = 0
    for value in (seed, site, pass_, example, *coordinates[:-1]):
        state = absorb(state, value)
    v = ((coordinates[-1] * 0x9E3779B1) ^ state) & narrow
    v = ((v ^ (v >> 16)) * 0x7FEB352D) & narrow
    v = (((v ^ (v >> 15)) + (state >> 32)) * 0x846CA68B) & narrow
    v = ((v ^ (v >> 16)) * 0xC2B2AE35) & narrow
    v ^= v >> 15
    return v - (1 << 32) if v >> 31 else v


@pytest.mark.parametrize("seed", [0, 1, -1, -(2**70) + 3, 2**63 + 12345, 2**64 - 1, 2**100 + 7])
def test_bits_are_those_of_the_definition_for_any_seed(seed: int) -> None:
    examples = [0, -3, 2**63 - 1, -(2**63)]
    words = noise.bits(keys_of(examples, pass_=9, seed=seed), (2, 3, 5))
    assert words.dtype == torch.int32
    for (e, example), c in itertools.product(enumerate(examples), itertools.product(range(2), range(3), range(5))):
        assert words[(e, *c)].item() == reference_word(seed, SITE, 9, example, c)


# Frozen: another machine, another version of torch and another release of Dropscope must give these very bits.
GOLDEN = {
    (0, "fc1", 0, 0, 0): [905342539, 1114626091, 1990712260, 175121247, -1394165808, -2074182191],
    (1, "conv2", 0, 0, 0): [-317448573, 1048698612, 1225537782, -1276618620, 1426579315, 1709043456],
    (0, "fc1", 1, 0, 0): [1892859214, -1241680614, -617797405, 1641826845, 1360684471, -124036049],
    (0, "fc1", 0, 99, 0): [1118245476, 1244446384, 598565073, -622179897, 990972169, -73891645],
    (0, "fc1", 0, 0, 12345): [1706842033, 854915922, 2076918884, 1369216734, -1946719546, 1903752474],
    (-7, "encoder.layer.0.attention", 3, 49, -4611686018427387905): [
        -371813073,
        -986975034,
        460030917,
        -98988445,
        -1237651924,
        -1959150102,
    ],
    (18446744073709551615, "", 0, 0, 9223372036854775807): [
        -913261279,
        929477513,
        -1191279641,
        896030876,
        232658152,
        -1352078351,
    ],
}


def test_bits_are_frozen() -> None:
    for (seed, name, call, pass_, example), words in GOLDEN.items():
        key = noise.streams(seed, noise.site_key(name, call), torch.tensor(pass_), torch.tensor(example))
        assert noise.bits(key, (2, 3)).flatten().tolist() == words


def test_site_keys_are_frozen_and_part_names_from_calls() -> None:
    assert noise.site_key("fc1", 0) == 6550994408553185144
    assert noise.site_key("encoder.layer.0.attention", 3) == 6290197716410147661
    assert len({noise.site_key(f"layer{i}", call) for i in range(100) for call in range(100)}) == 10_000


@pytest.mark.parametrize("kind", NOISES)
def test_batch_split_and_order_change_nothing(kind: str) -> None:
    keys = keys_of(24)
    whole = noise.multiplier(keys, (3, 40), 0.3, kind)
    for size in (1, 5, 24):
        assert torch.equal(torch.cat([noise.multiplier(part, (3, 40), 0.3, kind) for part in keys.split(size)]), whole)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise.multiplier(keys[order], (3, 40), 0.3, kind), whole[order])


def test_multinomial_in_pieces_is_multinomial_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = noise.multiplier(keys_of(24), (3, 40), 0.3, "multinomial")
    monkeypatch.setattr(noise, "_DRAWS_AT_ONCE", 1000)
    assert torch.equal(noise.multiplier(keys_of(24), (3, 40), 0.3, "multinomial"), whole)


def test_the_mask_follows_the_example_not_its_place() -> None:
    value = torch.ones(4, 6, 10)
    first = noise.disturb(value, keys_of([11, 12, 13, 14]), 0.5, "bernoulli", "element", Layout())
    second = noise.disturb(value, keys_of([99, 14, 7, 12]), 0.5, "bernoulli", "element", Layout())
    assert torch.equal(first[3], second[1])
    assert torch.equal(first[1], second[3])
    assert not torch.equal(first[1], second[1])


def test_passes_and_examples_broadcast() -> None:
    together = noise.streams(3, SITE, torch.arange(5)[:, None], torch.arange(7))
    assert together.shape == (5, 7)
    assert torch.equal(together, torch.stack([keys_of(7, pass_=t, seed=3) for t in range(5)]))


@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 5, 7), (2, 3, 5, 7)])
@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_padding_moves_nothing(shape: tuple[int, ...], kind: str) -> None:
    padded = noise.multiplier(keys_of(3), [size + 2 + i for i, size in enumerate(shape)], 0.5, kind)
    cut = padded[(slice(None), *map(slice, shape))]
    assert torch.equal(cut, noise.multiplier(keys_of(3), shape, 0.5, kind))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch 2.13 warns about itself
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile on a CPU needs a C++ compiler")
def test_compiled_bits_are_eager_bits() -> None:
    compiled = torch.compile(noise.bits, dynamic=True, fullgraph=True)
    for examples, shape in ((3, (5, 17)), (8, (4, 33)), (1, (31, 2))):
        keys = keys_of(examples, pass_=2, seed=-5)
        assert torch.equal(compiled(keys, shape), noise.bits(keys, shape))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_gives_the_bits_of_the_cpu() -> None:
    here = noise.streams(7, SITE, torch.arange(4)[:, None], torch.arange(33))
    there = noise.streams(7, SITE, torch.arange(4, device="cuda")[:, None], torch.arange(33, device="cuda"))
    assert torch.equal(there.cpu(), here)
    assert torch.equal(noise.bits(there, (3, 5, 129)).cpu(), noise.bits(here, (3, 5, 129)))
    compiled = torch.compile(noise.bits, dynamic=True)
    assert torch.equal(compiled(there, (3, 5, 129)).cpu(), noise.bits(here, (3, 5, 129)))
    for kind, tolerance in (("bernoulli", 0.0), ("multinomial", 0.0), ("gaussian", 2e-6)):
        cuda, cpu = (noise.multiplier(keys, (3, 5, 129), 0.3, kind).cpu() for keys in (there, here))
        assert (cuda - cpu).abs().max() <= tolerance


# --- how a mask lies over a value


@pytest.mark.parametrize("kind", [*NOISES, "alpha"])
@pytest.mark.parametrize("mask", ["element", "channel", "example"])
def test_every_layout_gives_an_example_the_same_noise(kind: str, mask: str) -> None:
    if mask == "example" and kind == "multinomial":
        pytest.skip("one unit leaves nothing to draw from")
    keys, (batch, length, width) = keys_of(4), (4, 6, 32)
    value = torch.linspace(0.5, 2.0, batch * length * width).reshape(batch, length, width)
    expected = noise.disturb(value, keys, 0.3, kind, mask, Layout(0, 1, -1))
    assert torch.equal(noise.disturb(value, keys, 0.3, kind, mask, Layout(0, 1, 2)), expected)
    sequence_first = noise.disturb(value.transpose(0, 1), keys, 0.3, kind, mask, Layout(1, 1, -1))
    assert torch.equal(sequence_first.transpose(0, 1), expected)
    for example in range(batch):
        alone = noise.disturb(value[example], keys[example : example + 1], 0.3, kind, mask, Layout(None, 1, -1))
        assert torch.equal(alone, expected[example])
        alone = noise.disturb(value[example], keys[example : example + 1], 0.3, kind, mask, Layout(None, 1, 1))
        assert torch.equal(alone, expected[example])


@pytest.mark.parametrize("kind", NOISES)
def test_channel_masks_are_one_factor_per_feature_map_wherever_the_channels_lie(kind: str) -> None:
    images = torch.ones(4, 32, 5, 6)
    first = noise.disturb(images, keys_of(4), 0.3, kind, "channel", Layout(0, 1, 1))
    last = noise.disturb(images.movedim(1, -1), keys_of(4), 0.3, kind, "channel", Layout(0, 1, -1))
    assert torch.equal(last.movedim(-1, 1), first)
    assert torch.equal(first, first[:, :, :1, :1].expand_as(first))
    assert first[:, :, 0, 0].unique(dim=0).shape[0] == 4


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
def test_an_example_mask_is_one_factor_per_example(kind: str) -> None:
    result = noise.disturb(torch.ones(64, 5, 6), keys_of(64), 0.5, kind, "example", Layout())
    assert torch.equal(result, result[:, :1, :1].expand_as(result))
    assert torch.equal(result[:, 0, 0], noise.multiplier(keys_of(64), (1,), 0.5, kind)[:, 0])
    assert len(result.unique()) >= 2


@pytest.mark.parametrize("kind", NOISES)
def test_heads_folded_into_the_batch_have_the_masks_of_heads_beside_it(kind: str) -> None:
    heads, value = 3, torch.ones(4, 3, 5, 32)
    beside = noise.disturb(value, keys_of(4), 0.3, kind, "element", Layout(0, 1, -1))
    folded = noise.disturb(value.flatten(0, 1), keys_of(4), 0.3, kind, "element", Layout(0, heads, -1))
    assert torch.equal(folded.unflatten(0, (4, heads)), beside)
    channel = noise.disturb(value.flatten(0, 1), keys_of(4), 0.3, kind, "channel", Layout(0, heads, -1))
    factor = noise.multiplier(keys_of(4), (heads, 32), 0.3, kind)
    assert torch.equal(channel.unflatten(0, (4, heads)), factor[:, :, None].expand_as(value))
    if kind != "multinomial":
        example = noise.disturb(value.flatten(0, 1), keys_of(4), 0.3, kind, "example", Layout(0, heads, -1))
        factor = noise.multiplier(keys_of(4), (heads,), 0.3, kind)
        assert torch.equal(example.unflatten(0, (4, heads)), factor[:, :, None, None].expand_as(value))


def test_a_value_without_features_has_one_unit_per_example() -> None:
    result = noise.disturb(torch.ones(512), keys_of(512), 0.5, "bernoulli", "element", Layout())
    assert inside_binomial((result == 0).sum(), 512, 0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*NOISES, "alpha"])
def test_a_value_keeps_its_dtype_and_its_mask(dtype: torch.dtype, kind: str) -> None:
    plain = noise.disturb(torch.ones(4, 64), keys_of(4), 0.3, kind, "element", Layout())
    result = noise.disturb(torch.ones(4, 64, dtype=dtype), keys_of(4), 0.3, kind, "element", Layout())
    assert result.dtype == dtype
    tolerance = max(4 * torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(result.double(), plain.double(), rtol=tolerance, atol=tolerance)


# --- independence

FINGERPRINTS = [noise.site_key(f"content of example {i}", 0) for i in range(64)]
UNITS = 1 << 14
LONG = (UNITS,)

AXES = {
    "examples by index": lambda: noise.bits(keys_of(64), LONG),
    "examples by fingerprint": lambda: noise.bits(keys_of(FINGERPRINTS), LONG),
    "examples one bit apart": lambda: noise.bits(keys_of([0, *[1 << i for i in range(62)], -1]), LONG),
    "passes": lambda: noise.bits(noise.streams(0, SITE, torch.arange(64), torch.tensor(0)), LONG),
    "sites": lambda: torch.stack(
        [noise.bits(keys_of([0], site=noise.site_key(f"l{i}", 0))[0], LONG) for i in range(64)]
    ),
    "calls": lambda: torch.stack([noise.bits(keys_of([0], site=noise.site_key("l", i))[0], LONG) for i in range(64)]),
    "seeds": lambda: torch.stack([noise.bits(keys_of([0], seed=i)[0], LONG) for i in range(-32, 32)]),
    "pass plus example": lambda: noise.bits(noise.streams(0, SITE, torch.arange(64), torch.arange(63, -1, -1)), LONG),
    "rows": lambda: noise.bits(keys_of([0])[0], (64, UNITS)),
    "planes": lambda: noise.bits(keys_of([0])[0], (64, 1, UNITS))[:, 0],
    "row and column": lambda: (
        noise.bits(keys_of([0])[0], (64, UNITS + 64)).flatten()[: 64 * (UNITS + 65)].unfold(0, UNITS, UNITS + 65)
    ),
    "elements over examples": lambda: noise.bits(keys_of(UNITS), (64,)).T,
    "elements over passes": lambda: noise.bits(noise.streams(0, SITE, torch.arange(UNITS), torch.tensor(0)), (64,)).T,
    "attention rows over columns": lambda: noise.bits(keys_of([0])[0], (64, 2, UNITS // 2)).flatten(1),
}


@pytest.mark.parametrize("axis", AXES)
def test_any_two_of_64_streams_agree_as_two_coins_do(axis: str) -> None:
    words = AXES[axis]()
    assert words.shape == (64, UNITS)
    tested = (31, 30, 16, 0)
    for bit in tested:
        signs = ((words >> bit) & 1).float() * 2 - 1
        agreements = (signs @ signs.T + UNITS) / 2  # whole numbers below 2^24: exact
        pairs = agreements[tuple(torch.triu_indices(64, 64, 1))]
        assert inside_binomial(pairs, UNITS, 0.5, LEVEL / len(tested)), f"bit {bit}"


@pytest.mark.parametrize("axis", AXES)
def test_each_bit_is_balanced_and_runs_along_a_stream_are_as_long_as_a_coin_s(axis: str) -> None:
    words = AXES[axis]()
    ones = torch.stack([((words >> bit) & 1).sum() for bit in range(32)])
    assert inside_binomial(ones, words.numel(), 0.5)
    changes = words ^ words.roll(-1, 1)
    runs = torch.stack([((changes >> bit) & 1)[:, :-1].sum() for bit in range(32)])
    assert inside_binomial(runs, 64 * (UNITS - 1), 0.5)


def test_neighbouring_uniforms_fill_the_square_evenly() -> None:
    words = noise.bits(keys_of(1 << 17), (8,)).to(torch.int64) + 2**31
    cells = (words[:, :-1] >> 28) * 16 + (words[:, 1:] >> 28)
    counts = torch.bincount(cells[:, ::2].flatten(), minlength=256).double()
    expected = counts.sum() / 256
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    low, high = stats.chi2.interval(1 - LEVEL, 255)
    assert low <= statistic <= high


def test_a_million_streams_have_a_million_keys() -> None:
    keys = noise.streams(0, SITE, torch.arange(1000)[:, None], torch.arange(1000))
    assert keys.unique().numel() == 1_000_000
    keys = torch.stack([keys_of(100, seed=s, site=noise.site_key(f"l{i}", 0)) for s in range(50) for i in range(50)])
    assert keys.unique().numel() == 250_000


# --- regressions


def test_negative_and_positive_seeds_do_not_share_masks() -> None:
    """The seed was once absorbed into itself: s and −2 − s gave the same masks, and so did s and s + 2^63."""
    seeds = [*range(-500, 500), *range(2**62, 2**62 + 500), *range(2**63, 2**63 + 500)]
    assert len({keys_of([0], seed=seed).item() for seed in seeds}) == len(seeds)
