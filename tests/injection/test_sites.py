"""Which sites a model has: exact names, kinds and positions for the zoo; own dropout; what is dead or out of reach."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.injection.sites import Site, SiteMap, examine, find_sites, require_sites
from dropscope.model.inputs import Call
from support import zoo
from support.errors import refused

LAYER = ("after_activation", "output", "before_activation", "input")
BARE = ("output", "input")


def rows(model: nn.Module, example: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(site.name, site.kind, site.positions) for site in find_sites(model, example)]


def by_name(model: nn.Module, example: Any) -> dict[str, Site]:
    return {site.name: site for site in find_sites(model, example)}


def mapped(model: nn.Module, example: Any) -> SiteMap:
    return examine(model, Call.of(example))


def own(model: nn.Module, example: Any) -> dict[str, float]:
    return {f"{p.name}#{p.call}@{p.position}": found.rate for p, found in mapped(model, example).own.items()}


# --- names, kinds and positions ---------------------------------------------------------------------------------------


def test_the_papers_network() -> None:
    """Functional activations; the pools after them stop the search, so each layer has its own four values."""
    expected = [(f"conv{i}", "conv", LAYER) for i in (1, 2, 3)] + [("fc1", "linear", LAYER), ("fc2", "head", BARE)]
    assert rows(zoo.cifar(), zoo.images()) == expected
    sites = by_name(zoo.cifar(), zoo.images())
    assert [sites[name].shape for name in ("conv1", "conv3", "fc1", "fc2")] == [(16, 16, 16), (64, 4, 4), (128,), (10,)]
    assert all(site.own_rate is None and site.role is None for site in sites.values())


def test_a_residual_network() -> None:
    """conv → BN → ReLU is the layer's; conv → BN → add → ReLU is the sum's; one ReLU module serves all of them."""
    block = ("output", "after_activation", "branch", "sum", "before_activation", "input")
    assert rows(zoo.resnet(), zoo.images()) == [
        ("conv1", "conv", LAYER),
        ("bn1", "norm", ("output",)),
        ("relu", "activation", ("output",)),
        ("layer1.conv1", "conv", LAYER),
        ("layer1.bn1", "norm", ("output",)),
        ("layer1.relu#0", "activation", ("output",)),
        ("layer1.conv2", "conv", BARE),
        ("layer1.bn2", "norm", ("output",)),
        ("layer1.relu#1", "activation", ("output",)),
        ("layer1", "residual", block),
        ("layer2.downsample.0", "conv", BARE),
        ("layer2.downsample.1", "norm", ("output",)),
        ("layer2.downsample", "block", BARE),
        ("layer2.conv1", "conv", LAYER),
        ("layer2.bn1", "norm", ("output",)),
        ("layer2.relu#0", "activation", ("output",)),
        ("layer2.conv2", "conv", BARE),
        ("layer2.bn2", "norm", ("output",)),
        ("layer2.relu#1", "activation", ("output",)),
        ("layer2", "residual", block),
        ("avgpool", "block", BARE),
        ("fc", "head", BARE),
    ]


def test_a_written_out_3d_unet() -> None:
    assert rows(zoo.unet3d(), zoo.volumes()) == [
        ("down1", "conv", LAYER),
        ("norm1", "norm", ("output",)),
        ("down2", "conv", LAYER),
        ("drop", "dropout", ("output",)),
        ("up", "conv", BARE),
        ("join", "conv", LAYER),
        ("out", "head", BARE),
    ]
    assert own(zoo.unet3d(), zoo.volumes()) == {"drop#0@output": 0.2}


def test_a_monai_unet() -> None:
    pytest.importorskip("monai")
    sites = by_name(zoo.monai_unet(), zoo.volumes())
    convolutions = [name for name, site in sites.items() if site.kind in ("conv", "head")]
    assert convolutions == [
        "model.0.residual",
        "model.0.conv.unit0.conv",
        "model.1.submodule.0.residual",
        "model.1.submodule.0.conv.unit0.conv",
        "model.1.submodule.1.submodule.residual",
        "model.1.submodule.1.submodule.conv.unit0.conv",
        "model.1.submodule.2.0.conv",
        "model.1.submodule.2.1.conv.unit0.conv",
        "model.2.0.conv",
        "model.2.1.conv.unit0.conv",
    ]
    assert sites["model.0.conv.unit0.conv"].positions == LAYER  # conv → BN → dropout → PReLU
    assert sites["model.2.1"].positions == ("output", "branch", "sum", "input")
    assert [site.name for site in sites.values() if site.kind == "head"] == ["model.2.1.conv.unit0.conv"]
    assert {name for name, site in sites.items() if site.own_rate == 0.2} == {n for n in sites if n.endswith(".D")}


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_recurrent_networks(cell: type[nn.RNNBase]) -> None:
    assert rows(zoo.recurrent(cell), zoo.tokens()) == [
        ("embed", "embedding", ("output",)),
        ("rnn", "recurrent", BARE),
        ("drop", "dropout", ("output",)),
        ("fc", "head", BARE),
    ]
    found = mapped(zoo.recurrent(cell), zoo.tokens())
    assert found.unreachable == ("rnn: dropout of rate 0.3 between its layers runs inside the recurrent kernel",)
    assert own(zoo.recurrent(cell), zoo.tokens()) == {"drop#0@output": 0.25}


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_encoder(batch_first: bool) -> None:
    """The same sites in both layouts; batch_first must not vanish into torch's fast path (R5)."""
    net, x = zoo.encoder(batch_first), zoo.sequences()
    layer = [
        ("self_attn", "attention", ("weights", "output", "input"), 0.2, "attention"),
        ("dropout1", "dropout", ("output",), 0.2, "residual"),
        ("norm1", "norm", ("output",), None, None),
        ("linear1", "linear", LAYER, None, None),
        ("dropout", "dropout", ("output",), 0.2, "ffn"),
        ("linear2", "ffn", BARE, None, None),
        ("dropout2", "dropout", ("output",), 0.2, "ffn"),
    ]
    sites = by_name(net, x)
    for i in (0, 1):
        for name, kind, positions, rate, role in layer:
            site = sites[f"encoder.layers.{i}.{name}"]
            assert (site.kind, site.positions, site.own_rate, site.role) == (kind, positions, rate, role), name
        assert sites[f"encoder.layers.{i}#0"].positions == ("output", "branch", "sum", "input")
        assert sites[f"encoder.layers.{i}#1"].positions == ("branch", "sum")
    assert sites["encoder.layers.0.self_attn"].shape == (4, 5, 5)
    assert sites["encoder.layers.0.linear1"].shape == (5, 32)
    layouts = {p.name: v.layout.batch_dim for p, v in mapped(net, x).values.items() if p.position == "output"}
    assert layouts["encoder.layers.0.linear1"] == (0 if batch_first else 1)
    assert layouts["fc"] == 0


