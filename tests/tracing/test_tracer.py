"""One traced forward: what is shown under which name, what takes its place, and that nothing stays behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.model.inputs import Call
from dropscope.placement.placement import Placement
from dropscope.tracing.tracer import trace
from dropscope.tracing.visitor import About, OwnDropout, Point, Visitor
from support import zoo


class Visit(Visitor):
    """Writes down every point; puts `change(value)` in the place of the values at `where`."""

    def __init__(self, where: set[str] = frozenset(), change: Callable[[Tensor], Tensor] = torch.zeros_like) -> None:
        self.points: list[str] = []
        self.calls: list[Call] = []
        self.values: dict[str, Tensor] = {}
        self.abouts: dict[str, About] = {}
        self.own: list[OwnDropout] = []
        self.ran: list[tuple[OwnDropout, Tensor, Tensor]] = []
        self.let_run = False
        self._where, self._change = where, change

    def begin(self, call: Call) -> None:
        self.calls.append(call)
        self.points.append("begin")

    def wants(self, point: Point) -> bool:
        return True

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        name = f"{point.name}#{point.call}@{point.position}"
        self.points.append(name)
        self.values[name], self.abouts[name] = value.clone(), about
        return self._change(value) if name in self._where else value

    def own_dropout(self, dropout: OwnDropout) -> bool:
        self.own.append(dropout)
        return self.let_run

    def own_ran(self, dropout: OwnDropout, before: Tensor, after: Tensor) -> None:
        self.ran.append((dropout, before, after))


def traced(net: nn.Module, *args: Any, where: set[str] = frozenset(), **kwargs: Any) -> tuple[Visit, Any]:
    visit = Visit(where)
    with torch.no_grad(), trace(net, visit):
        output = net(*args, **kwargs)
    return visit, output


def test_a_forward_in_order() -> None:
    net = nn.Sequential(
        nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(6, 2)
    ).eval()
    visit, _ = traced(net, zoo.vectors())
    assert visit.points == [
        "begin",
        "0#0@input",
        "0#0@output",
        "1#0@output",
        "0#0@before_activation",
        "0#0@after_activation",
        "2#0@output",
        "3#0@output",
        "4#0@input",
        "4#0@output",
    ]
    assert [(found.point, found.rate, found.training) for found in visit.own] == [(("3", 0, "output"), 0.5, False)]


def test_a_forward_begins_with_its_call() -> None:
    net, x = zoo.multihead(), zoo.sequences()
    mask = torch.zeros(4, 5, dtype=torch.bool)
    visit, _ = traced(net, x, key_padding_mask=mask)
    (call,) = visit.calls
    assert (call.args, call.kwargs) == ((x,), {"key_padding_mask": mask})


@pytest.mark.parametrize(
    ("point", "address"),
    [
        (Point("fc", 0, "output"), "fc@output"),
        (Point("fc", 2, "input"), "fc#2@input"),
        (Point("root:linear", 1, "after_activation"), "root:linear#1@after_activation"),
    ],
)
def test_a_point_is_addressed_as_a_placement_writes_it(point: Point, address: str) -> None:
    assert point.address == address
    (term,) = Placement.parse(f"{address}=0.5").terms
    assert (term.name, term.call or 0, term.position) == point
    assert (point.site, point.place) == ((point.name, point.call), (point.name, point.position))


@pytest.mark.parametrize("name", ["cifar", "resnet", "unet3d", "recurrent", "vision", "functional"])
def test_looking_changes_no_bit(name: str) -> None:
    net = getattr(zoo, name)()
    x = {"unet3d": zoo.volumes, "recurrent": zoo.tokens}.get(name, zoo.images)()
    visit = Visit()
    visit.wants = lambda point: point.position != "weights"
    with torch.no_grad(), trace(net, visit):
        seen = net(x)
    with torch.no_grad():
        assert torch.equal(seen, net(x))


# --- another value in its place ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    ["conv1#0@input", "conv1#0@output", "conv1#0@before_activation", "conv1#0@after_activation", "fc1#0@input"],
)
def test_a_value_put_in_place_is_what_the_model_goes_on_with(where: str) -> None:
    net, x = zoo.cifar(), zoo.images()
    _, output = traced(net, x, where={where})
    _, plain = traced(net, x)
    assert not torch.equal(output, plain)
    by_hand = {"conv1#0@input": lambda: net(torch.zeros_like(x))}
    if where in by_hand:
        with torch.no_grad():
            assert torch.equal(output, by_hand[where]())
    else:
        assert torch.equal(output[0], output[1])  # nothing of the input is left


@pytest.mark.parametrize("position", ["before_activation", "after_activation"])
def test_an_in_place_activation_writes_the_new_value_too(position: str) -> None:
    """conv → ReLU(inplace): who holds the convolution's output sees what ReLU wrote, and so the noise."""

    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            held = self.conv(x)
            self.relu(held)
            return held.mean((2, 3))

    net, x = zoo.seeded(Holds), zoo.images()
    _, output = traced(net, x, where={f"conv#0@{position}"})
    assert torch.equal(output, torch.zeros(4, 4))


