"""The audit says ok of what is sound, over many seeds, and names what is not: every defect here is planted."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.errors import AuditFailed
from dropscope.injection import injector
from dropscope.injection.audits import Audit, Audited, audit, audit_resolved, audit_union
from dropscope.injection.resolution import ResolvedPlacement, resolve
from dropscope.injection.sites import examine
from dropscope.injection.tally import Tally, disagreement, state_mark
from dropscope.model.inputs import Call
from dropscope.noise import keyed
from dropscope.noise.keyed import Layout
from dropscope.placement.noises import register_noise
from dropscope.placement.placement import Placement
from support import noises, zoo
from support.errors import refused

# --- closed form ------------------------------------------------------------------------------------------------------


def test_counting_drops_leaves_out_what_was_zero_before() -> None:
    tally = Tally()
    before = torch.tensor([[0.0, 1.0, -2.0, 3.0], [0.0, 0.0, 4.0, 5.0]])
    after = torch.tensor([[0.0, 0.0, -4.0, 6.0], [0.0, 0.0, 0.0, 10.0]])
    tally.add(before, after, "element", None)
    assert (tally.units, tally.dropped, tally.rate, tally.total) == (5, 2, 0.4, 6.0)
    assert tally.variance == 1.0


def test_counting_channels() -> None:
    tally, before = Tally(), torch.rand(2, 3, 4, 4) - 0.5
    mask = torch.tensor([[0.0, 2.0, 2.0], [2.0, 0.0, 0.0]])
    tally.add(before, before * mask[:, :, None, None], "channel", Layout(0, 1, 1))
    assert (tally.units, tally.dropped) == (6, 3)


@pytest.mark.parametrize("sites", [1, 200])
def test_the_interval_is_clopper_pearsons(sites: int) -> None:
    """For no drop among n units the upper end is 1 − (α/2)^(1/n), for nothing but drops the lower end (α/2)^(1/n)."""
    edge = (1e-6 / sites / 2) ** (1 / 100)
    none, every = Tally(100, 0, 100.0), Tally(100, 100, 0.0)
    wrong = disagreement(none, 1 - edge + 1e-4, "bernoulli", sites)
    assert wrong is not None
    assert f"between 0.0000 and {1 - edge:.4f}" in wrong
    assert "dropped" not in (disagreement(none, 1 - edge - 1e-4, "bernoulli", sites) or "")
    wrong = disagreement(every, edge - 1e-4, "bernoulli", sites)
    assert wrong is not None
    assert f"between {edge:.4f} and 1.0000" in wrong
    assert disagreement(every, edge + 1e-4, "bernoulli", sites) is None


@pytest.mark.parametrize(
    ("noise", "rate"),
    [
        ("bernoulli", 0.01),
        ("bernoulli", 0.5),
        ("gaussian", 0.1),
        ("gaussian", 0.9),
        ("multinomial", 0.1),
        ("multinomial", 0.5),
    ],
)
def test_sound_sites_raise_no_alarm(noise: str, rate: float) -> None:
    """R31: 200 sites, 20 seeds."""
    value, sites = torch.ones(8, 64), torch.arange(200).repeat_interleave(8)
    for seed in range(20):
        keys = keyed.streams(seed, keyed.site_key("site", 0), sites, torch.arange(8).repeat(200))
        disturbed = keyed.disturb(value.repeat(200, 1), keys, rate, noise, "element", Layout())
        for after in disturbed.split(8):
            tally = Tally()
            tally.add(value, after, "element", None)
            assert disagreement(tally, rate, noise, 200) is None


@pytest.mark.parametrize("mask", ["element", "channel", "example"])
@pytest.mark.parametrize(("noise", "rate"), [("bernoulli", 0.3), ("gaussian", 0.5), ("gaussian", 0.9)])
def test_sound_feature_maps_raise_no_alarm(noise: str, rate: float, mask: str) -> None:
    """The factor of a feature map may be negative; the maps differ in sign and size, and one is 0 throughout."""
    value = torch.randn(256, 16, 5, 5) * torch.linspace(0, 2, 16)[:, None, None]
    keys = keyed.streams(3, 1, torch.tensor(0), torch.arange(256))
    tally, layout = Tally(), Layout(0, 1, 1)
    tally.add(value, keyed.disturb(value, keys, rate, noise, mask, layout), mask, layout)
    assert tally.units == {"element": 256 * 15 * 25, "channel": 256 * 15, "example": 256}[mask]
    assert disagreement(tally, rate, noise, 200) is None


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian", "multinomial"])
def test_a_realistically_wrong_rate_is_an_alarm(noise: str) -> None:
    value = torch.ones(32, 256)
    keys = keyed.streams(0, 1, torch.tensor(0), torch.arange(32))
    for done, asked in ((0.1, 0.2), (0.2, 0.1), (0.5, 0.4)):
        tally = Tally()
        tally.add(value, keyed.disturb(value, keys, done, noise, "element", Layout()), "element", None)
        assert disagreement(tally, done, noise, 200) is None
        assert disagreement(tally, asked, noise, 200) is not None


# --- the contract -----------------------------------------------------------------------------------------------------

SOUND = [
    pytest.param(zoo.cifar, zoo.images, "all=0.3", id="cnn"),
    pytest.param(zoo.cifar, zoo.images, "all=0.3 mask=element", id="cnn-element"),
    pytest.param(zoo.cifar, zoo.images, "conv@input=0.3,fc1@output=0.5,fc2=0.1", id="cnn-positions"),
    pytest.param(zoo.cifar, zoo.images, "all=0.3 noise=gaussian", id="cnn-gaussian"),
    pytest.param(zoo.cifar, zoo.images, "all=0.3 noise=multinomial", id="cnn-multinomial"),
    pytest.param(zoo.cifar, zoo.images, "all=0.3 noise=even_noise", id="cnn-own"),
    pytest.param(zoo.cifar, zoo.images, "conv1=0.3,conv2=0.05 noise=block_noise mask=element", id="cnn-blocks"),
    pytest.param(zoo.cifar, zoo.images, "all=rate_in(0.3)", id="cnn-rate-in"),
    pytest.param(lambda: zoo.encoder(True), zoo.sequences, "attention=rate_in(0.3),ffn=0.2", id="encoder-rate-in"),
    pytest.param(zoo.resnet, zoo.images, "conv=0.2,residual=0.1,layer1@sum=0.3", id="resnet"),
    pytest.param(zoo.unet3d, zoo.volumes, "own,last=0.2", id="unet3d"),
    pytest.param(zoo.recurrent, zoo.tokens, "own,recurrent=0.3,embedding=0.1", id="lstm"),
    pytest.param(lambda: zoo.encoder(True), zoo.sequences, "own", id="encoder"),
    pytest.param(lambda: zoo.encoder(False), zoo.sequences, "attention=0.4", id="encoder-sequence-first"),
    pytest.param(zoo.multihead, zoo.sequences, "own", id="multihead"),
    pytest.param(zoo.vision, zoo.images, "own,ffn=0.2,position=0.3", id="vision"),
    pytest.param(zoo.functional, zoo.images, "own,root:linear#0=0.2", id="functional"),
    pytest.param(zoo.cifar, zoo.images, "none", id="plain"),
]


assert noises.even_noise  # registered with its fellows


def test_dropout_by_information_is_measured_by_what_it_loses() -> None:
    before = torch.tensor([[0.0, 1.0, -2.0, 3.0], [0.0, 0.0, 4.0, 5.0]])
    tally = Tally()
    tally.add(before, before * torch.tensor([2.0, 0.0, 2.0, 2.0]), "element", None)
    assert tally.loss == 1 / 55
    finding = audit(zoo.cifar(), "fc1=rate_in(0.3)", zoo.images(8)).findings[0]
    assert (finding.noise, finding.asked, finding.ok) == ("rate_in", 0.3, True)
    assert finding.measured is not None
    assert 0.2 < finding.measured < 0.4


def test_noise_of_a_users_own_is_told_as_it_is() -> None:
    """The rate that its variance implies where it drops nothing, else the dropped fraction; neither is judged."""
    net, data = zoo.cifar(), zoo.images(8)
    (smooth,) = audit(net, "fc1@input=0.3 noise=even_noise", data).findings
    assert (smooth.noise, smooth.asked) == ("even_noise", 0.3)
    assert smooth.measured == pytest.approx(0.3, abs=0.02)
    found = audit(net, "conv1=0.3 noise=block_noise mask=element", data)
    assert found.ok
    assert not found.remarks
    assert 0.2 < (found.findings[0].measured or 0) < 0.3  # blocks overlap, and at the border they are cut


@pytest.mark.parametrize(("noise", "says"), [("idle_noise", "1"), ("broken_noise", "finite"), ("batch_noise", "batch")])
def test_noise_of_a_users_own_that_cannot_mean_what_it_says_fails(noise: str, says: str) -> None:
    found = audit(zoo.cifar(), f"fc1@input=0.3 noise={noise}", zoo.images(8))
    assert not found.ok
    assert says in (found.findings[0].problem or "")


def test_noise_of_a_users_own_that_shifts_the_mean_is_remarked() -> None:
    register_noise(lambda uniforms, rate: (uniforms >= rate).float(), name="unscaled_noise")
    found = audit(zoo.cifar(), "fc1@input=0.3 noise=unscaled_noise", zoo.images(8))
    assert found.ok
    assert any("unscaled_noise" in remark and "divide" in remark for remark in found.remarks)


def test_what_a_users_own_noise_calls_is_no_part_of_the_model() -> None:
    """Activations and dropouts inside the function are neither followed nor disturbed."""

    def busy(uniforms: Tensor, rate: float) -> Tensor:
        return F.dropout(F.relu(uniforms), 0.5, training=False) + 0.5

    register_noise(busy, name="busy_noise")
    register_noise(lambda uniforms, rate: uniforms + 0.5, name="calm_noise")
    net, data = zoo.functional(), zoo.images()
    outputs = []
    for name in ("busy_noise", "calm_noise"):
        with torch.no_grad(), injector.injected(net, f"all=0.3 noise={name}"):
            outputs.append(net(data))
    assert torch.equal(*outputs)


@pytest.mark.parametrize(("build", "data", "text"), SOUND)
def test_sound_noise_is_ok(
    build: Callable[[], nn.Module], data: Callable[[], Tensor], text: str, untouched: Callable[..., Any]
) -> None:
    net = build().train()
    with untouched(net):
        found = audit(net, text, data())
    assert found.ok, str(found)
    assert all(finding.fired and finding.effect and finding.units > 0 for finding in found.findings)
    assert found.raise_if_failed() is found


def test_a_monai_network_is_ok() -> None:
    pytest.importorskip("monai")
    for text in ("own", "conv=0.2"):
        assert audit(zoo.monai_unet(), text, zoo.volumes()).ok


def test_many_sites_over_many_seeds_are_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    """R31 for the whole audit: it must not cry wolf."""
    net = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(20)], nn.Linear(8, 3))
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight)
            nn.init.constant_(module.bias, 0.3)
    x, placement = zoo.vectors(8), Placement.parse("all@output=0.02")
    site_map = examine(net.eval(), Call((x,)))
    resolved = resolve(placement, site_map)
    monkeypatch.setattr(sys.modules["dropscope.injection.audits"], "_EFFECTS_AT_MOST", 0)
    for seed in range(20):
        found = audit_resolved(Audited(net, site_map, Call((x,)), seed), resolved, placement)
        assert not [f for f in found.findings if f.problem and "rate between" in f.problem], str(found)


@pytest.mark.parametrize("seed", range(10))
def test_few_units_at_a_low_rate_raise_no_alarm(seed: int) -> None:
    """One example, eight units, rate .01: in most audits nothing is dropped, and passes are alike by accident."""
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)))
    assert audit(net, "last=0.01", zoo.vectors(1), seed=seed).ok


def test_the_table() -> None:
    """Sites in call order, though groups were resolved first."""
    shown = str(audit(zoo.cifar(), "conv1=0.3,last=0.5", zoo.images(8)))
    lines = shown.splitlines()
    assert lines[0] == "audit of 'conv1=0.3,last=0.5': ok"
    assert lines[1].split() == ["site", "noise", "asked", "measured", "units", "fired", "effect"]
    assert re.fullmatch(r"  conv1@after_activation +bernoulli +0\.300 +0\.\d{4} +\d+  yes +yes", lines[2])
    assert re.fullmatch(r"  fc2@input +bernoulli +0\.500 +0\.\d{4} +\d+  yes +yes", lines[3])


def test_gaussian_noise_is_measured_by_its_variance() -> None:
    (finding,) = audit(zoo.cifar(), "fc1@output=0.4 noise=gaussian", zoo.images(8)).findings
    assert finding.measured == pytest.approx(0.4, abs=0.03)


# --- planted defects --------------------------------------------------------------------------------------------------


def planted(monkeypatch: pytest.MonkeyPatch, defect: Callable[..., Tensor]) -> None:
    sound = keyed.disturb
    monkeypatch.setattr(injector, "disturb", lambda *args: defect(sound, *args))


def at_half_the_rate(sound: Any, value: Tensor, keys: Tensor, rate: float, *rest: Any) -> Tensor:
    return sound(value, keys, rate / 2, *rest)


def not_at_all(sound: Any, value: Tensor, *rest: Any) -> Tensor:
    return value.clone()


def the_same_mask_in_every_pass(sound: Any, value: Tensor, keys: Tensor, *rest: Any) -> Tensor:
    return sound(value, torch.arange(len(keys)), *rest)


def the_keep_probability_for_the_rate(sound: Any, value: Tensor, keys: Tensor, rate: float, *rest: Any) -> Tensor:
    return sound(value, keys, 1 - rate, *rest)


def without_rescaling(sound: Any, value: Tensor, keys: Tensor, rate: float, *rest: Any) -> Tensor:
    return sound(value, keys, rate, *rest) * (1 - rate)


def units_for_channels(
    sound: Any, value: Tensor, keys: Tensor, rate: float, kind: str, mask: str, layout: Layout
) -> Tensor:
    return sound(value, keys, rate, kind, "element", layout)


@pytest.mark.parametrize(
    ("defect", "text", "message"),
    [
        (at_half_the_rate, "conv2=0.4", "conv2@after_activation: dropped"),
        (at_half_the_rate, "fc1=0.2", "a rate between"),
        (at_half_the_rate, "fc1=0.4 noise=gaussian", "factors vary by"),
        (not_at_all, "fc1=0.3", "identical"),
        (the_same_mask_in_every_pass, "fc1=0.3", "the outputs of different passes are identical"),
        (the_keep_probability_for_the_rate, "fc1=0.3", "a rate between"),
        (without_rescaling, "fc1=0.3", r"kept units are scaled by 1\.0000, not 1\.4286"),
        (without_rescaling, "conv1=0.3", r"kept units are scaled by 1\.0000, not 1\.4286"),
        (units_for_channels, "conv1=0.3", "a rate between"),
    ],
)
def test_a_planted_defect_fails_the_audit(
    defect: Any, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, defect)
    found = audit(zoo.cifar(), text, zoo.images(8))
    assert not found.ok
    with pytest.raises(AuditFailed, match=message):
        found.raise_if_failed()


def test_a_site_that_does_not_fire_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    wants = injector.Noise.wants
    monkeypatch.setattr(injector.Noise, "wants", lambda self, point: wants(self, point) and point.name != "conv2")
    found = audit(zoo.cifar(), "conv1=0.3,conv2=0.3", zoo.images(8))
    assert [(f.site, f.fired, f.problem) for f in found.findings if not f.ok] == [
        ("conv2@after_activation", False, "it did not fire")
    ]
    assert "conv2@after_activation" in str(found)
    with pytest.raises(AuditFailed, match="conv2@after_activation: it did not fire"):
        found.raise_if_failed()


def test_noise_whose_result_is_thrown_away_has_no_effect() -> None:
    found = audit(zoo.seeded(zoo.Deaf), "unused=0.5,last=0.5", zoo.vectors())
    assert {f.site: f.problem for f in found.findings} == {
        "unused@output": "the output does not depend on it",
        "fc@input": None,
    }


def test_batchnorm_that_moves_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(self: injector.Noise, call: Call) -> None:
        sound(self, call)
        self._model.bn1.training = True

    sound = injector.Noise.begin
    monkeypatch.setattr(injector.Noise, "begin", begin)
    found = audit(zoo.resnet(), "conv=0.3", zoo.images())
    assert {"bn1.running_mean moved", "bn1.running_var moved"} <= set(found.problems)


def test_a_parameter_that_moves_fails() -> None:
    class Learns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.fc.bias.add_(0.0)
            return self.fc(x)

    assert audit(zoo.seeded(Learns), "last=0.5", zoo.vectors()).problems == ("fc.bias moved",)


def test_other_randomness_fails_and_leaves_the_random_state_alone() -> None:
    class Jitters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x + 0.1 * torch.randn_like(x))

    state = torch.get_rng_state()
    found = audit(zoo.seeded(Jitters), "last=0.5", zoo.vectors())
    assert torch.equal(state, torch.get_rng_state())
    assert found.problems == ("two plain passes differ: there is randomness that no site stands for",)


def test_a_draw_without_effect_is_only_remarked() -> None:
    """Wav2Vec2 draws for its LayerDrop in eval too, and then leaves no layer out."""
    state = torch.get_rng_state()
    found = audit(zoo.seeded(zoo.SkipsLayers), "own", zoo.vectors(8))
    assert torch.equal(state, torch.get_rng_state())
    assert found.ok, str(found)
    assert len(found.findings) == 6
    assert "not reproduced by 'own': SkipsLayers: LayerDrop of rate 0.9" in found.remarks
    assert any("without effect on a plain pass" in remark for remark in found.remarks)


def test_weights_too_small_for_their_type_are_not_counted() -> None:
    """Swin masks with -100: its masked weights are subnormal, and a factor on them is lost in rounding."""
    tally, before = Tally(), torch.full((4, 64), 1e-44)
    before[:, :32] = 0.5
    tally.add(before, before * (1 / 0.9), "element", None)
    assert (tally.units, tally.dropped) == (128, 0)
    assert tally.total / tally.units == pytest.approx(1 / 0.9)


# --- own, and what is said beside it ----------------------------------------------------------------------------------


class Drops(nn.Module):
    def __init__(self, drop: nn.Module, activate: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.conv, self.drop, self.fc, self.activate = nn.Conv2d(3, 16, 3), drop, nn.Linear(16, 4), activate

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.activate(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize("activate", [F.relu, F.selu, torch.tanh])
@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.3),
        nn.Dropout2d(0.3),
        nn.AlphaDropout(0.3),
        nn.FeatureAlphaDropout(0.3),
        zoo.StableDropout(0.3),
        zoo.SpatialDropout(0.3),
        zoo.DropPath(0.3),
    ],
    ids=lambda d: type(d).__name__,
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_own_of_every_dropout_class_is_ok(drop: nn.Module, activate: Any, seed: int) -> None:
    found = audit(zoo.seeded(lambda: Drops(drop, activate)), "own", zoo.images(8), seed=seed)
    assert found.ok, str(found)
    assert [(f.site, f.asked) for f in found.findings] == [("drop@output", 0.3)]


@pytest.mark.parametrize("drop", [nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)])
def test_alpha_noise_at_a_wrong_rate_fails(drop: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, at_half_the_rate)
    assert not audit(zoo.seeded(lambda: Drops(drop)), "own", zoo.images(8)).ok


def test_own_where_all_rates_are_zero_is_refused() -> None:
    """R3: GPT-Neo's fields default to 0."""
    pytest.importorskip("transformers")
    with refused("placement") as caught:
        audit(zoo.hugging_face("gpt-neo"), "own", zoo.text())
    assert "all at rate 0" in caught.value.received
    assert "attention=0.1" in caught.value.remedy


