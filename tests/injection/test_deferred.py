"""Noise that waits for the sum and the layer norm behind it: nobody may ever see a value that is not there yet.

The kernels need a GPU; plain torch stands in for them here, and memory that is not written yet is full of NaN.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dropscope as ds
from dropscope.injection import deferred, injector
from dropscope.injection.resolution import resolve
from dropscope.injection.sites import examine
from dropscope.model.inputs import Call
from dropscope.noise import keyed as noise
from support import zoo

LAYOUT = noise.Layout(0, 1, -1)
X = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))


def noisy(value: Tensor, start: int, passes: Tensor, examples: Tensor, rate: float) -> Tensor:
    keys = noise._absorb(noise._absorb(torch.tensor(start), passes), examples)
    return noise.disturb(value, keys, rate, "bernoulli", "element", LAYOUT)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which kernels ran, in order."""
    ran: list[str] = []

    def bernoulli(
        value: Tensor, start: int, p: Tensor, e: Tensor, rate: float, other: Any = None, out: Any = None, *,
        stratified: bool = False,
    ) -> Tensor:  # fmt: skip
        assert not stratified
        ran.append("noise" if other is None else "sum")
        found = noisy(value, start, p, e, rate) + (0 if other is None else other)
        return found if out is None else out.copy_(found)

    def normed(
        value: Tensor, start: int, p: Tensor, e: Tensor, rate: float, other: Tensor, *affine: Any,
        stratified: bool = False,
    ) -> Tensor:  # fmt: skip
        assert not stratified
        ran.append("norm")
        weight, bias, epsilon = affine
        return F.layer_norm(noisy(value, start, p, e, rate) + other, weight.shape, weight, bias, epsilon)

    fake = types.ModuleType("dropscope.noise.kernels")
    fake.__dict__.update(
        bernoulli=bernoulli, normed=normed, takes=lambda value: value.is_contiguous(), NORMED=4096, HEAD_WIDTHS=()
    )
    monkeypatch.setitem(sys.modules, "dropscope.noise.kernels", fake)
    monkeypatch.setattr(ds, "noise_kernels", fake, raising=False)
    monkeypatch.setattr(injector, "runs_kernels", lambda device: True)
    monkeypatch.setattr(deferred.torch, "empty_like", lambda value: torch.full_like(value, torch.nan))
    return ran


class Post(nn.Module):
    """A post-norm block as BERT has it; `between` and `after` do something at the moments that matter."""

    def __init__(self, between: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.dense, self.dropout, self.norm = nn.Linear(16, 16), nn.Dropout(0.4), nn.LayerNorm(16)
        self.between, self.after = between, after

    def forward(self, x: Tensor) -> Tensor:
        dropped = self.dropout(self.dense(x))
        if self.between is not None:
            dropped = self.between(dropped, x)
        summed = dropped + x
        normed = self.norm(summed)
        return normed if self.after is None else self.after(dropped, summed, normed, x)


def both(net: nn.Module, placement: str, counted: list[str], x: Tensor = X) -> tuple[Tensor, Tensor]:
    """The output where noise may wait, and by the plain path; the noise is the same."""
    net = net.eval()
    site_map = examine(net, Call((x,)))
    resolved = resolve(ds.Placement.parse(placement), site_map)
    with torch.no_grad(), injector.disturbed(net, resolved, site_map, 2, may_wait=True) as drawn:
        drawn.at(pass_=1, ids=range(len(x)))
        fast = net(x)
    counted.append("|")
    with torch.no_grad(), ds.injected(net, placement, seed=2, site_map=site_map) as drawn:
        drawn.watcher = lambda *shown: None  # a watcher gets plain torch
        drawn.at(pass_=1, ids=range(len(x)))
        slow = net(x)
    return fast, slow


def test_a_dropout_before_a_sum_and_a_norm_is_one_kernel(counted: list[str]) -> None:
    fast, slow = both(nn.Sequential(Post(), Post()), "own", counted)
    torch.testing.assert_close(fast, slow)
    assert counted == ["norm", "norm", "|"]


MOMENTS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "the sum is read again": (lambda: Post(after=lambda d, s, n, x: n + s), ["norm", "noise", "sum"]),
    "the dropped value is read again": (lambda: Post(after=lambda d, s, n, x: n * d), ["norm", "noise", "sum"]),
    "the sum is handed out": (lambda: Post(after=lambda d, s, n, x: s), ["norm", "sum"]),
    "something comes between": (lambda: Post(between=lambda d, x: d * 1), ["noise"]),
    "a shape comes between": (lambda: Post(between=lambda d, x: (d.shape, d.dim(), d)[2]), ["norm"]),
    "the operand is overwritten": (lambda: Post(after=lambda d, s, n, x: x.mul_(0) + s + n), ["norm", "noise", "sum"]),
    "the sum is in place": (lambda: Post(between=lambda d, x: d.add_(x)), ["noise"]),
    "two that wait": (lambda: _TwoBranches(), ["noise", "norm"]),
    "a norm with strides": (lambda: _Strided(), ["noise", "sum"]),
    "a norm with every argument": (lambda: _Spelled(), ["norm"]),
    "a sum that only has the name": (lambda: _Named(), ["noise"]),
}


class _TwoBranches(Post):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.dropout(self.dense(x)) + self.dropout(self.dense(x * 2)))


