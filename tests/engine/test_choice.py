"""The choice of an engine: which one runs where, why it says so, and what is refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropscope.engine.choice import choose_engine
from dropscope.engine.engine import Engine
from dropscope.engine.loop import LoopEngine
from dropscope.engine.prices import estimate
from dropscope.engine.session import open_session
from dropscope.engine.shared import SharedEngine
from support import zoo
from support.engines import BranchingText
from support.errors import refused


class Mixing(BranchingText):
    """An example's answer depends on the others of its batch, so that folded passes would be other passes."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits = super().forward(input_ids, attention_mask)
        return logits - logits.mean(0)


def chosen(model: nn.Module, data: Any, text: str = "ffn=.3", engine: str = "auto", **options: Any) -> Engine:
    session = open_session(model, data, **options)
    return choose_engine(session, session.resolve([text]), 3, engine)


def test_the_shared_engine_runs_where_it_can() -> None:
    for engine in ("auto", "shared"):
        assert isinstance(chosen(zoo.cifar(), zoo.images(2), "fc1=.5", engine), SharedEngine)


@pytest.mark.parametrize("engine", ["loop", "reference"])
def test_the_loop_has_two_names(engine: str) -> None:
    found = chosen(zoo.cifar(), zoo.images(2), "fc1=.5", engine)
    assert isinstance(found, LoopEngine)
    assert (found.name, found.traced, found.fold) == ("loop", engine == "reference", engine == "loop")


def test_without_noise_the_loop_runs_and_says_why() -> None:
    found = chosen(zoo.cifar(), zoo.images(2), "none")
    assert found.name == "loop"
    assert "nothing to share" in str(found.summary())


def test_texts_that_cannot_be_captured_are_folded_and_sorted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dropscope"):
        found = chosen(zoo.seeded(BranchingText), zoo.text())
    assert isinstance(found, LoopEngine)
    assert found.fold
    assert found.session.data.order is not None
    assert "a value that noise changes" in found.reason
    assert [found.reason in record.getMessage() for record in caplog.records if record.name == "dropscope"] == [True]


def test_forwards_are_sized_by_the_budget_and_not_by_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(zoo.seeded(BranchingText), zoo.text())
    resolved = session.resolve(["ffn=.3"])

    def sizes(memory: int, free: int) -> list[int]:
        monkeypatch.setattr("dropscope.engine.loop.free_bytes", lambda device: free)
        engine = choose_engine(session, resolved, 6, memory=memory)
        batch, forwards = engine.session.data.batches[0], list[int]()
        assert sum(len(block.probabilities) for block in engine.samples(0, batch, range(6), forwards.append)) == 6
        return [predictions // batch.n for predictions in forwards]

    assert sizes(1 << 30, free=1) == sizes(1 << 30, free=1 << 40) != sizes(1, free=1 << 40) == [1] * 6


def test_passes_that_would_differ_run_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dropscope"):
        found = chosen(zoo.seeded(Mixing), zoo.text())
    assert isinstance(found, LoopEngine)
    assert not found.fold
    assert found.session.data.order is None
    assert any("one by one" in record.getMessage() for record in caplog.records)


def test_texts_padded_on_the_left_run_one_by_one() -> None:
    turned = {name: value.flip(1) for name, value in zoo.text().items()}
    found = chosen(zoo.seeded(BranchingText), turned)
    assert isinstance(found, LoopEngine)
    assert not found.fold


def test_half_precision_runs_in_the_loop() -> None:
    found = chosen(zoo.hugging_face("bert"), zoo.text(), precision="bf16")
    assert isinstance(found, LoopEngine)
    assert found.fold
    assert found.session.precision == "bf16"
    assert {p.dtype for p in found.session.running.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in found.session.model.parameters()} == {torch.float32}
    assert "bf16" in str(found.summary())
    images = chosen(zoo.cifar(), zoo.images(2), "fc1=.5", precision="bf16")
    assert isinstance(images, LoopEngine)
    assert images.fold  # they are few and small


def test_what_is_refused() -> None:
    with refused("engine") as caught:
        chosen(zoo.cifar(), zoo.images(2), "fc1=.5", "fast")
    assert caught.value.received == "fast"
    with refused("engine") as caught:
        chosen(zoo.seeded(BranchingText), zoo.text(), engine="shared")
    assert "a value that noise changes" in str(caught.value.received)
    with refused("engine") as caught:
        chosen(zoo.hugging_face("bert"), zoo.text(), engine="shared", precision="bf16")
    assert "fp32" in caught.value.remedy


def test_a_run_that_is_done_before_a_capture_is_left_to_the_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("DROPSCOPE_CAPTURE")
    session = open_session(zoo.cifar(), zoo.images(2))
    resolved = session.resolve(["fc1=.5"])
    with caplog.at_level(logging.INFO, logger="dropscope"):
        short = choose_engine(session, resolved, 3)
    assert isinstance(short, LoopEngine)
    assert "capture" in short.reason
    assert short.reason in str(short.summary())
    assert any(short.reason in record.getMessage() for record in caplog.records)
    assert isinstance(choose_engine(session, resolved, 3, "shared"), SharedEngine)
    assert isinstance(choose_engine(session, resolved, 3), SharedEngine)  # it is captured now
    assert isinstance(choose_engine(session, resolved, 3, fixed=True), LoopEngine)  # as in another process


def test_a_long_run_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DROPSCOPE_CAPTURE")
    session = open_session(zoo.cifar(), zoo.images(2))
    assert isinstance(choose_engine(session, session.resolve(["fc1=.5"]), 100_000), SharedEngine)


def test_the_estimate_is_a_matter_of_counted_work() -> None:
    session = open_session(zoo.cifar(), zoo.images(4), batch_size=2)
    resolved = session.resolve(["fc1=.5", "conv1=.2"])
    once, again, longer = (estimate(session, resolved, passes) for passes in (10, 10, 20))
    assert once == again
    assert longer.loop == pytest.approx(2 * once.loop)
    assert longer.capture == once.capture
    more = estimate(session, [*resolved, *resolved], 10)
    assert more.loop == pytest.approx(2 * once.loop)