def test_the_branch_of_a_residual_sum() -> None:
    net, x = zoo.resnet(), zoo.images()
    visit, _ = traced(net, x, where={"layer1#0@branch"})
    assert torch.equal(visit.values["layer1#0@sum"], visit.values["layer1#0@input"])
    assert visit.abouts["layer1#0@sum"].maps
    assert visit.abouts["layer1#0@before_activation"].homogeneous


def test_the_branch_is_distinguished_from_a_projection_shortcut() -> None:
    visit, _ = traced(zoo.resnet(), zoo.images(), where={"layer2#0@branch"})
    assert torch.equal(visit.values["layer2#0@sum"], visit.values["layer2.downsample#0@output"])


@pytest.mark.parametrize(
    "add",
    [
        lambda x, f: x + f,
        lambda x, f: f + x,
        torch.add,
        lambda x, f: f.add_(x),
        lambda x, f: x.add(f),
        torch.Tensor.__radd__,
    ],
)
def test_every_way_to_write_a_residual_sum(add: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.fc = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return add(x, F.relu(self.fc(x)))

    visit, output = traced(zoo.seeded(Sum), zoo.vectors(), where={"root#0@branch"})
    assert torch.equal(output, visit.values["stem#0@output"])


def test_sums_that_are_no_residual() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Embedding(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            joined = self.a(x) + self.c(torch.arange(4))
            return joined + 1.0 + self.b(torch.ones(4, 8))

    visit, _ = traced(zoo.seeded(Sums), zoo.vectors())
    assert not [name for name in visit.points if name.endswith(("@branch", "@sum"))]


@pytest.mark.parametrize(
    "product",
    [
        torch.matmul,
        lambda w, v: w @ v,
        torch.bmm,
        lambda w, v: torch.einsum("bqk,bkd->bqd", w, v),
        lambda w, v: (w.masked_fill(w < 0, 0) * 1.0).to(v.dtype).matmul(v),
    ],
)
@pytest.mark.parametrize("softmax", [lambda s: F.softmax(s, dim=-1), lambda s: s.softmax(-1), nn.Softmax(dim=-1)])
def test_softmax_weights_are_attention_when_they_weigh_values(product: Any, softmax: Any) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.v, self.softmax = nn.Linear(16, 16), nn.Linear(16, 16), softmax

        def forward(self, x: Tensor) -> Tensor:
            weights = self.softmax(self.q(x) @ x.transpose(1, 2))
            return product(weights, self.v(x))

    visit, output = traced(zoo.seeded(Attends), zoo.sequences(), where={"root#0@weights"})
    assert visit.abouts["root#0@weights"].kind == "attention"
    assert torch.equal(output, torch.zeros(4, 5, 16))


def test_a_softmax_over_classes_is_no_attention() -> None:
    net = nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=-1)).eval()
    assert not [name for name in traced(net, zoo.vectors())[0].points if name.endswith("@weights")]


@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_takes_other_weights(batch_first: bool) -> None:
    net, x = zoo.multihead(batch_first), zoo.sequences()
    visit, output = traced(net, x, where={"attention#0@weights"})
    assert visit.values["attention#0@weights"].shape == (4, 4, 5, 5)
    assert torch.equal(output[0], output[1])
    _, unchanged = traced(net, x)
    with torch.no_grad():
        assert torch.allclose(unchanged, net(x), atol=1e-6)


def test_a_value_inside_a_tuple_is_replaced_there() -> None:
    net, x = zoo.recurrent(), zoo.tokens()
    _, output = traced(net, x, where={"rnn#0@output"})
    with torch.no_grad():
        assert torch.equal(output, net.fc(torch.zeros(4, 16)))


