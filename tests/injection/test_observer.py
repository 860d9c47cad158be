"""Loops that are watched: each known defect is written out as a small loop, and named by what was seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.errors import AuditFailed
from dropscope.injection.observer import Watch, watch
from support import zoo


class Classifier(nn.Module):
    """BatchNorm, a dropout module and a functional dropout: enough for every defect below."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.drop = nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Dropout(0.4)
        self.fc2, self.fc3 = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.norm(self.fc1(x))))
        x = F.dropout(torch.tanh(self.fc2(x)), 0.2, self.training)
        return self.fc3(x)


def classifier() -> nn.Module:
    return zoo.seeded(Classifier)


@torch.no_grad()
def loop(model: nn.Module, batch: Any, count: int = 8) -> None:
    for _ in range(count):
        model(**batch) if isinstance(batch, dict) else model(batch)


def toggle_dropout_modules(model: nn.Module) -> None:
    """What torch-uncertainty and most recipes do."""
    model.eval()
    for module in model.modules():
        if type(module).__name__.startswith("Dropout"):
            module.train()


def train_but_batchnorm(model: nn.Module) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def verdicts(seen: Watch) -> dict[str, str]:
    return {dropout.name: dropout.verdict for dropout in seen.dropouts}


# --- a sound loop -----------------------------------------------------------------------------------------------------


def test_a_sound_loop_is_ok() -> None:
    net = classifier()
    train_but_batchnorm(net)
    with watch(net) as seen:
        loop(net, zoo.vectors(32))
    assert verdicts(seen) == {"drop": "on", "root:dropout": "on"}
    assert (seen.forwards, seen.outputs_varied, seen.batchnorm_moved) == (8, True, [])
    assert [d.measured == pytest.approx(d.rate, abs=0.03) for d in seen.dropouts] == [True, True]
    assert seen.ok
    assert seen.raise_if_silent() is seen
    assert str(seen).startswith("8 forwards watched: ok\n")


def test_watching_changes_nothing(untouched: Callable[..., Any]) -> None:
    for net, x in (
        (classifier(), zoo.vectors()),
        (zoo.multihead(False), zoo.sequences()),
        (zoo.vision(), zoo.images()),
    ):
        train_but_batchnorm(net)
        torch.manual_seed(0)
        with torch.no_grad():
            alone = net(x), net(x)
        torch.manual_seed(0)
        with watch(net), torch.no_grad():
            watched = net(x), net(x)
        assert torch.equal(alone[0], watched[0])
        assert torch.equal(alone[1], watched[1])
        with untouched(net), torch.no_grad(), watch(net):
            pass


def test_an_exception_in_the_loop_comes_through(untouched: Callable[..., Any]) -> None:
    net = classifier()

    def fail() -> None:
        with watch(net):
            net(zoo.vectors())
            raise ZeroDivisionError

    with untouched(net), pytest.raises(ZeroDivisionError):
        fail()


def test_a_model_that_was_not_called_is_reported() -> None:
    with watch(classifier()) as seen:
        pass
    with pytest.raises(AuditFailed, match="the model was not called"):
        seen.raise_if_silent()


# --- the defects of the peers -----------------------------------------------------------------------------------------


def test_train_mode_was_forgotten() -> None:
    net = classifier()
    with watch(net) as seen:
        loop(net, zoo.vectors())
    assert seen.silent == ["drop", "root:dropout"]
    assert seen.outputs_varied is False
    with pytest.raises(
        AuditFailed, match=r"dropout stayed off in drop, root:dropout; the same example always gave the same output"
    ):
        seen.raise_if_silent()
    assert "SILENT: called with dropout off" in str(seen)


def test_functional_dropout_left_off() -> None:
    net = classifier()
    toggle_dropout_modules(net)
    with watch(net) as seen:
        loop(net, zoo.vectors())
    assert verdicts(seen) == {"drop": "on", "root:dropout": "SILENT: called with dropout off"}
    assert seen.outputs_varied is True
    with pytest.raises(AuditFailed, match=r"dropout stayed off in root:dropout$"):
        seen.raise_if_silent()


def test_train_mode_moves_batchnorm() -> None:
    net = classifier()
    with watch(net) as seen:
        net.train()
        loop(net, zoo.vectors())
    assert seen.batchnorm_moved == ["norm"]
    assert seen.silent == []
    with pytest.raises(AuditFailed, match="BatchNorm moved: norm"):
        seen.raise_if_silent()


