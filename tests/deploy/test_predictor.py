"""The predictor: the same answer always, kept whole, and one clear error for everything else."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.deploy import UncertaintyPredictor
from dropscope.loading import load_model
from support.errors import refused
from support.tiny_checkpoints import checkpoint, sentence

PLACEMENT = "0=0.3"


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)).eval()


def data(net, n=400, seed=1):
    """Inputs whose labels the network gets right more often the surer it is."""
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(n, 6, generator=draw)
    with torch.no_grad():
        p = (3 * net(x)).softmax(1)
    return x, torch.multinomial(p, 1, generator=draw)[:, 0]


@pytest.fixture(scope="module", params=[None, PLACEMENT], ids=["plain", "noise"])
def predictor(net, request):
    return UncertaintyPredictor.fit(net, data(net), request.param, 20, max_error=0.3, class_names=["a", "b", "c"])


def test_it_says_what_is_to_be_known(net, predictor):
    x, _ = data(net, 50, 2)
    said = predictor(x)
    with torch.no_grad():
        plain = net(x).softmax(1)
    assert np.allclose(said.probabilities, plain.numpy(), atol=1e-6)
    assert (said.labels == plain.argmax(1).numpy()).all()
    assert (np.argsort(said.error_probability) == np.argsort(said.uncertainty)).all()
    assert (said.defer == (said.uncertainty > predictor.rule.threshold)).all()
    assert 0 < said.defer.sum() < 50
    assert list(said.table.columns)[-2:] == ["error_probability", "defer"]
    assert set(said.table.predicted_class) <= {"a", "b", "c"}
    assert len(str(said).splitlines()) < 15


def test_an_example_gets_the_same_answer_in_any_batch_order_and_thread(net, predictor):
    x, _ = data(net, 24, 3)
    said = predictor(x)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda i: predictor(x[i : i + 1]), range(24)))
    assert np.allclose([one.uncertainty[0] for one in alone], said.uncertainty, atol=1e-6)
    assert [bool(one.defer[0]) for one in alone] == said.defer.tolist()
    assert np.allclose(predictor(x[order], batch_size=5).uncertainty, said.uncertainty[order], atol=1e-6)


def test_noise_before_the_last_layer_needs_no_passes(net, tmp_path):
    x, y = data(net)
    options = {"max_error": 0.3, "label": "mean"}
    without = UncertaintyPredictor.fit(net, (x, y), "last=0.2", engine="analytic", **options)
    passes = UncertaintyPredictor.fit(net, (x, y), "last=0.2", 2000, **options)
    said, sampled = without(x[:40]), passes(x[:40])
    assert np.allclose(said.uncertainty, sampled.uncertainty, atol=0.02)
    assert "without passes" in str(without)
    without.save(tmp_path / "p")
    again = UncertaintyPredictor.load(tmp_path / "p", net)
    assert (again(x[:40]).uncertainty == said.uncertainty).all()
    with refused("engine"):
        UncertaintyPredictor.fit(net, (x, y), "0=0.3,2=0.3", engine="analytic")
    with refused("engine"):
        UncertaintyPredictor.fit(net, (x, y), "last=0.2", engine="loop")


def test_labels_of_the_averaged_passes(net):
    x, y = data(net)
    fitted = UncertaintyPredictor.fit(net, (x, y), PLACEMENT, 20, label="mean", max_error=None)
    said = fitted(x[:10])
    assert (said.labels == said.probabilities.argmax(1)).all()
    assert not said.defer.any()
    with refused("predictor"):
        fitted.monitor()


def test_it_is_saved_and_loaded(net, predictor, tmp_path):
    x, _ = data(net, 20, 4)
    folder = predictor.save(tmp_path / "p")
    assert sorted(path.name for path in folder.iterdir()) == ["calibration.safetensors", "predictor.json"]
    again = UncertaintyPredictor.load(folder, net)
    said, same = predictor(x), again(x)
    for name in ("labels", "probabilities", "uncertainty", "error_probability", "defer"):
        assert np.array_equal(getattr(said, name), getattr(same, name)), name
    assert str(again) == str(predictor)
    assert again.save(folder) == folder  # over itself
    assert (again.check(x).p_values, again.calibration.n) == (predictor.check(x).p_values, 400)


def test_a_flipped_byte_is_one_clear_error(net, predictor, tmp_path):
    folder = predictor.save(tmp_path / "p")
    for name in ("calibration.safetensors", "predictor.json"):
        whole = (folder / name).read_bytes()
        for place in (10, len(whole) // 2, len(whole) - 10):
            (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(ValueError, match="must"):
                UncertaintyPredictor.load(folder, net)
        (folder / name).write_bytes(whole)
    UncertaintyPredictor.load(folder, net)


def test_other_weights_and_other_folders_are_refused(net, predictor, tmp_path):
    folder = predictor.save(tmp_path / "p")
    other = nn.Sequential(*(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))).eval()
    with refused("model"):
        UncertaintyPredictor.load(folder, other)
    with refused("folder"):
        UncertaintyPredictor.load(tmp_path, net)
    (folder / "calibration.safetensors").unlink()
    with refused("folder"):
        UncertaintyPredictor.load(folder, net)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with refused("out"):
        predictor.save(tmp_path / "mine")
    newer = json.loads((folder / "predictor.json").read_text())
    (folder / "predictor.json").write_text(json.dumps({**newer, "version": 2}))
    with refused("folder"):
        UncertaintyPredictor.load(predictor.save(tmp_path / "q").parent / "p", net)


def test_it_holds_no_code(net, tmp_path):
    fitted = UncertaintyPredictor.fit(net, data(net), outputs=lambda o: o.softmax(1), max_error=None)
    with refused("outputs"):
        fitted.save(tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_evaluation_and_explanation(net, predictor):
    x, y = data(net, 300, 5)
    found = predictor.evaluate((x, y), by=["left", "right"] * 150, groups=[i // 2 for i in range(300)])
    assert found.table.subset.tolist() == ["all", "left", "right"]
    assert found.max_error == 0.3
    assert not found.refuted
    why = predictor.explain(x[:1], count=30)
    assert len(why.examples) == 30
    assert why.error_low <= why.error <= why.error_high
    far = np.abs(predictor.calibration.uncertainty - why.prediction.uncertainty[0])
    assert np.abs(why.examples.uncertainty - why.prediction.uncertainty[0]).max() <= np.sort(far)[29] + 1e-12
    with refused("example"):
        predictor.explain(x[:2])
    with refused("test"):
        predictor.evaluate(x)


def test_drift_is_checked_through_the_model(net, predictor):
    x, _ = data(net, 300, 6)
    assert not predictor.check(x).drifted
    assert predictor.check(x / 4).drifted
    monitor = predictor.monitor()
    x, y = data(net, 300, 7)
    said = predictor(x)
    assert not monitor.update(said.labels == y.numpy(), said.defer).alarm


def test_a_rule_per_class_is_applied_to_predicted_classes(net):
    x, y = data(net, 1500)
    fitted = UncertaintyPredictor.fit(net, (x, y), max_error=0.3, rule={"per_class": True})
    said = fitted(x)
    assert said.defer.sum() == 1500 - fitted.rule.kept


def test_repeated_inputs_are_said(net):
    x, y = data(net)
    fitted = UncertaintyPredictor.fit(net, (torch.cat([x, x[:7]]), torch.cat([y, y[:7]])), max_error=0.3)
    assert any("7 of the 407" in remark for remark in fitted.rule.remarks)


def test_inputs_by_name(net):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net

        def forward(self, values):
            return self.body(values)

    x, y = data(net)
    fitted = UncertaintyPredictor.fit(Named().eval(), {"values": x, "labels": y}, max_error=0.3)
    assert len(fitted({"values": x[:7]})) == 7


def test_the_model_is_left_as_it_was(net):
    x, y = data(net)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    UncertaintyPredictor.fit(net, (x, y), PLACEMENT, 5, max_error=0.3)(x[:3])
    assert net.training
    net.eval()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("data", {"data": "inputs"}),
        ("data", {"data": "one class"}),
        ("data", {"data": "all right"}),
        ("data", {"data": "few"}),
        ("groups", {"groups": [1, 2]}),
        ("confidence", {"confidence": 1}),
        ("label", {"label": "median"}),
        ("measure", {"measure": "bald"}),
        ("measure", {"measure": "blad", "placement": PLACEMENT}),
        ("passes", {"passes": 0}),
        ("rule", {"rule": {"bugdet": 0.1}}),
    ],
)
def test_what_cannot_be_used_is_refused(net, name, change):
    x, y = data(net)
    with torch.no_grad():
        own = net(x).argmax(1)
    kinds = {
        "inputs": x,
        "one class": (x, torch.zeros(400, dtype=torch.long)),
        "all right": (x, own),
        "few": (x[:9], y[:9]),
    }
    given = kinds.get(change.get("data"), (x, y))
    with refused(name):
        UncertaintyPredictor.fit(net, **{**change, "data": given})


def test_an_unreachable_target_defers_everything(net):
    x, y = data(net)
    fitted = UncertaintyPredictor.fit(net, (x, y), max_error=0.001)
    assert fitted(x[:5]).defer.all()
    assert "n = " in str(fitted)


def test_a_choice_makes_a_predictor(net):
    choice = ds.try_out(net, data(net, 600), passes=5, budget=20, progress=False, class_names=["a", "b", "c"])
    made = choice.predictor(target_risk=0.4)
    assert made.recipe.measure == choice.measure
    assert made.recipe.passes == choice.passes
    assert made.calibration.n == choice.judgement.examples
    assert made.rule.confidence == 0.9
    assert made.rule.remarks
    both = choice.examples.set_index("id")[choice.measure]
    assert np.allclose([both[int(i)] for i in made.calibration.ids], made.calibration.uncertainty, atol=1e-6)
    assert made(data(net, 5, 9)[0]).class_names == ("a", "b", "c")


def test_texts(tmp_path):
    name = str(checkpoint(tmp_path / "model", "bert"))
    model = load_model(f"hf:{name}").module
    texts = [sentence(number, 3 + number % 4) for number in range(60)]
    fitted = UncertaintyPredictor.fit(
        model, (texts, [(i // 3) % 2 for i in range(60)]), "own", 5, max_error=None, tokenizer=name
    )
    said = fitted(texts[:4])
    assert said.ids == texts[:4]
    alone = fitted([texts[2]])
    assert np.allclose(alone.uncertainty[0], said.uncertainty[2], atol=1e-5)
    again = UncertaintyPredictor.load(fitted.save(tmp_path / "p"), model, tokenizer=name)
    assert np.allclose(again(texts[:4]).uncertainty, said.uncertainty)
