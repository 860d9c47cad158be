"""Keyed noise: value = f(seed, site and call, pass, example, coordinates), and of nothing else.

Owns the hash, the three noises of the papers and how a mask lies over a value. It knows no model and no random state:
batch size, order, chunking and device cannot change a mask. Everything here is integer arithmetic on tensors: the same
bits on a CPU, on a GPU, eager and compiled. See `strata` for stratified draws, `own` for noises of a user's,
`placement` for which site gets which.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dropscope.noise.adaptive import rates_of_loss
from dropscope.noise.own import OwnNoise
from dropscope.noise.strata import BLOCK, INSIDE, stratify


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


GOLDEN_64 = _signed(0x9E3779B97F4A7C15, 64)
MIX_64 = _signed(0xBF58476D1CE4E5B9, 64), _signed(0x94D049BB133111EB, 64)
GOLDEN_32 = _signed(0x9E3779B1, 32)
MIX_32 = _signed(0x7FEB352D, 32), _signed(0x846CA68B, 32), _signed(0xC2B2AE35, 32)
_SELU_SATURATION = -1.7580993408473766  # the value AlphaDropout gives to a dropped unit: -(scale * alpha) of SELU
_DRAWS_AT_ONCE = 1 << 24
_BESIDE = _signed(
    0xD1B54A32D192ED03, 64
)  # absorbed by a key, it makes another stream: the draw by which a rate is found


@dataclass(frozen=True)
class Layout:
    """How examples and feature maps lie in a value.

    Attributes:
        batch_dim: The dimension of the examples; None where one value serves them all, as position embeddings do.
        folded: Consecutive indices of that dimension that each example takes (heads folded into the batch).
        channel_dim: The dimension of the feature maps.
        centred: The dimension of distances between tokens, from the end (-2, -3 …): it grows on both sides with the
            text, so its coordinates count from the middle. None where there is none.
    """

    batch_dim: int | None = 0
    folded: int = 1
    channel_dim: int = -1
    centred: int | None = None

    def centre(self, dims: int, mask: str) -> int | None:
        """`centred` among one example's units, for a value of `dims` dimensions; None where no unit lies along it."""
        if self.centred is None or mask != "element":
            return None
        batch = (self.batch_dim or 0) - dims
        return self.centred + 1 if self.centred < batch else self.centred


@dataclass(frozen=True, eq=False)
class Keys:
    """One key per (pass, example).

    Attributes:
        states: int64, of `streams`: of the pass, or of its block where draws are stratified.
        places: The number of the pass in its block, int64 shaped like `states`; None where draws are independent.
    """

    states: Tensor
    places: Tensor | None = None

    @classmethod
    def of(cls, states: Tensor, places: Tensor | None) -> Keys:
        """With places that broadcast against the states."""
        return cls(states, None if places is None else places.expand_as(states))

    def __len__(self) -> int:
        return len(self.states)

    def flatten(self) -> Keys:
        return Keys(self.states.flatten(), None if self.places is None else self.places.flatten())

    def __getitem__(self, index: Any) -> Keys:
        return Keys(self.states[index], None if self.places is None else self.places[index])


