"""The noise kernels against plain torch, bit for bit. They need a GPU, or TRITON_INTERPRET=1 and time."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

import dropscope as ds
from dropscope.noise import kernels as noise_kernels  # only where Triton is
from dropscope.noise import keyed as noise
from dropscope.noise.strata import DRAWS
from dropscope.tracing import attention as explicit
from support import zoo

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SITE = noise.site_key("a", 1)
LAYOUT = noise.Layout(0, 1, -1)


def parts(examples: int, passes: list[int], draws: str = "independent") -> tuple[int, Tensor, Tensor, noise.Keys]:
    """Start, passes and examples as the kernels take them, and the keys of plain torch."""
    chosen, ids = torch.tensor(passes, device=DEVICE), (torch.arange(examples) * 7919 - 3).to(DEVICE)
    numbers, places = noise.in_blocks(chosen, draws)
    return noise.start(-3, SITE), chosen, ids, noise.Keys.of(noise.streams(-3, SITE, numbers, ids), places)


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 4, 9), (3, 600)])
def test_words_are_those_of_plain_torch(shape: tuple[int, ...], draws: str) -> None:
    for passes in ([4, 0, 2], [15, 16, 1000]):
        start, chosen, ids, keys = parts(3, passes, draws)
        drawn = noise_kernels.words(start, chosen, ids, shape, stratified=draws == "stratified")
        assert torch.equal(drawn, noise.bits(keys, shape))


# The interpreter cuts bfloat16 off where a GPU rounds.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *([] if INTERPRETED else [torch.bfloat16])])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 4, 9), (3, 600)])
@pytest.mark.parametrize(("rate", "passes"), [(0.1, [2]), (0.6, [0, 5, 1])])
@pytest.mark.parametrize("draws", DRAWS)
def test_the_kernel_equals_the_plain_product(
    shape: tuple[int, ...], dtype: torch.dtype, rate: float, passes: list[int], draws: str
) -> None:
    start, chosen, ids, keys = parts(3, passes, draws)
    value = torch.randn(3, *shape).to(DEVICE, dtype)
    plain = noise.disturb(value, keys, rate, "bernoulli", "element", LAYOUT)
    drawn = noise_kernels.bernoulli(value, start, chosen, ids, rate, stratified=draws == "stratified")
    assert torch.equal(drawn, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *([] if INTERPRETED else [torch.bfloat16])])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 4, 9), (3, 600)])
@pytest.mark.parametrize("draws", DRAWS)
def test_a_sum_and_a_layer_norm_on_the_way(shape: tuple[int, ...], dtype: torch.dtype, draws: str) -> None:
    start, chosen, ids, keys = parts(3, [0, 5, 1], draws)
    how = {"stratified": draws == "stratified"}
    value, other = (torch.randn(3, *shape).to(DEVICE, dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[-1]).to(DEVICE, dtype) for _ in range(2))
    summed = noise.disturb(value, keys, 0.4, "bernoulli", "element", LAYOUT) + other
    assert torch.equal(noise_kernels.bernoulli(value, start, chosen, ids, 0.4, other, **how), summed)
    written = torch.full_like(value, torch.nan)
    assert noise_kernels.bernoulli(value, start, chosen, ids, 0.4, other, written, **how) is written
    assert torch.equal(written, summed)
    plain = torch.nn.functional.layer_norm(summed, shape[-1:], weight, bias, 1e-6)
    got = noise_kernels.normed(value, start, chosen, ids, 0.4, other, weight, bias, 1e-6, **how)
    close = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(got, plain, atol=close, rtol=close)


def test_what_is_undefined_stays_visible() -> None:
    start, chosen, ids, _ = parts(1, [0])
    got = noise_kernels.bernoulli(torch.full((1, 64), float("inf"), device=DEVICE), start, chosen, ids, 0.5)
    assert not torch.isfinite(got).any()


def test_a_unit_that_its_gain_would_overflow_can_still_be_dropped() -> None:
    start, chosen, ids, keys = parts(1, [0])
    value = torch.full((1, 64), 40000.0, dtype=torch.float16, device=DEVICE)
    plain = noise.disturb(value, keys, 0.5, "bernoulli", "element", LAYOUT)
    assert torch.equal(noise_kernels.bernoulli(value, start, chosen, ids, 0.5), plain)
    assert not plain.isnan().any()


def call(queries: int, keys: int, mask: str, width: int = 16) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(queries * 100 + keys)
    q, k, v = (torch.randn(2, 3, n, width, generator=draw).to(DEVICE, torch.float16) for n in (queries, keys, keys))
    seen = (torch.arange(keys) < keys - 3).expand(2, 1, queries, keys)
    given = {"bool": seen, "additive": torch.where(seen, 0.0, -1e4).half()}.get(mask)
    given = None if given is None else given.to(DEVICE)
    return explicit.sdpa_arguments((q, k, v), {"attn_mask": given, "is_causal": mask == "causal"})


@pytest.mark.parametrize("mask", ["none", "bool", "additive", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (70, 70), (40, 33)])
@pytest.mark.parametrize("draws", DRAWS)
def test_attention_equals_attention_written_out(queries: int, keys: int, mask: str, draws: str) -> None:
    asked, rate = call(queries, keys, mask), 0.4
    start, chosen, ids, by_plain = parts(2, [17], draws)
    exact = {name: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in asked.items()}
    plain = explicit.sdpa(exact, lambda w: noise.disturb(w, by_plain, rate, "bernoulli", "element", LAYOUT))
    got = noise_kernels.attend(asked, start, chosen, ids, rate, stratified=draws == "stratified")
    torch.testing.assert_close(got.float(), plain, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("shape", [(5, 40), (2, 1, 5, 40), (2, 3, 5, 40), (1, 1, 1, 40)])
def test_masks_of_any_shape_are_packed(shape: tuple[int, ...]) -> None:
    asked, rate = call(5, 40, "none"), 0.4
    asked["attn_mask"] = (torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6).to(DEVICE)
    start, chosen, ids, by_plain = parts(2, [1])
    exact = {name: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in asked.items()}
    plain = explicit.sdpa(exact, lambda w: noise.disturb(w, by_plain, rate, "bernoulli", "element", LAYOUT))
    torch.testing.assert_close(
        noise_kernels.attend(asked, start, chosen, ids, rate).float(), plain, atol=4e-3, rtol=4e-3
    )


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, float("-inf")])
def test_the_lowest_number_is_no_infinity(lowest: float) -> None:
    """A row of the lowest number sees all keys alike; a row of −∞ sees none."""
    asked, rate = call(5, 40, "none"), 0.4
    asked["attn_mask"] = torch.zeros(5, 40, device=DEVICE)
    asked["attn_mask"][2], asked["attn_mask"][3, 7:] = lowest, lowest
    start, chosen, ids, by_plain = parts(2, [1])
    exact = {name: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in asked.items()}
    plain = explicit.sdpa(exact, lambda w: noise.disturb(w, by_plain, rate, "bernoulli", "element", LAYOUT))
    got = noise_kernels.attend(asked, start, chosen, ids, rate).float()
    torch.testing.assert_close(got, plain.nan_to_num(), atol=4e-3, rtol=4e-3)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    asked = call(5, 5, "none")
    asked["attn_mask"] = torch.zeros(2, 3, 5, 5, dtype=torch.bool, device=DEVICE)
    assert not noise_kernels.attend(asked, *parts(2, [1])[:3], 0.4).any()


@pytest.mark.skipif(INTERPRETED, reason="takes too long without a GPU")
def test_more_heads_than_a_launch_takes_in_its_second_dimension() -> None:
    q = torch.randn(9000, 12, 4, 16, device=DEVICE).half()
    asked = explicit.sdpa_arguments((q, q, q), {})
    got = noise_kernels.attend(asked, *parts(9000, [0])[:3], 0.0)
    plain = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(got, plain, atol=4e-3, rtol=4e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("draws", DRAWS)
def test_a_model_on_a_gpu_has_the_masks_it_has_on_a_cpu(dtype: torch.dtype, draws: str) -> None:
    net = zoo.seeded(
        lambda: torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 2)
    ).eval()
    x = torch.randn(5, 9, 32)
    with torch.no_grad(), ds.injected(net, "all=0.3", seed=4, draws=draws) as drawn:
        drawn.at(pass_=3, ids=range(5))
        slow = net(x)
    moved = net.to("cuda", dtype)
    with torch.no_grad(), ds.injected(moved, "all=0.3", seed=4, draws=draws) as drawn:
        drawn.at(pass_=3, ids=range(5))
        fast = moved(x.to("cuda", dtype))
    torch.testing.assert_close(fast.float().cpu(), slow, atol=0.15 if dtype == torch.bfloat16 else 1e-4, rtol=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("draws", DRAWS)
def test_its_own_dropout_flows_into_sum_and_norm_unseen(dtype: torch.dtype, draws: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=96)
    net = zoo.seeded(lambda: transformers.BertForSequenceClassification(config)).eval()
    ids, mask = torch.randint(5, 500, (6, 11)), (torch.arange(11) < torch.arange(6, 12)[:, None]).long()
    shown = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad(), ds.injected(net, "own", seed=4, draws=draws) as drawn:
        drawn.at(pass_=3, ids=range(6))
        slow = net(**shown).logits
    moved, there = net.to("cuda", dtype), {name: value.cuda() for name, value in shown.items()}
    with torch.no_grad(), ds.injected(moved, "own", seed=4, draws=draws) as drawn:
        drawn.at(pass_=3, ids=range(6))
        fast = moved(**there).logits
    close = 0.02 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(fast.float().cpu(), slow, atol=close, rtol=close)
