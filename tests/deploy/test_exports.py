"""Exported files: the same words, the same answers for any number of examples, and what cannot be exported."""

import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from transformers import AutoTokenizer

import dropscope as ds
from dropscope.loading import load_model
from dropscope.noise import Keys, bits, bits_of_blocks, bits_of_passes, streams
from support import noises
from support.errors import refused
from support.tiny_checkpoints import checkpoint, sentence

PASSES = 18  # more than a block of stratified draws


class Net(nn.Module):
    """A branch, a norm, an element and a channel mask, and a second input by name."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(24, 16), nn.Linear(16, 4)

    def forward(self, x, age=None):
        y = torch.relu(self.norm(self.conv1(x)))
        y = nn.functional.avg_pool2d(y + torch.relu(self.conv2(y)), 4)
        y = torch.relu(self.fc1(y.flatten(1)))
        return self.fc2(y if age is None else y * age)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def x():
    return torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def expected(net, placement, x, measure="predictive_entropy", **options):
    return ds.uncertainty(net, placement, x, PASSES, measures=[measure], label="plain", errors=False, **options)


class Words(nn.Module):
    def forward(self, passes, examples, states):
        stratified = bits(Keys(states, passes % 16), (2,))
        return streams(7, -(2**60) - 5, passes, examples), bits(states, (3,)), bits(states, (4, 3), -2), stratified


@pytest.mark.slow
def test_words_are_the_same_in_onnx_bit_for_bit(tmp_path):
    """Shifts of negative numbers, products that overflow, conversions that cut: 10,000 states."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 2**31, -(2**31), 2**32 - 1])
    states, examples = (
        torch.cat([edges, torch.randint(-(2**63), 2**63 - 1, (9_992,), generator=draw)]) for _ in range(2)
    )
    given = torch.randint(0, 1000, (10_000,), generator=draw), examples, states
    module = Words().eval()
    wanted = module(*given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = tuple({0: torch.export.Dim("n")} for _ in given)
        torch.onnx.export(module, given, tmp_path / "w.onnx", dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "w.onnx")
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {name: value.numpy() for name, value in zip(names, given, strict=True)})
    assert [int((a.numpy() != b).sum()) for a, b in zip(wanted, found, strict=True)] == [0, 0, 0, 0]


@pytest.mark.parametrize("draws", ["independent", "stratified"])
def test_words_of_a_graph_are_those_of_the_engine(draws):
    examples = torch.tensor([5, -7, 2**62])
    of_graph = bits_of_blocks(3, 9, 37, examples, (2, 5), draws, -2)
    assert torch.equal(of_graph, bits_of_passes(3, 9, torch.arange(37), examples, (2, 5), draws, -2))


@pytest.mark.slow
def test_onnx_says_what_torch_says(net, x, tmp_path):
    """Noise before a join and behind it, stratified draws; one example, several, and more than were exported."""
    options = {"draws": "stratified", "seed": 4}
    table = expected(net, "conv1=0.3,fc1=0.4", x, "bald", **options)
    threshold = float(table.bald.sort_values().iloc[5])
    file = ds.export(
        net, "conv1=0.3,fc1=0.4", x[:2], tmp_path / "net.onnx", PASSES, measure="bald", threshold=threshold, **options
    )
    for some in (slice(0, 9), slice(3, 4), slice(2, 7)):
        found = ds.open_export(file.path)(x[some])
        part = table.iloc[some]
        np.testing.assert_allclose(found["uncertainty"], part.bald, atol=2e-6)
        assert (found["label"] == part.prediction).all()
        assert (found["defer"] == (part.bald > threshold)).all()
    mean = ds.sample(net, "conv1=0.3,fc1=0.4", x, PASSES, **options).mean(0)
    np.testing.assert_allclose(file(x)["probabilities"], mean, atol=1e-6)


@pytest.mark.parametrize(
    ("placement", "measure", "options"),
    [
        ("last=0.5", "variation_predicted", {}),
        ("conv1=0.2,conv2=0.2,fc1=0.2", "averaged_variance", {"masks": "per_pass"}),
        ("fc1=0.3|noise=gaussian", "variation_ratio", {}),
    ],
)
def test_pt2_says_what_torch_says(net, x, tmp_path, placement, measure, options):
    placement = ds.Placement({"fc1": 0.3}, noise="gaussian") if "gaussian" in placement else placement
    table = expected(net, placement, x, measure, **options)
    file = ds.export(net, placement, x[:1], tmp_path / "net.pt2", PASSES, measure=measure, **options)
    np.testing.assert_allclose(file(x)["uncertainty"], table[measure], atol=1e-6)
    np.testing.assert_allclose(file(x[4:5])["uncertainty"], table[measure][4:5], atol=1e-6)


