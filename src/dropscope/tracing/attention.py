"""Explicit forms of attention, in which the weights are a value that noise can be put on.

Owns scaled_dot_product_attention and multi_head_attention_forward written out. `weigh` gets the softmax weights
`[..., queries, keys]` and returns what replaces them. Everything else is computed as torch documents it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dropscope.model import random_state_kept

Weigh = Callable[[Tensor], Tensor]
Dropped = Callable[[], tuple[Tensor, Tensor]]  # weights without and with the model's own dropout


def sdpa_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by name. The function is built in and has no signature to inspect."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    defaults = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def sdpa(call: Mapping[str, Any], weigh: Weigh) -> Tensor:
    """softmax(q kᵀ · scale + mask) v, with noise on the softmax."""
    query, key, value, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    if call["enable_gqa"]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scale = 1.0 / math.sqrt(query.shape[-1]) if call["scale"] is None else call["scale"]
    scores = (query @ key.transpose(-2, -1)) * scale
    if call["is_causal"]:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, dim=-1)
    if mask is not None:
        # A row that sees nothing gets zeros, as in torch's own kernels.
        weights = weights.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)
    return weigh(weights) @ value


def sdpa_dropped(func: Callable[..., Tensor], call: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The weights of such a call without and with its own dropout: what it returns for an identity matrix as value."""
    key = call["key"]
    identity = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device).expand(*key.shape[:-2], -1, -1)
    revealing = {**call, "value": identity}
    with random_state_kept():
        return func(**{**revealing, "dropout_p": 0.0}), func(**revealing)


_MHA = inspect.signature(F.multi_head_attention_forward)


def mha_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = _MHA.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def mha(call: Mapping[str, Any], weigh: Weigh) -> tuple[Tensor, Tensor | None]:
    """F.multi_head_attention_forward with noise on the weights; `weigh` gets them as [batch, heads, queries, keys]."""
    heads = call["num_heads"]
    query, key, value = call["query"], call["key"], call["value"]
    batched = query.dim() == 3
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    length, batch, width = query.shape
    q, k, v = (_heads(x, heads) for x in _projected(query, key, value, call))
    k, v = _extended(k, call["bias_k"], call["static_k"], call), _extended(v, call["bias_v"], call["static_v"], call)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // heads)
    for mask in _masks(call, batch, heads):
        added = scores.shape[-1] - mask.shape[-1]  # keys of the attention's own: every query sees them
        scores = scores + F.pad(_additive(mask, scores.dtype), (0, added))
    weights = torch.softmax(scores, dim=-1)
    if not call["need_weights"]:
        # torch then runs its SDPA, where a row that sees nothing gets zeros.
        weights = weights.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)
    weights = weigh(weights)
    joined = (weights @ v).permute(2, 0, 1, 3).reshape(length, batch, width)
    out = F.linear(joined, call["out_proj_weight"], call["out_proj_bias"])
    if not call["need_weights"]:
        return (out if batched else out.squeeze(1)), None
    shown = weights.mean(1) if call["average_attn_weights"] else weights
    return (out, shown) if batched else (out.squeeze(1), shown.squeeze(0))


def mha_dropped(func: Callable[..., Any], call: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The weights of such a call without and with its own dropout."""
    revealing = {**call, "need_weights": True, "average_attn_weights": False}
    with random_state_kept():
        return func(**{**revealing, "training": False})[1], func(**revealing)[1]


def _projected(query: Tensor, key: Tensor, value: Tensor, call: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    width = query.shape[-1]
    if call["use_separate_proj_weight"]:
        weights = call["q_proj_weight"], call["k_proj_weight"], call["v_proj_weight"]
    else:
        weights = call["in_proj_weight"].split(width)
    biases = (None,) * 3 if call["in_proj_bias"] is None else call["in_proj_bias"].split(width)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    return q, k, v


def _heads(x: Tensor, heads: int) -> Tensor:
    """[length, batch, width] → [batch, heads, length, width / heads]"""
    return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _extended(x: Tensor, bias: Tensor | None, static: Tensor | None, call: Mapping[str, Any]) -> Tensor:
    """Keys or values [batch, heads, length, width] with those that the attention adds of its own."""
    batch, heads, _, width = x.shape
    if bias is not None:
        x = torch.cat([x, _heads(bias.expand(1, batch, -1), heads)], 2)
    if static is not None:
        x = static.view(batch, heads, -1, width)
    return torch.cat([x, x.new_zeros(batch, heads, 1, width)], 2) if call["add_zero_attn"] else x


def _masks(call: Mapping[str, Any], batch: int, heads: int) -> list[Tensor]:
    masks = []
    if call["attn_mask"] is not None:
        mask = call["attn_mask"]
        masks.append(mask if mask.dim() == 2 else mask.view(batch, heads, *mask.shape[-2:]))
    if call["key_padding_mask"] is not None:
        padding = call["key_padding_mask"]
        masks.append((padding if padding.dim() == 2 else padding.unsqueeze(0))[:, None, None, :])
    return masks


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
