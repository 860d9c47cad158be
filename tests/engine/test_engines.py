"""Every engine under the one contract: the plain loop, the same with folded passes, the shared tree, no passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

pytest.register_assert_rewrite("engine.contract")

from dropscope.engine.analytic import AnalyticEngine  # noqa: E402
from dropscope.engine.engine import Engine  # noqa: E402
from dropscope.engine.loop import LoopEngine  # noqa: E402
from dropscope.engine.session import Session  # noqa: E402
from dropscope.engine.shared import SharedEngine  # noqa: E402
from dropscope.injection.resolution import ResolvedPlacement  # noqa: E402
from engine.contract import SUBJECTS, EngineContract, StatisticsContract, loop  # noqa: E402


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a contract runs on every subject of its class."""
    if metafunc.cls is not None and "name" in metafunc.fixturenames:
        metafunc.parametrize("name", metafunc.cls.subjects)


class TestLoop(EngineContract):
    subjects: ClassVar[tuple[str, ...]] = (
        "cnn", "own noise", "rate-in", "resnet", "unet", "lstm", "many labels", "stratified", "bert",
    )  # fmt: skip
    build = staticmethod(loop)


class TestFoldedLoop(EngineContract):
    """Texts in order of length, several passes of a batch in one forward, in more than one forward."""

    subjects: ClassVar[tuple[str, ...]] = ("bert", "gpt2", "deberta", "stratified texts")

    @staticmethod
    def build(session: Session, resolved: Sequence[ResolvedPlacement], passes: int) -> Engine:
        in_pairs = session.with_data(session.data.length_sorted(lambda _: 2))
        return LoopEngine(in_pairs, resolved, passes, fold=True, tokens=120)

    def test_passes_are_folded_and_texts_sorted(self, engine: Engine, name: str) -> None:
        lengths = [int(length) for batch in engine.session.data.batches for length in batch.lengths]
        assert lengths == sorted(lengths)
        assert engine.session.data.order is not None
        ffn = SUBJECTS[name].placements.index("ffn=.3")
        batch = max(engine.session.data.batches, key=lambda batch: batch.n)
        assert batch.n == 2
        forwards: list[int] = []
        assert sum(len(block.probabilities) for block in engine.samples(ffn, batch, range(7), forwards.append)) == 7
        assert forwards == [4, 4, 4, 2]


class TestShared(EngineContract):
    subjects: ClassVar[tuple[str, ...]] = (
        "cnn", "own noise", "resnet", "unet", "lstm", "sequence first", "many labels", "stratified",
        "bert", "gpt2", "deberta", "stratified texts",
    )  # fmt: skip

    @staticmethod
    def build(session: Session, resolved: Sequence[ResolvedPlacement], passes: int) -> Engine:
        return SharedEngine.build(session, resolved, passes, memory=1 << 20)  # little: many blocks


class TestAnalytic(StatisticsContract):
    subjects: ClassVar[tuple[str, ...]] = ("last layer", "last layer of texts")
    build = staticmethod(AnalyticEngine.build)
