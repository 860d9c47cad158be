"""`sample`, `uncertainty` and `maps`: every form of input, output, id and group end to end, by both engines."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dropscope as ds
from dropscope import measures
from dropscope.errors import AuditFailed
from dropscope.measures import DEFAULT
from dropscope.measures.statistics.running import PassStatistics
from support import zoo
from support.engines import BranchingText
from support.errors import refused


def net(classes: int = 3) -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, classes)))


def same(fast: pd.DataFrame, slow: pd.DataFrame, tolerance: float = 1e-5) -> None:
    assert list(fast.columns) == list(slow.columns)
    for name in fast:
        if fast[name].dtype.kind == "f":
            np.testing.assert_allclose(fast[name], slow[name], atol=tolerance, rtol=1e-4)
        else:
            assert fast[name].tolist() == slow[name].tolist()


def both(model: nn.Module, placement: str, data: Any, **more: Any) -> pd.DataFrame:
    tables = [ds.uncertainty(model, placement, data, passes=6, engine=e, **more) for e in ("shared", "loop")]
    same(*tables)
    return tables[0]


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_the_plain_placement_has_no_spread() -> None:
    table = ds.uncertainty(net(), "none", (zoo.vectors(), [0, 1, 2, 0]), passes=5)
    p = net()(zoo.vectors()).softmax(1).detach()
    for name in ("variation_predicted", "variation_max", "bald"):
        assert table[name].tolist() == [0.0] * 4
    torch.testing.assert_close(torch.tensor(table.predictive_entropy.to_numpy()), measures.plain_entropy(p))
    assert table.prediction.tolist() == p.argmax(1).tolist()


def test_passes_that_cannot_differ_are_run_once() -> None:
    calls = []
    model = net()
    model.register_forward_hook(lambda *_: calls.append(1))
    one = ds.uncertainty(model, "none", zoo.vectors(), passes=1, engine="loop")
    few, calls[:] = len(calls), []
    many = ds.uncertainty(model, "none", zoo.vectors(), passes=50, engine="loop")
    assert len(calls) == few
    same(many, one)
    drawn = ds.sample(model, "none", zoo.vectors(), passes=3)
    assert drawn.shape[0] == 3
    assert torch.equal(drawn[0], drawn[2])


def test_measures_of_one_plain_pass_stand_beside_the_others() -> None:
    chosen = ["bald", "plain_entropy", "plain_max_probability", "plain_margin"]
    table = both(net(), "0=.5", zoo.vectors(), measures=chosen)
    p = net()(zoo.vectors()).softmax(1).detach()
    for name in chosen[1:]:
        expected = getattr(measures, name)(p)
        torch.testing.assert_close(torch.tensor(table[name].to_numpy()), expected, atol=1e-6, rtol=1e-5)
    with refused("measures"):
        ds.sweep(net(), ["0=.5"], (zoo.vectors(), [0, 1, 2, 0]), passes=2, measures=["plain_entropy"])


def test_the_probability_is_that_of_the_prediction() -> None:
    p = net()(zoo.vectors()).softmax(1).detach()
    plain = ds.uncertainty(net(), "0=.5", zoo.vectors(), passes=5, label="plain")
    np.testing.assert_allclose(plain.probability, p.amax(1), atol=1e-6)
    mean = ds.uncertainty(net(), "0=.5", zoo.vectors(), passes=5)
    drawn = ds.sample(net(), "0=.5", zoo.vectors(), passes=5).mean(0)
    np.testing.assert_allclose(mean.probability, drawn.amax(1), atol=1e-6)


def test_one_pass() -> None:
    for engine in ("shared", "loop"):
        table = ds.uncertainty(net(), "0=.5", zoo.vectors(), passes=1, engine=engine)
        assert table.variation_max.tolist() == [0.0] * 4
        assert (table.bald.abs() <= 1e-6).all()
        assert ds.sample(net(), "0=.5", zoo.vectors(), passes=1, engine=engine).shape == (1, 4, 3)


def test_measures_are_those_of_the_sample() -> None:
    model, data = net(), (zoo.vectors(9), torch.arange(9) % 3)
    table = ds.uncertainty(model, "0=.5", data, passes=20, seed=2, batch_size=4)
    passes = ds.sample(model, "0=.5", data[0], passes=20, seed=2)
    plain = ds.sample(model, "none", data[0], passes=1)[0]
    errors = [f"{name}_error" for name in DEFAULT]
    assert list(table.columns) == ["id", "label", "prediction", "probability", "correct", *DEFAULT, *errors]
    assert list(ds.uncertainty(model, "0=.5", data, passes=3, errors=False).columns) == list(table.columns)[:-5]
    assert table.prediction.tolist() == passes.mean(0).argmax(1).tolist()
    assert table.correct.tolist() == (passes.mean(0).argmax(1) == data[1]).tolist()
    for name in DEFAULT:
        expected = measures.TABLE[name].function(passes, plain=plain)
        np.testing.assert_allclose(table[name], expected, atol=2e-6)


# --- forms of input ---------------------------------------------------------------------------------------------------


def test_a_tensor_a_pair_a_data_set_a_loader_and_an_iterable_are_one_thing() -> None:
    x, y = zoo.vectors(7), torch.arange(7) % 3
    first = both(net(), "0=.5", (x, y))
    loader = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True)
    for data in (TensorDataset(x, y), loader, [(x[:3], y[:3]), (x[3:], y[3:])]):
        same(ds.uncertainty(net(), "0=.5", data, passes=6), first, 1e-6)
    unlabelled = ds.uncertainty(net(), "0=.5", x, passes=6)
    assert "label" not in unlabelled
    assert "correct" not in unlabelled
    np.testing.assert_allclose(unlabelled.bald, first.bald, atol=1e-6)


def test_a_dict_of_text_for_bert_and_its_paddings() -> None:
    bert, text = zoo.hugging_face("bert"), zoo.text(5)
    table = both(bert, "attention=.2,ffn=.3", text | {"labels": torch.arange(5) % 3})
    assert table.label.tolist() == [0, 1, 2, 0, 1]
    longer = {k: torch.nn.functional.pad(v, (0, 4)) for k, v in text.items()}
    wider = ds.uncertainty(bert, "attention=.2,ffn=.3", longer, passes=6, engine="shared")
    np.testing.assert_allclose(wider.bald, table.bald, atol=1e-5)


def test_batches_of_different_shapes() -> None:
    bert = zoo.hugging_face("bert")
    both(bert, "ffn=.3", [zoo.text(3, 9), zoo.text(4, 12), zoo.text(2, 9)])


def test_ids_and_groups() -> None:
    x = zoo.vectors(4)
    table = ds.uncertainty(net(), "0=.5", x, passes=4, ids=["a", "b", "c", "d"], groups=["p", "p", "q", "q"])
    assert table.id.tolist() == ["a", "b", "c", "d"]
    assert table.group.tolist() == ["p", "p", "q", "q"]
    turned = ds.uncertainty(net(), "0=.5", x.flip(0), passes=4, ids=["d", "c", "b", "a"])
    np.testing.assert_allclose(turned.bald[::-1], table.bald, atol=1e-6)
    keyed = ds.uncertainty(net(), "0=.5", x[:1].expand(4, 8), passes=4, ids="index")
    assert keyed.id.tolist() == [0, 1, 2, 3]
    assert keyed.bald.nunique() == 4  # one input, four keys
    assert ds.uncertainty(net(), "0=.5", x[:1].expand(4, 8), passes=4).bald.nunique() == 1
    assert ds.uncertainty(net(), "0=.5", x, passes=4, ids=["a", "b", "c", "d"], masks="per_pass").bald.nunique() == 4


def test_masks_per_pass_are_one_draw_for_all() -> None:
    x = zoo.vectors(1).expand(3, 8).contiguous()
    for engine in ("shared", "loop"):
        p = ds.sample(net(), "0=.5", x, passes=5, masks="per_pass", ids="index", engine=engine)
        torch.testing.assert_close(p[:, 0], p[:, 2])
        q = ds.sample(net(), "0=.5", x, passes=5, ids="index", engine=engine)
        assert float((q[:, 0] - q[:, 2]).abs().max()) > 1e-3


# --- forms of output --------------------------------------------------------------------------------------------------


def test_a_binary_logit() -> None:
    table = both(net(1), "0=.5", (zoo.vectors(), [0, 1, 1, 0]), outputs="binary_logit")
    assert set(table.prediction) <= {0, 1}
    assert ds.sample(net(1), "0=.5", zoo.vectors(), passes=2, outputs="binary_logit").shape == (2, 4, 2)


def test_many_labels() -> None:
    answers = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
    table = both(net(), "0=.5", (zoo.vectors(), answers), outputs="multilabel_logits")
    assert "prediction" not in table
    assert table.correct.between(0, 1).all()
    found = ds.maps(net(), "0=.5", zoo.vectors(), passes=3, outputs="multilabel_logits")
    assert found["bald"].shape == (4, 3)


def test_probabilities_and_functions() -> None:
    model = zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3), nn.Softmax(1)))
    same(
        both(model, "0=.5", zoo.vectors(), outputs="probabilities"),
        ds.uncertainty(net(), "0=.5", zoo.vectors(), passes=6),
    )
    hot = both(net(), "0=.5", zoo.vectors(), outputs=lambda logits: (2 * logits).softmax(1))
    assert (hot.expected_entropy < both(net(), "0=.5", zoo.vectors()).expected_entropy).all()


def test_dense_outputs_have_a_row_per_volume_and_a_map_per_voxel() -> None:
    model, x = zoo.unet3d(), zoo.volumes()
    labels = torch.randint(0, 2, (3, 8, 8, 8), generator=torch.Generator().manual_seed(0))
    table = both(model, "down1=.3,join=.2", (x, labels))
    assert list(table.columns) == ["id", "dice", "dice_1", *(c for name in DEFAULT for c in (name, f"{name}_1"))]
    fast, slow = (ds.maps(model, "down1=.3,join=.2", x, passes=6, engine=e) for e in ("shared", "loop"))
    predicted = fast["prediction"]
    assert predicted.shape == (3, 8, 8, 8)
    for name in DEFAULT:
        torch.testing.assert_close(fast[name], slow[name], atol=1e-5, rtol=1e-3)
        inside = [fast[name][i][predicted[i] == 1].mean().item() for i in range(3)]
        np.testing.assert_allclose(table[name], inside, atol=1e-5)
    np.testing.assert_allclose(table.dice, ds.scores.dice(predicted, labels, 2)[:, 1])


def test_dice_and_uncertainty_of_each_structure() -> None:
    """A network of three classes: the background, which fills the image, has no say."""

    class Painted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unsure = nn.Conv2d(1, 16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one_hot = nn.functional.one_hot(x[:, 0].long(), 3).movedim(-1, 1).float()
            return 6 * one_hot + self.unsure(x).relu()[:, :3] * (x == 2)

    x = torch.zeros(2, 1, 8, 8)
    x[:, 0, 2:4, 2:4], x[0, 0, 5:7, 5:7] = 1, 2
    labels = x[:, 0].long()
    labels[0, 2, 2:4] = 0
    table = ds.uncertainty(zoo.seeded(Painted), "unsure=0.5", (x, labels), passes=20, measures=["bald"])
    assert list(table.columns) == ["id", "dice", "dice_1", "dice_2", "bald", "bald_1", "bald_2"]
    np.testing.assert_allclose(table.dice_1, [2 * 2 / (4 + 2), 1])
    assert table.dice_2[0] == 1
    assert np.isnan(table.dice_2[1])
    np.testing.assert_allclose(table.dice, [(2 / 3 + 1) / 2, 1])
    assert table.bald_2[0] > table.bald[0] > table.bald_1[0]
    assert np.isnan(table.bald_2[1])
    named = ds.uncertainty(
        zoo.seeded(Painted), "unsure=0.5", (x, labels), passes=2, measures="bald", class_names="ground,left,right"
    )
    assert list(named.columns) == ["id", "dice", "dice_left", "dice_right", "bald", "bald_left", "bald_right"]


def test_voxels_without_a_label_do_not_count() -> None:
    labels = torch.randint(0, 2, (3, 8, 8, 8), generator=torch.Generator().manual_seed(0))
    labels[:, 4:] = 255
    table = ds.uncertainty(zoo.unet3d(), "down1=.3", (zoo.volumes(), labels), passes=2, ignore_label=255)
    found = ds.maps(zoo.unet3d(), "down1=.3", zoo.volumes(), passes=2)["prediction"]
    np.testing.assert_allclose(table.dice, ds.scores.dice(found[:, :4], labels[:, :4], 2)[:, 1])


# --- measures and labels ----------------------------------------------------------------------------------------------


def widest(kept: PassStatistics) -> Tensor:
    return kept.class_variance.amax(-1)


widest.needs = ("class_moments",)


def largest_step(passes: Tensor) -> Tensor:
    return (passes[1:] - passes[:-1]).abs().amax((0, 2))


largest_step.of = "passes"


def test_a_measure_of_ones_own_of_statistics() -> None:
    table = both(net(), "0=.5", zoo.vectors(), measures=["bald", widest])
    passes = ds.sample(net(), "0=.5", zoo.vectors(), passes=6)
    np.testing.assert_allclose(table.widest, passes.var(0, unbiased=False).amax(-1), atol=1e-6)


def test_a_measure_of_ones_own_of_passes() -> None:
    table = both(net(), "0=.5", (zoo.vectors(), [0, 1, 2, 0]), measures=[largest_step, "bald"], batch_size=3)
    passes = ds.sample(net(), "0=.5", zoo.vectors(), passes=6)
    np.testing.assert_allclose(table.largest_step, largest_step(passes), atol=1e-6)
    usual = ds.uncertainty(net(), "0=.5", (zoo.vectors(), [0, 1, 2, 0]), passes=6)
    assert table.prediction.tolist() == usual.prediction.tolist()
    np.testing.assert_allclose(table.bald, usual.bald, atol=1e-6)


def test_a_map_of_ones_own_of_passes() -> None:
    found = ds.maps(zoo.unet3d(), "down1=.3", zoo.volumes(), passes=3, measures=[largest_step])
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "largest_step": (3, 8, 8, 8), "prediction": (3, 8, 8, 8),
    }  # fmt: skip


def test_labels_of_the_plain_pass_or_of_the_mean() -> None:
    data = zoo.vectors(60), torch.zeros(60).long()
    plain = ds.uncertainty(net(), "0=.8", data, passes=3, label="plain")
    mean = ds.uncertainty(net(), "0=.8", data, passes=3, label="mean")
    assert plain.prediction.tolist() == net()(data[0]).argmax(1).tolist()
    assert plain.prediction.tolist() != mean.prediction.tolist()
    np.testing.assert_allclose(plain.bald, mean.bald)


def test_a_seed_is_another_draw_and_the_same_one_the_same() -> None:
    first, again, other = (ds.sample(net(), "0=.5", zoo.vectors(), passes=3, seed=s) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert float((first - other).abs().max()) > 1e-3


def test_the_models_own_dropout() -> None:
    bert = zoo.hugging_face("bert")
    fast, slow = (ds.sample(bert, "own", zoo.text(), passes=3, engine=e) for e in ("shared", "loop"))
    assert float((fast - slow).abs().max()) <= 1e-5
    assert float(fast.std(0).max()) > 1e-3


# --- falling back -----------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.fc(h) if float(x.abs().sum()) > 0 else self.fc(h * 2)


class Numpy(Branching):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.a(torch.from_numpy(x.numpy()))))


class Noisy(Branching):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.fc(h) if bool(h.isfinite().all()) else h


def selu() -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 64), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(64, 3)))


FALLBACKS = {
    "a branch on data": (lambda: zoo.seeded(Branching), lambda: zoo.vectors(), "a=.5", "not alike for all examples"),
    "a branch on noise": (lambda: zoo.seeded(Noisy), lambda: zoo.vectors(), "a=.5", "a value that noise changes"),
    "code that leaves torch": (
        lambda: zoo.seeded(Numpy),
        lambda: zoo.vectors(),
        "a=.5",
        "could not export the model (test_passes.py",
    ),
    "alpha dropout": (selu, lambda: zoo.vectors(), "own", "alpha dropout"),
    "multinomial noise": (net, lambda: zoo.vectors(), "0=.5 noise=multinomial", "multinomial"),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_the_plain_loop_runs_and_says_why(name: str, caplog: pytest.LogCaptureFixture) -> None:
    build, inputs, placement, reason = FALLBACKS[name]
    model, x = build(), inputs()
    with caplog.at_level(logging.WARNING, logger="dropscope"):
        found = ds.sample(model, placement, x, passes=3)
    said = [record.getMessage() for record in caplog.records if record.name == "dropscope"]
    assert len(said) == 1
    assert reason in said[0]
    assert "3 forwards of every example (1 placement × 3 passes)" in said[0]
    assert torch.equal(found, ds.sample(model, placement, x, passes=3, engine="loop"))
    with refused("engine") as caught:
        ds.sample(model, placement, x, passes=3, engine="shared")
    assert reason in str(caught.value)


# --- texts in order of length, and half precision ---------------------------------------------------------------------


def labelled_text() -> dict[str, Tensor]:
    """In an order that sorting by length does not undo when it is done twice."""
    text = {name: value[[2, 0, 4, 1, 5, 3]] for name, value in zoo.text(6, 12).items()}
    return text | {"labels": torch.tensor([2, 0, 1, 1, 0, 2])}


def test_texts_sorted_by_length_come_back_in_the_order_of_the_data(caplog: pytest.LogCaptureFixture) -> None:
    model, data = zoo.seeded(BranchingText), labelled_text()
    ids = ["f", "b", "e", "a", "d", "c"]
    with caplog.at_level(logging.WARNING, logger="dropscope"):
        fast = ds.sample(model, "ffn=.3", data, passes=5, ids=ids, batch_size=4)
        table = ds.uncertainty(model, "ffn=.3", data, passes=5, ids=ids, batch_size=4, groups=[5, 4, 3, 2, 1, 0])
        own = ds.uncertainty(model, "ffn=.3", data, passes=5, ids=ids, batch_size=4, measures=[largest_step, "bald"])
    said = [record.getMessage() for record in caplog.records if record.name == "dropscope"]
    assert len(said) == 3
    assert all("a value that noise changes" in message for message in said)  # so they were folded, not run one by one
    slow = ds.sample(model, "ffn=.3", data, passes=5, ids=ids, engine="loop")
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=0)
    assert float((slow - slow.flip(1)).abs().max()) > 1e-2  # another order would show
    assert table.id.tolist() == own.id.tolist() == ids
    assert table.label.tolist() == own.label.tolist() == data["labels"].tolist()
    assert table.group.tolist() == [5, 4, 3, 2, 1, 0]
    by_loop = ds.uncertainty(model, "ffn=.3", data, passes=5, ids=ids, groups=[5, 4, 3, 2, 1, 0], engine="loop")
    same(table, by_loop)
    np.testing.assert_allclose(own.largest_step, largest_step(slow), atol=1e-5)
    np.testing.assert_allclose(own.bald, by_loop.bald, atol=1e-5)


def test_texts_of_different_lengths_have_maps_as_wide_as_their_tokens() -> None:
    from transformers import BertConfig, BertForTokenClassification

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = zoo.seeded(lambda: BertForTokenClassification(BertConfig(vocab_size=60, num_labels=3, **size)))
    data = {name: value for name, value in labelled_text().items() if name != "labels"}
    found = ds.maps(model, "own", data, passes=5, measures=["bald"])
    slow = ds.maps(model, "own", data, passes=5, measures=["bald"], engine="reference")
    assert found["bald"].shape == data["input_ids"].shape
    torch.testing.assert_close(found["bald"], slow["bald"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_half_precision_is_close_and_keeps_the_order_of_the_data(attention: str) -> None:
    bert, data = zoo.hugging_face("bert", attention), labelled_text()
    half, single = (ds.sample(bert, "own", data, passes=5, precision=p, batch_size=4) for p in ("bf16", "fp32"))
    assert half.dtype == torch.float32
    apart = float((half - single).abs().max())
    assert 0 < apart < 0.02  # the same masks, rounded
    assert float((half.flip(1) - single).abs().max()) > 0.1
    table = ds.uncertainty(bert, "own", data, passes=5, precision="bf16", batch_size=4)
    full = ds.uncertainty(bert, "own", data, passes=5)
    assert table.id.tolist() == full.id.tolist()
    assert table.label.tolist() == data["labels"].tolist()
    for name in measures.DEFAULT:
        np.testing.assert_allclose(table[name], full[name], atol=0.03)
    assert {p.dtype for p in bert.parameters()} == {torch.float32}


def test_half_precision_takes_numbers_as_they_are() -> None:
    for model, x, placement in ((net(), zoo.vectors(), "0=.5"), (zoo.unet3d(), zoo.volumes(), "down1=.3")):
        half, single = (ds.sample(model, placement, x, passes=4, precision=p) for p in ("bf16", "fp32"))
        assert 0 < float((half - single).abs().max()) < 0.02
    plain = ds.sample(net(), "none", zoo.vectors(), passes=3, precision="bf16")
    assert float(plain.std(0).max()) == 0


def test_half_precision_is_not_for_the_shared_engine() -> None:
    with refused("engine"):
        ds.sample(net(), "0=.5", zoo.vectors(), passes=2, precision="bf16", engine="shared")


# --- contracts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["shared", "loop"])
def test_the_model_is_afterwards_what_it_was(engine: str, untouched: Any) -> None:
    model = zoo.resnet().train()
    with untouched(model):
        ds.uncertainty(model, "conv1=.3,layer2.conv1=.2", (zoo.images(), [0, 1, 2, 3]), passes=3, engine=engine)


def test_noise_without_effect_is_refused() -> None:
    with pytest.raises(AuditFailed, match="does not depend on it"):
        ds.uncertainty(zoo.seeded(zoo.Deaf), "unused=.5", zoo.vectors(), passes=2)


def test_nan_under_noise_is_one_error_in_both_engines() -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.fc = nn.Linear(8, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.fc(h / h.abs().sum(1, keepdim=True))  # all four dropped: 0 / 0

    for engine in ("shared", "loop"):
        with refused("placement"):
            ds.uncertainty(zoo.seeded(Fragile), "a=.8", zoo.vectors(), passes=40, engine=engine)


def test_shortcuts_that_pad_run_the_same_by_both_engines() -> None:
    table = both(zoo.cifar_resnet("pad", blocks=1), "residual=.2", zoo.images(3), measures="all")
    assert table.bald.gt(0).all()


# --- Monte Carlo error ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", ["independent", "stratified"])
def test_errors_are_those_of_either_engine_in_any_batches(draws: str) -> None:
    given = {"passes": 40, "draws": draws, "measures": ["bald", "max_probability", "plain_entropy"]}
    tables = [
        ds.uncertainty(net(), "0=.5", zoo.vectors(9), engine=engine, batch_size=size, **given)
        for engine, size in (("loop", 9), ("loop", 2), ("shared", 4))
    ]
    for table in tables:
        assert list(table.columns[-2:]) == ["bald_error", "max_probability_error"]
        assert (table.bald_error > 0).all()
        np.testing.assert_allclose(table.bald_error, tables[0].bald_error, rtol=1e-3)


def test_an_error_is_how_far_another_seed_moves_a_measure() -> None:
    runs = [ds.uncertainty(net(), "0=.5", zoo.vectors(20), passes=48, seed=seed, progress=False) for seed in range(20)]
    values, errors = (np.stack([table[name] for table in runs]) for name in ("bald", "bald_error"))
    assert np.sqrt((errors**2).mean()) == pytest.approx(np.sqrt(values.var(0, ddof=1).mean()), rel=0.2)


@pytest.mark.parametrize("engine", ["loop", "shared"])
def test_maps_of_errors_are_how_far_another_seed_moves_a_voxel(engine: str) -> None:
    model = zoo.seeded(lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1)))
    given = {"measures": ["expected_entropy"], "engine": engine, "errors": True, "progress": False}
    found = [ds.maps(model, "0=.5", zoo.images(2, 1, 6), passes=32, seed=seed, **given) for seed in range(12)]
    assert set(found[0]) == {"expected_entropy", "expected_entropy_error", "prediction"}
    spread = torch.stack([one["expected_entropy"] for one in found]).var(0).mean().sqrt()
    errors = torch.stack([one["expected_entropy_error"] for one in found]).square().mean().sqrt()
    assert float(errors / spread) == pytest.approx(1, rel=0.2)


def test_a_measure_of_the_passes_has_no_error_and_the_others_have() -> None:
    chosen = ["bald", lambda passes: passes.std(0).amax(1)]
    table = ds.uncertainty(net(), "0=.5", zoo.vectors(), passes=20, measures=chosen)
    alone = ds.uncertainty(net(), "0=.5", zoo.vectors(), passes=20, measures=["bald"])
    assert list(table.columns[-3:]) == ["bald", "lambda_1", "bald_error"]
    np.testing.assert_allclose(table.bald_error, alone.bald_error, rtol=1e-3)


@pytest.mark.parametrize(("passes", "draws"), [(1, "independent"), (2, "independent"), (16, "stratified")])
def test_one_block_of_passes_has_no_error(passes: int, draws: str) -> None:
    table = ds.uncertainty(net(), "0=.5", zoo.vectors(), passes=passes, draws=draws)
    assert table.bald_error.isna().all()
    assert ds.uncertainty(net(), "none", zoo.vectors(), passes=passes, draws=draws).bald.abs().max() <= 1e-6
