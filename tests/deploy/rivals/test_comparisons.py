"""`compare`: who is compared, on which examples, what is in the tables, and what is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot
from torch import Tensor, nn

import dropscope as ds
from dropscope import rivals, scores
from dropscope.deploy.rivals.rows import SCORES
from support.errors import refused
from support.rival_data import CLASSES, picture_net, pictures

FEW = {"entropy": "entropy", "drop": "last=0.5", "laplace": "laplace"}


def compared(given: Any = FEW, n: int = 160, **options: Any) -> rivals.Comparison:
    return ds.compare(picture_net(), pictures(n), given, passes=5, progress=False, **options)


@pytest.fixture(scope="module")
def whole() -> rivals.Comparison:
    x, y = pictures()
    draw = torch.Generator().manual_seed(3)
    stored = torch.randn(2, len(x), CLASSES, generator=draw).softmax(-1)
    given = {"rivals": "rivals", "placements": "placements", "mine": own_rival, "elsewhere": stored}
    noisy = x + 0.5 * torch.randn(x.shape, generator=draw), y
    arrays = {"data": stored, "shifted": stored}
    return ds.compare(picture_net(), (x, y), {**given, "elsewhere": arrays}, passes=5, shifted=noisy, progress=False)


def own_rival(seen: rivals.PlainPass) -> Tensor:
    """The smaller the features, the less certain."""
    return -seen.features.norm(dim=1)


def test_by_default_every_rival_that_the_model_allows_and_a_handful_of_placements_are_compared(whole):
    names = set(whole.table.name)
    assert set(rivals.TABLE) <= names
    assert {"last=0.1", "last=0.3", "last=0.5"} <= names
    assert {"mine", "elsewhere"} <= names
    assert len(names) == len(whole.table)


def test_one_half_fits_and_the_other_judges(whole):
    assert (whole.fitted_on, whole.judged_on, whole.shifted_on) == (80, 80, 160)
    assert whole.examples.groupby("name").id.nunique().eq(80).all()


def test_every_row_is_scored_on_the_examples_it_names(whole):
    for row in whole.table.itertuples():
        mine = whole.examples[whole.examples.name == row.name]
        u, right = torch.tensor(mine.uncertainty.to_numpy()), torch.tensor(mine.correct.to_numpy())
        assert row.aurc == pytest.approx(float(scores.aurc(u, right)))
        assert row.augrc == pytest.approx(float(scores.augrc(u, right)))
        assert row.error_auroc == pytest.approx(float(scores.error_auroc(u, right)))
        assert row.accuracy == pytest.approx(mine.correct.mean())
        assert (mine.prediction == mine.label).eq(mine.correct).all()


def test_rows_stand_in_the_order_of_their_aurc_with_cost_and_time(whole):
    table = whole.table.set_index("name")
    assert whole.table.aurc.is_monotonic_increasing
    assert table.cost["entropy"] == 1
    assert table.cost["tta_flips"] == 2
    assert table.cost["elsewhere"] == 2
    assert table.milliseconds.drop("elsewhere").gt(0).all()
    assert np.isnan(table.milliseconds["elsewhere"])


def test_probabilities_are_scored_at_a_temperature_from_the_fitting_examples(whole):
    """Rivals that only rank have the probabilities of the plain pass, so their losses are one."""
    table = whole.table.set_index("name")
    same = table.loc[["max_probability", "entropy", "margin", "energy", "mahalanobis", "mine"]]
    assert same.nll.nunique() == same.temperature.nunique() == 1
    assert table.nll["temperature"] == pytest.approx(table.nll["entropy"], abs=1e-4)
    assert table.temperature["temperature"] == pytest.approx(1, abs=0.01)


def test_differences_are_paired_and_each_interval_holds_its_estimate(whole):
    gaps = whole.differences
    assert set(gaps.score) == set(SCORES)
    assert set(gaps.data) == {"data", "shifted"}
    known = gaps.dropna(subset=["difference_low"])
    assert (known.difference_low <= known.difference).all()
    assert (known.difference <= known.difference_high).all()
    held = gaps.dropna(subset=["low"])
    assert ((held.low <= held.value) & (held.value <= held.high)).all()
    plain = gaps[gaps.name == "max_probability"]
    assert plain.difference.eq(0).all()
    values = gaps[(gaps.score == "aurc") & (gaps.data == "data")].set_index("name").value
    assert np.allclose(values[whole.table.name], whole.table.aurc)


def test_shifted_data_add_columns(whole):
    assert {f"shifted_{name}" for name in ("accuracy", *SCORES)} <= set(whole.table)
    assert whole.table.shifted_accuracy.lt(1).all()


def test_a_comparison_prints_and_writes_itself(whole, tmp_path: Path):
    text = whole.text(80)
    assert max(map(len, text.splitlines())) <= 80
    assert "Verdict: " in text
    assert len(repr(whole).splitlines()) <= 12
    assert "<table" in whole._repr_html_()
    assert whole.markdown().count("\n") == len(whole.table) + 1
    assert whole.latex().isascii()
    whole.save(tmp_path)
    assert json.loads((tmp_path / "comparison.json").read_text())["judged_on"] == 80
    assert len(pd.read_csv(tmp_path / "table.csv")) == len(whole.table)
    for name in ("comparison.png", "comparison.pdf", "differences.png"):
        assert (tmp_path / "figures" / name).stat().st_size > 1000


def test_pictures_take_axes_or_make_them(whole):
    _, axes = pyplot.subplots()
    assert whole.plot.risk_coverage(["entropy", "last=0.5"], ax=axes) is axes
    assert [line.get_label().split(":")[0] for line in axes.lines] == ["max_probability", "entropy", "last=0.5"]
    assert whole.plot.costs().get_xscale() == "log"
    assert len(whole.plot.gains("nll").get_yticks()) == len(whole.table) - 1
    with refused("names"):
        whole.plot.risk_coverage(["entropie"])
    with refused("score"):
        whole.plot.gains("auc")
    pyplot.close("all")


def test_examples_to_fit_on_may_be_given_and_then_all_of_the_data_judge():
    x, y = pictures(240)
    result = compared(fit=(x[160:], y[160:]))
    assert (result.fitted_on, result.judged_on) == (80, 160)


def test_what_fits_never_sees_the_examples_that_judge():
    """Labels of the judging half change scores, and nothing that was fitted or chosen."""
    x, y = pictures()
    found = []
    for labels in (y, None):
        first = ds.compare(picture_net(), (x, y), FEW, passes=5, progress=False)
        judged = first.examples[first.examples.name == "entropy"].id.astype(int).tolist()
        other = y.clone()
        if labels is None:
            other[judged] = (other[judged] + (torch.arange(len(judged)) % 2)) % CLASSES
        found.append(ds.compare(picture_net(), (x, other), FEW, passes=5, progress=False))
    a, b = (result.table.sort_values("name", ignore_index=True) for result in found)
    assert a.temperature.equals(b.temperature)
    assert a.measure.equals(b.measure)
    u, v = (result.examples.sort_values(["name", "id"]).uncertainty.to_numpy() for result in found)
    assert np.array_equal(u, v)
    assert not np.allclose(a.aurc, b.aurc)


def test_the_same_arguments_give_the_same_numbers():
    first, second = (compared().table.drop(columns="milliseconds") for _ in range(2))
    pd.testing.assert_frame_equal(first, second)


def test_predictions_of_the_plain_pass_are_the_same_for_every_rival():
    result = compared(label="plain")
    assert result.table.accuracy.nunique() == 1
    assert result.examples.groupby("id").prediction.nunique().eq(1).all()


def test_a_measure_may_be_fixed_and_another_row_be_the_reference():
    result = compared(measure="bald", against="drop")
    assert result.table.set_index("name").measure["drop"] == "bald"
    assert result.against == "drop"
    assert "max_probability" not in set(result.table.name)


def test_groups_stay_together():
    x, y = pictures()
    groups = [number // 4 for number in range(len(x))]
    result = ds.compare(picture_net(), (x, y), ["entropy"], groups=groups, progress=False)
    judged = result.examples[result.examples.name == "entropy"].id.astype(int) // 4
    assert judged.value_counts().eq(4).all()


def test_stored_probabilities_follow_their_examples_into_both_halves():
    """Those of the network itself rank as its one plain pass does."""
    x, y = pictures()
    with torch.no_grad():
        stored = picture_net()(x).softmax(1)
    result = ds.compare(picture_net(), (x, y), {"same": stored}, measure="max_probability", progress=False)
    table = result.table.set_index("name")
    assert table.aurc["same"] == pytest.approx(table.aurc["max_probability"])
    assert table.nll["same"] == pytest.approx(table.nll["max_probability"], abs=1e-5)


def test_a_rival_of_ones_own_may_be_fitted_first():
    class Nearest:
        """Distance to the nearest fitting example."""

        def fit(self, fitting: rivals.PlainPass) -> Any:
            return lambda seen: torch.cdist(seen.features, fitting.features).amin(1)

    result = compared({"nearest": Nearest()})
    assert result.table.set_index("name").kind["nearest"] == "own"


def test_the_model_is_left_as_it_was():
    net = picture_net().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    ds.compare(net, pictures(), ["rivals", "last=0.5"], passes=5, progress=False)
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_model_without_logits_images_or_a_last_layer_gets_what_it_allows():
    x = torch.randn(80, 6)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1)).eval()
    with torch.no_grad():
        y = net(x + torch.randn_like(x)).argmax(1)
    result = ds.compare(net, (x, y), passes=5, outputs="probabilities", progress=False)
    left_out = {"energy", "max_logit", "tta_flips", "tta_crops", "mc_batchnorm", "laplace"}
    assert not left_out & set(result.table.name)
    assert {remark.split()[0] for remark in result.remarks} >= left_out
    with refused("rivals"):
        ds.compare(net, (x, y), ["energy"], outputs="probabilities", progress=False)


def broken(seen: rivals.PlainPass) -> Tensor:
    raise ValueError("nothing here")


BAD_RIVALS = {
    "no rival": {"a": 3},
    "none": [],
    "a text": "entropy",
    "an unknown name": ["entropie"],
    "a name twice": ["entropy", "entropy"],
    "wrong length": {"a": lambda seen: torch.zeros(3)},
    "not finite": {"a": lambda seen: torch.full((seen.n,), torch.nan)},
    "not a tensor": {"a": lambda seen: [0.0] * seen.n},
    "an error": {"a": broken},
    "no probabilities": {"a": lambda seen: rivals.Answer(seen.logits, seen.logits.amax(1))},
}


@pytest.mark.parametrize("given", BAD_RIVALS.values(), ids=BAD_RIVALS)
def test_what_is_no_rival_is_refused(given, tmp_path: Path):
    with refused("rivals"):
        compared(given, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_arrays_of_another_shape_or_without_sums_of_one_are_refused():
    for stored in (torch.rand(2, 159, CLASSES), torch.rand(2, 160, CLASSES), torch.zeros(160, 4), torch.zeros(160)):
        with refused("probabilities"):
            compared({"stored": stored})
    right = torch.full((160, CLASSES), 1 / CLASSES)
    x, y = pictures()
    for extra in ("fit", "shifted"):
        with refused("probabilities"):
            compared({"stored": right}, **{extra: (x[:40], y[:40])})


def test_data_that_cannot_judge_are_refused():
    x, y = pictures()
    net = picture_net()
    with torch.no_grad():
        right = net(x).argmax(1)
    one = torch.zeros_like(y)
    for labels in (right, (right + 1) % CLASSES, one):
        with refused("data"):
            ds.compare(net, (x, labels), ["entropy"], progress=False)
    with refused("data"):
        ds.compare(net, x, ["entropy"], progress=False)
    with refused("data"):
        ds.compare(net, (x[:20], y[:20]), ["entropy"], progress=False)
    with refused("shifted"):
        ds.compare(net, (x, y), ["entropy"], shifted=x, progress=False)
    with refused("fit"):
        ds.compare(net, (x, y), ["entropy"], fit=(x, one), progress=False)
    dense = nn.Conv2d(1, 3, 1)
    with refused("model"):
        ds.compare(dense, (x, torch.zeros(160, 8, 8, dtype=torch.long)), ["entropy"], progress=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("passes", 0), ("measure", "entropy"), ("label", "both"), ("against", "nobody"), ("engine", "fast"), ("out", "")],
)
def test_arguments_are_checked_before_any_work(name, value):
    with refused(name):
        ds.compare(picture_net(), pictures(), FEW, progress=False, **{"passes": 5, name: value})


def test_a_plan_says_who_would_be_compared():
    plan = rivals.plan_comparison(picture_net(), pictures(), passes=7, shifted=pictures(60))
    assert (plan.passes, plan.fitting, plan.judging, plan.shifted) == (7, 80, 80, 60)
    assert {"entropy", "last=0.1"} <= {name for name, _ in plan.rivals}
    assert max(map(len, str(plan).splitlines())) <= 80


def test_a_placement_before_the_last_layer_needs_no_passes():
    analytic, passes = (
        ds.compare(picture_net(), pictures(), ["last=0.05"], passes=400, engine=engine, progress=False)
        for engine in ("analytic", "auto")
    )
    a, b = (one.table.set_index("name").loc["last=0.05"] for one in (analytic, passes))
    assert a.cost <= b.cost
    assert a.nll == pytest.approx(b.nll, abs=0.01)