def test_a_cache_that_returns_the_same_pass_every_time() -> None:
    """baal's MCCachingModule: a layer's input is kept, an in-place dropout writes into it, and T passes are one."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.drop, self.fc2 = nn.Linear(8, 64), nn.Dropout(0.4, inplace=True), nn.Linear(64, 3)
            self.kept: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.kept is None:
                self.kept = self.drop(self.fc1(x))
            return self.fc2(self.kept)

    net = zoo.seeded(Cached)
    net.drop.train()
    with watch(net) as seen:
        loop(net, zoo.vectors())
    assert seen.outputs_varied is False
    with pytest.raises(AuditFailed, match="the same example always gave the same output"):
        seen.raise_if_silent()


def test_the_batch_repeated_in_one_forward() -> None:
    net = classifier()
    train_but_batchnorm(net)
    with watch(net) as seen, torch.no_grad():
        net(zoo.vectors().repeat(8, 1))
    assert (seen.forwards, seen.outputs_varied, seen.ok) == (1, True, True)


def test_no_example_twice_says_nothing_of_variation() -> None:
    net = classifier()
    train_but_batchnorm(net)
    with watch(net) as seen, torch.no_grad():
        net(zoo.vectors())
    assert seen.outputs_varied is None
    assert "unknown (no example was seen twice)" in str(seen)
    assert seen.ok


def test_vmap_is_watched_without_harm() -> None:
    net = classifier()
    train_but_batchnorm(net)
    x = zoo.vectors()
    with watch(net) as seen, torch.no_grad():
        out = torch.vmap(lambda _: net(x), randomness="different")(torch.arange(6))
    assert out.shape == (6, 4, 3)
    assert float(out.std(0).min()) > 0
    assert seen.silent == []


def test_vmap_over_the_examples_is_watched_without_harm() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 3))).train()
    with watch(net) as seen, torch.no_grad():
        out = torch.vmap(net, randomness="different")(zoo.vectors())
    assert out.shape == (4, 3)
    assert seen.forwards == 1


FAMILIES = ["bert", "roberta", "electra", "albert", "distilbert", "gpt2"]


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_toggling_dropout_modules_leaves_attention_off(family: str, backend: str) -> None:
    """R1: the attention block reads its own training flag; both backends."""
    pytest.importorskip("transformers")
    net = zoo.hugging_face(family, backend, **zoo.DROPPING.get(family, {}))
    toggle_dropout_modules(net)
    with watch(net) as seen:
        loop(net, zoo.text(), 4)
    attention = [d for d in seen.dropouts if d.name.endswith("@weights")]
    assert attention
    assert {d.name for d in attention} == set(seen.silent)
    assert seen.outputs_varied is True
    with pytest.raises(AuditFailed, match=f"dropout stayed off in {attention[0].name}"):
        seen.raise_if_silent()
    with watch(net) as now:
        net.train()
        loop(net, zoo.text(), 8)
    assert now.silent == []
    assert now.ok, str(now)


@pytest.mark.parametrize("attention_too", [False, True])
def test_torchs_fused_encoder_layer_drops_nothing(attention_too: bool) -> None:
    """R5: in eval and without gradients torch runs the layer as one kernel, whatever its dropouts' flags say."""
    net, x = zoo.encoder(True), zoo.sequences()
    toggle_dropout_modules(net)
    if attention_too:
        for layer in net.encoder.layers:
            layer.self_attn.train()
    with torch.no_grad():
        assert torch.equal(net(x), net(x))
    with watch(net) as seen:
        loop(net, x)
    assert seen.outputs_varied is False
    names = ("self_attn@weights", "dropout1", "dropout", "dropout2")
    assert set(seen.silent) == {f"encoder.layers.{i}.{name}" for i in (0, 1) for name in names}


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_in_train_mode_is_ok(batch_first: bool) -> None:
    net = zoo.encoder(batch_first).train()
    with watch(net) as seen:
        loop(net, zoo.sequences(16))
    assert seen.ok, str(seen)
    assert len(seen.dropouts) == 8


def test_an_encoder_that_is_not_fused_is_seen_as_it_runs() -> None:
    """Sequence-first: torch takes the long way, and the toggled dropouts do run."""
    net, x = zoo.encoder(False), zoo.sequences()
    toggle_dropout_modules(net)
    with watch(net) as seen:
        loop(net, x)
    assert set(seen.silent) == {f"encoder.layers.{i}.self_attn@weights" for i in (0, 1)}
    assert seen.outputs_varied is True


