"""The architectures that people use: which engine runs their placements, and that it equals the loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import Untouched
from dropscope.engine.choice import choose_engine
from dropscope.engine.engine import Engine
from dropscope.engine.loop import LoopEngine
from dropscope.engine.session import Session, open_session
from dropscope.injection.resolution import ResolvedPlacement
from support.architectures import ARCHITECTURES, placement
from support.errors import refused

PASSES = 2


def passes_of(engine: Engine, number: int) -> Tensor:
    """`[passes, n, classes, …]` of the one batch there is."""
    return torch.cat([block.probabilities for _, block in engine.samples_of_all(number)])


def resolved(session: Session, names: list[str]) -> list[ResolvedPlacement]:
    return session.resolve([placement(name, session.site_map.sites) for name in names])


def together(session: Session, names: list[str]) -> list[list[str]]:
    """Placements to plan in one go. Where attention is a kernel, noise on its weights makes another graph."""
    config = getattr(session.model, "config", None)
    if config is not None and config._attn_implementation != "sdpa":
        return [names] if names else []
    on_weights = {name: any(point.position == "weights" for point in resolved(session, [name])[0]) for name in names}
    groups = [[name for name in names if on_weights[name] is kind] for kind in (True, False)]
    return [group for group in groups if group]


def test_there_are_enough_of_every_kind() -> None:
    kinds = [entry.kind for entry in ARCHITECTURES.values()]
    assert len(kinds) >= 40
    assert set(kinds) == {"text", "vision", "audio", "tabular", "volume", "recurrent", "experts", "attention"}


def test_the_shared_engine_runs_nine_in_ten_placements() -> None:
    shared = sum(len(entry.shared.split()) for entry in ARCHITECTURES.values())
    loop = sum(len(entry.loop) for entry in ARCHITECTURES.values())
    assert shared >= 0.9 * (shared + loop)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_expected_engine_runs_and_equals_the_loop(name: str, untouched: Untouched) -> None:
    entry = ARCHITECTURES[name]
    model, inputs, options = entry.build()
    with untouched(model):
        session = open_session(model, inputs, **options)
        for names in together(session, entry.shared.split()):
            noises = resolved(session, names)
            shared, loop = choose_engine(session, noises, PASSES, "shared"), LoopEngine(session, noises, PASSES)
            for number, one in enumerate(names):
                fast, slow = passes_of(shared, number), passes_of(loop, number)
                torch.testing.assert_close(fast, slow, atol=1e-5, rtol=0, msg=lambda text, one=one: f"{one}: {text}")
                assert not torch.equal(slow[0], slow[1]), one
        for one, reason in entry.loop.items():
            with refused("engine") as error:
                choose_engine(session, resolved(session, [one]), PASSES, "shared")
            assert reason in str(error.value), one
