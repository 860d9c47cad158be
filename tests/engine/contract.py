"""The contract of an engine: what everything that runs passes promises, whatever it shares, folds or sorts.

`EngineContract` is a suite without an engine, `StatisticsContract` what of it holds without passes. A test class that
inherits from one says how to make an engine, and on which subjects; see `test_engines` for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from conftest import Untouched
from dropscope.data.batches import Batch
from dropscope.engine.engine import Engine, WorkUnit
from dropscope.engine.loop import LoopEngine
from dropscope.engine.session import Session, open_session
from dropscope.injection.resolution import ResolvedPlacement
from dropscope.measures.statistics.running import from_passes
from support import noises, zoo

PASSES = 7
POINTS = (256, 512)  # of an engine without passes
NEEDS = frozenset({"sum_p", "sum_plogp", "class_moments", "max_moments", "predicted_deviation"})
READ = ("mean", "mean_entropy", "class_variance", "max_variance", "predicted_deviation")
Build = Callable[[Session, Sequence[ResolvedPlacement], int], Engine]


@dataclass(frozen=True)
class Subject:
    """A model with data, and placements that always have a plain one among them."""

    model: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    placements: tuple[str, ...]
    outputs: str = "logits"
    draws: str = "independent"
    examples: int = 5
    batch_size: int = 2


def _texts(count: int) -> dict[str, Tensor]:
    """So long that a token more or less is little padding: some texts share a batch when sorted."""
    return zoo.text(count, 24)


assert noises.block_noise  # registered with its fellows, for the texts below
_TEXT = ("attention=.2,ffn=.3", "none", "ffn=.3", "own")
SUBJECTS = {
    # Two names of one place, two kinds of noise, and two that are plain.
    "cnn": Subject(
        zoo.cifar,
        zoo.images,
        ("conv1@before_activation=.2", "none", "conv1@after_activation=.2", "conv2=.3,fc1=.5",
         "fc1=.5 noise=gaussian", "fc1=0", "conv2=.3"),
    ),
    "own noise": Subject(
        zoo.cifar,
        zoo.images,
        ("conv2=.3 noise=even_noise", "none", "conv1=.1,conv2=.3 noise=block_noise mask=element",
         "conv1=.1 noise=block_noise mask=element", "conv2=.3,fc1=.5 noise=even_noise mask=element"),
    ),
    "resnet": Subject(zoo.resnet, zoo.images, ("conv1=.2,layer2.conv1=.3", "layer1=.2", "none", "last=.5")),
    "unet": Subject(zoo.unet3d, zoo.volumes, ("down1=.3,join=.2", "none", "own"), examples=3),
    "lstm": Subject(zoo.recurrent, zoo.tokens, ("embed=.3", "rnn=.3", "none", "rnn=.3,last=.2")),
    "sequence first": Subject(lambda: zoo.encoder(False), zoo.sequences, ("ffn=.3", "none", "attention=.2", "own")),
    "many labels": Subject(zoo.cifar, zoo.images, ("conv3=.3", "none", "fc1=.5"), outputs="multilabel_logits"),
    "stratified": Subject(
        zoo.cifar,
        zoo.images,
        ("conv1=.2,fc1=.5", "none", "conv2=.3,fc1=.5 noise=gaussian", "conv2=.3 noise=even_noise", "fc1=.2"),
        draws="stratified",
    ),
    "stratified texts": Subject(lambda: zoo.hugging_face("bert", "sdpa"), _texts, _TEXT, draws="stratified"),
    "rate-in": Subject(
        zoo.cifar,
        zoo.images,
        ("conv2=rate_in(.2),fc1=rate_in(.3)", "none", "fc1=rate_in(.3)", "conv1=.2,fc1=rate_in(.1)"),
    ),
    "last layer": Subject(
        zoo.cifar,
        zoo.images,
        ("fc1=.5", "none", "last=.2 noise=gaussian", "fc1@before_activation=.3", "last=.4 noise=multinomial"),
    ),
    "last layer of texts": Subject(lambda: zoo.hugging_face("bert", "sdpa"), _texts, ("last=.3", "none")),
    "bert": Subject(lambda: zoo.hugging_face("bert", "sdpa"), _texts, _TEXT),
    "gpt2": Subject(lambda: zoo.hugging_face("gpt2"), _texts, _TEXT),
    "deberta": Subject(lambda: zoo.hugging_face("deberta-v2"), _texts, _TEXT),
}  # fmt: skip


@cache
def model_of(name: str) -> nn.Module:
    return SUBJECTS[name].model()


def session_of(name: str, batch_size: int | None = None, order: Sequence[int] | None = None) -> Session:
    """A session of a subject, in batches of another size or with its examples in another order."""
    subject = SUBJECTS[name]
    data = subject.inputs(subject.examples)
    if order is not None:
        rows = list(order)
        data = {key: value[rows] for key, value in data.items()} if isinstance(data, dict) else data[rows]
    size = subject.batch_size if batch_size is None else batch_size
    how = {"outputs": subject.outputs, "draws": subject.draws}
    return open_session(model_of(name), data, seed=3, batch_size=size, **how)


def engine_of(build: Build, name: str, **changed: Any) -> Engine:
    session = session_of(name, **changed)
    return build(session, session.resolve(SUBJECTS[name].placements), PASSES)


@cache
def made(build: Build, name: str) -> Engine:
    return engine_of(build, name)


@cache
def everything(build: Build, name: str) -> dict[int, dict[str, Tensor]]:
    engine = made(build, name)
    return statistics(engine, engine.units())


def loop(session: Session, resolved: Sequence[ResolvedPlacement], passes: int) -> Engine:
    """The reference: every other engine equals this one."""
    return LoopEngine(session, resolved, passes)


def samples(engine: Engine, number: int, *ranges: range) -> Tensor:
    """All passes of a placement `[passes, n, classes, …]` in the order of the data, asked for range by range."""
    batches = engine.session.data.batches
    drawn = torch.cat([_samples(engine, number, batch, ranges or (range(engine.passes),)) for batch in batches], 1)
    return drawn[:, _places(engine)]


def _samples(engine: Engine, number: int, batch: Batch, ranges: Sequence[range]) -> Tensor:
    whole: Tensor | None = None
    for passes in ranges:
        for block in engine.samples(number, batch, passes):
            p = block.probabilities
            if whole is None:
                whole = torch.full((engine.passes, batch.n, *p.shape[2:]), float("nan"))
            place = whole[block.first : block.first + len(p), block.rows]
            assert passes.start <= block.first <= block.first + len(p) <= passes.stop
            assert place.shape == p.shape
            assert place.isnan().all(), "a pass of an example came twice"
            place.copy_(p)
    assert whole is not None
    assert not whole.isnan().any(), "a pass of an example is missing"
    return whole


def statistics(engine: Engine, units: Sequence[WorkUnit]) -> dict[int, dict[str, Tensor]]:
    """What the units compute: number → statistic → `[n, …]`, in the order of the data."""
    parts: dict[int, dict[str, list[Tensor]]] = {}
    for unit in units:
        for block in engine.run(unit, NEEDS):
            _collect(parts, block.chunks)
    return _joined(engine, parts)


def statistics_of_one(engine: Engine, number: int) -> dict[int, dict[str, Tensor]]:
    parts: dict[int, dict[str, list[Tensor]]] = {}
    for block in engine.statistics(number, NEEDS):
        _collect(parts, block.chunks)
    return _joined(engine, parts)


def _collect(parts: dict[int, dict[str, list[Tensor]]], chunks: Any) -> None:
    for numbers, kept in chunks:
        assert kept.passes in (2, PASSES, *POINTS)  # the plain placement needs two to say that there is no spread
        for i, number in enumerate(numbers):
            for read in READ:
                parts.setdefault(int(number), {}).setdefault(read, []).append(getattr(kept, read)[i])


def _joined(engine: Engine, parts: dict[int, dict[str, list[Tensor]]]) -> dict[int, dict[str, Tensor]]:
    places = _places(engine)
    return {
        number: {read: torch.cat(values)[places].double() for read, values in reads.items()}
        for number, reads in parts.items()
    }


def _places(engine: Engine) -> Tensor:
    """Where each example of the data is among those of the batches."""
    order = engine.session.data.order
    return torch.arange(engine.session.data.n) if order is None else order.argsort()


def close(first: Tensor, second: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(first.double(), second.double(), atol=tolerance, rtol=0)


def all_close(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert set(first) == set(second)
    for read in first:
        close(first[read], second[read], tolerance)


class StatisticsContract:
    """Inherit from it, name the subjects, and say how the engine is built."""

    subjects: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def build(session: Session, resolved: Sequence[ResolvedPlacement], passes: int) -> Engine:
        raise NotImplementedError

    @pytest.fixture
    def engine(self, name: str) -> Engine:
        return made(self.build, name)

    @pytest.fixture
    def whole(self, name: str) -> dict[int, dict[str, Tensor]]:
        """Statistics of everything there is."""
        return everything(self.build, name)

    def test_it_says_what_it_runs(self, engine: Engine, name: str) -> None:
        assert engine.name in ("shared", "loop", "analytic")
        assert engine.passes == PASSES
        assert len(engine.placements) == len(SUBJECTS[name].placements)
        assert engine.session.data.n == SUBJECTS[name].examples
        assert engine.compiles(asked=False) is False

    def test_units_hold_every_placement_exactly_once(self, engine: Engine) -> None:
        for kept in (0, 1, 1 << 30):
            numbers = [number for unit in engine.units(bytes_per_placement=kept) for number in unit.numbers]
            assert sorted(numbers) == list(range(len(engine.placements)))

    def test_a_unit_computes_its_placements_on_every_example(self, engine: Engine) -> None:
        for unit in engine.units():
            ids: list[Any] = []
            for block in engine.run(unit, {"sum_p"}):
                computed = [int(number) for numbers, _ in block.chunks for number in numbers]
                assert sorted(computed) == sorted({engine.equivalent(number) for number in unit.numbers})
                assert block.plain.shape[0] == block.batch.n
                assert all(kept.mean.shape[:2] == (len(numbers), block.batch.n) for numbers, kept in block.chunks)
                ids += block.batch.ids
            assert ids == engine.session.data.ids

    def test_only_computes_what_is_asked_for(self, engine: Engine, whole: dict[int, dict[str, Tensor]]) -> None:
        own = sorted({engine.equivalent(number) for number in range(len(engine.placements))})
        assert engine.only([]) == []
        for asked in ([own[0]], [own[-1]], own[::2], own):
            units = engine.only(asked)
            assert sorted(number for unit in units for number in unit.numbers) == asked
            found = statistics(engine, units)
            assert sorted(found) == asked
            for number in asked:
                all_close(found[number], whole[number], 1e-6)

    def test_batches_and_the_order_of_examples_change_nothing(
        self, engine: Engine, whole: dict[int, dict[str, Tensor]], name: str
    ) -> None:
        n = engine.session.data.n
        turned = [*range(1, n), 0]
        for changed in ({"batch_size": 1}, {"batch_size": n}, {"batch_size": 3, "order": turned}):
            other = engine_of(self.build, name, **changed)
            rows = changed.get("order", list(range(n)))
            found = statistics(other, other.units())
            assert sorted(found) == sorted(whole)
            for number, reads in whole.items():
                all_close(found[number], {read: value[rows] for read, value in reads.items()})

    def test_placements_with_noise_have_spread(self, whole: dict[int, dict[str, Tensor]], engine: Engine) -> None:
        for number, reads in whole.items():
            if engine.placements[number]:
                assert float(reads["class_variance"].max()) > 1e-8

    def test_cost_is_between_one_pass_and_all_of_them(self, engine: Engine) -> None:
        for number in range(len(engine.placements)):
            assert 1 <= engine.cost(number) <= PASSES + 1

    def test_ticks_count_every_prediction_once(self, engine: Engine) -> None:
        each = PASSES * engine.session.data.n
        ticks: list[int] = []
        for unit in engine.units():
            for _ in engine.run(unit, {"sum_p"}, ticks.append):
                pass
        assert sum(ticks) == len(engine.placements) * each
        for number in range(len(engine.placements)):
            ticks.clear()
            for _ in engine.statistics(number, {"sum_p"}, ticks.append):
                pass
            assert sum(ticks) == each

    def test_the_model_is_afterwards_what_it_was(self, name: str, untouched: Untouched) -> None:
        with untouched(model_of(name)):
            engine = engine_of(self.build, name)
            unit = engine.units()[0]
            next(iter(engine.run(unit, {"sum_p"})))  # left half way
            for _ in engine.run(unit, {"sum_p"}):
                pass
            engine.summary()

    def test_its_summary_prints(self, engine: Engine) -> None:
        summary = engine.summary()
        assert (summary.engine, summary.placements, summary.passes) == (engine.name, len(engine.placements), PASSES)
        assert summary.examples == engine.session.data.n
        assert 1 <= summary.computed <= summary.placements
        assert summary.seconds == sum(summary.stages.values()) > 0
        assert str(summary).startswith(f"engine: {engine.name}")
        assert f"{len(engine.placements)} placements × {PASSES} passes" in str(summary)


class EngineContract(StatisticsContract):
    """The same, of an engine that runs passes."""

    def test_run_equals_statistics_equals_statistics_of_samples(
        self, engine: Engine, whole: dict[int, dict[str, Tensor]], name: str
    ) -> None:
        plain = samples(made(loop, name), SUBJECTS[name].placements.index("none"))[0]
        for number in range(len(engine.placements)):
            source = engine.equivalent(number)
            alone = statistics_of_one(engine, number)
            assert list(alone) == [source]
            all_close(alone[source], whole[source], 1e-6)
            kept = from_passes(samples(engine, number), NEEDS, plain)
            all_close({read: getattr(kept, read) for read in READ}, whole[source])

    @pytest.mark.parametrize(
        "ranges",
        [(range(3), range(3, PASSES)), tuple(range(i, i + 1) for i in range(PASSES)), (range(5, PASSES), range(5))],
        ids=["two", "one by one", "the last first"],
    )
    def test_samples_do_not_depend_on_how_passes_are_split(self, engine: Engine, ranges: tuple[range, ...]) -> None:
        for number in range(len(engine.placements)):
            close(samples(engine, number, *ranges), samples(engine, number), 2e-6)

    def test_samples_of_all_are_the_samples_of_every_batch(self, engine: Engine) -> None:
        ticks: list[int] = []
        for number in range(len(engine.placements)):
            every = [
                (batch, block)
                for batch in engine.session.data.batches
                for block in engine.samples(number, batch, range(PASSES))
            ]
            for (batch, block), (of, other) in zip(engine.samples_of_all(number, ticks.append), every, strict=True):
                assert (batch is of, block.rows, block.first) == (True, other.rows, other.first)
                close(block.probabilities, other.probabilities, 1e-6)
        assert sum(ticks) == len(engine.placements) * PASSES * engine.session.data.n

    def test_it_equals_the_plain_loop(self, engine: Engine, whole: dict[int, dict[str, Tensor]], name: str) -> None:
        reference, slow = made(loop, name), everything(loop, name)
        for number in range(len(engine.placements)):
            close(samples(engine, number), samples(reference, number))
            all_close(whole[engine.equivalent(number)], slow[reference.equivalent(number)])

    def test_the_plain_placement_has_no_spread(self, engine: Engine, whole: dict[int, dict[str, Tensor]]) -> None:
        plain = [number for number, resolved in enumerate(engine.placements) if not resolved]
        assert plain
        for number in plain:
            p = samples(engine, number)
            assert float(p.std(0).max()) == 0
            reads = whole[engine.equivalent(number)]
            assert float(reads["class_variance"].abs().max()) == 0
            assert float(reads["max_variance"].abs().max()) == 0
            close(reads["mean"], p[0].movedim(1, -1), 1e-6)

    def test_equivalent_placements_are_equal(self, engine: Engine) -> None:
        for number in range(len(engine.placements)):
            source = engine.equivalent(number)
            assert source <= number
            assert engine.equivalent(source) == source
            if source != number:
                close(samples(engine, number), samples(engine, source), 1e-6)

    def test_ticks_count_every_sampled_prediction_once(self, engine: Engine) -> None:
        ticks: list[int] = []
        for number in range(len(engine.placements)):
            ticks.clear()
            for batch in engine.session.data.batches:
                for _ in engine.samples(number, batch, range(2, PASSES), ticks.append):
                    pass
            assert sum(ticks) == (PASSES - 2) * engine.session.data.n

    def test_the_model_is_what_it_was_after_samples(self, name: str, untouched: Untouched) -> None:
        with untouched(model_of(name)):
            samples(made(self.build, name), 0)