def test_a_value_passed_by_name_is_replaced_there() -> None:
    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(input=x)

    net = zoo.seeded(ByName)
    _, output = traced(net, x=zoo.vectors(), where={"fc#0@input"})
    with torch.no_grad():
        assert torch.equal(output, net(torch.zeros(4, 8)))


# --- nothing stays behind ---------------------------------------------------------------------------------------------


class Fails(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.fc, self.error = nn.Linear(8, 8), error

    def forward(self, x: Tensor) -> Tensor:
        self.fc(x)
        raise self.error("inside the model")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_no_hook_and_no_mode(error: type[BaseException], untouched: Callable[..., Any]) -> None:
    net = nn.Sequential(nn.Linear(8, 8), Fails(error))
    with untouched(net), pytest.raises(error, match="inside the model"), trace(net, Visit()):
        net(zoo.vectors())


def test_a_model_that_catches_its_own_exception_goes_on() -> None:
    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.fc = Fails(ValueError), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except ValueError:
                return self.fc(x)

    visit, _ = traced(zoo.seeded(Catches), zoo.vectors())
    assert visit.points[-2:] == ["fc#0@input", "fc#0@output"]
    assert torch._C._len_torch_function_stack() == 0


def test_a_forward_after_a_failed_one_starts_again() -> None:
    net, visit = zoo.cifar(), Visit()
    with torch.no_grad(), trace(net, visit):
        with pytest.raises(RuntimeError):
            net(torch.zeros(1, 3, 7))
        visit.points.clear()
        net(zoo.images())
    assert visit.points[:2] == ["begin", "conv1#0@input"]


def test_another_thread_is_not_traced() -> None:
    net, visit = zoo.cifar(), Visit()
    with torch.no_grad(), trace(net, visit):
        other = threading.Thread(target=lambda: net(zoo.images()))
        other.start()
        other.join()
    assert visit.points == []


def test_a_part_called_by_itself_is_reported_and_not_traced() -> None:
    net, visit, alone = zoo.cifar(), Visit(), []
    with torch.no_grad(), trace(net, visit, alone=alone.append):
        net.fc2(torch.zeros(1, 128))
    assert (visit.points, alone) == ([], ["fc2"])


# --- the model's own dropout ------------------------------------------------------------------------------------------


def test_own_dropout_is_off_unless_the_visitor_lets_it_run() -> None:
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 2)).train()
    visit, visitor = Visit(), Visit()
    visitor.let_run = True
    x = zoo.vectors()
    with torch.no_grad():
        with trace(net, visit):
            assert torch.equal(net(x), net(x))
        with trace(net, visitor):
            assert not torch.equal(net(x), net(x))
    (found, before, after), _ = visitor.ran
    assert (found.training, found.rate) == (True, 0.5)
    kept = after != 0
    assert torch.allclose(after[kept], 2 * before[kept])
    assert 0.3 < float(kept.float().mean()) < 0.7


def test_in_place_dropout_is_measured_against_what_was_there() -> None:
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5, inplace=True), nn.Linear(64, 2)).train()
    visit = Visit()
    visit.let_run = True
    with torch.no_grad(), trace(net, visit):
        net(zoo.vectors())
    _, before, after = visit.ran[0]
    assert int((before == 0).sum()) == 0
    assert int((after == 0).sum()) > 0


def test_attention_dropout_has_one_name_whatever_computes_it() -> None:
    pytest.importorskip("transformers")
    names = []
    for backend in ("eager", "sdpa"):
        visit = Visit()
        net = zoo.hugging_face("bert", backend).train()
        with torch.no_grad(), trace(net, visit):
            net(**zoo.text())
        names.append([found.point for found in visit.own])
    assert names[0] == names[1]
    assert ("bert.encoder.layer.1.attention.self", 0, "weights") in names[0]


def test_rates_given_by_name_and_by_position_are_read() -> None:
    class Drops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = F.dropout(x, 0.1, True)
            x = F.dropout(input=x, p=0.2, training=False)
            x = torch.dropout(x, 0.3, True)
            x = F.dropout(x)
            return F.alpha_dropout(x, 0.25, self.training)

    visit, _ = traced(Drops().eval(), zoo.vectors())
    read = [(found.rate, found.training, found.noise) for found in visit.own]
    assert read == [
        (0.1, True, "bernoulli"),
        (0.2, False, "bernoulli"),
        (0.3, True, "bernoulli"),
        (0.5, True, "bernoulli"),
        (0.25, False, "alpha"),
    ]
