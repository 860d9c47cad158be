"""Analyses of rows: quantities of a placement against their formulas, marginals and effects against plain loops."""

from __future__ import annotations

import math
import time

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dropscope.analysis.contrasts import spearman
from dropscope.analysis.effects import effect_over_networks, paired_differences, pairwise_contrasts, slope, trends
from dropscope.analysis.inference import holm, over_networks
from dropscope.analysis.placements import (
    QUANTITIES,
    marginal_means,
    per_layer_rate,
    with_quantities,
    without_equivalents,
)
from dropscope.placement.grid import PlacementGrid
from dropscope.placement.placement import Placement
from support.errors import refused

LAYERS = ("conv1", "conv2", "conv3", "fc1")


def by_hand(text: str) -> dict[str, float]:
    """Eq 18 to 23, written out for one placement."""
    rates = {term.name: term.rate for term in Placement.parse(text).terms}
    p = [rates.get(layer, 0.0) for layer in LAYERS]
    masked = [index for index, rate in enumerate(p, 1) if rate > 0]
    share = [rate / sum(p) for rate in p]
    mu = sum(s * index for index, s in enumerate(share, 1))
    sigma = math.sqrt(sum(s * (index - mu) ** 2 for index, s in enumerate(share, 1)))
    found = {
        "p_mean": sum(p) / len(masked),
        "n_layers": len(masked),
        "first": masked[0],
        "last": masked[-1],
        "mu": mu,
        "sigma": sigma,
        "skewness": float("nan"),
        "kurtosis": float("nan"),
    }
    if len(masked) > 1:
        found["skewness"] = sum(s * ((index - mu) / sigma) ** 3 for index, s in enumerate(share, 1))
        found["kurtosis"] = sum(s * ((index - mu) / sigma) ** 4 for index, s in enumerate(share, 1))
    return found


def rows_of(texts: list[str], **columns: object) -> pd.DataFrame:
    return pd.DataFrame({"placement": texts, **columns})


# --- what a placement is ----------------------------------------------------------------------------------------------


def test_every_quantity_is_its_formula() -> None:
    grid = PlacementGrid(LAYERS, (0.1, 0.4, 0.9), ("before_activation", "after_activation"))
    texts = [str(placement) for placement in grid]
    found = with_quantities(rows_of(texts), LAYERS)
    for index in range(0, len(texts), 7):
        expected = by_hand(texts[index])
        for name in QUANTITIES:
            assert found[name].iloc[index] == pytest.approx(expected[name], abs=1e-9, nan_ok=True), (texts[index], name)


def test_two_layers_have_the_moments_of_a_coin() -> None:
    """Of a coin with success s: skewness (1 − 2s)/√(s(1 − s)), kurtosis 1/(s(1 − s)) − 3."""
    found = with_quantities(rows_of(["a=0.2,b=0.6"]), ["a", "b"]).iloc[0]
    success = 0.75
    variance = success * (1 - success)
    assert found["mu"] == pytest.approx(1.75)
    assert found["sigma"] == pytest.approx(math.sqrt(variance))
    assert found["skewness"] == pytest.approx((1 - 2 * success) / math.sqrt(variance))
    assert found["kurtosis"] == pytest.approx(1 / variance - 3)


def test_one_layer_has_no_skewness() -> None:
    found = with_quantities(rows_of(["conv2=0.3", "fc1=0.7"]), LAYERS)
    assert found["sigma"].tolist() == [0, 0]
    assert found[["skewness", "kurtosis"]].isna().all(axis=None)


def test_names_rates_and_positions() -> None:
    texts = ["conv1@before_activation=0.1,fc1@before_activation=0.3", "conv2@after_activation=0.5", "conv3@input=0.2"]
    found = with_quantities(rows_of([*texts, "conv1@input=0.1,fc1=0.2"]), LAYERS)
    assert found["position"].tolist() == ["before", "after", "input", "mixed"]
    assert found["first_layer"].tolist() == ["conv1", "conv2", "conv3", "conv1"]
    assert found["last_layer"].tolist() == ["fc1", "conv2", "conv3", "fc1"]
    assert found["last_rate"].tolist() == [0.3, 0.5, 0.2, 0.2]
    assert found["rate_conv1"].tolist() == [0.1, 0, 0, 0.1]


def test_a_layer_may_name_its_own_position() -> None:
    found = with_quantities(rows_of(["blocks.1=0.1,head@input=0.2", "head@input=0.4"]), ["blocks.1", "head@input"])
    assert found["position"].tolist() == ["auto", "auto"]
    assert found["rate_head@input"].tolist() == [0.2, 0.4]