def test_a_vision_transformer() -> None:
    sites = by_name(zoo.vision(), zoo.images())
    assert sites["patch"].positions == BARE
    assert sites["blocks.0#0"].positions == ("weights", "output", "branch", "sum", "input")
    assert sites["blocks.0#0"].shape == (2, 17, 17)
    assert (sites["blocks.0#0"].own_rate, sites["blocks.0#0"].role) == (0.1, "attention")
    assert (sites["blocks.1.fc1"].kind, sites["blocks.1.fc1"].positions) == ("linear", LAYER)
    assert sites["blocks.1.fc2"].kind == "ffn"
    assert sites["position"].shape == (17, 16)
    positions = [v.layout for p, v in mapped(zoo.vision(), zoo.images()).values.items() if p.name == "position"]
    assert [layout.batch_dim for layout in positions] == [None]


def test_functions_are_sites_too() -> None:
    assert rows(zoo.functional(), zoo.images()) == [
        ("root:conv2d", "conv", LAYER),
        ("root:dropout#0", "dropout", ("output",)),
        ("root:linear#0", "linear", LAYER),
        ("root:dropout#1", "dropout", ("output",)),
        ("root:linear#1", "head", BARE),
    ]
    assert own(zoo.functional(), zoo.images()) == {"root:dropout#0@output": 0.1, "root:dropout#1@output": 0.4}


