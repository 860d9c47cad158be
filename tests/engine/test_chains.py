"""Chains of pointwise work: which are recognised, and that a graph rewritten by them gives the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from dropscope.engine import chains, folding, segments
from dropscope.engine.chains import narrow_convolution
from support import zoo
from support.engines import plan_of


class Block(nn.Module):
    """conv → BatchNorm → activation, a residual sum, and a head."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.relu, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 3)
        self.activation = activation
        for norm in (self.bn1, self.bn2):
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.bn1(self.conv1(x)))
        z = self.activation(self.bn2(self.conv2(y)) + y)
        return self.head(z.mean((2, 3)))


def calls(module: nn.Module) -> list[object]:
    assert isinstance(module, fx.GraphModule)
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def given(plan: object, steps: tuple[int, ...], passes: int = 2) -> list[object]:
    """Arguments of a first segment: noise, entry value, plain reads."""
    part = segments.segment(plan, steps, 0)
    x = zoo.images(2)
    reads = dict(zip(segments.trunk(plan).outputs, segments.trunk(plan).module(x), strict=True))
    step = plan.steps[steps[0]]
    torch.manual_seed(0)
    shape = segments.unit_shape(step, plan.captured)
    words = torch.randint(-(2**31), 2**31, (passes * 2, *shape)).to(torch.int32)
    levels = torch.tensor([-(2**31), 0, 2**29], dtype=torch.int32)
    noise = segments.SegmentNoise(3 * passes * 2, 3 * passes, words, levels, torch.tensor([1.0, 2.0, 4.0]), None)
    assert all(read.level is None for read in part.reads)
    return [*noise, reads[step.node], *(reads[read.node] for read in part.reads)]


@pytest.mark.parametrize("activation", [F.relu, F.silu])
@pytest.mark.parametrize(
    "site", ["conv1@output", "bn1@output", "conv2@output", "bn2@output", "conv2@output mask=element"]
)
def test_a_rewritten_segment_gives_the_same(site: str, activation: Callable[[Tensor], Tensor]) -> None:
    name, _, options = site.partition(" ")
    plan = plan_of(zoo.seeded(lambda: Block(activation)), zoo.images(2), [f"{name}=.5 {options}"])
    part, rewritten = (segments.segment(plan, (0,), 0).module for _ in range(2))
    chains.fuse(rewritten, {})
    arguments = given(plan, (0,))
    (before,), (after,) = part(*arguments), rewritten(*arguments)
    torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-6)
    assert chains.pointwise in calls(rewritten)
    assert folding.disturb_rows not in calls(rewritten)
    assert torch.ops.aten.add.Tensor not in calls(rewritten)


def test_noise_norm_sum_and_activation_are_one_call() -> None:
    plan = plan_of(zoo.seeded(Block), zoo.images(2), ["conv2@output=.5"])
    module = segments.segment(plan, (0,), 0).module
    chains.fuse(module, {})
    assert calls(module).count(chains.pointwise) == 1
    assert folding.spread not in calls(module)  # the plain branch is read where it lies


def test_narrow_convolutions_alone_have_a_kernel() -> None:
    for width, narrow in ((8, True), (40, False)):
        plan = plan_of(zoo.seeded(lambda width=width: Block(width=width)), zoo.images(2), ["conv1@output=.5"])
        module = segments.segment(plan, (0,), 0).module
        chains.fuse(module, {})
        assert (narrow_convolution in calls(module)) == narrow


def test_a_value_that_is_read_twice_ends_its_chain() -> None:
    class Twice(Block):
        def forward(self, x: Tensor) -> Tensor:
            y = self.bn1(self.conv1(x))
            return self.head((F.relu(y) * y).mean((2, 3)))

    plan = plan_of(zoo.seeded(Twice), zoo.images(2), ["conv1@output=.5"])
    part, rewritten = (segments.segment(plan, (0,), 0).module for _ in range(2))
    chains.fuse(rewritten, {})
    arguments = given(plan, (0,))
    torch.testing.assert_close(rewritten(*arguments)[0], part(*arguments)[0], atol=1e-6, rtol=1e-6)
    assert torch.ops.aten.relu.default in calls(rewritten)


def test_wide_linear_layers_have_a_product_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "multiplies_in_parts", lambda device: True)
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 96), nn.Linear(96, 3)))
    plan = plan_of(net, torch.randn(2, 6), ["0@output=.5", "1@output=.5"])
    splits: dict[int, Tensor] = {}
    for number in range(2):
        module = segments.segment(plan, (number,), 0).module
        chains.fuse(module, splits)
        assert calls(module).count(chains.wide_linear) == 1  # the last layer is too narrow
    assert len(splits) == 1  # both segments read one copy
    (split,) = splits.values()
    torch.testing.assert_close(split.double().sum(0), net[2].weight.double(), atol=1e-8, rtol=2**-22)
    assert not (split.view(torch.int32) & 0x1FFF).any()  # as a tensor core takes them