def test_own_that_lives_in_the_head_alone_is_remarked() -> None:
    """R3, R4: ALBERT's defaults are 0, 0 and .1, and its FFN dropout is never called."""
    pytest.importorskip("transformers")
    found = audit(zoo.hugging_face("albert"), "own", zoo.text())
    assert found.ok
    assert [f.site for f in found.findings] == ["dropout@output"]
    assert any("only live dropout is in the classifier head" in text for text in found.remarks)
    assert (
        "albert.encoder.albert_layer_groups.0.albert_layers.0.dropout is a dropout that is never called"
        in found.remarks
    )
    everywhere = audit(zoo.hugging_face("albert", **zoo.DROPPING["albert"]), "own", zoo.text())
    assert not any("classifier head" in text for text in everywhere.remarks)


def test_inner_dropout_of_a_recurrent_layer_is_remarked() -> None:
    (remark,) = [r for r in audit(zoo.recurrent(), "own", zoo.tokens()).remarks if "recurrent kernel" in r]
    assert remark.startswith("not reproduced by 'own': rnn: dropout of rate 0.3")
    assert not audit(zoo.recurrent(), "last=0.3", zoo.tokens()).remarks


def test_dropout_that_ignores_eval_is_switched_off_and_remarked() -> None:
    class Always(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = F.dropout(self.fc1(x), 0.3)
            return self.fc2(F.scaled_dot_product_attention(x, x, x, dropout_p=0.2)).mean(1)

    net = zoo.seeded(Always)
    for text in ("last=0.3", "own", "none"):
        found = audit(net, text, zoo.sequences())
        assert found.ok, str(found)
        assert {r.split()[0] for r in found.remarks if "runs in eval mode too" in r} == {"root:dropout", "root"}


class GaussianDropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.randn_like(x) * (self.p / (1 - self.p)) ** 0.5) if self.training else x


