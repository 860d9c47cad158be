"""Attention with noise in one kernel against attention written out. It needs a GPU, or TRITON_INTERPRET=1 and time."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

from dropscope import attention_kernels, explicit, noise  # only where Triton is

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RATE = 0.4


def call(queries: int, keys: int, mask: str, width: int = 16) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(queries * 100 + keys)
    q, k, v = (torch.randn(2, 3, n, width, generator=draw).to(DEVICE, torch.float16) for n in (queries, keys, keys))
    kinds = {"bool": (torch.arange(keys) < keys - 3).expand(2, 1, queries, keys), "none": None, "causal": None}
    kinds["additive"] = torch.where(kinds["bool"], 0.0, -1e4).half()
    given = kinds[mask]
    given = None if given is None else given.to(DEVICE)
    return explicit.sdpa_arguments((q, k, v), {"attn_mask": given, "is_causal": mask == "causal"})


@pytest.mark.parametrize("mask", ["none", "bool", "additive", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (70, 70), (40, 33)])
def test_the_kernel_equals_attention_written_out(queries: int, keys: int, mask: str) -> None:
    asked = call(queries, keys, mask)
    key = noise.streams(3, noise.site_key("a", 0), torch.tensor(1), torch.tensor([4, 9])).to(DEVICE)
    layout = noise.Layout(0, 1, -1)
    exact = {
        name: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in asked.items()
    }
    plain = explicit.sdpa(exact, lambda w: noise.disturb(w, key, RATE, "bernoulli", "element", layout))
    states = noise.row_states(key, (3, queries, keys)).contiguous()
    got = attention_kernels.attend(asked, 16**-0.5, states, noise.threshold(RATE), 1 / (1 - RATE), noise.CONSTANTS_32)
    torch.testing.assert_close(got.float(), plain, atol=4e-3, rtol=4e-3)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    asked = call(5, 5, "none")
    asked["attn_mask"] = torch.zeros(2, 3, 5, 5, dtype=torch.bool, device=DEVICE)
    key = noise.streams(3, 7, torch.tensor(1), torch.tensor([4, 9])).to(DEVICE)
    states = noise.row_states(key, (3, 5, 5)).contiguous()
    got = attention_kernels.attend(asked, 0.25, states, noise.threshold(RATE), 1 / (1 - RATE), noise.CONSTANTS_32)
    assert not got.any()


@pytest.mark.skipif(INTERPRETED, reason="takes too long without a GPU")
def test_more_heads_than_a_launch_takes_in_its_second_dimension() -> None:
    q = torch.randn(9000, 12, 4, 16, device=DEVICE).half()
    asked = explicit.sdpa_arguments((q, q, q), {})
    states = torch.zeros(9000, 12, 4, dtype=torch.int64, device=DEVICE)
    got = attention_kernels.attend(asked, 0.25, states, noise.threshold(0.0), 1.0, noise.CONSTANTS_32)
    plain = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(got, plain, atol=4e-3, rtol=4e-3)
