"""passes="auto": each example gets as many passes as its goal takes, whatever it is batched with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import dropscope as ds
from support import zoo
from support.errors import refused


def net(classes: int = 4) -> nn.Module:
    return zoo.seeded(lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, classes)))


def sharpened() -> nn.Module:
    """A network whose examples differ in how sure it is."""
    model = net()
    with torch.no_grad():
        model[2].weight.mul_(8)  # type: ignore[union-attr, operator]
    return model


def auto(data: Any, model: nn.Module | None = None, **options: Any) -> pd.DataFrame:
    """By passes, of which the last layer might need none."""
    common = {"placement": "last=.3", "passes": "auto", "measures": ["predictive_entropy", "bald"], "engine": "loop"}
    return ds.uncertainty(model or sharpened(), data=data, progress=False, **{**common, **options})


@pytest.mark.parametrize(
    "goal", [{"defer": 0.2}, {"threshold": 0.6}, {"tolerance": 0.02}, {"defer": 0.2, "by": "bald"}]
)
@pytest.mark.parametrize("draws", ["independent", "stratified"])
def test_batches_their_order_and_the_engine_change_nothing(goal: dict[str, Any], draws: str) -> None:
    data = zoo.vectors(61)
    first = auto(data, draws=draws, **goal)
    assert first.passes.nunique() > 1
    turned = torch.randperm(61, generator=torch.Generator().manual_seed(1))
    for options in ({"batch_size": 1}, {"batch_size": 7}, {"engine": "shared"}, {"engine": "loop", "batch_size": 32}):
        again = auto(data[turned], draws=draws, **options, **goal).iloc[turned.argsort().numpy()].reset_index(drop=True)
        for name in ("passes", "settled", "prediction", *(["deferred"] if "deferred" in first else [])):
            assert (again[name] == first[name]).all()
        for name in ("predictive_entropy", "bald", "bald_error"):
            np.testing.assert_allclose(again[name], first[name], rtol=1e-4, atol=1e-6)


def test_an_example_has_the_values_of_as_many_passes_as_it_took() -> None:
    data = zoo.vectors(40)
    table = auto(data, defer=0.25, measures="all", label="plain")
    for passes, own in table.groupby("passes"):
        fixed = ds.uncertainty(sharpened(), "last=.3", data, int(passes), measures="all", label="plain", progress=False)
        for name in [name for name in fixed if not name.endswith("_error") and name != "id"]:
            np.testing.assert_allclose(own[name], fixed[name][own.index], rtol=1e-5, atol=1e-6)


def test_examples_far_from_the_threshold_take_fewer_passes() -> None:
    table = auto(zoo.vectors(300), threshold=0.6, draws="stratified")
    far = (table.predictive_entropy - 0.6).abs() > 0.4
    assert table.passes[far].mean() < 0.5 * table.passes[~far].mean()
    assert ((table.predictive_entropy > 0.6) == table.deferred)[table.settled].all()
    assert table.attrs["threshold"] == pytest.approx(0.6)
    assert (table.passes[~table.settled] == 48).all()


def test_a_share_is_deferred_exactly_and_decisions_are_those_of_many_passes() -> None:
    data = zoo.vectors(400)
    table = auto(data, defer=0.1, draws="stratified")
    assert table.deferred.sum() == 40
    assert table.predictive_entropy[table.deferred].min() > table.attrs["threshold"] - 0.05
    many = ds.uncertainty(sharpened(), "last=.3", data, 1008, draws="stratified", progress=False).predictive_entropy
    deferred = many.rank(ascending=False) <= 40
    assert (deferred != table.deferred).mean() <= 0.03
    assert (deferred != table.deferred)[table.settled].mean() <= 0.01


def test_a_tolerance_is_met_by_the_true_error() -> None:
    data = zoo.vectors(60)
    tables = [auto(data, tolerance=0.04, seed=seed) for seed in range(12)]
    values = np.stack([table.predictive_entropy for table in tables])
    assert all((table.predictive_entropy_error <= 0.04).all() and table.settled.all() for table in tables)
    assert np.sqrt(values.var(0, ddof=1).mean()) <= 0.04 * 1.05
    assert tables[0].passes.max() > tables[0].passes.min()


def test_a_tolerance_that_needs_no_passes_gets_none() -> None:
    data, goal = zoo.vectors(40), {"tolerance": 0.05, "engine": "auto"}
    table = auto(data, **goal)
    assert (table.attrs["engine"], int(table.passes.sum()), bool(table.settled.all())) == ("analytic", 0, True)
    exact = auto(data, tolerance=0.01, draws="stratified")
    assert np.sqrt(((table.predictive_entropy - exact.predictive_entropy) ** 2).mean()) < 0.05
    turned = auto(data.flip(0), batch_size=7, **goal).iloc[::-1].reset_index(drop=True)
    np.testing.assert_allclose(turned.bald, table.bald, atol=1e-5)
    for other in ({"tolerance": 1e-5, "at_most": 20}, {"threshold": 0.6}, {"placement": "0=.3,last=.3"}):
        assert auto(data, **{**goal, **other}).attrs["engine"] != "analytic"
    assert auto(data, tolerance=0.05, engine="analytic").equals(table)
    with refused("engine"):
        auto(data, threshold=0.6, engine="analytic")


def test_without_a_goal_the_tolerance_is_a_hundredth() -> None:
    table, named = auto(zoo.vectors(9)), auto(zoo.vectors(9), tolerance=0.01)
    pd.testing.assert_frame_equal(table, named)
    assert "deferred" not in table


def test_either_goal_is_enough_where_both_are_given() -> None:
    data = zoo.vectors(80)
    alone, both = (auto(data, threshold=0.6, **more) for more in ({}, {"tolerance": 0.1}))
    assert (both.passes <= alone.passes).all()
    assert both.passes.mean() < alone.passes.mean()


def test_errors_may_be_left_out_and_measures_of_the_plain_pass_are_kept() -> None:
    chosen = ["bald", "plain_entropy"]
    table = auto(zoo.vectors(20), defer=0.2, measures=chosen, errors=False, by="bald")
    assert list(table.columns[-5:]) == ["passes", "settled", "deferred", *chosen]
    full = auto(zoo.vectors(20), defer=0.2, measures=chosen)
    pd.testing.assert_frame_equal(full[table.columns], table)


def test_texts_of_many_lengths() -> None:
    model, text = zoo.hugging_face("bert"), zoo.text(12)
    given = {"placement": "own", "measures": ["predictive_entropy"], "tolerance": 0.02, "at_most": 24}
    table, other = (auto(text, model, batch_size=size, **given) for size in (12, 5))
    assert (table.passes == other.passes).all()
    np.testing.assert_allclose(table.predictive_entropy, other.predictive_entropy, atol=1e-5)


def test_one_mask_for_all_examples_of_a_pass() -> None:
    data = zoo.vectors(30)
    first, again = (auto(data, defer=0.2, masks="per_pass", batch_size=size) for size in (30, 4))
    assert (first.passes == again.passes).all()
