"""The shared engine: the masks and the numbers of the plain loop on every kind of model, or the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dropscope as ds
from dropscope.engine import shared as shared_module
from dropscope.engine.cost import Blocks
from dropscope.engine.engine import WorkUnit
from dropscope.engine.executor import Chunk
from dropscope.engine.graph import CaptureFailed
from dropscope.engine.loop import LoopEngine
from dropscope.engine.session import open_session
from dropscope.engine.shared import SharedEngine
from dropscope.engine.tree import cut
from dropscope.injection.resolution import resolve
from dropscope.measures.statistics.sums import STATISTICS
from dropscope.placement.placement import as_placement
from support import zoo
from support.engines import MODELS, block_sizes, case, case_of, executor_of, placements, plain_passes, shared_passes

MIB = 1 << 20
FEW = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


# --- a closed form ----------------------------------------------------------------------------------------------------


class OneUnit(nn.Module):
    """Logits (h, 0) of a hidden unit of value 2: a dropped pass says ½, a kept one σ(2/(1 − rate))."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1, bias=False)
        self.fc.weight.data.fill_(2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return torch.cat([h, torch.zeros_like(h)], 1)


def test_one_unit_is_dropped_or_scaled() -> None:
    session = open_session(OneUnit().eval(), torch.ones(50, 1), ids=list(range(50)))
    engine = SharedEngine.build(session, session.resolve(["fc=0.5", "fc=0.2"]), 40, 64 * MIB)
    found = {0.5: [], 0.2: []}
    for unit in engine.units_of(100):
        for block in engine.run(unit, {"sum_p", "histogram"}):
            for numbers, kept in block.chunks:
                for i, number in enumerate(numbers):
                    found[(0.5, 0.2)[number]].append(kept.mean[i, :, 0])
    for rate, means in found.items():
        p = torch.cat(means)
        kept = float(torch.sigmoid(torch.tensor(2 / (1 - rate))))
        share = (p - 0.5) / (kept - 0.5) * 40  # passes in which the unit was kept
        torch.testing.assert_close(share, share.round(), atol=1e-4, rtol=0)
        assert abs(float(share.mean()) / 40 - (1 - rate)) < 0.05


# --- equal to the loop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@FEW
@given(data=st.data())
def test_random_placements_equal_the_plain_loop(name: str, data: Any) -> None:
    some = case(name).drawn(data.draw(st.sampled_from(["per_example", "per_example", "per_pass"])))
    resolved = data.draw(placements(some))
    passes = data.draw(st.integers(1, 4))
    blocks = data.draw(block_sizes(4, some.batch.n, passes))
    fast, slow = shared_passes(some, resolved, passes, blocks), plain_passes(some, resolved, passes)
    assert float((fast - slow).abs().max()) <= 1e-5


@pytest.mark.parametrize("name", ["cnn", "resnet", "bert eager"])
def test_block_sizes_do_not_change_a_mask(name: str) -> None:
    """A dropped unit more or less moves a probability by far more than rounding does."""
    some = case(name)
    groups = {"cnn": "all=0.3", "resnet": "conv=0.3", "bert eager": "attention=0.3,ffn=0.2"}
    resolved = [resolve(as_placement(groups[name]), some.session.site_map)]
    steps = len(resolved[0])
    whole = shared_passes(some, resolved, 5, Blocks(some.batch.n, 5, (10**6,) * steps))
    for examples, passes, rows in ((1, 1, 1), (3, 2, 7), (2, 5, 11)):
        pieces = shared_passes(some, resolved, 5, Blocks(examples, passes, (rows,) * steps))
        torch.testing.assert_close(pieces, whole, atol=2e-6, rtol=0)


def statistics(engine: SharedEngine, at_most: int, needs: set[str]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for unit in engine.units_of(at_most):
        for block in engine.run(unit, needs):
            for numbers, kept in block.chunks:
                for i, number in enumerate(numbers):
                    found.setdefault(int(number), []).append((kept, i))
    return found


@pytest.mark.parametrize("memory", [1 * MIB, 64 * MIB])
@pytest.mark.parametrize("masks", ["per_example", "per_pass"])
def test_statistics_of_a_run_equal_those_of_the_loop(memory: int, masks: str) -> None:
    session = open_session(zoo.cifar(), zoo.images(7), masks=masks, batch_size=4)
    texts = ["conv1=.1,fc1=.5", "conv1=.1,fc1=.2", "conv2=.3", "conv2=.3,conv3=.1", "fc1=.5", "none", "fc1@input=.5"]
    resolved = session.resolve(texts)
    needs = {"sum_p", "sum_plogp", "max_moments", "predicted_deviation", "class_moments", "votes"}
    assert needs <= set(STATISTICS)
    engine = SharedEngine.build(session, resolved, 6, memory)
    found = statistics(engine, 3, needs)
    assert sorted(found) == list(range(len(texts)))
    slow = list(LoopEngine(session, resolved, 6).run(WorkUnit(tuple(range(len(texts)))), needs))
    for number in range(len(texts)):
        chunks = [
            (kept, i) for block in slow for numbers, kept in block.chunks for i, n in enumerate(numbers) if n == number
        ]
        for read in ("mean", "mean_entropy", "max_variance", "predicted_deviation", "class_variance"):
            fast_value, slow_value = (
                torch.cat([getattr(k, read)[i] for k, i in some]) for some in (found[number], chunks)
            )
            torch.testing.assert_close(fast_value, slow_value, atol=1e-5, rtol=1e-4)


def test_samples_equal_the_loop_and_its_order() -> None:
    session = open_session(zoo.cifar(), zoo.images(5), batch_size=2)
    resolved = session.resolve(["conv2=.3,fc1=.5"])
    engine = SharedEngine.build(session, resolved, 5, 2 * MIB)
    slow = replace(case("cnn"), session=session)
    for batch in session.data.batches:
        fast = torch.full((5, batch.n, 10), float("nan"))
        for block in engine.samples(0, batch, range(5)):
            fast[block.first : block.first + len(block.probabilities), block.rows] = block.probabilities
        assert float((fast - plain_passes(_on(slow, batch), resolved, 5)[0]).abs().max()) <= 1e-5


def _on(some: Any, batch: Any) -> Any:
    return replace(some, session=some.session.with_data(replace(some.session.data, batches=(batch,))))


class _ShortOfMemory(SharedEngine):
    """Runs out of memory at the end of its second, third and fifth block."""

    blocks = 0

    def _block(self, *asked: Any) -> Any:
        made = super()._block(*asked)
        self.blocks += 1
        if self.blocks in (2, 3, 5):
            raise torch.OutOfMemoryError("no more")
        return made


def test_out_of_memory_smaller_blocks_give_the_same_and_count_the_same() -> None:
    session = open_session(zoo.cifar(), zoo.images(14), batch_size=8)
    resolved = session.resolve(["conv2=.3,fc1=.5", "conv2=.3", "none", "fc1=.5"])

    def means(kind: type[SharedEngine]) -> tuple[list[Tensor], int]:
        engine, ticks = kind.build(session, resolved, 6, 64 * MIB), []
        blocks = [list(engine.run(unit, {"sum_p"}, ticks.append)) for unit in engine.units()]
        assert sum(ticks) == len(resolved) * 6 * session.data.n
        assert min(ticks) >= 0
        found = [torch.cat([kept.mean for block in unit for _, kept in block.chunks], 1) for unit in blocks]
        return found, sum(map(len, blocks))

    (expected, whole), (found, smaller) = means(SharedEngine), means(_ShortOfMemory)
    assert smaller > whole
    for mean, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mean, other, atol=1e-6, rtol=0)


# --- units ------------------------------------------------------------------------------------------------------------


def test_units_hold_every_placement_once_equivalent_ones_included() -> None:
    session = open_session(zoo.cifar(), zoo.images(2))
    texts = [f"{site}@{where}={rate}" for site in ("conv1", "fc1") for rate in (0.2, 0.6)
             for where in ("before_activation", "after_activation")]  # fmt: skip
    texts += ["none", "conv1=.2,fc1=.6"]
    engine = SharedEngine.build(session, session.resolve(texts), 3, 64 * MIB)
    for at_most in (1, 2, 100):
        units = engine.units_of(at_most)
        assert sorted(n for unit in units for n in unit.numbers) == list(range(len(texts)))
        assert all(len(tree.leaf) <= at_most for unit in units for tree in unit.subtrees)
    assert engine.equivalent(1) == 0
    assert engine.equivalent(3) == 2
    only = engine.only([0, 9])
    assert sorted(n for unit in only for n in unit.numbers) == [0, 9]
    assert sorted({n for unit in engine.only([8]) for n in unit.numbers}) == [8]


def test_only_gives_the_numbers_of_the_whole() -> None:
    session = open_session(zoo.cifar(), zoo.images(3))
    texts = [f"conv2={a},fc1={b}" for a in (0.1, 0.5) for b in (0.1, 0.5, 0.9)]
    engine = SharedEngine.build(session, session.resolve(texts), 4, 64 * MIB)
    whole = statistics(engine, 100, {"sum_p"})
    for unit in engine.only([1, 4]):
        for block in engine.run(unit, {"sum_p"}):
            for numbers, kept in block.chunks:
                for i, number in enumerate(numbers):
                    (other, j), *_ = whole[int(number)]
                    torch.testing.assert_close(kept.mean[i], other.mean[j], atol=1e-7, rtol=0)


def test_cost_counts_the_prefix_once() -> None:
    session = open_session(zoo.cifar(), zoo.images(2))
    engine = SharedEngine.build(session, session.resolve(["none", "fc2@input=.5", "conv1@input=.5"]), 10, 64 * MIB)
    assert engine.cost(0) == 1.0
    layers = [3 * 16 * 9 * 256, 16 * 32 * 9 * 64, 32 * 64 * 9 * 16, 256 * 128, 128 * 10]
    assert engine.cost(1) == pytest.approx(1 + 10 * layers[-1] / sum(layers), rel=1e-6)
    assert engine.cost(2) == pytest.approx(11)


# --- where it does not run --------------------------------------------------------------------------------------------


class Branching(nn.Module):
    """Goes one way or the other by the values it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x) if float(x.sum()) > 0 else self.b(x) + self.a(x)
        return self.fc(torch.relu(h))


def reason_against(model: nn.Module, inputs: Any, text: str, **common: Any) -> str:
    session = open_session(model, inputs, **common)
    with pytest.raises(CaptureFailed) as error:
        SharedEngine.build(session, session.resolve([text]), 2, 64 * MIB)
    return str(error.value)


def test_a_branch_on_what_examples_differ_in_is_refused_with_its_reason() -> None:
    assert "not alike for all examples" in reason_against(zoo.seeded(Branching), zoo.vectors(), "last=.5")


def test_alpha_dropout_is_refused() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(16, 3)))
    assert "alpha dropout" in reason_against(net, zoo.vectors(), "own")


def test_multinomial_noise_is_refused() -> None:
    assert "multinomial" in reason_against(zoo.cifar(), zoo.images(2), "fc1=.5 noise=multinomial")


def test_rates_that_follow_from_the_value_are_refused() -> None:
    assert "rate_in" in reason_against(zoo.cifar(), zoo.images(2), "fc1=rate_in(.1)")


def test_two_positions_that_are_one_value_are_refused() -> None:
    text = "fc1@before_activation=.5,fc1@after_activation=.2"
    assert "one value in the graph" in reason_against(zoo.cifar(), zoo.images(2), text)


def test_many_input_shapes_are_refused() -> None:
    batches = [(zoo.sequences(2, length, 8), None) for length in range(3, 13)]
    net = zoo.seeded(MeanOfTokens)
    assert "10 different shapes" in reason_against(net, [x for x, _ in batches], "a=.5")


class MeanOfTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x))).mean(1)


def test_a_graph_that_differs_from_the_loop_is_refused() -> None:
    """The check before every run: a wrong capture never gives numbers."""
    session = open_session(zoo.cifar(), zoo.images(3))
    resolved = session.resolve(["fc1=.5"])
    other = zoo.seeded(zoo.Cifar, seed=1)
    wrong = shared_module.capture(other, session.data.batches[0].call, set(resolved[0]))
    with patch.object(shared_module, "capture", lambda *_: wrong), pytest.raises(CaptureFailed, match="differs from"):
        SharedEngine.build(session, resolved, 2, 64 * MIB)


# --- regressions ------------------------------------------------------------------------------------------------------


def difference(model: nn.Module, inputs: Any, texts: list[str], passes: int = 3) -> float:
    """Without the check before a run, which looks at three placements only."""
    some = case_of(model, inputs)
    worst = 0.0
    resolved = some.session.resolve(texts)
    for numbers in shared_module._styles(resolved):
        chosen = [resolved[i] for i in numbers]
        blocks = Blocks(some.batch.n, passes, (64,) * 8)
        marked = replace(some, captured=shared_module.capture(
            some.session.model, some.batch.call, {point for each in resolved for point in each}))  # fmt: skip
        worst = max(
            worst,
            float((shared_passes(marked, chosen, passes, blocks) - plain_passes(some, chosen, passes)).abs().max()),
        )
    return worst


class PooledFeatures(nn.Module):
    """avg_pool1d over the features of a linear layer: dimension 1 counts tokens, not channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(nn.functional.avg_pool1d(torch.relu(self.a(x)), 2)).mean(1)


def test_a_channel_mask_on_the_last_dimension_stays_before_a_pool() -> None:
    assert difference(zoo.seeded(PooledFeatures), zoo.sequences(4, 5, 8), ["a=.5 mask=channel", "b@input=.2"]) <= 1e-5


def test_positions_of_one_place_with_different_masks_stay_apart() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 196, 3)))
    texts = ["0@before_activation=.5 mask=element", "0@after_activation=.5 mask=channel"]
    assert difference(net, zoo.images(4), texts) <= 1e-5
    texts = ["0@before_activation=.5", "0@after_activation=.5 noise=gaussian", "0@output=.2"]
    assert difference(net, zoo.images(4), texts) <= 1e-5


