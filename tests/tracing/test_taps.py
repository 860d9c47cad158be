"""Taps: points reached by hooks and counted functions, with the values that a tracer shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.engine.session import open_session
from dropscope.injection import disturbed
from dropscope.injection.resolution import ResolvedPlacement, SiteNoise
from dropscope.tracing import TapsMissed, locate
from support import zoo


class InPlace(nn.Module):
    """Activations and sums that write into what they are given, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        branch = F.relu(self.twice(x), inplace=True)
        branch += x
        return self.last(self.act(self.twice(branch)))


class Fickle(nn.Module):
    """Calls an activation once more for large inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first(x))
        if float(x.abs().max()) > 100:
            hidden = F.relu(hidden - 1)
        return self.last(hidden)


def everywhere(session: Any) -> ResolvedPlacement:
    noise = {point: SiteNoise(0.2, "bernoulli", "element", v.layout) for point, v in session.site_map.values.items()}
    assert noise
    return noise


def output(session: Any, resolved: ResolvedPlacement, taps: Any) -> Tensor:
    batch = session.data.batches[0]
    with torch.no_grad(), disturbed(session.running, resolved, session.site_map, taps=taps) as noise:
        noise.at(pass_=3, ids=batch.keys)
        found = batch.call.run(session.running)
    return found if isinstance(found, Tensor) else found["logits"]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "in place": (InPlace, zoo.vectors),
    "functions": (zoo.cifar, zoo.images),
    "residual": (zoo.resnet, zoo.images),
    "attention": (lambda: zoo.hugging_face("bert"), zoo.text),
    "fused layers": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(32, 3)),
        lambda: torch.randn(3, 4, 8),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_taps_show_what_the_tracer_shows(name: str) -> None:
    build, inputs = MODELS[name]
    session = open_session(zoo.seeded(build), inputs())
    resolved = everywhere(session)
    taps = locate(session.running, session.data.batches[0].call, resolved)
    assert taps is not None
    ways = [resolved, *({point: spec} for point, spec in resolved.items())]
    for some in ways:
        assert torch.equal(output(session, some, None), output(session, some, taps))


def test_a_forward_that_goes_another_way_is_refused() -> None:
    session = open_session(zoo.seeded(Fickle), zoo.vectors(3))
    resolved = session.resolve(["first=.3"])[0]
    taps = locate(session.running, session.data.batches[0].call, resolved)
    with disturbed(session.running, resolved, session.site_map, taps=taps):
        session.running(torch.ones(2, 8))
        with pytest.raises(TapsMissed):
            session.running(torch.full((2, 8), 1000.0))
        session.running(torch.ones(2, 8))
    assert not session.running._forward_hooks
    assert not session.running._forward_pre_hooks


def test_an_error_in_the_model_leaves_no_mode_behind() -> None:
    session = open_session(zoo.seeded(Fickle), zoo.vectors(3))
    resolved = session.resolve(["first=.3"])[0]
    taps = locate(session.running, session.data.batches[0].call, resolved)
    with disturbed(session.running, resolved, session.site_map, taps=taps), pytest.raises(RuntimeError):
        session.running(torch.ones(2, 7))
    assert torch.overrides._len_torch_function_stack() == 0