def in_blocks(passes: Tensor, draws: str) -> tuple[Tensor, Tensor | None]:
    """What of the numbers of passes goes into a key, and their places in their blocks where draws are stratified.

    >>> in_blocks(torch.tensor([0, 15, 16, 37]), "stratified")
    (tensor([-1, -1, -2, -3]), tensor([ 0, 15,  0,  5]))
    """
    if draws == "independent":
        return passes, None
    # Below 0, so that blocks have other words than the first passes of independent draws.
    return ~(passes // BLOCK), passes % BLOCK


@functools.lru_cache(1 << 12)
def site_key(name: str, call: int) -> int:
    """A signed 64-bit key for one call of one site.

    The position is left out: placements that are equal by mathematics share masks.
    """
    return int.from_bytes(hashlib.blake2b(f"{name}#{call}".encode(), digest_size=8).digest(), "little", signed=True)


def _absorb(state: Tensor, value: Tensor) -> Tensor:
    """One step of a 64-bit chain: a bijection of `state` for every `value`, and of `value` for every `state`."""
    x = state ^ (value * GOLDEN_64)
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_64[0]
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_64[1]
    return (x ^ ((x >> 31) & ((1 << 33) - 1))) + GOLDEN_64


def streams(seed: int, site: int, passes: Tensor, examples: Tensor) -> Tensor:
    """64-bit keys, one per (pass, example): `passes` and `examples` are int64 and broadcast against each other."""
    state = torch.full((), start(seed, site), dtype=torch.int64, device=examples.device)
    return _absorb(_absorb(state, passes), examples)


def streams_of_all(starts: Tensor, passes: Tensor, examples: Tensor) -> Tensor:
    """`streams` of many sites at once, `[sites, examples]`, from what `start` says of each.

    >>> starts = torch.tensor([start(0, 3), start(0, 4)])
    >>> passes, examples = torch.tensor([2]), torch.tensor([11, 12])
    >>> torch.equal(streams_of_all(starts, passes, examples)[1], streams(0, 4, passes, examples))
    True
    """
    return _absorb(_absorb(starts.unsqueeze(-1), passes), examples)


@functools.lru_cache(1 << 12)
def start(seed: int, site: int) -> int:
    """The state that all streams of a site start from. Python computes it, which costs no trip to a device."""
    return _absorbed(_absorbed(0, seed), site)


def _absorbed(state: int, value: int) -> int:
    """`_absorb` of two Python numbers.

    >>> pair = torch.tensor(-5), torch.tensor(2**62 + 3)
    >>> _absorbed(-5, 2**62 + 3) == int(_absorb(*pair))
    True
    """
    whole = (1 << 64) - 1
    x = (state ^ (value * GOLDEN_64)) & whole
    x = ((x ^ (x >> 30)) * MIX_64[0]) & whole
    x = ((x ^ (x >> 27)) * MIX_64[1]) & whole
    return _signed(((x ^ (x >> 31)) + GOLDEN_64) & whole, 64)


def bits(keys: Keys | Tensor, shape: Sequence[int], centre: int | None = None) -> Tensor:
    """Uniform int32 of shape `[*keys.shape, *shape]`. Each coordinate is hashed by itself, so padding moves nothing.

    Coordinates count from 0, along dimension `centre` (-2, -3 …) from the middle. A tensor of keys is one of states,
    for independent draws.

    >>> keys = streams(0, site_key("fc1", 0), torch.tensor(3), torch.tensor([11, 12]))
    >>> torch.equal(bits(keys, (5, 7))[:, :4, :6], bits(keys, (4, 6)))
    True
    >>> torch.equal(bits(keys, (6, 7), -2)[:, 1:-1], bits(keys, (4, 7), -2))
    True
    """
    if isinstance(keys, Keys):
        words = bits(keys.states, shape, centre)
        return words if keys.places is None else _stratified(words, keys.states, keys.places)
    state, lead = _row_states(keys, shape, centre), keys.dim()
    # The last coordinate is where the work is: 32-bit lanes, fed by both halves of the 64-bit row state.
    low = ((state << 32) >> 32).to(torch.int32).unsqueeze(-1)
    high = (state >> 32).to(torch.int32).unsqueeze(-1)
    last = torch.arange(shape[-1], device=keys.device, dtype=torch.int32) * GOLDEN_32
    v = last.view(*[1] * (lead + len(shape) - 1), -1) ^ low
    v = _fold(v, 16).mul_(MIX_32[0])
    v = _fold(v, 15).add_(high).mul_(MIX_32[1])
    v = _fold(v, 16).mul_(MIX_32[2])
    return _fold(v, 15)


def bits_of_passes(
    seed: int, site: int, passes: Tensor, examples: Tensor, shape: Sequence[int], draws: str, centre: int | None = None
) -> Tensor:
    """`bits` of every pass and example, `[passes × examples, *shape]`. Stratified words are hashed once for a block.

    >>> passes, examples = torch.tensor([15, 16, 3]), torch.tensor([11, 12])
    >>> words = bits_of_passes(0, 3, passes, examples, (5,), "stratified")
    >>> numbers, places = in_blocks(torch.tensor([16, 16]), "stratified")
    >>> torch.equal(words[2:4], bits(Keys(streams(0, 3, numbers, examples), places), (5,)))
    True
    """
    numbers, places = in_blocks(passes, draws)
    if places is None:
        return bits(streams(seed, site, passes[:, None], examples).flatten(), shape, centre)
    blocks, block_of = numbers.unique(return_inverse=True)
    states = streams(seed, site, blocks[:, None], examples)
    words = bits(states, shape, centre)[block_of]
    return _stratified(words, states[block_of], places[:, None]).flatten(0, 1)


def bits_of_blocks(
    seed: int, site: int, passes: int, examples: Tensor, shape: Sequence[int], draws: str, centre: int | None = None
) -> Tensor:
    """`bits_of_passes` of the first so many passes, by operations that look at no value: for graphs.

    >>> examples = torch.tensor([11, 12])
    >>> words = bits_of_blocks(0, 3, 20, examples, (5,), "stratified")
    >>> torch.equal(words, bits_of_passes(0, 3, torch.arange(20), examples, (5,), "stratified"))
    True
    """
    numbers, places = in_blocks(torch.arange(passes), draws)
    if places is None:
        return bits(streams(seed, site, numbers[:, None], examples).flatten(), shape, centre)
    states = streams(seed, site, numbers[::BLOCK, None], examples)
    block_of = torch.arange(passes) // BLOCK
    words = bits(states, shape, centre).index_select(0, block_of)
    return _stratified(words, states.index_select(0, block_of), places[:, None]).flatten(0, 1)


def _stratified(words: Tensor, states: Tensor, places: Tensor) -> Tensor:
    """Words of blocks as those of their passes, in place; `places` broadcast against `states`."""
    shifts = (_absorb(states, places) & INSIDE).to(torch.int32)
    lead = (*shifts.shape, *[1] * (words.dim() - shifts.dim()))
    return stratify(words, places.to(torch.int32).expand_as(shifts).reshape(lead), shifts.view(lead))


def _row_states(keys: Tensor, shape: Sequence[int], centre: int | None) -> Tensor:
    """The 64-bit state of each row of the last dimension, int64 `[*keys.shape, *shape[:-1]]`."""
    state = keys
    for dim, size in enumerate(shape[:-1], -len(shape)):
        first = -(size // 2) if dim == centre else 0
        state = _absorb(state.unsqueeze(-1), torch.arange(first, first + size, device=keys.device))
    return state


def _fold(v: Tensor, shift: int) -> Tensor:
    """v ^= v >>> shift, in place: eager hashing is bound by memory, and this keeps it within two times torch.rand."""
    return v.bitwise_xor_((v >> shift).bitwise_and_((1 << (32 - shift)) - 1))


def threshold(rate: float) -> int:
    """The signed 32-bit level below which a unit is dropped. Nested: what drops at .3 drops at .5."""
    return min(round(rate * 2**32), 2**32 - 1) - 2**31


def standard_normal(uniform: Tensor) -> Tensor:
    """The normal quantile of 23 bits of a uniform int32 (|z| at most 5.3): Giles's polynomial (2012, float32)."""
    # (2k + 1) / 2^23 is exact in float32, so the argument is the same number on every device.
    x = ((uniform >> 9).to(torch.float32) * 2 + 1) * 2.0**-23
    w = -torch.log((1 - x) * (1 + x))
    near = _polynomial(w - 2.5, _NEAR)
    far = _polynomial(torch.sqrt(w.clamp(min=5.0)) - 3.0, _FAR)
    return torch.where(w < 5.0, near, far) * x * math.sqrt(2.0)


_NEAR: tuple[float, ...] = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087)
_NEAR += (-0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
_FAR: tuple[float, ...] = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773)
_FAR += (-0.0076224613, 0.00943887047, 1.00167406, 2.83297682)


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    result = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def multiplier(keys: Keys | Tensor, shape: Sequence[int], rate: float, noise: str, centre: int | None = None) -> Tensor:
    """The factor λ on each unit, float32 of shape `[*keys.shape, *shape]`; mean 1, variance rate / (1 − rate).

    bernoulli: λ ∈ {0, 1/(1−rate)}. gaussian: N(1, rate/(1−rate)), Camarasa et al. eq 2. multinomial: λ_i = m_i·d/k with
    m ~ Mult(k; 1/d) over the last dimension, k = round((d−1)(1−rate)/rate). All three come from the same uniforms.
    """
    if noise == "bernoulli":
        return (bits(keys, shape, centre) >= threshold(rate)).to(torch.float32).mul_(1.0 / (1.0 - rate))
    if noise == "gaussian":
        return standard_normal(bits(keys, shape, centre)).mul_(math.sqrt(rate / (1.0 - rate))).add_(1.0)
    if noise == "multinomial":
        return _multinomial(keys, shape, rate, centre)
    raise ValueError(f"unknown noise {noise!r}")


def multinomial_draws(units: int, rate: float) -> int:
    """How many draws over `units` give the variance rate / (1 − rate)."""
    return round((units - 1) * (1.0 - rate) / rate)


def _multinomial(keys: Keys | Tensor, shape: Sequence[int], rate: float, centre: int | None) -> Tensor:
    units = shape[-1]
    draws = multinomial_draws(units, rate)
    if draws < 1:
        raise ValueError(f"multinomial noise at rate {rate} needs more than {units} units: no draw is left")
    keys = Keys(keys) if isinstance(keys, Tensor) else keys
    counts = torch.zeros([*keys.states.shape, *shape], dtype=torch.float32, device=keys.states.device)
    flat_keys, flat = keys.flatten(), counts.view(-1, *shape)
    rows = max(1, _DRAWS_AT_ONCE // (draws * math.prod(shape[:-1])))
    for first in range(0, len(flat_keys), rows):
        uniform = bits(flat_keys[first : first + rows], (*shape[:-1], draws), centre).to(torch.int64) + 2**31
        chosen = (uniform * units) >> 32
        flat[first : first + rows].scatter_add_(-1, chosen, torch.ones_like(chosen, dtype=torch.float32))
    return counts.mul_(units / draws)


def factors(
    value: Tensor, keys: Keys | Tensor, rate: float, noise: str | OwnNoise, mask: str, layout: Layout
) -> Tensor:
    """λ for a value that has an example dimension, broadcastable against it. `keys` holds one key per example."""
    shape, _ = unit_shape(value, mask, layout)
    centre = layout.centre(value.dim(), mask)
    if isinstance(noise, OwnNoise):
        found = noise.factors(bits(keys, shape, centre), rate, mask, layout.folded)
    elif noise == "rate_in":
        found = _adaptive(value, keys if isinstance(keys, Keys) else Keys(keys), rate, mask, layout)
    else:
        found = multiplier(keys, shape, rate, noise, centre)
    return spread(found, value, mask, layout)


def _adaptive(value: Tensor, keys: Keys, share: float, mask: str, layout: Layout) -> Tensor:
    """λ at the rate of each example at which a draw of its own, beside that of the mask, loses the share."""
    shape, back = unit_shape(value, mask, layout)
    centre = layout.centre(value.dim(), mask)
    energy = value.detach().movedim(layout.batch_dim or 0, 0).double().square()
    energy = energy.sum_to_size(back).reshape(len(keys), -1)
    beside = Keys(_absorb(keys.states, torch.full_like(keys.states, _BESIDE)), keys.places)
    rates = rates_of_loss(energy, bits(beside, shape, centre).flatten(1), share)
    levels = (rates * 2**32).round().to(torch.int64) - 2**31
    lead = [-1, *[1] * len(shape)]
    return (bits(keys, shape, centre) >= levels.view(lead)).float() / (1 - rates).float().view(lead)


def spread(factor: Tensor, value: Tensor, mask: str, layout: Layout) -> Tensor:
    """λ of one site, broadcastable against the value."""
    _, back = unit_shape(value, mask, layout)
    return factor.reshape(back).movedim(0, layout.batch_dim or 0)


def unit_shape(value: Tensor, mask: str, layout: Layout) -> tuple[list[int], list[int]]:
    """The shape of one example's units, and the shape [batch dimension, the others] that broadcasts to the value."""
    batch = layout.batch_dim or 0
    channel = layout.channel_dim % value.dim()
    kept = {"element": set(range(value.dim())), "channel": {channel}, "example": set()}[mask]
    units = [size if dim in kept else 1 for dim, size in enumerate(value.shape) if dim != batch]
    if mask == "example":
        return [layout.folded], [value.shape[batch], *units]
    if mask == "channel":
        # One λ per feature map; the channel comes last so that multinomial noise counts over channels.
        return [layout.folded, value.shape[channel]], [value.shape[batch], *units]
    if layout.folded > 1:
        return [layout.folded, *units], [value.shape[batch], *units]
    return units or [1], [value.shape[batch], *units]


def disturb(
    value: Tensor, keys: Keys | Tensor, rate: float, noise: str | OwnNoise, mask: str, layout: Layout
) -> Tensor:
    """`value` with noise on it. A value without an example dimension takes one key: one mask for all examples."""
    if layout.batch_dim is None:
        channel = layout.channel_dim if layout.channel_dim < 0 else layout.channel_dim + 1
        lifted = Layout(0, 1, channel, layout.centred)
        return disturb(value.unsqueeze(0), keys, rate, noise, mask, lifted).squeeze(0)
    if noise == "alpha":
        keep = factors(value, keys, rate, "bernoulli", mask, layout) > 0
        scale = ((1 - rate) * (1 + rate * _SELU_SATURATION**2)) ** -0.5
        shifted = torch.where(keep, value, torch.full_like(value, _SELU_SATURATION))
        return shifted * scale - scale * rate * _SELU_SATURATION
    return value * factors(value, keys, rate, noise, mask, layout).to(value.dtype)
