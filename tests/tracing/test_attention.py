"""Attention written out equals torch's own, for every form of call; then the dropout that is read off a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.tracing import attention


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(weights: Tensor) -> Tensor:
    return weights


Q, K, V = normal(2, 4, 5, 8), normal(2, 4, 7, 8, seed=1), normal(2, 4, 7, 6, seed=2)
SEEN = torch.arange(7) < torch.tensor([7, 4])[:, None, None, None]


def test_equal_scores_give_the_mean_of_the_values() -> None:
    call = attention.sdpa_arguments((torch.zeros(1, 2, 3, 4), K[:1, :2, :, :4], V[:1, :2]), {})
    out = attention.sdpa(call, same)
    assert torch.allclose(out, V[:1, :2].mean(-2, keepdim=True).expand(-1, -1, 3, -1), atol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"scale": 0.3},
        {"scale": 0.0},
        {"is_causal": True},
        {"attn_mask": SEEN},
        {"attn_mask": SEEN.expand(2, 4, 5, 7)},
        {"attn_mask": normal(5, 7)},
        {"attn_mask": normal(2, 1, 5, 7)},
    ],
    ids=lambda call: ",".join(call) or "plain",
)
def test_sdpa_is_torchs(call: dict[str, Any]) -> None:
    expected = F.scaled_dot_product_attention(Q, K, V, **call)
    out = attention.sdpa(attention.sdpa_arguments((Q, K, V), call), same)
    assert torch.allclose(out, expected, atol=1e-5)


def test_sdpa_takes_its_arguments_by_position_as_torch_does() -> None:
    call = attention.sdpa_arguments((Q, K, V, SEEN, 0.25, False), {"scale": 2.0})
    assert (call["attn_mask"] is SEEN, call["dropout_p"], call["is_causal"], call["scale"]) == (True, 0.25, False, 2.0)


def test_grouped_queries_share_keys() -> None:
    key, value = K[:, :2], V[:, :2]
    expected = F.scaled_dot_product_attention(Q, key, value, enable_gqa=True)
    out = attention.sdpa(attention.sdpa_arguments((Q, key, value), {"enable_gqa": True}), same)
    assert torch.allclose(out, expected, atol=1e-5)


def test_a_query_that_sees_nothing_gets_zeros_as_in_torch() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    for given in (mask, torch.zeros(5, 7).masked_fill(~mask, float("-inf"))):
        expected = F.scaled_dot_product_attention(Q, K, V, attn_mask=given)
        out = attention.sdpa(attention.sdpa_arguments((Q, K, V), {"attn_mask": given}), same)
        assert torch.allclose(out, expected, atol=1e-5)
        assert bool((out[:, :, 2] == 0).all())


def test_sdpa_weighs_with_what_the_visitor_returns() -> None:
    out = attention.sdpa(attention.sdpa_arguments((Q, K, V), {}), torch.zeros_like)
    assert bool((out == 0).all())


def record(module: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], Any]:
    """The arguments with which the module calls F.multi_head_attention_forward, and what that returned."""
    calls: list[tuple[Any, Any, Any]] = []

    class Listen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "multi_head_attention_forward":
                calls.append((args, kwargs or {}, out))
            return out

    with Listen(), torch.no_grad():
        module(*args, **kwargs)
    args, kwargs, out = calls[0]
    return attention.mha_arguments(args, kwargs), out


X = normal(5, 3, 16)  # [length, batch, width]
PADDING = torch.arange(5) >= torch.tensor([5, 3, 4])[:, None]
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"key_padding_mask": PADDING},
        {"attn_mask": CAUSAL},
        {"attn_mask": CAUSAL, "is_causal": True},
        {"attn_mask": normal(12, 5, 5)},
        {"attn_mask": normal(5, 5), "key_padding_mask": torch.zeros(3, 5).masked_fill(PADDING, float("-inf"))},
        {"average_attn_weights": False},
    ],
    ids=lambda masks: ",".join(masks) or "plain",
)
def test_mha_is_torchs(masks: dict[str, Any], need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4).eval()
    call, (expected, shown) = record(module, X, X, X, need_weights=need_weights, **masks)
    with torch.no_grad():
        out, weights = attention.mha(call, same)
    assert torch.allclose(out, expected, atol=1e-5)
    assert (weights is None) == (shown is None)
    if weights is not None:
        assert torch.allclose(weights, shown, atol=1e-5)


@pytest.mark.parametrize("options", [{"kdim": 6, "vdim": 10}, {"bias": False}, {"batch_first": True}])
def test_mha_with_other_projections_is_torchs(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    module = nn.MultiheadAttention(16, 4, **options).eval()
    length = 3 if "batch_first" in options else 7
    key = normal(5 if "batch_first" in options else length, 7 if "batch_first" in options else 3, module.kdim, seed=3)
    value = normal(*key.shape[:2], module.vdim, seed=4)
    call, (expected, shown) = record(module, X, key, value)
    with torch.no_grad():
        out, weights = attention.mha(call, same)
    assert torch.allclose(out, expected, atol=1e-5)
    assert weights is not None
    assert torch.allclose(weights, shown, atol=1e-5)


def test_mha_of_one_unbatched_example_is_torchs() -> None:
    torch.manual_seed(2)
    module = nn.MultiheadAttention(16, 4).eval()
    for masks in ({}, {"key_padding_mask": PADDING[1]}):
        call, (expected, shown) = record(module, X[:, 0], X[:, 0], X[:, 0], **masks)
        with torch.no_grad():
            out, weights = attention.mha(call, same)
        assert weights is not None
        assert torch.allclose(out, expected, atol=1e-5)
        assert torch.allclose(weights, shown, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}]
)
@pytest.mark.parametrize(
    "masks", [{}, {"key_padding_mask": PADDING, "attn_mask": CAUSAL}, {"attn_mask": normal(12, 5, 5)}]
)
def test_mha_with_keys_of_its_own_is_torchs(options: dict[str, Any], masks: dict[str, Any]) -> None:
    torch.manual_seed(3)
    module = nn.MultiheadAttention(16, 4, **options).eval()
    for need_weights in (True, False):
        call, (expected, shown) = record(module, X, X, X, need_weights=need_weights, **masks)
        with torch.no_grad():
            out, weights = attention.mha(call, same)
        assert torch.allclose(out, expected, atol=1e-5)
        if weights is not None:
            assert torch.allclose(weights, shown, atol=1e-5)


def test_mha_with_given_keys_and_values_is_torchs() -> None:
    torch.manual_seed(4)
    module = nn.MultiheadAttention(16, 4).eval()
    call, _ = record(module, X, X, X)
    call |= {"static_k": normal(12, 6, 4, seed=5), "static_v": normal(12, 6, 4, seed=6)}
    with torch.no_grad():
        (out, weights), (expected, shown) = attention.mha(call, same), F.multi_head_attention_forward(**call)
    assert weights is not None
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(weights, shown, atol=1e-5)


def test_dropout_is_read_off_a_call_without_moving_random_state() -> None:
    call = attention.sdpa_arguments((Q, K, V), {"dropout_p": 0.3})
    state = torch.get_rng_state()
    before, after = attention.sdpa_dropped(F.scaled_dot_product_attention, call)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.allclose(before.sum(-1), torch.ones(2, 4, 5), atol=1e-5)
    kept = after != 0
    assert 0.1 < float((~kept).float().mean()) < 0.5
    assert torch.allclose(after[kept], before[kept] / 0.7, atol=1e-5)


def test_an_example_that_is_all_padding_gives_zeros_where_torch_does() -> None:
    """nn.TransformerEncoder asks for no weights: torch then runs SDPA, whose blind rows are 0 and not NaN."""
    module = nn.MultiheadAttention(16, 4).eval()
    blind = torch.tensor([[False] * 5, [True] * 5, [False] * 5])
    call, (expected, _) = record(module, X, X, X, need_weights=False, key_padding_mask=blind)
    with torch.no_grad():
        out, _ = attention.mha(call, same)
    assert torch.allclose(out, expected, atol=1e-5, equal_nan=True)
    assert bool(out.isfinite().all()) == bool(expected.isfinite().all())