class MislabelledDropout(nn.Module):
    """`p` is what it keeps."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 1 - self.p, self.training)


class HandwrittenKeep(MislabelledDropout):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty_like(x).bernoulli_(self.p) / self.p if self.training else x


def test_a_class_that_is_called_dropout_and_is_none_is_not_replaced_by_one() -> None:
    with refused("placement") as caught:
        audit(zoo.seeded(lambda: Drops(GaussianDropout(0.3))), "own", zoo.images())
    assert "drop: GaussianDropout" in caught.value.received


@pytest.mark.parametrize("drop", [MislabelledDropout(0.8), type("KeepDropout", (HandwrittenKeep,), {})(0.8)])
def test_what_a_dropout_does_counts_and_not_what_its_field_says(drop: nn.Module) -> None:
    """R7."""
    (finding,) = audit(zoo.seeded(lambda: Drops(drop)), "own", zoo.images(8)).findings
    assert finding.asked == pytest.approx(0.2, abs=1e-4)


# --- the audit itself -------------------------------------------------------------------------------------------------


def test_more_sites_than_can_be_tried_one_by_one_are_still_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["dropscope.injection.audits"], "_EFFECTS_AT_MOST", 1)
    found = audit(zoo.cifar(), "all=0.3", zoo.images())
    assert found.ok
    assert {f.effect for f in found.findings} == {None}


def test_a_map_that_is_given_is_not_made_again() -> None:
    net, x = zoo.cifar(), zoo.images()
    site_map = examine(net, Call.of(x))
    known, placement = replace(site_map, dead=("planted",)), Placement.parse("last=0.5")
    found = audit_resolved(Audited(net, known, Call.of(x)), resolve(placement, known), placement)
    assert found.remarks == ("planted is a dropout that is never called",)


def test_state_marks_see_a_write_of_equal_size() -> None:
    net = zoo.resnet()
    before = state_mark(net)
    net.bn1.running_mean[0] += 1e-6
    moved = [name for name, mark in state_mark(net).items() if before[name] != mark]
    assert moved == ["bn1.running_mean"]


def test_what_a_model_cannot_be_called_with_is_refused() -> None:
    with refused("example"):
        audit(zoo.cifar(), "fc1=0.5", "images.pt")


# --- many placements at once ------------------------------------------------------------------------------------------


def union_of(net: nn.Module, x: Tensor, texts: list[str]) -> None:
    site_map = examine(net, Call.of(x))
    placements = [Placement.parse(text) for text in texts]
    audit_union(Audited(net, site_map, Call.of(x)), [resolve(p, site_map) for p in placements], placements)


def test_many_sound_placements_pass() -> None:
    texts = ["none", "conv1=0.1", "conv1=0.5,fc1=0.2", "all=0.3", "all=0.3 mask=element", "fc1@output=0.2", "last=0.4"]
    union_of(zoo.cifar(), zoo.images(8), texts)


def test_nothing_to_audit_passes() -> None:
    union_of(zoo.cifar(), zoo.images(8), [])
    union_of(zoo.cifar(), zoo.images(8), ["none"])


@pytest.mark.parametrize("order", [1, -1])
def test_a_failed_audit_names_the_placement_that_asked_for_the_site(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep's failed audit used to name a placement that nobody had asked for."""
    wants = injector.Noise.wants
    monkeypatch.setattr(injector.Noise, "wants", lambda self, point: wants(self, point) and point.name != "conv2")
    texts = ["conv1=0.3", "conv2=0.2,fc1=0.1", "fc1=0.5"][::order]
    with pytest.raises(AuditFailed, match=r"'conv2=0\.2,fc1=0\.1' failed: conv2@after_activation: it did not fire$"):
        union_of(zoo.cifar(), zoo.images(8), texts)