# --- what auto means --------------------------------------------------------------------------------------------------


class Chain(nn.Module):
    """A convolution `a`, whatever comes after it, and a convolution `b`."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 2, 1)
        self.norm, self.pool, self.elu = nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.ELU(inplace=True)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.then(self, self.a(x)))


@pytest.mark.parametrize(
    ("then", "auto"),
    [
        (lambda net, x: x, "output"),
        (lambda net, x: F.relu(x), "after_activation"),
        (lambda net, x: x.relu(), "after_activation"),
        (lambda net, x: x.relu_(), "after_activation"),
        (lambda net, x: torch.tanh(x), "after_activation"),
        (lambda net, x: F.gelu(net.norm(x)), "after_activation"),
        (lambda net, x: net.elu(net.norm(x.contiguous())), "after_activation"),
        (lambda net, x: F.leaky_relu(net.norm(x), 0.1, True), "after_activation"),
        (lambda net, x: F.silu(x, inplace=True), "after_activation"),
        (lambda net, x: F.relu(net.pool(x)), "output"),
        (lambda net, x: F.relu(F.avg_pool2d(x, 2)), "output"),
        (lambda net, x: F.relu(x + 1.0), "output"),
        (lambda net, x: F.relu(torch.cat([x[:, :3], x[:, 3:]], 1)), "output"),
        (lambda net, x: F.relu(x.chunk(2, 1)[0]).repeat(1, 2, 1, 1), "output"),
    ],
)
def test_auto_is_after_the_activation_a_layer_feeds(then: Callable[..., Tensor], auto: str) -> None:
    assert by_name(zoo.seeded(lambda: Chain(then)), zoo.images())["a"].positions[0] == auto


def test_an_activation_that_belongs_to_no_layer_has_a_name_of_its_own() -> None:
    pooled = zoo.seeded(lambda: Chain(lambda net, x: F.relu(net.pool(x))))
    assert ("root:relu", "activation", ("output",)) in rows(pooled, zoo.images())


def test_an_activation_of_eight_operations_is_one_unit() -> None:
    """gelu_new: its inner tanh, sums and products are no values of their own."""
    pytest.importorskip("transformers")
    sites = by_name(zoo.hugging_face("gpt2"), zoo.text())
    assert sites["transformer.h.0.mlp.c_fc"].positions == LAYER
    assert sites["transformer.h.0.mlp.act"].positions == ("output",)
    assert not [name for name in sites if ":tanh" in name or "act@" in name]


def test_twelve_calls_of_one_shared_layer() -> None:
    pytest.importorskip("transformers")
    model = zoo.hugging_face("albert", num_hidden_layers=12)
    names = [site.name for site in find_sites(model, zoo.text())]
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    assert [n for n in names if n.startswith(f"{layer}.ffn#")] == [f"{layer}.ffn#{i}" for i in range(12)]
    assert [n for n in names if n.startswith(f"{layer}.attention#")] == [f"{layer}.attention#{i}" for i in range(12)]


def test_a_module_called_twice_is_numbered_and_a_module_called_once_is_not() -> None:
    pytest.importorskip("transformers")
    names = [site.name for site in find_sites(zoo.hugging_face("roberta"), zoo.text())]
    assert "classifier.dropout#0" in names
    assert "classifier.dropout#1" in names
    assert "classifier.out_proj" in names


def test_the_model_may_be_one_layer() -> None:
    assert rows(nn.Linear(4, 3), torch.zeros(2, 4)) == [("root", "head", BARE)]


# --- the model's own dropout ------------------------------------------------------------------------------------------


class Around(nn.Module):
    """A dropout between two layers, over feature maps [N, 6, 14, 14]."""

    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.conv, self.drop, self.fc = nn.Conv2d(3, 6, 3), drop, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.conv(x)).mean((2, 3)))


class Sequence(nn.Module):
    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.conv, self.drop, self.fc = nn.Conv1d(5, 6, 3), drop, nn.Linear(14, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.conv(x))).mean(1)


@pytest.mark.parametrize(
    ("drop", "mask", "noise"),
    [
        (nn.Dropout(0.3), "element", "bernoulli"),
        (nn.Dropout(0.3, inplace=True), "element", "bernoulli"),
        (nn.Dropout2d(0.3), "channel", "bernoulli"),
        (nn.AlphaDropout(0.3), "element", "alpha"),
        (nn.FeatureAlphaDropout(0.3), "channel", "alpha"),
        (zoo.StableDropout(0.3), "element", "bernoulli"),
        (zoo.SpatialDropout(0.3), "channel", "bernoulli"),
        (zoo.DropPath(0.3), "example", "bernoulli"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_every_kind_of_dropout_is_known(drop: nn.Module, mask: str, noise: str) -> None:
    found = mapped(zoo.seeded(lambda: Around(drop)), zoo.images())
    assert [(p.name, f.rate, f.mask, f.noise) for p, f in found.own.items()] == [("drop", 0.3, mask, noise)]
    assert found.dead == ()
    assert found.always_on == ()


def test_channel_dropouts_of_other_ranks_are_known() -> None:
    one = mapped(zoo.seeded(lambda: Sequence(nn.Dropout1d(0.3))), zoo.sequences())
    three = mapped(zoo.unet3d(), zoo.volumes())
    assert [(f.rate, f.mask) for f in (*one.own.values(), *three.own.values())] == [(0.3, "channel"), (0.2, "channel")]


def test_multihead_attention_has_a_rate_of_its_own() -> None:
    for batch_first in (True, False):
        site = by_name(zoo.multihead(batch_first), zoo.sequences())["attention"]
        assert (site.own_rate, site.positions[0], site.shape) == (0.4, "weights", (4, 5, 5))


def test_a_dropout_that_nothing_calls_is_dead() -> None:
    net = zoo.cifar()
    net.forgotten = nn.Dropout(0.5)
    assert mapped(net, zoo.images()).dead == ("forgotten",)


def test_a_dropout_whose_rate_an_attention_reads_is_not_dead() -> None:
    pytest.importorskip("transformers")
    for backend in ("eager", "sdpa"):
        assert mapped(zoo.hugging_face("bert", backend), zoo.text()).dead == ()


class AlwaysOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.relu(self.fc1(x)), 0.3)  # training=True is the default
        heads = hidden.unflatten(-1, (2, 4, 4))
        mixed = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2)
        return self.fc2(mixed.flatten(1))


def test_dropout_that_ignores_eval_is_found_and_off_in_a_plain_pass() -> None:
    found = mapped(zoo.seeded(AlwaysOn), zoo.vectors())
    assert found.always_on == ("root:dropout", "root")
    assert found.nondeterministic is False
    assert own(zoo.seeded(AlwaysOn), zoo.vectors()) == {"root:dropout#0@output": 0.3, "root#0@weights": 0.2}


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x + 0.1 * torch.randn_like(x))


def test_randomness_that_is_no_dropout_is_reported() -> None:
    assert mapped(zoo.seeded(Noisy), zoo.vectors()).nondeterministic is True


def test_layerdrop_and_spec_augment_are_reported() -> None:
    net = zoo.cifar()
    net.layerdrop = 0.05
    net.config = SimpleNamespace(apply_spec_augment=True, mask_time_prob=0.07)
    found = mapped(net, zoo.images())
    assert found.unreachable == ("Cifar: LayerDrop of rate 0.05", "config: SpecAugment of rate 0.07")
    assert (net.layerdrop, net.config.apply_spec_augment) == (0.05, True)


def test_layerdrop_in_the_config_is_layerdrop_too() -> None:
    net = zoo.seeded(zoo.SkipsLayers)
    net.config, net.layerdrop = SimpleNamespace(layerdrop=0.9), 0.0
    assert mapped(net, zoo.vectors()).unreachable == ("config: LayerDrop of rate 0.9",)
    assert net.config.layerdrop == 0.9


def test_layerdrop_hides_no_dropout() -> None:
    assert list(own(zoo.seeded(zoo.SkipsLayers), zoo.vectors()).values()) == [0.1] * 6


@pytest.mark.parametrize("change", ["config", "module"])
def test_the_rate_that_runs_counts_and_not_the_setting(change: str) -> None:
    """R7: a config changed after construction has no effect in BERT's hidden dropout; a changed module has."""
    pytest.importorskip("transformers")
    model = zoo.hugging_face("bert")
    if change == "config":
        model.config.hidden_dropout_prob = 0.7
    else:
        model.bert.embeddings.dropout.p = 0.7
    rate = by_name(model, zoo.text())["bert.embeddings.dropout"].own_rate
    assert rate == (0.1 if change == "config" else 0.7)


# --- nothing of the user's moves --------------------------------------------------------------------------------------


def test_finding_sites_touches_nothing(untouched: Callable[..., Any]) -> None:
    net = zoo.resnet().train()
    net.layer1.eval()
    with untouched(net):
        find_sites(net, zoo.images())


def test_a_failing_forward_touches_nothing(untouched: Callable[..., Any]) -> None:
    net = zoo.resnet().train()
    with untouched(net), refused("example") as caught:
        find_sites(net, zoo.vectors())
    assert "conv2d" in str(caught.value.received)
    assert "(2, 8) float32" in caught.value.remedy or "(4, 8) float32" in caught.value.remedy


def test_what_a_model_cannot_be_called_with_is_refused() -> None:
    with refused("example") as caught:
        find_sites(zoo.resnet(), "images.pt")
    assert caught.value.received == "str"


def test_a_model_without_a_place_for_noise_is_refused() -> None:
    require_sites(mapped(zoo.cifar(), zoo.images()))
    with refused("model"):
        require_sites(mapped(nn.Flatten(), zoo.images()))


def test_one_example_is_enough() -> None:
    for net, x in ((zoo.resnet(), zoo.images()), (zoo.encoder(False), zoo.sequences()), (zoo.vision(), zoo.images())):
        assert find_sites(net, x[:1]) == find_sites(net, x)