def test_the_plain_placement_has_nothing() -> None:
    found = with_quantities(rows_of(["none", "conv1=0.1"]), LAYERS)
    assert found["n_layers"].tolist() == [0, 1]
    assert found.loc[0, ["p_mean", "first", "mu", "skewness"]].isna().all()
    assert found.loc[0, "position"] == "none"


@pytest.mark.parametrize("text", ["fc2=0.5", "own", "conv1@input=0.1,conv1@output=0.2"])
def test_rows_that_are_not_of_these_layers_are_refused(text: str) -> None:
    with refused("placement") as caught:
        with_quantities(rows_of(["conv1=0.1", text]), LAYERS)
    assert caught.value.received == text


def test_the_whole_grid_of_two_positions_gets_its_quantities_in_seconds() -> None:
    texts = [str(p) for p in PlacementGrid(LAYERS, positions=("before_activation", "after_activation"))]
    rows = rows_of(texts * 6)
    started = time.monotonic()
    assert len(with_quantities(rows, LAYERS)) == 119_988
    assert time.monotonic() - started < 15


# --- marginals --------------------------------------------------------------------------------------------------------


def some_rows(networks: int = 3, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    texts = [str(placement) for placement in PlacementGrid(LAYERS, (0.2, 0.5, 0.8))]
    frames = [
        rows_of(
            texts, measure=measure, network=f"seed {n}", aurc=draw.random(len(texts)), other=draw.random(len(texts))
        )
        for n in range(networks)
        for measure in ("bald", "variation_max")
    ]
    return with_quantities(pd.concat(frames, ignore_index=True), LAYERS)


def test_a_marginal_is_a_mean_of_means() -> None:
    rows = some_rows()
    found = marginal_means(rows, "n_layers", "aurc").set_index(["measure", "n_layers"])
    means, variances = [], []
    for network in rows["network"].unique():
        own = rows[(rows["network"] == network) & (rows["measure"] == "bald") & (rows["n_layers"] == 2)]["aurc"]
        means.append(own.to_numpy().mean())
        variances.append(own.to_numpy().var())
    line = found.loc[("bald", 2)]
    assert line["mean"] == pytest.approx(np.mean(means))
    assert line["std"] == pytest.approx(math.sqrt(np.mean(variances)))
    assert line["between"] == pytest.approx(np.std(means, ddof=1))
    ends = stats.t.interval(0.95, 2, np.mean(means), stats.sem(means))
    assert (line["low"], line["high"]) == pytest.approx(ends)
    assert marginal_means(some_rows(1), "n_layers", "aurc")[["low", "high", "between"]].isna().all(axis=None)
    assert (line["placements"], line["networks"]) == (6 * 9, 3)


def test_per_layer_and_rate() -> None:
    rows = some_rows(networks=1)
    found = per_layer_rate(rows, "last", "aurc")
    assert len(found) == 2 * 4 * 3
    one = found[(found["measure"] == "bald") & (found["last_layer"] == "conv2") & (found["last_rate"] == 0.5)].iloc[0]
    own = rows[(rows["measure"] == "bald") & (rows["rate_conv2"] == 0.5) & (rows["rate_conv3"] + rows["rate_fc1"] == 0)]
    assert one["mean"] == pytest.approx(own["aurc"].mean())
    assert one["placements"] == len(own) == 4
    with refused("which"):
        per_layer_rate(rows, "middle", "aurc")  # type: ignore[arg-type]


def test_equal_means_of_rates_are_one_group() -> None:
    """.1 + .2 is not .3 in floating point."""
    found = marginal_means(
        with_quantities(rows_of(["a=0.1,b=0.2", "a=0.15"], aurc=[1.0, 2.0]), ["a", "b"]), "p_mean", "aurc"
    )
    assert found["placements"].tolist() == [2]


def test_an_unknown_column_is_named() -> None:
    with refused("aurk"):
        marginal_means(some_rows(1), "n_layers", "aurk")


def test_placements_equal_by_mathematics_count_once() -> None:
    rows = rows_of(["a=0.1", "b=0.1"], equivalent_to=[None, "a=0.1"])
    assert without_equivalents(rows)["placement"].tolist() == ["a=0.1"]
    assert len(without_equivalents(rows_of(["a=0.1", "b=0.1"]))) == 2


# --- effects ----------------------------------------------------------------------------------------------------------


def test_slope_and_rank_correlation_against_scipy() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.integers(0, 9, 200).astype(float), draw.random(200)
    assert slope(x, y) == pytest.approx(stats.linregress(x, y).slope)
    known = stats.spearmanr(x, y)
    assert spearman(x, y) == pytest.approx((known.statistic, known.pvalue))
    y[3] = np.nan
    kept = np.isfinite(y)
    assert spearman(x, y)[0] == pytest.approx(stats.spearmanr(x[kept], y[kept]).statistic)


def test_what_does_not_vary_has_no_effect_to_tell() -> None:
    assert math.isnan(slope([1, 1], [2, 3]))
    assert math.isnan(spearman([1, 2, 3], [5, 5, 5])[0])


def test_an_effect_is_taken_over_networks_and_not_over_placements() -> None:
    rows = some_rows(networks=4)
    bald = rows[rows["measure"] == "bald"]
    values = [slope(own["p_mean"], own["aurc"]) for _, own in bald.groupby("network")]
    known = over_networks(values)
    found = trends(rows, ["p_mean"], ["aurc"])
    line = found[(found["measure"] == "bald") & (found["statistic"] == "slope")].iloc[0]
    assert line[["value", "low", "high", "p"]].tolist() == pytest.approx([known.value, known.low, known.high, known.p])
    assert line["n"] == 4
    assert line["p"] == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_one_network_has_a_value_and_no_interval() -> None:
    line = trends(some_rows(networks=1), ["p_mean"], ["aurc"]).iloc[0]
    assert np.isfinite(line["value"])
    assert line[["low", "high", "p", "p_holm"]].isna().all()
    assert np.isfinite(line["descriptive_p"])


def test_holm_within_a_quantity() -> None:
    found = trends(some_rows(), ["p_mean", "n_layers"], ["aurc", "other"])
    family = found[(found["effect"] == "n_layers") & (found["statistic"] == "slope")]
    assert len(family) == 4
    assert family["p_holm"].tolist() == pytest.approx(holm(family["p"].tolist()))


def test_contrasts_of_known_kinds() -> None:
    rows = with_quantities(
        rows_of(
            ["a=0.1", "b=0.1", "a=0.1,b=0.1"] * 2,
            measure="bald",
            network=["x"] * 3 + ["y"] * 3,
            aurc=[1.0, 9.0, 4.0, 3.0, 9.0, 4.0],
        ),
        ["a", "b"],
    )
    kinds = {
        "a − both": (lambda r: (r["rate_a"] > 0) & (r["n_layers"] == 1), lambda r: r["n_layers"] > 1),
        "nothing": (lambda r: r["n_layers"] > 5, lambda r: r["n_layers"] > 1),
    }
    found = pairwise_contrasts(rows, kinds, ["aurc"]).set_index("statistic")
    assert set(found["effect"]) == {"a − both"}
    assert found.loc["difference", "value"] == pytest.approx((-3 - 1) / 2)
    assert found.loc["ratio", "value"] == pytest.approx((1 / 4 + 3 / 4) / 2)
    assert found.loc["ratio", "p"] == pytest.approx(stats.ttest_1samp([0.25, 0.75], 1).pvalue)


def test_pairs_are_equal_rates_of_the_same_network_and_measure() -> None:
    one = some_rows(networks=2)
    shuffled = one.sample(frac=1, random_state=0).assign(aurc=lambda r: r["aurc"] - 0.25)
    found = paired_differences(one, shuffled, "moved", ["aurc"])
    assert found["value"].tolist() == pytest.approx([0.25, 0.25])
    assert found["largest"].tolist() == pytest.approx([0.25, 0.25])
    assert found["pairs"].tolist() == [2 * 255, 2 * 255]
    same = paired_differences(one, one, "same", ["aurc"])
    assert same["largest"].tolist() == [0, 0]
    few = paired_differences(one[one["n_layers"] == 1], one, "few", ["aurc"])
    assert few["pairs"].tolist() == [2 * 12, 2 * 12]


def test_a_null_other_than_zero() -> None:
    rows = pd.DataFrame({"network": ["a", "b", "c"], "aurc": [0.4, 0.5, 0.7]})
    found = effect_over_networks(rows, lambda own: float(own["aurc"].mean()), null=0.5)
    known = over_networks([0.4, 0.5, 0.7])
    assert (found.value, found.low, found.high) == pytest.approx((known.value, known.low, known.high))
    assert found.p == pytest.approx(stats.ttest_1samp([0.4, 0.5, 0.7], 0.5).pvalue)
    alone = effect_over_networks(rows[["aurc"]], lambda own: float(len(own)))
    assert (alone.value, alone.n) == (3.0, 1)
