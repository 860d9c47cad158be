"""The mask kernel against plain torch, bit for bit. It needs a GPU, or TRITON_INTERPRET=1 and time."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

from dropscope import mask_kernels, noise  # only where Triton is

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONSTANTS = noise.CONSTANTS_32


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 4, 9)])
# The interpreter cuts bfloat16 off where a GPU rounds.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *([] if INTERPRETED else [torch.bfloat16])])
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_the_kernel_equals_the_plain_product(shape: tuple[int, ...], dtype: torch.dtype, rate: float) -> None:
    keys = noise.streams(-3, noise.site_key("a", 1), torch.tensor(2), torch.tensor([5, -6, 7])).to(DEVICE)
    value = torch.randn(3, *shape, dtype=torch.float32).to(DEVICE, dtype)
    layout = noise.Layout(0, 1, -1)
    plain = value * noise.factors(value, keys, rate, "bernoulli", "element", layout).to(dtype)
    states = noise.row_states(keys, shape).contiguous()
    gain = float(torch.tensor(1 / (1 - rate), dtype=dtype))
    got = mask_kernels.bernoulli(value, states, noise.threshold(rate), gain, CONSTANTS)
    assert torch.equal(got, plain)


def test_what_is_undefined_stays_visible() -> None:
    keys = noise.streams(0, 1, torch.tensor(0), torch.tensor([1])).to(DEVICE)
    value = torch.full((1, 64), float("inf"), device=DEVICE)
    got = mask_kernels.bernoulli(value, noise.row_states(keys, (64,)), noise.threshold(0.5), 2.0, CONSTANTS)
    assert not torch.isfinite(got).any()
