"""Recognition: which segments the kernels stand in for, and that nothing else is taken for one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.engine import fusion
from dropscope.engine.tree import Plan
from dropscope.measures import DEFAULT, TABLE
from support import zoo
from support.engines import plan_of

NEEDS = {need for name in DEFAULT for need in TABLE[name].needs}


class Net(nn.Module):
    """The network of the CIFAR-10 study, one property of which can be changed."""

    def __init__(
        self, kernel: int = 3, padding: int = 1, stride: int = 1, bias: bool = True, pool: int = 2, classes: int = 10,
        activation: Callable[[Tensor], Tensor] = F.relu, groups: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, kernel, stride, padding, bias=bias, groups=groups)
        with torch.no_grad():
            flat = self._features(torch.zeros(1, 3, 16, 16), activation, pool).shape[1]
        self.fc1, self.fc2 = nn.Linear(flat, 32), nn.Linear(32, classes)
        self.activation, self.pool = activation, pool

    def _features(self, x: Tensor, activation: Callable[[Tensor], Tensor], pool: int) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.max_pool2d(activation(self.conv2(x)), pool).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(self._features(x, self.activation, self.pool))))


def plan(text: str = "conv1=.5,conv2=.5,fc1=.5", **changed: object) -> Plan:
    return plan_of(zoo.seeded(lambda: Net(**changed)), zoo.images(2), [text])  # type: ignore[arg-type]


def middle(found: Plan, level: int) -> fusion.Middle | None:
    return fusion.middle(found, found.subtrees[0].steps, level)


def tail(found: Plan, needs: set[str] = NEEDS) -> fusion.Tail | None:
    return fusion.tail(found, found.subtrees[0].steps, needs)


# --- what is recognised -----------------------------------------------------------------------------------------------


def test_every_step_of_the_cifar_network() -> None:
    whole = plan_of(zoo.cifar(), zoo.images(2), ["conv1=.5,conv2=.5,conv3=.5,fc1=.5"])
    for first in range(4):
        steps = tuple(range(first, 4))
        for level in range(len(steps) - 1):
            assert isinstance(fusion.middle(whole, steps, level), fusion.Middle), (steps, level)
        assert fusion.middle(whole, steps, len(steps) - 1) is None  # the last step is the tail's
        assert isinstance(fusion.tail(whole, steps, NEEDS), fusion.Tail)


def test_pools_as_modules_and_positions_before_the_activation() -> None:
    class Modules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))  # fmt: skip
            self.fc1, self.fc2 = nn.Linear(256, 32), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc2(F.relu(self.fc1(self.body(x).flatten(1))))

    texts = ["body.0@before_activation=.5,body.3@output=.2,fc1@output=.5"]
    found = plan_of(zoo.seeded(Modules), zoo.images(2), texts)
    assert all(middle(found, i) is not None for i in (0, 1))
    assert tail(found) is not None


def test_a_layer_without_bias_gets_one_of_zeros() -> None:
    assert middle(plan(bias=False), 0) is not None


def test_the_tail_holds_the_models_own_weights() -> None:
    net = zoo.cifar()
    found = tail(plan_of(net, zoo.images(2), ["fc1=.5"]))
    assert found is not None
    assert found.weight.data_ptr() == net.fc2.weight.data_ptr()
    assert not found.weight.requires_grad


# --- what is not ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [{"kernel": 5, "padding": 2}, {"padding": 0}, {"stride": 2}, {"pool": 4}, {"activation": F.gelu}, {"groups": 2}],
    ids=str,
)
def test_another_convolution_runs_as_it_is(changed: dict[str, object]) -> None:
    assert middle(plan(), 0) is not None
    assert middle(plan(**changed), 0) is None


@pytest.mark.parametrize("options", ["mask=element", "noise=gaussian"])
def test_another_noise_runs_as_it_is(options: str) -> None:
    found = plan(f"conv1=.5,conv2=.5,fc1=.5 {options}")
    assert middle(found, 0) is None
    assert middle(found, 1) is None
    assert (tail(found) is None) == (options == "noise=gaussian")


def test_a_tail_of_other_statistics_or_many_classes_runs_as_it_is() -> None:
    assert tail(plan()) is not None
    assert tail(plan(), {*NEEDS, "histogram"}) is None
    assert tail(plan(classes=61)) is None
    assert tail(plan("conv2=.5")) is None  # two layers after the last noise


def test_a_value_that_is_read_twice_runs_as_it_is() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.fc1, self.fc2 = nn.Linear(8 * 16, 32), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            first = F.max_pool2d(F.relu(self.conv1(x)), 2)
            second = F.max_pool2d(F.relu(self.conv2(first)), 2)
            return self.fc2(F.relu(self.fc1((second + F.max_pool2d(first, 2)).flatten(1))))

    found = plan_of(zoo.seeded(Skip), zoo.images(2), ["conv1=.5,conv2=.5,fc1=.5"])
    assert all(middle(found, i) is None for i in range(3))


def test_models_that_end_otherwise_run_as_they_are() -> None:
    bert = plan_of(zoo.hugging_face("bert"), zoo.text(2), ["last=.5"])
    found = tail(bert)
    assert found is None or found.weight.shape[0] == 3
    assert tail(plan_of(zoo.unet3d(), zoo.volumes(2), ["join=.5"])) is None
    assert middle(plan_of(zoo.resnet(), zoo.images(2), ["conv1=.5,layer1.conv1=.5"]), 0) is None


# --- nested choices ---------------------------------------------------------------------------------------------------


def test_nested_choices() -> None:
    same = fusion.nested_choices(np.array([0, 1, 3, 0, 1, 3]), 2)
    assert same is not None
    assert same.tolist() == [0, 1, 3]
    assert fusion.nested_choices(np.array([0, 1, 0, 2]), 2) is None  # not the same
    assert fusion.nested_choices(np.array([1, 0]), 1) is None  # not rising
    assert fusion.nested_choices(np.array([0, 1, 2]), 2) is None  # not whole
    assert fusion.nested_choices(np.array([], dtype=int), 0) is None