def test_inputs_by_name_ids_and_a_plain_pass(net, x, tmp_path):
    inputs = {"x": x, "age": torch.rand(9, 1)}
    file = ds.export(net, None, inputs, tmp_path / "net.pt2")
    assert (file.facts.passes, list(file.facts.inputs)) == (1, ["age", "x"])
    found = file(inputs)
    np.testing.assert_array_equal(found["probabilities"], found["plain_probabilities"])
    noisy = ds.export(net, "last=0.5", inputs, tmp_path / "noisy.pt2", PASSES)
    table = expected(net, "last=0.5", inputs, ids=list(range(9)))
    np.testing.assert_allclose(noisy(inputs, ids=range(9))["uncertainty"], table.predictive_entropy, atol=1e-6)
    with refused("inputs"):
        noisy(x)
    with refused("inputs"):
        noisy({"x": x[..., :4], "age": inputs["age"]})
    with refused("ids"):
        noisy(inputs, ids=[1, 2])


def test_a_noise_and_a_measure_of_ones_own(net, x, tmp_path):
    placement = ds.Placement({"fc1": 0.5}, noise=noises.even_noise)
    spread = ds.measures.of_passes(lambda passes: passes.std(0).amax(1), name="spread")
    file = ds.export(net, placement, x, tmp_path / "net.pt2", 4, measure=spread)
    passes = ds.sample(net, placement, x, 4)
    np.testing.assert_allclose(file(x)["uncertainty"], passes.std(0).amax(1), atol=1e-6)


@pytest.mark.slow
def test_texts_have_one_length_and_keep_their_noise(tmp_path):
    """A text that is padded further gets the same answer: padding moves no word."""
    name = str(checkpoint(tmp_path / "ckpt", "bert"))
    model, tokenizer = load_model(f"hf:{name}").module, AutoTokenizer.from_pretrained(name)
    texts = [sentence(number, 3 + number % 4) for number in range(4)]
    table = ds.uncertainty(model, "ffn=0.2", texts, 4, measures=["bald"], errors=False, tokenizer=tokenizer)
    longest = max(len(tokenizer(text)["input_ids"]) for text in texts)
    options = {"measure": "bald", "tokenizer": tokenizer}
    file = ds.export(model, "ffn=0.2", texts, tmp_path / "net.pt2", 4, length=longest + 3, **options)
    given = tokenizer(texts, padding="max_length", max_length=longest + 3, return_tensors="pt")
    np.testing.assert_allclose(file(given)["uncertainty"], table.bald, atol=1e-6)
    with refused("length"):
        ds.export(model, "ffn=0.2", texts, tmp_path / "short.pt2", 4, length=longest - 1, **options)


def test_a_predictor_becomes_a_file_that_defers_as_it_does(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
    x = 3 * torch.randn(400, 6)
    labels = (5 * net(x)).softmax(1).multinomial(1)[:, 0]  # right the more often the surer the network is
    predictor = ds.UncertaintyPredictor.fit(net, (x, labels), "last=0.3", 5, max_error=0.2)
    found, said = predictor.export(x[:3], tmp_path / "net.pt2")(x), predictor(x)
    assert 0 < said.defer.sum() < 400
    assert (found["defer"] == said.defer).all()
    assert (found["label"] == said.labels).all()
    np.testing.assert_allclose(found["uncertainty"], said.uncertainty, atol=1e-6)


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        y = self.inner(x)
        return y if float(x.sum()) > 0 else -y


def test_what_cannot_be_exported_is_refused(net, x, tmp_path):
    at = tmp_path / "net.pt2"
    with refused("out"):
        ds.export(net, "last=0.5", x, tmp_path / "net.pt")
    with refused("measure"):
        ds.export(net, "last=0.5", x, at, measure="averaged_entropy")
    with refused("measure"):
        ds.export(net, None, x, at, measure="bald")
    with refused("threshold"):
        ds.export(net, "last=0.5", x, at, threshold=float("nan"))
    with refused("package"):
        ds.export(net, "last=0.5", x, tmp_path / "net.onnx", package=True)
    with refused("length"):
        ds.export(net, "last=0.5", x, at, length=12)
    large = nn.Linear(4, 3)
    large.unused = nn.Parameter(torch.zeros(1).expand(30_000, 20_000))
    with refused("model"):
        ds.export(large, "last=0.5", torch.ones(2, 4), tmp_path / "net.onnx")
    with refused("model") as caught:
        ds.export(net, ds.Placement({"fc1": 0.5}, noise="multinomial"), x, at)
    assert "fc1" in str(caught.value)
    with refused("model"):
        ds.export(Deciding().eval(), "inner=0.5", torch.ones(4, 4), at)
    assert not list(tmp_path.iterdir())


def test_a_file_of_anothers_is_refused(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"not a graph")
    (tmp_path / "net.pt2").write_bytes(b"not a program")
    for name in ("net.onnx", "net.pt2", "absent.pt2"):
        with refused("path"):
            ds.open_export(tmp_path / name)


def test_onnx_without_its_packages_names_the_extra(net, x, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ds.MissingExtra) as caught:
        ds.export(net, "last=0.5", x, tmp_path / "net.onnx")
    assert "dropscope[export]" in str(caught.value)
