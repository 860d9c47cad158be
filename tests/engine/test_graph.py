"""Capture: a graph with every value marked, which dimension carries the examples, and what is refused."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dropscope as ds
from dropscope.engine import choose_engine
from dropscope.engine import graph as capture_module
from dropscope.engine.graph import CaptureFailed, capture, feed_values
from dropscope.engine.session import open_session
from dropscope.engine.tree import grow
from dropscope.model.inputs import Call
from dropscope.tracing.visitor import Point
from support import zoo
from support.engines import MODELS, case


def captured(model: nn.Module, inputs: Any, points: list[Point]) -> Any:
    session = open_session(model, inputs)
    return capture(session.model, session.data.batches[0].call, points)


# --- a closed form ----------------------------------------------------------------------------------------------------


def test_a_linear_layer_and_its_activation() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    points = [Point("0", 0, "output"), Point("0", 0, "after_activation")]
    graph = captured(net, zoo.vectors(5), points)
    names = [str(node.target) for node in graph.nodes]
    assert names == ["aten.linear.default", "dropscope.site.default", "aten.relu.default", "dropscope.site.default",
                     "aten.linear.default"]  # fmt: skip
    assert [graph.nodes.index(graph.marks[p]) for p in points] == [1, 3]
    assert all(graph.batch(node) == (0, 1) for node in graph.nodes)
    assert len(graph.feeds) == 1
    assert len(graph.fixed) == 4
    assert not graph.counts_rows


# --- contracts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_site_of_the_plain_path_is_marked(name: str) -> None:
    some = case(name)
    assert set(some.captured.marks) == set(some.points)
    assert len(some.points) >= 4
    for point in some.points:
        layout = some.session.site_map.values[point].layout
        assert some.captured.batch(some.captured.marks[point]) == (layout.batch_dim, layout.folded), point


@pytest.mark.parametrize("name", ["lstm", "sequence first"])
def test_examples_that_do_not_lie_first(name: str) -> None:
    dims = {case(name).captured.batch(node) for node in case(name).captured.nodes}
    assert (0, 1) in dims
    assert name == "lstm" or (1, 1) in dims


def test_examples_that_take_several_rows() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x.reshape(-1, 4))).reshape(-1, 12))

    graph = captured(zoo.seeded(Folded), zoo.vectors(), [Point("a", 0, "output")])
    assert graph.batch(graph.marks[Point("a", 0, "output")]) == (0, 2)


def test_rows_that_are_counted_are_found() -> None:
    """GPT-2 picks the last token by arange(batch): rebuilt for more rows, never repeated."""
    assert case("gpt2 eager").captured.counts_rows
    assert not case("resnet").captured.counts_rows


def test_feeds_come_in_the_order_of_the_call() -> None:
    a, b, c = (torch.full((2,), float(i)) for i in range(3))
    assert [float(v[0]) for v in feed_values(Call((a,), {"z": c, "b": b, "n": 3}))] == [0.0, 1.0, 2.0]


def exported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with every export from here on."""
    seen: list[Any] = []
    export = capture_module.programs.export
    monkeypatch.setattr(capture_module.programs, "export", lambda *a, **k: seen.append(a) or export(*a, **k))
    return seen


def test_a_capture_is_kept_for_other_examples_and_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    net, points, exports = zoo.cifar(), [Point("fc1", 0, "output")], exported(monkeypatch)
    first = captured(net, zoo.images(4), points)
    assert captured(net, zoo.images(2), points).nodes is first.nodes  # the number of examples is a symbol
    with torch.no_grad():
        net.fc1.weight.mul_(2)
    net.fc2.weight = nn.Parameter(torch.zeros_like(net.fc2.weight))
    again = captured(net, zoo.images(4), points)
    assert len(exports) == 1
    assert {id(weight) for weight in again.fixed.values()} >= {id(weight) for weight in net.parameters()}
    net.factor = 3  # a setting that its code may read
    captured(net, zoo.images(4), points)
    assert len(exports) == 2


def test_a_capture_serves_further_points(monkeypatch: pytest.MonkeyPatch) -> None:
    net, exports = zoo.cifar(), exported(monkeypatch)
    one, other = Point("fc1", 0, "output"), Point("conv2", 0, "output")
    captured(net, zoo.images(2), [one])
    assert set(captured(net, zoo.images(2), [other]).marks) == {other}
    assert len(exports) == 2  # both are marked now
    assert set(captured(net, zoo.images(2), [one]).marks) == {one}
    assert set(captured(net, zoo.images(2), [one, other]).marks) == {one, other}
    assert len(exports) == 2


def test_code_that_reads_its_weights_is_captured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.gate = nn.Linear(8, 3), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if bool(self.gate > 0) else -self.fc(x)

    net, exports, points = zoo.seeded(Gated), exported(monkeypatch), [Point("fc", 0, "output")]
    captured(net, zoo.vectors(), points)
    count = len(exports)
    captured(net, zoo.vectors(), points)
    assert len(exports) == count
    with torch.no_grad():
        net.gate.neg_()
    assert captured(net, zoo.vectors(), points).nodes[-1].target is torch.ops.aten.neg.default
    assert len(exports) > count