# --- rates, dead dropouts, what cannot be seen ------------------------------------------------------------------------


def test_a_dropout_that_is_switched_off_half_way_is_reported() -> None:
    net = classifier()
    train_but_batchnorm(net)
    with watch(net) as seen:
        loop(net, zoo.vectors(), 4)
        net.drop.eval()
        loop(net, zoo.vectors(), 4)
    assert verdicts(seen)["drop"] == "on in 4 of 8 calls"


def test_a_dropout_that_nothing_calls_is_named_and_no_failure() -> None:
    pytest.importorskip("transformers")
    net = zoo.hugging_face("albert", hidden_dropout_prob=0.1).train()
    with watch(net) as seen:
        loop(net, zoo.text(), 3)
    dead = "albert.encoder.albert_layer_groups.0.albert_layers.0.dropout"
    assert verdicts(seen)[dead] == "SILENT: built, but nothing calls it"
    assert dead not in seen.silent


def test_inner_dropout_of_a_recurrent_layer_cannot_be_seen_and_that_is_said() -> None:
    net = zoo.recurrent().train()
    with watch(net) as seen:
        loop(net, zoo.tokens(16))
    assert verdicts(seen) == {"drop": "on"}
    assert "not seen from outside: rnn: dropout of rate 0.3" in str(seen)


def test_the_measured_rate_decides() -> None:
    """R7: a class whose field says .5 and that drops .2."""

    class SaysHalfDropout(nn.Module):
        p = 0.5

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.empty_like(x).bernoulli_(0.8) / 0.8 if self.training else x

    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 64), SaysHalfDropout(), nn.Linear(64, 3))).train()
    with watch(net) as seen:
        loop(net, zoo.vectors(16))
    (dropout,) = seen.dropouts
    assert dropout.measured == pytest.approx(0.2, abs=0.03)
    assert dropout.verdict.startswith("WRONG RATE: dropped")
    with pytest.raises(AuditFailed, match="1: WRONG RATE"):
        seen.raise_if_silent()


def test_a_config_changed_after_construction_has_no_effect_and_watch_shows_it() -> None:
    pytest.importorskip("transformers")
    net = zoo.hugging_face("bert", "sdpa").train()
    net.config.attention_probs_dropout_prob = net.config.hidden_dropout_prob = 0.5
    with watch(net) as seen:
        loop(net, zoo.text(8, padded=False), 6)
    assert {d.rate for d in seen.dropouts} == {0.1}
    assert all(d.measured == pytest.approx(0.1, abs=0.06) for d in seen.dropouts)
    assert seen.ok


@pytest.mark.parametrize("drop", [nn.Dropout2d(0.5), nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5)])
def test_dropouts_that_cannot_be_counted_unit_by_unit_raise_no_alarm(drop: nn.Module) -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), drop, nn.Flatten(), nn.Linear(4 * 14 * 14, 3))).train()
    with watch(net) as seen:
        loop(net, zoo.images())
    assert verdicts(seen) == {"1": "on"}
    assert seen.ok


def test_a_gaussian_dropout_of_somebody_is_no_wrong_rate() -> None:
    class GaussianDropout(nn.Module):
        p = 0.3

        def forward(self, x: Tensor) -> Tensor:
            return x * (1 + 0.6 * torch.randn_like(x)) if self.training else x

    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 64), GaussianDropout(), nn.Linear(64, 3))).train()
    with watch(net) as seen:
        loop(net, zoo.vectors(16))
    assert not verdicts(seen)["1"].startswith("WRONG RATE")


# --- regressions ------------------------------------------------------------------------------------------------------


def test_a_part_called_by_itself_does_no_harm() -> None:
    net = classifier()
    with watch(net) as seen, torch.no_grad():
        net.fc3(torch.zeros(2, 64))
    assert seen.forwards == 0


def test_a_model_whose_input_is_no_batch_is_watched() -> None:
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.drop = nn.Parameter(torch.ones(64)), nn.Dropout(0.5)

        def forward(self, scale: float) -> Tensor:
            return self.drop(self.start * scale)

    net = Nothing().train()
    with watch(net) as seen:
        for _ in range(4):
            net(2.0)
    assert verdicts(seen) == {"drop": "on"}
    assert seen.forwards == 4
