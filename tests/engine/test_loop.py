"""The plain loop: pass by pass, the numbers that everything faster must equal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dropscope import injected
from dropscope.data.batches import Batch
from dropscope.engine.choice import choose_engine
from dropscope.engine.loop import LoopEngine
from dropscope.engine.session import open_session
from dropscope.noise import keyed as noise
from support import zoo


def net() -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))


def passes_of(loop: LoopEngine, number: int, batch: Batch) -> Tensor:
    return torch.cat([block.probabilities for block in loop.samples(number, batch, range(loop.passes))])


def test_a_pass_is_the_model_with_factors_on_its_hidden_units() -> None:
    model, x = net(), zoo.vectors()
    session = open_session(model, x, seed=4)
    loop = LoopEngine(session, session.resolve(["0=.4"]), 3)
    batch = session.data.batches[0]
    with torch.no_grad():
        hidden = model[1](model[0](x))
        for number, p in enumerate(passes_of(loop, 0, batch)):
            keys = noise.streams(4, noise.site_key("0", 0), torch.tensor(number), batch.keys)
            factor = noise.multiplier(keys, (16,), 0.4, "bernoulli")
            assert torch.equal(p, _softmax(model, hidden * factor))


def _softmax(model: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    from dropscope.model.outputs import probabilities

    return probabilities(model[2](hidden), "logits")


def test_passes_equal_those_of_injected() -> None:
    model, x = zoo.cifar(), zoo.images()
    session = open_session(model, x, seed=1)
    loop = LoopEngine(session, session.resolve(["conv2=.3,fc1=.5"]), 3)
    passes = passes_of(loop, 0, session.data.batches[0])
    with torch.no_grad(), injected(model, "conv2=.3,fc1=.5", seed=1) as source:
        for number, p in enumerate(passes):
            source.at(pass_=number)
            torch.testing.assert_close(model(x).softmax(1), p, atol=1e-6, rtol=0)


def test_blocks_follow_the_batches_and_placements() -> None:
    session = open_session(net(), zoo.vectors(7), batch_size=3)
    loop = LoopEngine(session, session.resolve(["0=.5", "none", "last=.2"]), 4)
    ticks: list[int] = []
    (unit,) = loop.units()
    blocks = list(loop.run(unit, {"sum_p", "sum_plogp"}, ticks.append))
    assert [block.batch.n for block in blocks] == [3, 3, 1]
    assert sum(ticks) == 7 * 3 * 4
    for block in blocks:
        assert [numbers.tolist() for numbers, _ in block.chunks] == [[0], [1], [2]]
        assert block.plain.shape == (block.batch.n, 3)
        for number, (_, kept) in enumerate(block.chunks):
            assert kept.passes == 4
            slow = passes_of(loop, number, block.batch)
            torch.testing.assert_close(kept.mean[0].float(), slow.mean(0), atol=1e-6, rtol=0)
        torch.testing.assert_close(block.chunks[1][1].mean[0].float(), block.plain, atol=1e-6, rtol=0)


def test_batches_and_order_change_nothing() -> None:
    model, x = zoo.resnet(), zoo.images(6)
    order = torch.tensor([5, 2, 0, 4, 1, 3])

    def means(inputs: torch.Tensor, size: int) -> torch.Tensor:
        session = open_session(model, inputs, batch_size=size)
        loop = LoopEngine(session, session.resolve(["layer1.conv1=.5"]), 3)
        return torch.cat([block.chunks[0][1].mean[0] for block in loop.statistics(0, {"sum_p"})])

    whole = means(x, 6)
    torch.testing.assert_close(means(x, 1), whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(means(x[order], 4), whole[order], atol=1e-6, rtol=0)


def test_the_model_is_afterwards_what_it_was(untouched) -> None:
    model = zoo.resnet().train()
    with untouched(model):
        session = open_session(model, zoo.images())
        for _ in LoopEngine(session, session.resolve(["conv1=.5"]), 2).statistics(0, {"sum_p"}):
            pass


class Fickle(nn.Module):
    """Calls an activation once more for large inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        if float(x.abs().max()) > 100:
            hidden = torch.relu(hidden - 1)
        return self.last(hidden)


def test_a_model_that_goes_another_way_is_followed_from_there_on() -> None:
    x = torch.cat([zoo.vectors(2), torch.full((2, 8), 1000.0), zoo.vectors(2)])
    session = open_session(zoo.seeded(Fickle), x, batch_size=2)
    resolved = session.resolve(["first=.3"])
    quick, slow = LoopEngine(session, resolved, 3), LoopEngine(session, resolved, 3, traced=True)
    for batch in session.data.batches:
        assert torch.equal(passes_of(quick, 0, batch), passes_of(slow, 0, batch))


def test_passes_of_a_small_model_are_folded_and_equal_those_one_by_one() -> None:
    session = open_session(net(), zoo.vectors(7), batch_size=3)
    resolved = session.resolve(["0=.5", "none", "last=.2"])
    folded = choose_engine(session, resolved, 5, "loop")
    assert isinstance(folded, LoopEngine)
    assert folded.fold
    reference = choose_engine(session, resolved, 5, "reference")
    for batch in session.data.batches:
        forwards: list[int] = []
        for number in range(3):
            fast = torch.cat([b.probabilities for b in folded.samples(number, batch, range(5), forwards.append)])
            slow = torch.cat([b.probabilities for b in reference.samples(number, batch, range(5))])
            torch.testing.assert_close(fast, slow, atol=1e-6, rtol=0)
        assert forwards == [5 * batch.n, *[batch.n] * 5, 5 * batch.n]


def test_equal_placements_are_computed_once_and_in_one_unit() -> None:
    session = open_session(zoo.cifar(), zoo.images(2))
    texts = [f"{site}@{where}={rate}" for where in ("before_activation", "after_activation")
             for site in ("conv1", "fc1") for rate in (0.2, 0.6)]  # fmt: skip
    texts += ["none", "conv1@before_activation=0.2 noise=gaussian", "conv1@after_activation=0.2 noise=gaussian"]
    resolved = session.resolve(texts)
    engine = LoopEngine(session, resolved, 3)
    assert [engine.equivalent(number) for number in range(len(texts))] == [0, 1, 2, 3, 0, 1, 2, 3, 8, 9, 10]
    (unit,) = engine.units()
    assert sorted(unit.numbers) == list(range(len(texts)))
    ticks: list[int] = []
    (block,) = engine.run(unit, {"sum_p"}, ticks.append)
    assert sum(ticks) == len(texts) * 3 * 2
    means = {int(number): kept.mean for (number,), kept in block.chunks}
    assert sorted(means) == [0, 1, 2, 3, 8, 9, 10]
    apart = LoopEngine(session, resolved, 3, traced=True)  # computes every one of them
    for number in range(4, 8):
        (alone,) = apart.statistics(number, {"sum_p"})
        torch.testing.assert_close(alone.chunks[0][1].mean, means[number - 4], atol=1e-6, rtol=0)