def test_marks_that_nobody_asks_for_stop_no_noise() -> None:
    """Noise on conv1 passes the activation and the pooling, whether or not an earlier call marked what lies between."""
    net = zoo.cifar()
    engines = []
    for text in ("conv1=.5", "conv2@input=.5", "conv1=.5"):
        session = open_session(net, zoo.images(2))
        (resolved,) = session.resolve([text])
        plan = grow(capture(session.model, session.data.batches[0].call, resolved), [resolved])
        engines.append(len(plan.stochastic((0,))))
    assert engines[0] == engines[2]


def test_a_capture_does_not_keep_its_model_alive() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    captured(net, zoo.vectors(), [Point("0", 0, "output")])
    gc.collect()  # of other tests
    seen, before = weakref.ref(net), len(capture_module._cache)
    del net
    gc.collect()
    assert seen() is None
    assert len(capture_module._cache) == before - 1


def test_capture_leaves_the_model_and_random_state_alone(untouched: Any) -> None:
    net = zoo.resnet().train()
    session = open_session(net, zoo.images(3))
    with untouched(net):
        capture(session.model, session.data.batches[0].call, [Point("conv1", 0, "output")])


def test_the_key_value_cache_of_a_decoder_is_left_out() -> None:
    outputs = case("gpt2 eager").captured.output
    assert len([leaf for leaf in outputs if leaf is not None]) == 1


# --- refusals ---------------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if bool((x > 0).any()) else self.fc(-x)


class Mixing(nn.Module):
    """Every example against every other: no dimension of the product belongs to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((x @ x.T).softmax(1) @ x)


def test_a_branch_on_data_is_a_condition_of_the_graph() -> None:
    graph = captured(zoo.seeded(Branching), zoo.vectors(), [Point("fc", 0, "output")])
    assert [number for _, number in graph.expected] == [True]


class Unreadable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.from_numpy(x.numpy() * 2))


def test_code_that_leaves_torch_is_refused() -> None:
    with pytest.raises(CaptureFailed, match="could not export the model"):
        captured(zoo.seeded(Unreadable), zoo.vectors(), [Point("fc", 0, "output")])


def test_examples_mixed_with_each_other_are_refused() -> None:
    with pytest.raises(CaptureFailed, match="does not keep its examples along one dimension"):
        captured(zoo.seeded(Mixing), zoo.vectors(), [Point("fc", 0, "output")])


def test_a_point_that_is_not_there_is_refused() -> None:
    net = zoo.cifar()
    with pytest.raises(CaptureFailed, match="conv9@output is not in the exported graph"):
        captured(net, zoo.images(2), [Point("conv9", 0, "output")])


class Limited(nn.Module):
    """Its code knows a largest number of examples, as cuDNN's choice of a BatchNorm does."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.first, self.last, self.most = nn.Linear(4, 8), nn.Linear(8, 3), most

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > self.most:
            return self.last(torch.tanh(self.first(x)))
        return self.last(torch.relu(self.first(x)))


def test_a_number_of_examples_that_code_limits_is_left_to_torch() -> None:
    model = zoo.seeded(lambda: Limited(65535))
    data = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    fast, slow = (ds.sample(model, "first=0.5", data, passes=4, engine=engine) for engine in ("shared", "loop"))
    torch.testing.assert_close(fast, slow, atol=1e-6, rtol=1e-5)


def test_a_number_of_examples_that_is_a_constant_is_refused() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x * torch.arange(int(x.shape[0]))[:, None].float().mean() + int(x.shape[0]) % 3)

    with pytest.raises(CaptureFailed):
        capture(Constant(), Call.of(torch.randn(4, 4)), [])


class CountedRows(nn.Module):
    """Rows looked up by numbers that take many steps, each of which reads the one before twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0])
        for _ in range(40):
            rows = torch.maximum(rows, rows * 1)
        return self.head(self.inner(x)[rows])


@pytest.mark.timeout(60)  # to look at every path through the steps would take 2^40 looks
def test_values_made_from_the_batch_size_are_looked_through_once() -> None:
    net = zoo.seeded(CountedRows)
    session = open_session(net, zoo.vectors(5))
    placements = session.resolve(["inner=0.5"])
    shared, loop = (choose_engine(session, placements, 4, name) for name in ("shared", "loop"))
    assert shared.forests(session.data.batches[0])[0].plan.captured.counts_rows
    drawn = [torch.cat([block.probabilities for _, block in engine.samples_of_all(0)]) for engine in (shared, loop)]
    torch.testing.assert_close(drawn[0], drawn[1].reshape_as(drawn[0]), rtol=0, atol=1e-6)
