"""Segments: rows of variants, passes and examples, and how values with fewer rows join those with more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dropscope.engine import segments
from dropscope.engine.executor import _parameters
from dropscope.engine.folding import disturb_rows, select, spread
from dropscope.engine.tree import grow
from dropscope.noise import keyed as noise
from support import zoo
from support.engines import MODELS, case, executor_of, plan_of

# --- closed forms -----------------------------------------------------------------------------------------------------


def test_spread_puts_examples_fastest() -> None:
    assert spread(torch.tensor([1, 2, 3]), 0, 2).tolist() == [1, 2, 3, 1, 2, 3]
    wide = spread(torch.arange(6).view(2, 3), 1, 2)
    assert wide.tolist() == [[0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5]]


def test_select_takes_the_rows_of_variants() -> None:
    rows = torch.arange(6)  # three variants of two rows
    assert select(rows, 0, 3, torch.tensor([2, 0, 2])).tolist() == [4, 5, 0, 1, 4, 5]


def test_a_row_is_its_value_times_its_factor() -> None:
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0]])  # two examples of two units, plain
    low, high = -(2**31), 2**31 - 1
    words = torch.tensor([[high, low], [high, high], [low, high], [low, low]], dtype=torch.int32)  # two passes
    level, gain = torch.tensor([0, low], dtype=torch.int32), torch.tensor([2.0, 1.0])
    rows = disturb_rows(value, 0, 1, (2,), "bernoulli", words, level, gain, None)
    assert rows.tolist() == [[2, 0], [6, 8], [0, 4], [0, 0], [1, 2], [3, 4], [1, 2], [3, 4]]


@pytest.mark.parametrize("noise_kind", ["bernoulli", "gaussian"])
def test_the_three_forms_of_parents_agree(noise_kind: str) -> None:
    """A number of children each, a tensor of numbers, and the plain value spread beforehand."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (6, 5), generator=generator).to(torch.int32)
    level = torch.tensor([noise.threshold(rate) for rate in (0.1, 0.5, 0.9, 0.2)], dtype=torch.int32)
    gain = torch.tensor([1.1, 2.0, 10.0, 1.25])
    earlier = torch.randn(2 * 6, 5, generator=generator)
    each = disturb_rows(earlier, 0, 1, (5,), noise_kind, words, level, gain, 2)
    chosen = disturb_rows(earlier, 0, 1, (5,), noise_kind, words, level, gain, torch.tensor([0, 0, 1, 1]))
    assert torch.equal(each, chosen)
    plain = torch.randn(3, 5, generator=generator)
    folded = disturb_rows(plain, 0, 1, (5,), noise_kind, words, level, gain, None)
    repeated = disturb_rows(spread(plain, 0, 2), 0, 1, (5,), noise_kind, words, level, gain, torch.zeros(4).long())
    assert torch.equal(folded, repeated)


# --- masks are those of the plain path, bit for bit -------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_factors_at_every_site_are_those_of_the_plain_path(name: str) -> None:
    masks = "per_pass" if name in ("lstm", "gpt2 sdpa") else "per_example"
    some = case(name).drawn(masks)
    executor = executor_of(some, some.session.resolve(["last=.5"]))
    for kind, mask in (("bernoulli", "auto"), ("bernoulli", "channel"), ("gaussian", "auto")):
        for point in some.points if (kind, mask) == ("bernoulli", "auto") else some.points[::5]:
            if mask == "channel" and point.position == "weights":
                continue
            address = f"{point.name}#{point.call}@{point.position}=.3 noise={kind} mask={mask}"
            (resolved,) = some.session.resolve([address])
            spec = resolved[point]
            executor.plan = grow(some.captured, [resolved])
            (step,) = executor.plan.steps
            dim, folded = some.captured.batch(step.node) or (0, 1)
            n = some.batch.n
            shape = [int(s) if d != dim else n * folded for d, s in enumerate(step.node.meta["val"].shape)]
            ones = torch.ones(shape)
            words = executor.uniform(step, some.batch.keys, [5])
            level, gain = _parameters(step, torch.tensor([1]).numpy(), ones.device)
            units = segments._unit_tail(step, some.captured)
            fast = disturb_rows(ones, dim, folded, units, kind, words, level, gain, None)
            examples = torch.zeros_like(some.batch.keys) if masks == "per_pass" else some.batch.keys
            keys = noise.streams(some.session.seed, noise.site_key(point.name, point.call), torch.tensor(5), examples)
            slow = noise.disturb(ones, keys, spec.rate, kind, spec.mask, spec.layout)
            if kind == "bernoulli":
                assert torch.equal(fast, slow), address
            else:
                torch.testing.assert_close(fast, slow, atol=1e-6, rtol=1e-6)


# --- pieces of a graph ------------------------------------------------------------------------------------------------


def test_a_chain_reads_nothing_but_the_value_before_it() -> None:
    plan = plan_of(zoo.cifar(), zoo.images(2), ["conv1=.5,conv2=.5,fc1=.5"])
    for index in range(3):
        part = segments.segment(plan, (0, 1, 2), index)
        assert part.reads == ()
        assert len(part.outputs) == 1
    trunk = segments.trunk(plan)
    assert trunk.outputs[0] is plan.steps[0].node


class Skip(nn.Module):
    """x joins after two noisy layers; h1 joins after one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.a(x))
        second = torch.tanh(self.b(first))
        return self.head(torch.tanh(self.c(second)) + first + x)


def test_a_skip_connection_is_read_where_it_joins() -> None:
    plan = plan_of(zoo.seeded(Skip), zoo.vectors(), ["a=.5,b=.5,c=.5"])
    last = segments.segment(plan, (0, 1, 2), 2)
    # x is plain, spread over variants and passes; the noisy `first` is of level 0, selected for its children
    assert sorted(read.level is None for read in last.reads) == [False, True]
    assert [read.level for read in last.reads if read.level is not None] == [0]
    from_c = segments.segment(plan, (2,), 0)
    assert [read.level for read in from_c.reads] == [None, None]  # without noise before, `first` is plain too


def test_weights_are_shared_not_copied() -> None:
    net = zoo.cifar()
    plan = plan_of(net, zoo.images(2), ["conv3=.5"])
    held = {p.data_ptr() for p in segments.segment(plan, (0,), 0).module.parameters()}
    assert held == {p.data_ptr() for p in (net.fc1.weight, net.fc1.bias, net.fc2.weight, net.fc2.bias)}
