"""The Triton kernels against the same arithmetic in plain torch. They need a GPU, or TRITON_INTERPRET=1 and time."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

from dropscope.engine import kernels, products  # only where Triton is
from dropscope.engine.analytic import kernels as analytic_kernels
from dropscope.engine.chains import halves
from dropscope.engine.segments import disturb_rows

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def choices(rates: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    level = [-(2**31) if rate == 0 else round(rate * 2**32) - 2**31 for rate in rates]
    gain = [1 / (1 - rate) for rate in rates]
    return torch.tensor(level, dtype=torch.int32, device=DEVICE), torch.tensor(gain, device=DEVICE)


def words(rows: int, units: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (rows, units), dtype=torch.int64, device=DEVICE).to(torch.int32)


def noisy(x: torch.Tensor, word: torch.Tensor, level: torch.Tensor, gain: torch.Tensor, passes: int) -> torch.Tensor:
    """`x[parents, rows, channels, …]` under every choice, `[parents, choices, words, channels, …]`."""
    x = x.repeat(1, passes, *[1] * (x.dim() - 2)) if x.shape[1] != len(word) else x
    factor = (word[None] >= level[:, None, None]).float() * gain[:, None, None]
    return x[:, None] * factor.view(1, len(level), *word.shape, *[1] * (x.dim() - 3))


SIZES = [(3, False), (1, True), (17, False), *([] if INTERPRETED else [(90, False), (9, False)])]
PASSES, EXAMPLES = (2, 2) if INTERPRETED else (50, 64)
RATES = [0.0, 0.1, 0.4, 0.9]


@pytest.mark.parametrize(("parents", "plain"), SIZES)
def test_prefix_linear_equals_masks_and_products(parents: int, plain: bool) -> None:
    torch.manual_seed(0)
    level, gain = choices(RATES)
    x = torch.randn(parents, EXAMPLES if plain else PASSES * EXAMPLES, 16, 4, 4, device=DEVICE)
    word = words(PASSES * EXAMPLES, 16)
    weight, bias = torch.randn(40, 256, device=DEVICE) / 16, torch.randn(40, device=DEVICE)
    rows = noisy(x, word, level, gain, PASSES).flatten(3).double()
    expected = torch.relu(rows @ weight.T.double() + bias).reshape(-1, 40)
    got = kernels.prefix_linear(x, word, level, gain, weight, bias, EXAMPLES)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("parents", "plain"), SIZES)
def test_prefix_conv_equals_masks_and_convolutions(parents: int, plain: bool) -> None:
    torch.manual_seed(0)
    level, gain = choices(RATES)
    x = torch.randn(parents, EXAMPLES if plain else PASSES * EXAMPLES, 8, 8, 8, device=DEVICE)
    word = words(PASSES * EXAMPLES, 8)
    weight, bias = torch.randn(40, 8, 3, 3, device=DEVICE) / 8, torch.randn(40, device=DEVICE)
    rows = noisy(x, word, level, gain, PASSES).reshape(-1, 8, 8, 8).double()
    expected = F.max_pool2d(F.relu(F.conv2d(rows, weight.double(), bias.double(), padding=1)), 2)
    got = kernels.prefix_conv(x, word, level, gain, weight, bias, EXAMPLES, 2)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("parents", "plain"), SIZES)
@pytest.mark.parametrize("units", [128, 40])
def test_tail_equals_softmax_and_sums(parents: int, plain: bool, units: int) -> None:
    torch.manual_seed(0)
    level, gain = choices(RATES)
    hidden = torch.relu(torch.randn(parents, EXAMPLES if plain else PASSES * EXAMPLES, units, device=DEVICE))
    word = words(PASSES * EXAMPLES, units)
    weight, bias = torch.randn(10, units, device=DEVICE) / 4, torch.randn(10, device=DEVICE)
    one = torch.softmax(torch.randn(EXAMPLES, 10, device=DEVICE), 1)
    factor = (word[None] >= level[:, None, None]).double() * gain[:, None, None]
    wide = (hidden.repeat(1, PASSES, 1) if plain else hidden)[:, None].double() * factor[None]
    p = torch.softmax(wide @ weight.T.double() + bias, -1).unflatten(2, (PASSES, EXAMPLES)).flatten(0, 1)
    best_value, best = one.double().max(1)
    top = p.amax(-1) - best_value
    deviation = p.gather(-1, best.view(1, 1, -1, 1).expand(*p.shape[:3], 1))[..., 0] - best_value
    extra = [torch.xlogy(p, p).sum(-1), top, top.square(), deviation.square()]
    expected = torch.cat([p.sum(1), *(e.sum(1).unsqueeze(-1) for e in extra)], -1)
    got = kernels.tail(hidden, word, level.repeat(parents), gain.repeat(parents), weight, bias, one, PASSES, len(level))
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("source", ["plain", "each", "table", "none"])
@pytest.mark.parametrize("mask", ["element", "channel", "last"])
@pytest.mark.parametrize("activation", ["", "relu", "silu"])
def test_pointwise_work_equals_itself_written_out(source: str, mask: str, activation: str) -> None:
    shape = (6, 5) if mask == "last" else (6, 3, 5)
    passes, examples, parents, each = 2, 3, 2, 2
    level, gain = choices([0.0, 0.2, 0.5, 0.8])
    units = {"element": shape, "channel": (shape[0], *[1] * (len(shape) - 1)), "last": (1, shape[-1])}[mask]
    word = words(passes * examples, int(torch.tensor(units).prod())).reshape(passes * examples, *units)
    rows = {"plain": examples, "none": 12}.get(source, parents * passes * examples)
    value = torch.randn(rows, *shape, device=DEVICE)
    parent = {"plain": None, "each": each, "table": torch.tensor([1, 0, 0, 1], device=DEVICE)}.get(source)
    noise = None if source == "none" else (0, 1, units, "bernoulli", word, level, gain, parent)
    affine = None if mask == "last" else tuple(torch.rand(shape[0], device=DEVICE) + 0.5 for _ in range(2))
    out = rows if source == "none" else 4 * passes * examples
    other = torch.randn(out // 2, *shape, device=DEVICE)
    fast = kernels.pointwise(value, noise, affine, other, activation)
    slow = value if noise is None else disturb_rows(value, *noise)
    if affine is not None:
        slow = slow * affine[0].view(-1, 1, 1) + affine[1].view(-1, 1, 1)
    slow = slow + other.repeat(2, *[1] * len(shape))
    slow = {"": lambda x: x, "relu": torch.relu, "silu": F.silu}[activation](slow)
    assert fast is not None
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)


def test_pointwise_work_that_lies_otherwise_is_left_alone() -> None:
    value = torch.randn(4, 6, 5, device=DEVICE)
    assert kernels.pointwise(value.transpose(1, 2), None, None, None, "relu") is None
    assert kernels.pointwise(value, None, None, torch.randn(4, 1, 5, device=DEVICE), "relu") is None
    assert kernels.pointwise(value.double(), None, None, None, "relu") is None


@pytest.mark.parametrize(("channels", "outputs", "biased"), [(16, 16, True), (3, 20, False), (32, 8, True)])
def test_the_narrow_convolution_equals_torchs(channels: int, outputs: int, biased: bool) -> None:
    x = torch.randn(3, channels, 6, 7, device=DEVICE)
    weight = torch.randn(outputs, channels, 3, 3, device=DEVICE)
    bias = torch.randn(outputs, device=DEVICE) if biased else None
    wanted = F.conv2d(x.double(), weight.double(), None if bias is None else bias.double(), 1, 1)
    taps = weight.permute(2, 3, 0, 1).reshape(9, outputs, channels).contiguous()
    torch.testing.assert_close(kernels.narrow_convolution(x, taps, bias), wanted.float(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("shape", "outputs", "biased"), [((1040, 64), 70, True), ((9, 130, 96), 200, False)])
def test_a_product_in_parts_is_as_exact_as_fp32(shape: tuple[int, ...], outputs: int, biased: bool) -> None:
    x = torch.randn(*shape, device=DEVICE)
    weight = torch.randn(outputs, shape[-1], device=DEVICE)
    bias = torch.randn(outputs, device=DEVICE) if biased else None
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(products.linear(x, halves(weight), bias).double(), wanted, atol=3e-5, rtol=1e-6)


def test_a_product_in_parts_leaves_few_rows_to_torch() -> None:
    assert products.linear(torch.randn(5, 64, device=DEVICE), torch.randn(2, 64, 64, device=DEVICE), None) is None


@pytest.mark.parametrize(("classes", "points", "rows"), [(2, 256, 9), (10, 256, 17), (33, 100, 40)])
def test_sums_at_points_equal_softmax_and_sums(classes: int, points: int, rows: int) -> None:
    torch.manual_seed(0)
    logits, at = 3 * torch.randn(EXAMPLES, classes, device=DEVICE), torch.randn(points, rows, device=DEVICE)
    spreads = torch.randn(EXAMPLES, rows, classes, device=DEVICE) / rows**0.5
    plain = logits.softmax(1)
    p = (logits.double() + torch.einsum("pr,nrc->pnc", at.double(), spreads.double())).softmax(2)
    best, chosen = plain.double().max(1)
    top = p.amax(2) - best
    deviation = p.gather(2, chosen.expand(points, -1)[..., None])[..., 0] - best
    rows_of = [-torch.special.entr(p).sum(2), top, top.square(), deviation.square()]
    expected = torch.cat([p.sum(0), torch.stack([row.sum(0) for row in rows_of], 1)], 1)
    got = analytic_kernels.sums_at(logits, spreads, at, plain)
    torch.testing.assert_close(got.double() / points, expected / points, rtol=1e-5, atol=2e-6)
