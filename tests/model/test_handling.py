"""Unwrapping, refusing what has its flags baked in, and giving back flags, random state and shadows as they were."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.model import handling
from support import zoo
from support.errors import refused


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))


class Compiled(nn.Module):
    """What torch.compile puts around a model, without compiling anything."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner


def test_a_plain_module_is_itself() -> None:
    net = linear()
    assert handling.unwrap(net) is net


@pytest.mark.parametrize("wrap", [nn.DataParallel, Compiled, torch.compile, lambda m: Compiled(nn.DataParallel(m))])
def test_wrappers_come_off(wrap: Any) -> None:
    net = linear()
    assert handling.unwrap(wrap(net)) is net


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("bake", [torch.jit.script, lambda m: torch.jit.trace(m.eval(), torch.zeros(1, 4))])
def test_scripted_models_are_refused(bake: Any) -> None:
    with refused("model") as caught:
        handling.unwrap(bake(linear()))
    assert "pass the nn.Module" in caught.value.remedy
    with refused("model") as caught:
        handling.unwrap(nn.Sequential(bake(linear()), nn.Linear(4, 2)))
    assert str(caught.value.received).endswith("as '0'")


def test_exported_and_traced_graphs_are_refused() -> None:
    program = torch.export.export(linear().eval(), (torch.zeros(1, 4),))
    graph = torch.fx.symbolic_trace(linear())
    for baked in (program, program.module(), graph, nn.Sequential(graph)):
        with refused("model") as caught:
            handling.unwrap(baked)
        assert "pass the nn.Module" in caught.value.remedy


@pytest.mark.parametrize("thing", [None, "model.pt", torch.zeros(3), linear().state_dict(), nn.Linear])
def test_what_is_no_module_is_refused(thing: object) -> None:
    with refused("model") as caught:
        handling.unwrap(thing)
    assert caught.value.received == type(thing).__name__


def test_flags_come_back_one_by_one() -> None:
    net = zoo.resnet().train()
    net.layer1.eval()
    net.layer2.bn1.eval()
    flags = {name: module.training for name, module in net.named_modules()}

    def run() -> None:
        with handling.evaluating(net):
            assert not any(module.training for module in net.modules())
            net.layer2.train()
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert {name: module.training for name, module in net.named_modules()} == flags


def test_random_state_comes_back_after_an_exception() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002 - the global state is meant

    def run() -> None:
        with handling.random_state_kept():
            draw()
            raise KeyError

    state = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    with pytest.raises(KeyError):
        run()
    first = draw()
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])  # noqa: NPY002
    random.setstate(state[2])
    assert draw() == first


def test_a_shadow_shares_weights_and_nothing_else() -> None:
    net = zoo.resnet()
    copied = handling.shadow(net)
    assert all(a is b for a, b in zip(net.parameters(), copied.parameters(), strict=True))
    assert not {id(b) for b in net.buffers()} & {id(b) for b in copied.buffers()}
    copied.train()
    copied(zoo.images())
    assert not any(module.training for module in net.modules())
    assert int(net.bn1.num_batches_tracked) == 0


def test_a_shadow_keeps_shared_modules_shared() -> None:
    layer = nn.Linear(4, 4)
    copied = handling.shadow(nn.ModuleList([layer, layer]))
    assert copied[0] is copied[1]


def test_a_shadow_leaves_other_peoples_hooks_on() -> None:
    net = linear()
    net[0].register_forward_hook(lambda module, args, output: output + 1)
    copied = handling.shadow(net.eval())
    x = torch.ones(1, 4)
    assert torch.equal(net(x), copied(x))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_weight_that_is_computed_before_each_forward_has_a_shadow() -> None:
    """torch.nn.utils.weight_norm leaves a tensor with a graph on the module, which deepcopy refuses."""
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    net(torch.ones(1, 4))
    copied = handling.shadow(net)
    assert torch.equal(copied(torch.ones(1, 4)), net(torch.ones(1, 4)))


def test_one_device() -> None:
    assert handling.device_of(linear()) == torch.device("cpu")
    assert handling.device_of(nn.ReLU()) == torch.device("cpu")
    split = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with refused("model") as caught:
        handling.device_of(split)
    assert caught.value.received == ["cpu", "meta"]


# --- state ------------------------------------------------------------------------------------------------------------


class Counts(nn.Module):
    """Moves its buffers in every forward, and with `max_norm` its weights."""

    def __init__(self, max_norm: float | None = None) -> None:
        super().__init__()
        self.words, self.a = nn.Embedding(8, 16, max_norm=max_norm), nn.Linear(16, 3)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.replaced = self.replaced + 1
        return self.a(self.words(x).mean(1))


def test_a_model_that_moves_in_every_forward_is_refused_and_comes_back(untouched: Any) -> None:
    model = Counts().eval()
    x = torch.arange(24).reshape(6, 4) % 8
    with untouched(model):
        assert len(ds.find_sites(model, x)) > 0
        assert "calls moved" in str(ds.audit(model, "words=0.5", x))
        for run in (ds.sweep, ds.uncertainty):
            with pytest.raises(ds.AuditFailed, match="moved"):
                run(model, "words=0.5", (x, torch.arange(6) % 3), passes=2)


def test_weights_that_a_forward_rescales_come_back() -> None:
    model = Counts(max_norm=0.5).eval()
    before = model.words.weight.detach().clone()
    with pytest.raises(ds.AuditFailed, match=r"words.weight moved"):
        ds.sweep(model, "words=0.5", (torch.arange(24).reshape(6, 4) % 8, torch.arange(6) % 3), passes=2)
    assert torch.equal(model.words.weight, before)


def test_what_cannot_be_copied_is_shared(untouched: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    model.lock = threading.Lock()
    model[0].held = {"lock": threading.Lock()}
    copied = handling.shadow(model)
    assert copied.lock is model.lock
    assert copied[0].weight is model[0].weight
    x = torch.randn(6, 4)
    with untouched(model):
        assert ds.audit(model, "0=0.5", x).ok


def test_a_lazy_layer_without_weights_is_refused() -> None:
    with refused("model") as caught:
        ds.find_sites(nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)), torch.randn(2, 4))
    assert "lazy" in str(caught.value.received)


def test_weights_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    assert ds.audit(model, "0=0.5", torch.randn(6, 4)).ok