def test_of_several_rates_the_one_nearest_to_a_half_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the placement that asks for it is named."""
    planted(monkeypatch, without_rescaling)
    with pytest.raises(AuditFailed, match=r"'fc1=0\.4' failed: .*not 1\.6667"):
        union_of(zoo.cifar(), zoo.images(8), ["fc1=0.05", "fc1=0.4", "fc1=0.8"])


def test_positions_and_styles_of_one_site_are_tried_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def spy(audited: Audited, resolved: ResolvedPlacement, placement: Placement) -> Audit:
        seen.append(sorted(f"{point.address} {spec.noise} {spec.mask}" for point, spec in resolved.items()))
        return audit_resolved(audited, resolved, placement)

    monkeypatch.setattr(sys.modules["dropscope.injection.audits"], "audit_resolved", spy)
    texts = ["fc1=0.2,conv1=0.2", "fc1@output=0.2", "fc1=0.2 noise=gaussian", "conv1=0.4"]
    union_of(zoo.cifar(), zoo.images(8), texts)
    assert seen == [
        ["conv1@after_activation bernoulli channel", "fc1@after_activation bernoulli element"],
        ["fc1@output bernoulli element"],
        ["fc1@after_activation gaussian element"],
    ]


def test_a_problem_of_the_whole_model_fails_too() -> None:
    class Learns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.fc.bias.add_(0.0)
            return self.fc(x)

    with pytest.raises(AuditFailed, match=r"'last=0\.5' failed: fc\.bias moved"):
        union_of(zoo.seeded(Learns), zoo.vectors(), ["last=0.5"])
