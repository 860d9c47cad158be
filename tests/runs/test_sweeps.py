"""Sweeps: rows that equal the loop's, baselines and intervals beside them, finalists kept, equivalents named."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dropscope as ds
from dropscope import measures, scores
from dropscope.errors import AuditFailed
from dropscope.runs.result import Run
from dropscope.scores import CALIBRATION, RANKING
from support import zoo
from support.engines import BranchingText
from support.errors import refused
from support.noisy_labels import data, net


def equal(first: pd.DataFrame, second: pd.DataFrame, tolerance: float = 1e-4) -> None:
    assert first.placement.tolist() == second.placement.tolist()
    assert first.measure.tolist() == second.measure.tolist()
    for name in ("accuracy", *RANKING, *CALIBRATION):
        np.testing.assert_allclose(first[name], second[name], atol=tolerance, rtol=0, err_msg=name)


def both(model: nn.Module, placements: Any, given_data: Any, **more: Any) -> Run:
    settings_ = {"passes": 4, "keep": "none", **more}
    fast, slow = (ds.sweep(model, placements, given_data, engine=e, **settings_) for e in ("shared", "loop"))
    assert (fast.engine, slow.engine) == ("shared", "loop")
    equal(fast.rows, slow.rows)
    return fast


# --- a closed form ----------------------------------------------------------------------------------------------------


def test_rows_are_the_scores_of_uncertainty() -> None:
    run = ds.sweep(net(), ["0=.5", "0=.2,2=.5"], data(), passes=8, seed=3)
    assert list(run.rows.placement.unique()) == ["0=0.5", "0=0.2,2=0.5"]
    assert list(run.rows.measure.unique()) == list(measures.DEFAULT)
    for placement in ("0=0.5", "0=0.2,2=0.5"):
        table = ds.uncertainty(net(), placement, data(), passes=8, seed=3)
        right = torch.tensor(table.correct.to_numpy())
        for measure in measures.DEFAULT:
            (row,) = run.rows[(run.rows.placement == placement) & (run.rows.measure == measure)].itertuples()
            found = scores.ranking_scores(torch.tensor(table[measure].to_numpy()), right)
            for name, value in found.items():
                assert getattr(row, name) == pytest.approx(float(value), abs=1e-4, nan_ok=True), name
            assert row.accuracy == pytest.approx(table.correct.mean())


def test_the_baseline_is_one_plain_pass() -> None:
    run = ds.sweep(net(), ["0=.5"], data(), passes=3)
    p = net()(data()[0]).softmax(1).detach()
    right = p.argmax(1) == data()[1]
    assert list(run.baseline.measure) == ["plain_max_probability", "plain_entropy", "plain_margin"]
    assert (run.baseline.cost == 1.0).all()
    expected = scores.aurc(measures.plain_entropy(p), right)
    assert run.baseline.aurc.iloc[1] == pytest.approx(float(expected), abs=1e-6)
    assert set(run.levels) >= {"isotonic_penalty"}


# --- equal to the loop ------------------------------------------------------------------------------------------------


def test_a_grid_of_a_cnn() -> None:
    x = zoo.images(24)
    run = both(zoo.cifar(), ds.PlacementGrid(["conv1", "conv2", "fc1"], rates=(0.2, 0.6)), (x, torch.arange(24) % 10))
    assert len(run.rows) == 26 * 5


@pytest.mark.parametrize(
    ("model", "inputs", "placements"),
    [
        (
            zoo.resnet,
            lambda: zoo.images(8),
            ["conv1=.2,layer2.conv1=.3", "layer1=.2", "residual=.3", "last=.5", "none"],
        ),
        (zoo.encoder, lambda: zoo.sequences(8), ["ffn=.3", "attention=.2", "attention=.2,ffn=.3", "own"]),
        (lambda _: zoo.hugging_face("gpt2"), lambda: zoo.text(8), ["attention=.3", "attention=.3,ffn=.2", "own*2"]),
        (lambda _: zoo.recurrent(), lambda: zoo.tokens(8), ["embed=.3", "rnn=.3", "rnn=.3,last=.2"]),
    ],
    ids=["resnet", "sequence first", "gpt2", "lstm"],
)
def test_other_models(model: Any, inputs: Any, placements: list[str]) -> None:
    built = model() if model is zoo.resnet else model(False)
    both(built, placements, _labelled(inputs()), measures=[*measures.DEFAULT, "variation_ratio", "averaged_entropy"])


def _labelled(x: Any) -> Any:
    n = len(x["input_ids"]) if isinstance(x, dict) else len(x)
    return x | {"labels": torch.arange(n) % 3} if isinstance(x, dict) else (x, torch.arange(n) % 3)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    texts=st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from(["0@output", "0@after_activation", "0@input", "2@before_activation", "4@input"]),
                st.sampled_from([0.2, 0.5]), min_size=1, max_size=3,
            ),
            st.sampled_from(["bernoulli", "gaussian"]),
        ), min_size=1, max_size=6,
    ),
    memory=st.sampled_from(["1MiB", "64MiB"]), label=st.sampled_from(["mean", "plain"]),
    masks=st.sampled_from(["per_example", "per_pass"]),
)  # fmt: skip
def test_random_placements(texts: Any, memory: str, label: str, masks: str) -> None:
    placements = [ds.Placement(rates, noise=noise) for rates, noise in texts]
    for placement in placements:
        if {"0@output", "0@after_activation"} <= {term.address for term in placement.terms}:
            return  # two names of one value: the plain loop's
    both(net(), placements, data(11), memory=memory, label=label, masks=masks, passes=3, batch_size=6)


# --- contracts --------------------------------------------------------------------------------------------------------


def test_finalists_have_examples_intervals_and_paired_differences() -> None:
    run = ds.sweep(net(), [f"0={r}" for r in (0.1, 0.3, 0.5, 0.7)], data(), passes=5, keep="top:3")
    best = run.best("aurc", 3)
    kept = run.intervals[run.intervals.placement != "none"]
    assert set(zip(kept.placement, kept.measure, strict=True)) == set(zip(best.placement, best.measure, strict=True))
    assert len(kept) == 3 * (1 + len(RANKING) + len(CALIBRATION))
    assert ((best.low <= best.aurc) & (best.aurc <= best.high)).all()
    assert kept.minus_single_pass_low.notna().all()
    assert set(kept.picked_from) == {len(run.rows)}
    both_ways = best[["placement", "measure"]].merge(kept[kept.score == "aurc"], on=["placement", "measure"])
    assert both_ways["value"].tolist() == best.aurc.tolist()
    for table in (both_ways, best):
        assert table.minus_single_pass.tolist() == best.aurc_minus_single_pass.tolist()
    groups = run.examples.groupby(["placement", "measure"])
    assert len(groups) == 3 + 3
    assert (groups.size() == 40).all()
    entropy = run.intervals[run.intervals.measure == "plain_entropy"]
    assert not entropy[["minus_single_pass", "minus_single_pass_low", "minus_single_pass_high"]].any(axis=None)
    for (placement, measure), group in groups:
        if placement != "none":
            table = ds.uncertainty(net(), placement, data(), passes=5, measures=[measure])
            np.testing.assert_allclose(group.uncertainty, table[measure], atol=1e-6)


def test_rows_have_the_columns_that_people_read() -> None:
    run = ds.sweep(net(), ["0=.5", "none"], data(), passes=3, keep="none")
    assert list(run.rows.columns) == [
        "placement", "measure", "accuracy", "aurc", "aurc_minus_single_pass", "augrc", "error_auroc", "error_auprc",
        "isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty", "excess_aurc",
        "ece", "brier", "nll", "cost", "equivalent_to",
    ]  # fmt: skip
    assert list(run.baseline.columns) == list(run.rows.columns)[:-1]
    plain = float(run.baseline.aurc[run.baseline.measure == "plain_entropy"].iloc[0])
    for table in (run.rows, run.baseline):
        assert table.aurc_minus_single_pass.tolist() == [value - plain for value in table.aurc]
    of_none = run.rows[(run.rows.placement == "none") & (run.rows.measure == "predictive_entropy")]
    assert of_none.aurc_minus_single_pass.iloc[0] == pytest.approx(0, abs=1e-9)


def test_keep_all_and_none() -> None:
    everything = ds.sweep(net(), ["0=.5", "2=.5"], data(), passes=3, keep="all")
    assert everything.with_intervals(everything.rows).low.notna().all()
    nothing = ds.sweep(net(), ["0=.5", "2=.5"], data(), passes=3, keep="none")
    assert nothing.best().low.isna().all()
    assert nothing.with_intervals(nothing.baseline).low.notna().all()
    assert set(nothing.examples.placement) == {"none"}


def test_groups_are_resampled_whole() -> None:
    alone = ds.sweep(net(), ["0=.5"], data(), passes=3, keep="all")
    grouped = ds.sweep(net(), ["0=.5"], data(), passes=3, keep="all", groups=[i // 8 for i in range(40)])
    equal(alone.rows, grouped.rows, 0)
    assert not np.allclose(alone.intervals.low, grouped.intervals.low)


def test_equivalent_placements_are_computed_once_and_named() -> None:
    texts = ["0@before_activation=.5", "0@after_activation=.5", "0@output=.5", "2=.5"]
    run = both(net(), texts, data())
    equivalent = run.rows[run.rows.equivalent_to.notna()]
    assert set(equivalent.placement) == {"0@after_activation=0.5", "0@output=0.5"}
    assert set(equivalent.equivalent_to) == {"0@before_activation=0.5"}
    assert run.rows.placement.unique().tolist() == [str(ds.Placement(t)) for t in texts]
    kept = ds.sweep(net(), texts, data(), passes=4, keep="all", progress=False).intervals
    kept = kept[kept.score == "aurc"].set_index(["placement", "measure"])
    for name in ("value", "low", "high", "minus_single_pass_low"):  # the same numbers, so the same intervals
        of_the_other, of_itself = (kept[name][f"0@{where}=0.5"] for where in ("output", "before_activation"))
        assert of_the_other.notna().all()
        assert of_the_other.tolist() == of_itself.tolist()


def test_labels_of_the_plain_pass_keep_accuracy() -> None:
    run = ds.sweep(net(), ["0=.8", "2=.5"], data(), passes=3, label="plain")
    assert run.rows.accuracy.nunique() == 1
    assert run.rows.accuracy.iloc[0] == run.baseline.accuracy.iloc[0]


def test_cost_is_relative_to_a_plain_pass() -> None:
    run = ds.sweep(net(), ["none", "0@input=.5", "4@input=.5"], data(), passes=10, keep="none")
    cost = dict(zip(run.rows.placement, run.rows.cost, strict=True))
    whole = 8 * 32 + 32 * 16 + 16 * 3
    assert cost["none"] == 1.0
    assert cost["0@input=0.5"] == pytest.approx(11)
    assert cost["4@input=0.5"] == pytest.approx(1 + 10 * 48 / whole)


def test_best_knows_the_direction_of_a_score() -> None:
    run = ds.sweep(net(), [f"0={r}" for r in (0.1, 0.5, 0.9)], data(), passes=4, keep="none")
    assert run.best("aurc", 1).aurc.iloc[0] == run.rows.aurc.min()
    assert run.best("error_auroc", 1).error_auroc.iloc[0] == run.rows.error_auroc.max()
    with refused("score"):
        run.best("accuraci")


@pytest.mark.parametrize(
    ("written", "suggested"),
    [("auroc", "'error_auroc'"), ("AUC", "'error_auroc'"), ("auprc", "'error_auprc'"), ("ap", "'error_auprc'"),
     ("penalty", "'isotonic_penalty'"), ("AURC", "'aurc'"), ("log_loss", "'nll'"), ("dice", "scores.dice"),
     ("accuracy", "'accuracy'")],
)  # fmt: skip
def test_the_common_name_of_a_score_is_suggested(written: str, suggested: str) -> None:
    run = ds.sweep(net(), ["0=0.5"], data(), passes=2, keep="none")
    with refused("score") as caught:
        run.best(written)
    assert suggested in caught.value.remedy
    with refused("objective") as caught:
        ds.sweep(net(), ["0=0.5"], data(), passes=2, objective=written)
    assert suggested in caught.value.remedy


def test_one_measure_or_score_by_its_name_and_all_measures() -> None:
    run = ds.sweep(net(), ["0=0.5"], data(), passes=2, measures="bald", scores="aurc", keep="none")
    assert run.rows.measure.tolist() == ["bald"]
    assert "augrc" not in run.rows
    every = ds.sweep(net(), ["0=0.5"], data(), passes=2, measures="all", keep="none").rows
    assert set(every.measure) == set(ds.measures.TABLE) - {"mutual_information"}
    assert every.aurc.notna().all()


def test_a_measure_of_ones_own() -> None:
    def widest(kept: Any) -> Tensor:
        return kept.class_variance.amax(-1)

    widest.needs = ("class_moments",)
    both(net(), ["0=.5"], data(), measures=[widest, "bald"])


def test_the_loop_runs_where_the_tree_cannot(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dropscope"):
        run = ds.sweep(net(), ["0=.5 noise=multinomial", "2=.5"], data(), passes=3, keep="none")
    assert run.engine == "loop"
    assert any("multinomial" in record.getMessage() for record in caplog.records)
    equal(run.rows, ds.sweep(net(), ["0=.5 noise=multinomial", "2=.5"], data(), passes=3, engine="loop").rows, 0)


@pytest.mark.parametrize("engine", ["shared", "loop"])
def test_the_model_is_afterwards_what_it_was(engine: str, untouched: Any) -> None:
    model = zoo.resnet().train()
    with untouched(model):
        ds.sweep(model, ["conv1=.3", "last=.5"], (zoo.images(6), torch.arange(6) % 10), passes=2, engine=engine)


def test_a_site_without_effect_is_refused_before_any_work() -> None:
    with pytest.raises(AuditFailed):
        ds.sweep(zoo.seeded(zoo.Deaf), ["fc@input=.5", "unused=.5"], data(), passes=2)


def by_length() -> dict[str, Tensor]:
    """In an order that sorting by length does not undo when it is done twice."""
    text = {name: value[[2, 0, 4, 1, 5, 3, 8, 6, 7]] for name, value in zoo.text(9, 16).items()}
    return text | {"labels": torch.tensor([0, 0, 1, 2, 1, 0, 2, 2, 1])}


def test_texts_sorted_by_length_have_the_rows_of_the_data(caplog: pytest.LogCaptureFixture) -> None:
    model, options = zoo.seeded(BranchingText), {"passes": 4, "keep": "all", "batch_size": 4}
    placements = ["ffn=.3", "none", "attention=.2"]
    with caplog.at_level(logging.WARNING, logger="dropscope"):
        fast = ds.sweep(model, placements, by_length(), **options)
    assert [("a value that noise changes" in r.getMessage()) for r in caplog.records if r.name == "dropscope"] == [True]
    slow = ds.sweep(model, placements, by_length(), engine="loop", **options)
    assert fast.engine == slow.engine == "loop"
    equal(fast.rows, slow.rows)
    equal(fast.baseline, slow.baseline)
    assert fast.examples[["id", "placement", "measure", "correct"]].equals(
        slow.examples[["id", "placement", "measure", "correct"]]
    )
    np.testing.assert_allclose(fast.examples.uncertainty, slow.examples.uncertainty, atol=1e-5)
    assert fast.spec["data"] == slow.spec["data"]


def test_half_precision_runs_in_the_loop_and_is_another_run() -> None:
    bert = zoo.hugging_face("bert")
    half, single = (
        ds.sweep(bert, ["ffn=.3"], by_length(), passes=4, keep="all", precision=precision, engine=engine)
        for precision, engine in (("bf16", "auto"), ("fp32", "loop"))
    )
    assert (half.engine, half.spec["precision"], single.spec["precision"]) == ("loop", "bf16", "fp32")
    assert half.examples.id.tolist() == single.examples.id.tolist()
    np.testing.assert_allclose(half.examples.uncertainty, single.examples.uncertainty, atol=0.03)


# --- regressions ------------------------------------------------------------------------------------------------------


def test_batches_of_two_shapes_come_in_different_chunks() -> None:
    """Rows were computed on half of the examples each, and doubled."""
    bert = zoo.hugging_face("bert")
    batches = [zoo.text(5, length) | {"labels": torch.arange(5) % 3} for length in (9, 12)]
    sites = [f"bert.encoder.layer.{i}.intermediate.dense" for i in (0, 1)]
    grid = ds.PlacementGrid(sites, rates=(0.2, 0.4, 0.6))
    run = both(bert, grid, batches, memory="2MiB", passes=2)
    assert len(run.rows) == 15 * 5


def test_scores_without_the_objective() -> None:
    run = ds.sweep(net(), ["0=.5"], data(), passes=3, scores=["augrc"])
    assert {"augrc", "aurc"} <= set(run.rows.columns)
    assert "error_auroc" not in run.rows


def test_a_placement_named_twice_is_one_placement() -> None:
    for engine in ("shared", "loop"):
        run = ds.sweep(net(), ["0=.5", "2=.2", "0=0.50"], data(), passes=2, engine=engine)
        assert len(run.rows) == 2 * 5


def test_the_plain_placement_under_a_measure_of_spread() -> None:
    run = both(net(), ["none", "0=.5"], data(), measures=["bald_corrected", "averaged_std"])
    assert len(run.rows) == 4


def test_an_ignored_label_is_refused_because_a_sweep_scores_every_example() -> None:
    net, data = zoo.seeded(lambda: nn.Linear(8, 3)), (zoo.vectors(6), torch.tensor([0, 1, 2, -1, 0, 1]))
    with pytest.raises(TypeError, match="ignore_label"):
        ds.sweep(net, ["last=0.5"], data, passes=2, ignore_label=-1)
    with refused("labels"):
        ds.sweep(net, ["last=0.5"], data, passes=2)


def test_one_placement_needs_no_list() -> None:
    for placement in ("0=0.5", ds.Placement({"0": 0.5})):
        assert ds.sweep(net(), placement, data(), passes=2, keep="none").rows.placement.unique().tolist() == ["0=0.5"]


def test_negative_seeds_have_intervals_too() -> None:
    assert ds.sweep(net(), ["0=0.5"], data(), passes=2, seed=-7).best().low.notna().all()


def test_best_by_a_score_that_was_not_asked_for() -> None:
    run = ds.sweep(net(), ["0=0.5"], data(), passes=2, scores=["augrc"], objective="augrc", keep="none")
    assert len(run.best("augrc")) == 5
    with refused("score"):
        run.best()
