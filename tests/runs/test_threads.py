"""Several threads at once on one model: each gets what it would get alone, and the model is left as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.engine import choose_engine, open_session, sealed
from support import zoo

THREADS = 4


class Normed(nn.Module):
    """Dropout of its own, BatchNorm, and a model that is left in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(6 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.drop(self.norm(self.conv1(x)).relu().flatten(1)))


def images(n: int = 24) -> torch.Tensor:
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(3))


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each of them returns, all started together."""
    barrier = threading.Barrier(len(works))

    def started(work: Callable[[], Any]) -> Any:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(started, works))


@pytest.mark.parametrize("engine", ["shared", "loop"])
def test_uncertainty_in_threads_is_as_alone(engine: str) -> None:
    model, data = zoo.seeded(Normed).train(), (images(), torch.arange(24) % 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()

    def table(placement: str, seed: int) -> pd.DataFrame:
        return ds.uncertainty(model, placement, data, passes=12, seed=seed, engine=engine, batch_size=7, progress=False)

    asked = [("own", 0), ("conv1=0.4", 0), ("conv1=0.4", 1), ("none", 0)]
    alone = [table(*one) for one in asked]
    together = at_once(*(lambda one=one: table(*one) for one in asked))  # type: ignore[misc]
    for first, second in zip(alone, together, strict=True):
        pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(random_state, torch.get_rng_state())


@pytest.mark.parametrize("engine", ["shared", "loop"])
def test_samples_of_threads_that_start_on_a_new_model_at_once(engine: str) -> None:
    """Nothing is captured or found before they start."""
    alone = ds.sample(zoo.seeded(Normed), "conv1=0.4", images(), passes=6, engine=engine, progress=False)
    model = zoo.seeded(Normed)
    work = lambda: ds.sample(model, "conv1=0.4", images(), passes=6, engine=engine, progress=False)  # noqa: E731
    for drawn in at_once(*[work] * THREADS):
        torch.testing.assert_close(drawn, alone, rtol=0, atol=0)


@pytest.mark.parametrize("engine", ["shared", "loop"])
def test_one_engine_in_threads(engine: str) -> None:
    session = open_session(zoo.seeded(Normed), images(), batch_size=7)
    running = choose_engine(session, session.resolve(["conv1=0.4", "own"]), 6, engine)

    def drawn(number: int) -> list[torch.Tensor]:
        batches = running.session.data.batches
        return [block.probabilities for batch in batches for block in running.samples(number, batch, range(6))]

    alone = [drawn(number % 2) for number in range(THREADS)]
    together = at_once(*(lambda number=number: drawn(number % 2) for number in range(THREADS)))  # type: ignore[misc]
    for first, second in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_other_calls_beside_a_sweep() -> None:
    model, data = zoo.seeded(Normed), (images(), torch.arange(24) % 3)

    def swept() -> pd.DataFrame:
        return ds.sweep(model, ["conv1=0.2", "own"], data, passes=4, keep="none", progress=False).rows

    alone, audited = swept(), ds.audit(model, "own", images())
    rows, sites, audit, plain = at_once(
        swept, lambda: ds.find_sites(model, images()), lambda: ds.audit(model, "own", images()),
        lambda: model.eval()(images()).detach(),
    )  # fmt: skip
    pd.testing.assert_frame_equal(rows, alone, check_exact=True)
    assert audit == audited
    assert len(sites) == len(ds.find_sites(model, images()))
    torch.testing.assert_close(plain, model.eval()(images()).detach(), rtol=0, atol=0)


def test_precision_is_the_process_s_and_comes_back() -> None:
    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    seen: list[bool] = []

    def inside() -> None:
        for _ in range(50):
            with sealed():
                seen.append(torch.backends.cuda.matmul.allow_tf32)

    try:
        at_once(*[inside] * THREADS)
        assert not any(seen)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept
