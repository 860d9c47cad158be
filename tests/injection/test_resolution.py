"""Placements resolved on a model: groups, precedence, `own`, masks, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.injection.resolution import SiteNoise, resolve
from dropscope.injection.sites import SiteMap, examine
from dropscope.model.inputs import Call
from dropscope.placement.placement import Placement
from dropscope.tracing.visitor import Point
from support import zoo
from support.errors import refused


def site_map(model: nn.Module, example: Any) -> SiteMap:
    return examine(model, Call.of(example))


def rates(text: str, found: SiteMap) -> dict[str, float]:
    return {point.address: round(spec.rate, 9) for point, spec in resolve(Placement.parse(text), found).items()}


@pytest.fixture(scope="module")
def cifar() -> SiteMap:
    return site_map(zoo.cifar(), zoo.images())


@pytest.fixture(scope="module")
def bert() -> SiteMap:
    pytest.importorskip("transformers")
    return site_map(zoo.hugging_face("bert"), zoo.text())


@pytest.fixture(scope="module")
def unet() -> SiteMap:
    return site_map(zoo.unet3d(), zoo.volumes())


BERT = "bert.encoder.layer"


def test_a_site_is_its_auto_position(cifar: SiteMap) -> None:
    assert rates("conv2=.7,fc1=.4", cifar) == {"conv2@after_activation": 0.7, "fc1@after_activation": 0.4}
    resolved = resolve(Placement.parse("conv2=.7"), cifar)
    assert set(resolved) == {Point("conv2", 0, "after_activation")}


def test_every_position_by_name(cifar: SiteMap) -> None:
    for position in ("input", "output", "before_activation", "after_activation"):
        assert rates(f"conv1@{position}=.3", cifar) == {f"conv1@{position}": 0.3}


def test_the_plain_placement_is_empty(cifar: SiteMap) -> None:
    assert resolve(Placement.none(), cifar) == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "all=.2",
            ["conv1@after_activation", "conv2@after_activation", "conv3@after_activation", "fc1@after_activation"],
        ),
        ("conv=.2", ["conv1@after_activation", "conv2@after_activation", "conv3@after_activation"]),
        ("conv@input=.2", ["conv1@input", "conv2@input", "conv3@input"]),
        ("linear=.2", ["fc1@after_activation"]),
        ("last=.2", ["fc2@input"]),
        ("head=.2", ["fc2@input"]),
    ],
)
def test_groups_of_the_papers_network(text: str, names: list[str], cifar: SiteMap) -> None:
    assert rates(text, cifar) == dict.fromkeys(names, 0.2)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("attention=.2", [f"{BERT}.{i}.attention.self@weights" for i in (0, 1)]),
        ("ffn=.2", [f"{BERT}.{i}.output.dense@output" for i in (0, 1)]),
        ("residual=.2", [f"{BERT}.{i}.{part}@branch" for i in (0, 1) for part in ("attention.output", "output")]),
        ("embedding=.2", ["bert.embeddings.dropout@output"]),
        ("last=.2", ["classifier@input"]),
    ],
)
def test_groups_of_bert(text: str, names: list[str], bert: SiteMap) -> None:
    assert rates(text, bert) == dict.fromkeys(names, 0.2)


@pytest.mark.parametrize("shortcut", ["pad", "cat", "pool"])
def test_the_residual_group_has_every_block(shortcut: str) -> None:
    """Also those whose shortcut pads, slices or pools, as where ResNet-20 halves the size of its maps."""
    found = site_map(zoo.cifar_resnet(shortcut), zoo.images())
    blocks = [f"layer{i}.{j}@branch" for i in (1, 2, 3) for j in range(3)]
    assert list(rates("residual=.2", found)) == blocks


def test_a_sum_of_what_was_read_and_what_is_remembered_is_no_residual() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.kept, self.fc = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            state = self.kept(x[:, 0])
            for t in range(1, x.shape[1]):
                state = torch.tanh(self.kept(state) + self.seen(x[:, t]) + x[:, t])
            return self.fc(state)

    with refused("placement"):
        rates("residual=.2", site_map(zoo.seeded(Cell), zoo.sequences()))


def test_the_recurrent_group() -> None:
    assert rates("recurrent=.2", site_map(zoo.recurrent(), zoo.tokens())) == {"rnn@output": 0.2}


def test_last_is_the_input_of_the_final_layer_of_a_dense_model(unet: SiteMap) -> None:
    assert rates("last=.2", unet) == {"out@input": 0.2}


# --- who wins ---------------------------------------------------------------------------------------------------------


def test_an_explicit_site_wins_over_its_group(cifar: SiteMap) -> None:
    assert rates("conv=.2,conv2=.5", cifar) == {
        "conv1@after_activation": 0.2,
        "conv2@after_activation": 0.5,
        "conv3@after_activation": 0.2,
    }
    assert "conv2@after_activation" not in rates("all=.2,conv2=0", cifar)


def test_a_call_wins_over_a_site() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    twice = nn.Sequential(net, net, nn.Linear(8, 2)).eval()
    found = site_map(twice, zoo.vectors())
    assert rates("0.0=.2,0.0#1=.5", found) == {"0.0@after_activation": 0.2, "0.0#1@after_activation": 0.5}
    assert rates("0.0#1=.5", found) == {"0.0#1@after_activation": 0.5}
    with refused("placement") as caught:
        rates("0.0#2=.5", found)
    assert caught.value.received == "0.0#2"


def test_a_group_wins_over_own(bert: SiteMap) -> None:
    mixed = rates("own,attention=.6", bert)
    assert {rate for name, rate in mixed.items() if name.endswith("@weights")} == {0.6}
    assert {rate for name, rate in mixed.items() if not name.endswith("@weights")} == {0.1}


def test_a_group_that_is_also_a_site_must_be_distinguished() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.more, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.more(F.relu(self.conv(x))).mean((2, 3)))

    found = site_map(zoo.seeded(Named), zoo.images())
    site, group = {"conv@after_activation": 0.2}, {"conv@after_activation": 0.2, "more@output": 0.2}
    with refused("placement") as caught:
        rates("conv=.2", found)
    assert "conv@after_activation=0.2" in caught.value.remedy
    assert "all.conv=0.2" in caught.value.remedy
    assert rates("conv@after_activation=.2", found) == rates("conv#0=.2", found) == site
    assert rates("all.conv=.2", found) == group
    assert rates("all.conv=.2,conv@after_activation=0", found) == {"more@output": 0.2}
    with refused("placement") as caught:
        rates("head=.2", found)
    assert "head@output=0.2" in caught.value.remedy
    assert rates("all.head=.2", found) == rates("last=.2", found) == {"head@input": 0.2}


def test_a_name_whose_group_has_no_sites_here_is_the_site() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(F.relu(self.conv1(x)).mean((2, 3)))

    found = site_map(zoo.seeded(Classifier), zoo.images())
    assert rates("linear=.2", found) == {"linear@output": 0.2}
    with refused("placement"):
        rates("all.linear=.2", found)


def test_a_site_and_a_group_of_one_name_that_are_the_same_are_no_question() -> None:
    found = site_map(zoo.multihead(), zoo.sequences())
    assert rates("attention=.2", found) == rates("all.attention=.2", found) == {"attention@weights": 0.2}


# --- own --------------------------------------------------------------------------------------------------------------


def test_own_is_what_train_mode_runs(bert: SiteMap, unet: SiteMap) -> None:
    layers = [
        f"{BERT}.{i}.{part}"
        for i in (0, 1)
        for part in ("attention.self@weights", "attention.output.dropout@output", "output.dropout@output")
    ]
    expected = ["bert.embeddings.dropout@output", *layers, "dropout@output"]
    assert rates("own", bert) == dict.fromkeys(expected, 0.1)
    assert rates("own*2", bert) == dict.fromkeys(expected, 0.2)
    assert resolve(Placement.parse("own"), unet)[Point("drop", 0, "output")].mask == "channel"


def test_a_part_of_own(bert: SiteMap) -> None:
    assert rates("own.attention*3", bert) == {f"{BERT}.{i}.attention.self@weights": 0.3 for i in (0, 1)}
    assert rates("own.head", bert) == {"dropout@output": 0.1}
    assert rates("own.embedding", bert) == {"bert.embeddings.dropout@output": 0.1}
    both = rates("own,own.attention*0", bert)
    assert not [name for name in both if name.endswith("@weights")]
    assert len(both) == 6


def test_own_scaled_to_one_or_more_is_refused(bert: SiteMap) -> None:
    with refused("rate of 'bert.embeddings.dropout'") as caught:
        rates("own*10", bert)
    assert caught.value.received == 1.0
    assert "less than 10" in caught.value.remedy


def test_own_without_dropout_says_why(cifar: SiteMap) -> None:
    forgetful, recurrent = zoo.cifar(), zoo.recurrent()
    forgetful.forgotten = nn.Dropout(0.5)
    recurrent.drop.p = 0.0
    for found, reason in (
        (cifar, "none of it"),
        (site_map(forgetful, zoo.images()), "forgotten is never called"),
        (site_map(recurrent, zoo.tokens()), "1 dropouts, all at rate 0"),
    ):
        with refused("placement") as caught:
            rates("own", found)
        assert caught.value.received == reason
        assert rates(caught.value.remedy.split()[-1], found), "the remedy is a placement that this model takes"


def test_remedies_name_what_the_model_has() -> None:
    found = site_map(zoo.resnet(), zoo.images())
    for text in ("own", "attention=.1", "ffn=.1", "embedding=.1"):
        with refused("placement") as caught:
            rates(text, found)
        assert "attention" not in caught.value.remedy
        assert rates(caught.value.remedy.split()[-1], found)
    with refused("placement") as caught:
        rates("embeding=.1", found)
    assert "embedding" not in caught.value.remedy


def test_a_part_of_own_that_is_not_there_names_the_parts_that_are(bert: SiteMap) -> None:
    with refused("placement") as caught:
        rates("own.recurrent", bert)
    assert caught.value.received == "none in 'recurrent', but in attention, embedding, ffn, head, residual"


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "received", "says"),
    [
        ("cnv1=.2", "placement", "cnv1", "Did you mean 'conv1'"),
        ("conv1.weight=.2", "placement", "conv1.weight", "Did you mean 'conv1'"),
        ("conv1@weights=.2", "position", "weights", "after_activation, output"),
        ("fc2@after_activation=.2", "position", "after_activation", "output, input"),
        ("attention=.2", "placement", "attention=0.2", "conv, linear, head"),
        ("conv@weights=.2", "position", "weights", "after_activation, output"),
        ("conv1#1=.2", "placement", "conv1#1", "#1"),
    ],
)
def test_what_names_nothing_is_refused(text: str, name: str, received: str, says: str, cifar: SiteMap) -> None:
    with refused(name) as caught:
        rates(text, cifar)
    assert caught.value.received == received
    assert says in str(caught.value)


def test_a_placement_that_ends_up_with_nothing_live_is_refused(cifar: SiteMap) -> None:
    with refused("placement") as caught:
        rates("last=.2,fc2@input=0", cifar)
    assert "fc2@input=0" in str(caught.value.received)


# --- masks and noises -------------------------------------------------------------------------------------------------


def noise(text: str, found: SiteMap) -> SiteNoise:
    (spec,) = resolve(Placement.parse(text), found).values()
    return spec


@pytest.mark.parametrize("position", ["output", "before_activation", "after_activation"])
def test_convolutions_drop_whole_channels_by_default(position: str, cifar: SiteMap) -> None:
    spec = noise(f"conv2@{position}=.2", cifar)
    assert (spec.mask, spec.layout.channel_dim) == ("channel", 1)
    assert noise(f"conv2@{position}=.2 mask=element", cifar).mask == "element"


def test_linear_layers_drop_units_by_default(cifar: SiteMap) -> None:
    assert noise("fc1=.2", cifar).mask == "element"
    spec = noise("fc1=.2 mask=channel", cifar)
    assert (spec.mask, spec.layout.channel_dim) == ("channel", -1)


def test_flattened_feature_maps_are_units(cifar: SiteMap) -> None:
    assert noise("fc1@input=.2", cifar).mask == "element"


def test_the_input_of_a_convolution_has_channels(cifar: SiteMap) -> None:
    assert noise("conv2@input=.2", cifar).mask == "channel"
    assert noise("conv1@input=.2", cifar).mask == "channel"


def test_attention_weights_have_no_channels(bert: SiteMap) -> None:
    with refused(f"mask of '{BERT}.0.attention.self'") as caught:
        rates("attention=.2 mask=channel", bert)
    assert caught.value.received == "channel"


def test_multinomial_noise_needs_a_draw(cifar: SiteMap) -> None:
    assert noise("fc1=.9 noise=multinomial", cifar).noise == "multinomial"
    with refused("rate of 'fc2'") as caught:
        rates("fc2=.96 noise=multinomial", cifar)
    assert caught.value.received == 0.96
    assert "10 units" in caught.value.what


def test_a_share_of_information_is_a_noise_of_its_own(cifar: SiteMap) -> None:
    assert (noise("fc1=rate_in(.1)", cifar).noise, noise("fc1=rate_in(.1)", cifar).rate) == ("rate_in", 0.1)
    mixed = resolve(Placement.parse("conv1=.2,fc1=rate_in(.1)"), cifar)
    assert [spec.noise for spec in mixed.values()] == ["bernoulli", "rate_in"]
    with refused("noise"):
        noise("fc1=rate_in(.1) noise=gaussian", cifar)


def test_the_noise_of_own_is_the_models(bert: SiteMap) -> None:
    specs = resolve(Placement.parse("own,attention=.3 noise=gaussian"), bert)
    noises = {p.position: s.noise for p, s in specs.items()}
    assert noises == {"output": "bernoulli", "weights": "gaussian"}


def test_resolving_runs_nothing(cifar: SiteMap) -> None:
    state = torch.get_rng_state()
    resolve(Placement.parse("all=.5"), cifar)
    assert torch.equal(state, torch.get_rng_state())