def test_a_leaf_cut_out_of_its_tree_gives_the_same_passes() -> None:
    some = case("cnn")
    resolved = some.session.resolve([f"conv2={a},fc1={b}" for a in (0.1, 0.5) for b in (0.1, 0.5)])
    whole = shared_passes(some, resolved, 2, Blocks(4, 2, (10**6,) * 2))
    executor = executor_of(some, resolved)
    with torch.no_grad():
        _, reads = executor.plain(some.batch.call)
        chunk = Chunk(reads, some.batch.keys, range(2), Blocks(4, 2, (1, 1)))
        for subtree in executor.plan.subtrees:
            for i in range(len(subtree.leaf)):
                ((_, p),) = executor.passes(cut(subtree, i, i + 1), chunk)
                row = int(np.flatnonzero(executor.plan.leaf_of == subtree.leaf[i])[0])
                torch.testing.assert_close(p[0], whole[row], atol=2e-7, rtol=0)


# --- what sharing must not touch --------------------------------------------------------------------------------------


class Coupled(nn.Module):
    """A layer whose answer for an example depends on the others of its batch, between two that have none of it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.g, self.f = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.how = nn.BatchNorm1d(6, track_running_stats=False), how

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        coupled = {"mean": lambda: h - h.mean(0), "softmax": lambda: h * h.softmax(0), "norm": lambda: self.norm(h)}
        return self.f(torch.relu(self.g(coupled[self.how]())))


@pytest.mark.parametrize("how", ["mean", "softmax", "norm"])
def test_a_model_that_mixes_the_examples_of_a_batch_is_looped_over(how: str, caplog: pytest.LogCaptureFixture) -> None:
    net = zoo.seeded(lambda: Coupled(how)).eval()
    data = torch.randn(30, 6), torch.arange(30) % 3
    placements = ["g=0.1", "a=0.3", "g=0.2", "g=0.3", "g=0.4"]
    fast, slow = (
        ds.sweep(net, placements, data, passes=4, engine=engine, keep="none", progress=False)
        for engine in ("auto", "loop")
    )
    assert fast.engine == "loop"
    assert any("others of its batch" in r.message or "by itself" in r.message for r in caplog.records)
    pd.testing.assert_frame_equal(fast.rows, slow.rows)


def test_equal_first_examples_hide_no_mixing() -> None:
    net = zoo.seeded(lambda: Coupled("mean")).eval()
    x = torch.randn(30, 6)
    x[:4] = 0
    assert ds.sweep(net, ["a=0.3"], (x, torch.arange(30) % 3), passes=2, keep="none", progress=False).engine == "loop"


def test_a_model_that_was_changed_is_captured_again() -> None:
    """Another activation, another number: the weights are the same, the graph is not."""

    class Clipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.act, self.o, self.at = nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3), 100.0

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.act(self.a(x)).clamp(max=self.at))

    net = zoo.seeded(Clipped).eval()
    data = 10 * torch.randn(20, 8), torch.arange(20) % 3

    def check() -> None:
        fast, slow = (
            ds.sweep(net, ["a=0.5"], data, passes=3, engine=engine, keep="none", progress=False)
            for engine in ("shared", "loop")
        )
        np.testing.assert_allclose(fast.rows.aurc, slow.rows.aurc, atol=1e-6)

    check()
    net.act = nn.ReLU6()
    check()
    net.at = 0.5
    check()


class WritesIntoItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.a, self.o = nn.ReLU(inplace=True), nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.relu(self.a(self.act(x.sub_(0.5).mul_(2)))))


class WritesElsewhere(WritesIntoItsInput):
    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.relu(self.a(torch.relu((x - 0.5) * 2))))


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_a_forward_that_writes_into_its_input_sees_it_fresh_in_every_pass(engine: str) -> None:
    net, clean = zoo.seeded(WritesIntoItsInput).eval(), zoo.seeded(WritesElsewhere).eval()
    x, y = torch.randn(20, 8), torch.arange(20) % 3
    before = x.clone()
    got, wanted = (
        ds.sweep(model, ["a=0.5", "last=0.3"], (x, y), passes=3, engine=engine, progress=False)
        for model in (net, clean)
    )
    pd.testing.assert_frame_equal(got.rows, wanted.rows)
    pd.testing.assert_frame_equal(got.baseline, wanted.baseline)
    assert torch.equal(ds.sample(net, "a=0.5", x, passes=3), ds.sample(clean, "a=0.5", x, passes=3))
    assert ds.audit(net, "a=0.5", x).ok
    assert torch.equal(x, before)


@pytest.mark.parametrize("pool", [lambda h: F.max_pool2d(h, 2), lambda h: F.adaptive_avg_pool2d(h, (4, 3))])
def test_a_pooling_that_takes_feature_maps_for_a_dimension_is_not_passed(pool: Callable[[Tensor], Tensor]) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.g, self.f = nn.Conv1d(4, 8, 3, padding=1), nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.f(torch.relu(self.g(pool(self.c(x)).flatten(1))))

    net, x = zoo.seeded(Pooled).eval(), torch.randn(7, 4, 6)
    fast, slow = (ds.sample(net, "c=0.3", x, 5, seed=1, engine=engine) for engine in ("shared", "loop"))
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=0)


def test_every_site_is_compared_with_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that only one placement in the middle of many has is among those that are looked at."""
    seen: list[set[str]] = []
    samples = LoopEngine.samples

    def watched(loop: LoopEngine, number: int, *rest: Any) -> Any:
        seen.append({point.name for point in loop.placements[number]})
        return samples(loop, number, *rest)

    monkeypatch.setattr(LoopEngine, "samples", watched)
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)))
    data = torch.randn(8, 6), torch.arange(8) % 3
    ds.sweep(net.eval(), ["2=0.1", "0=0.3", "2=0.2", "2=0.3", "2=0.4"], data, passes=2, keep="none", progress=False)
    assert {"0"} in seen