class _Strided(Post):
    def forward(self, x: Tensor) -> Tensor:
        weight = torch.stack([self.norm.weight, self.norm.bias], 1)[:, 0]
        dropped = self.dropout(self.dense(x))
        return F.layer_norm(dropped + x, (16,), weight, self.norm.bias)


class _Spelled(Post):
    def forward(self, x: Tensor) -> Tensor:
        dropped = self.dropout(self.dense(x))
        return torch.layer_norm(dropped + x, (16,), weight=self.norm.weight, bias=self.norm.bias, cudnn_enable=False)


@torch.library.custom_op("dropscope_tests::add", mutates_args=())
def _sum_of_another_kind(one: Tensor, other: Tensor) -> Tensor:
    return one - 2 * other


class _Named(Post):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.ops.dropscope_tests.add(self.dropout(self.dense(x)), x))


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_read_is_always_there(moment: str, counted: list[str]) -> None:
    build, expected = MOMENTS[moment]
    fast, slow = both(nn.Sequential(nn.Linear(16, 16), zoo.seeded(build)), "own", counted)
    torch.testing.assert_close(fast, slow)
    assert fast.isfinite().all()
    assert sorted(counted) == sorted([*expected, "|"])


def test_noise_on_the_branch_and_on_the_sum_finds_what_it_disturbs(counted: list[str]) -> None:
    net = nn.Sequential(nn.Linear(16, 16), Post())
    for placement in ("own, 1@branch=0.3", "own, 1@sum=0.3"):
        fast, slow = both(net, placement, counted)
        torch.testing.assert_close(fast, slow)


def test_a_hook_that_keeps_values_finds_them_written(counted: list[str]) -> None:
    net = nn.Sequential(nn.Linear(16, 16), Post()).eval()
    kept: list[Tensor] = []
    handle = net[1].dropout.register_forward_hook(lambda module, args, output: kept.append(output))
    x = torch.cat([X, X])  # more than the model is examined with
    fast, slow = both(net, "own", counted, x)
    handle.remove()
    torch.testing.assert_close(fast, slow)
    by_kernel, plainly = [value for value in kept if len(value) == len(x)]
    assert torch.equal(by_kernel, plainly)


def test_only_dropouts_seen_in_a_chain_wait() -> None:
    chained = examine(nn.Sequential(Post(), nn.Dropout(0.2), nn.Linear(16, 2)), Call((X,))).chained
    assert {point.name for point in chained} == {"0.dropout"}
    early = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
    assert {point.name for point in examine(nn.Sequential(early), Call((X,))).chained} == {"0.dropout1"}
    late = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
    assert {point.name for point in examine(nn.Sequential(late), Call((X,))).chained} == {"0.dropout1", "0.dropout2"}


def test_where_the_code_is_not_known_nothing_waits(counted: list[str]) -> None:
    net = nn.Sequential(nn.Linear(16, 16), Post()).eval()
    with torch.no_grad(), ds.injected(net, "own"):
        net(X)
    assert counted == ["noise"]


def test_where_gradients_flow_nothing_waits(counted: list[str]) -> None:
    net = nn.Sequential(nn.Linear(16, 16), Post()).eval().requires_grad_(False)
    net[1].norm.weight.requires_grad_(True)
    site_map = examine(net, Call((X,)))
    with injector.disturbed(net, resolve(ds.Placement.parse("own"), site_map), site_map, may_wait=True):
        assert net(X).requires_grad
    assert counted == ["noise"]


def test_a_mask_is_packed_again_when_it_changed(counted: list[str]) -> None:
    made: list[int] = []
    sys.modules["dropscope.noise.kernels"].packed = lambda mask, keys: made.append(keys) or mask.clone()  # type: ignore[attr-defined]
    noise_of = injector.Noise(nn.Linear(1, 1), None, 0, "per_example", None, {})
    mask, key = torch.ones(1, 1, 4, 1, dtype=torch.bool), torch.zeros(1, 1, 8, 2)
    first = noise_of._bits({"attn_mask": mask, "key": key})
    assert noise_of._bits({"attn_mask": mask[:], "key": key}) is first
    mask[0, 0, 0] = False
    assert not noise_of._bits({"attn_mask": mask, "key": key})[0, 0, 0]  # type: ignore[index]
    noise_of._bits({"attn_mask": mask, "key": torch.zeros(1, 1, 9, 2)})
    assert made == [8, 8, 9]


def test_an_interrupted_forward_leaves_nothing_unwritten_and_nothing_behind(counted: list[str]) -> None:
    kept: list[Tensor] = []
    strike = [False]

    def between(dropped: Tensor, x: Tensor) -> Tensor:
        if strike[0]:
            kept.append(dropped)
            raise KeyboardInterrupt
        return dropped

    net = nn.Sequential(nn.Linear(16, 16), Post(between)).eval()
    site_map = examine(net, Call((X,)))
    resolved = resolve(ds.Placement.parse("own"), site_map)
    with torch.no_grad(), injector.disturbed(net, resolved, site_map, may_wait=True) as drawn:
        strike[0] = True
        drawn.at(pass_=1, ids=range(3))
        with pytest.raises(KeyboardInterrupt):
            net(X)
        strike[0] = False
        drawn.at(pass_=1, ids=range(3))
        again = net(X)
    assert kept[0].isfinite().all()
    with torch.no_grad(), injector.disturbed(net, resolved, site_map) as drawn:
        drawn.at(pass_=1, ids=range(3))
        torch.testing.assert_close(net(X), again)
