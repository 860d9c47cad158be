"""Running a plan: streamed statistics, leaves in order, any block sizes, finite numbers or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dropscope.engine.cost import Blocks, block_sizes
from dropscope.engine.executor import Chunk, Work, _parameters, _regular, statistics_of
from dropscope.engine.session import open_session
from dropscope.noise import keyed as noise
from support import zoo
from support.engines import case, case_of, executor_of, plain_passes, shared_passes
from support.errors import refused

# --- closed forms -----------------------------------------------------------------------------------------------------


def test_thresholds_and_gains_of_choices() -> None:
    some = case("cnn")
    (step,) = executor_of(some, some.session.resolve(["fc1=.5", "fc1=.2"])).plan.steps
    assert step.rates == (0.0, 0.2, 0.5)
    level, gain = _parameters(step, np.array([0, 2, 1]), torch.device("cpu"))
    assert level.tolist() == [-(2**31), noise.threshold(0.5), noise.threshold(0.2)]
    assert gain.tolist() == pytest.approx([1.0, 2.0, 1.25])


def test_regular_families() -> None:
    assert _regular(np.array([0, 0, 1, 1, 2, 2])) == 2
    assert _regular(np.array([0, 1, 2])) == 1
    assert _regular(np.array([0, 0, 1])) is None
    assert _regular(np.array([0, 0, 2, 2])) is None


def test_the_plain_pass_is_the_models_own() -> None:
    for name in ("cnn", "resnet", "gpt2 sdpa", "lstm"):
        some = case(name)
        (resolved,) = some.session.resolve(["last=.5"])
        with torch.no_grad():
            p, _ = executor_of(some, [resolved]).plain(some.batch.call)
            torch.testing.assert_close(p, some.session.plain(some.batch), atol=1e-6, rtol=0)


# --- contracts --------------------------------------------------------------------------------------------------------


def test_leaves_come_in_order_each_once() -> None:
    some = case("cnn")
    resolved = some.session.resolve([f"conv2={a},fc1={b}" for a in (0.1, 0.5, 0.7) for b in (0.1, 0.3, 0.5, 0.9)])
    executor = executor_of(some, resolved)
    with torch.no_grad():
        _, reads = executor.plain(some.batch.call)
        for rows in (1, 20, 50, 10**6):
            (tree,) = executor.plan.subtrees
            chunk = Chunk(reads, some.batch.keys, range(2), Blocks(4, 2, (rows, rows)))
            seen = [leaves for leaves, _ in executor.passes(tree, chunk)]
            assert [s.start for s in seen] == [0, *(s.stop for s in seen[:-1])]
            assert seen[-1].stop == len(tree.leaf)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(st.lists(st.sampled_from([0, 0.2, 0.6]), min_size=3, max_size=3).filter(any), min_size=1, max_size=8),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 60)),
)
def test_irregular_trees_equal_the_loop(rows: list[list[float]], sizes: tuple[int, int, int]) -> None:
    """Families of different sizes: some variants have one child, some many, at every level."""
    some = case("cnn")
    texts = [",".join(f"{s}={r}" for s, r in zip(("conv1", "conv3", "fc1"), row, strict=True) if r) for row in rows]
    resolved = some.session.resolve(texts)
    fast = shared_passes(some, resolved, 3, Blocks(sizes[0], sizes[1], (sizes[2],) * 3))
    assert float((fast - plain_passes(some, resolved, 3)).abs().max()) <= 1e-5


def test_statistics_are_those_of_all_passes() -> None:
    some = case("cnn")
    resolved = some.session.resolve(["conv2=.3", "fc1=.5"])
    executor = executor_of(some, resolved)
    ticks: list[int] = []
    with torch.no_grad():
        work = Work(7, {"sum_p", "class_moments"}, Blocks(4, 3, (12, 12)), ticks.append)
        plain, chunks = statistics_of(executor, executor.plan.subtrees, some.batch, work)
    slow = plain_passes(some, resolved, 7)
    for leaves, kept in chunks:
        assert kept.passes == 7
        for i, leaf in enumerate(leaves):
            number = int(np.flatnonzero(executor.plan.leaf_of == leaf)[0])
            torch.testing.assert_close(kept.mean[i].float(), slow[number].mean(0), atol=1e-6, rtol=0)
            expected = slow[number].double().var(0, unbiased=False)
            torch.testing.assert_close(kept.class_variance[i], expected, atol=1e-6, rtol=1e-4)
    assert sum(ticks) == 2 * 7 * some.batch.n
    assert plain.shape == (some.batch.n, 10)


def test_masks_are_nested_across_rates() -> None:
    """What drops at .3 drops at .5: seen through a model that shows its hidden units."""

    class Shows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 6)
            self.a.weight.data.fill_(0)
            self.a.bias.data.fill_(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x)

    some = case_of(zoo.seeded(Shows), zoo.vectors(50), outputs=lambda o: torch.stack([o / 4, 1 - o / 4], 1))
    resolved = some.session.resolve(["a=.3", "a=.5"])
    p = 4 * shared_passes(some, resolved, 20, Blocks(50, 20, (10**6,)))[..., 0, :]
    low, high = p[0] == 0, p[1] == 0
    assert bool((high | ~low).all())
    assert float(low.float().mean()) == pytest.approx(0.3, abs=0.02)
    assert float(high.float().mean()) == pytest.approx(0.5, abs=0.02)
    assert p[0][~low].unique().tolist() == pytest.approx([1 / 0.7])


def test_overflow_under_noise_is_an_error_with_a_remedy() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3)))
    with torch.no_grad():
        net[1].weight.fill_(1e38)
    some = case_of(net, zoo.vectors() * 0 + 1, outputs=lambda o: (o * 0 + 1) / 3 if bool(o.isfinite().all()) else o)
    executor = executor_of(some, some.session.resolve(["0=.9"]))
    with torch.no_grad(), refused("placement"):
        statistics_of(executor, executor.plan.subtrees, some.batch, Work(30, {"sum_p"}, Blocks(4, 30, (10**6,))))


def test_a_model_that_returns_more_than_logits() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> dict[str, Any]:
            h = torch.relu(self.a(x))
            return {"features": x * 2, "logits": self.b(h), "nothing": None}

    some = case_of(zoo.seeded(Two), zoo.vectors())
    resolved = some.session.resolve(["a=.5"])
    fast = shared_passes(some, resolved, 3, Blocks(2, 2, (5,)))
    assert float((fast - plain_passes(some, resolved, 3)).abs().max()) <= 1e-6


# --- block sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [1 << 20, 8 << 20, 1 << 30])
def test_block_sizes_follow_memory(memory: int) -> None:
    session = open_session(zoo.cifar(), zoo.images(4))
    some = case("cnn")
    plan = executor_of(some, session.resolve(["conv1=.5,conv2=.5,fc1=.5"])).plan
    blocks = block_sizes(plan, 1000, 100, memory, torch.device("cpu"))
    assert 1 <= blocks.examples <= 128
    assert 1 <= blocks.passes <= 100
    assert len(blocks.rows) == 3
    assert blocks.examples * blocks.passes <= max(blocks.rows[0], 1)
    bigger = block_sizes(plan, 1000, 100, 2 * memory, torch.device("cpu"))
    assert bigger.rows >= blocks.rows