# --- regressions ------------------------------------------------------------------------------------------------------


class CallsTorch(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class ForcedDropout(nn.Module):
    """baal's: a dropout class of its own whose forward is F.dropout, always on."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, training=True)


@pytest.mark.parametrize("drop", [CallsTorch(0.3), ForcedDropout(0.3)])
def test_a_foreign_dropout_that_calls_torchs_is_one_dropout(drop: nn.Module) -> None:
    net = zoo.seeded(lambda: Around(drop))
    assert own(net, zoo.images()) == {"drop#0@output": 0.3}
    assert [name for name, _, _ in rows(net, zoo.images())] == ["conv", "drop", "fc"]


class PreNorm(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(8), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.norm(x))


class DropoutBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(F.relu(self.fc(x)))


def test_a_block_is_not_a_norm_or_a_dropout_because_of_its_name() -> None:
    net = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 8), PreNorm(nn.Linear(8, 8)), DropoutBlock(), nn.Linear(8, 2)))
    kinds = {name: kind for name, kind, _ in rows(net, zoo.vectors())}
    assert (kinds["1"], kinds["2"]) == ("block", "block")
    assert own(net, zoo.vectors()) == {"2.drop#0@output": 0.2}


def test_parametrized_weights_are_no_sites() -> None:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 2)).eval()
    assert rows(net, zoo.vectors()) == [("0", "linear", LAYER), ("1", "activation", ("output",)), ("2", "head", BARE)]


def test_a_gated_ffn_is_an_ffn() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.out = nn.Linear(8, 32), nn.Linear(16, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            value, gate = self.up(x).chunk(2, -1)
            return self.out(x + self.down(F.gelu(value) * gate))

    assert by_name(zoo.seeded(Gated), zoo.vectors())["down"].kind == "ffn"


def test_an_ffn_is_distinguished_from_two_linear_layers_of_other_widths() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    assert [(n, k) for n, k, _ in rows(net, zoo.vectors()) if k in ("ffn", "linear", "head")] == [
        ("0", "linear"),
        ("2", "ffn"),
        ("4", "head"),
    ]
