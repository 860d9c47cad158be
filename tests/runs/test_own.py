"""What a user brings: measures of passes, scores and noise of one's own, in a sweep; and scores of probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import dropscope as ds
from dropscope import measures, scores
from dropscope.runs.samples import bytes_per_example
from support import zoo
from support.errors import refused
from support.noisy_labels import data, net

PLACEMENTS = ("0=0.5", "none", "0=0.2,2=0.5", "0@before_activation=0.5")  # the last is equal to the first


def spread(passes: Tensor) -> Tensor:
    """No running sum gives a quantile."""
    return (passes.quantile(0.9, 0) - passes.quantile(0.1, 0)).amax(1)


def sweep(engine: str = "auto", **more: Any) -> ds.Run:
    return ds.sweep(net(), PLACEMENTS, data(), passes=6, seed=3, engine=engine, batch_size=16, **more)


# --- measures of passes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_passes() -> dict[str, ds.Run]:
    return {engine: sweep(engine, measures=[spread, "bald"]) for engine in ("shared", "loop")}


def test_a_measure_of_passes_in_a_sweep_is_that_of_the_samples(of_passes: dict[str, ds.Run]) -> None:
    run = of_passes["shared"]
    assert list(run.rows.measure.unique()) == ["spread", "bald"]
    for placement in ("0=0.5", "0=0.2,2=0.5"):
        passes = ds.sample(net(), placement, data()[0], passes=6, seed=3)
        right = passes.mean(0).argmax(1) == data()[1]
        (row,) = run.rows[(run.rows.placement == placement) & (run.rows.measure == "spread")].itertuples()
        assert row.aurc == pytest.approx(float(scores.aurc(spread(passes), right)), abs=1e-6)
        examples = run.examples[(run.examples.placement == placement) & (run.examples.measure == "spread")]
        np.testing.assert_allclose(examples.uncertainty, spread(passes), atol=1e-6)


def test_a_measure_of_passes_is_the_same_by_both_engines(of_passes: dict[str, ds.Run]) -> None:
    fast, slow = of_passes["shared"].rows, of_passes["loop"].rows
    for name in ("accuracy", *scores.RANKING, *scores.CALIBRATION):
        np.testing.assert_allclose(fast[name], slow[name], atol=1e-5, err_msg=name)
    assert fast.equivalent_to.tolist()[-2:] == ["0=0.5", "0=0.5"]


def test_other_measures_do_not_change_beside_one_of_passes(of_passes: dict[str, ds.Run]) -> None:
    alone = sweep(measures=["bald"]).rows
    beside = of_passes["shared"].rows.query("measure == 'bald'")
    for name in ("accuracy", "aurc", "nll"):
        np.testing.assert_allclose(beside[name], alone[name], atol=1e-6)


def test_passes_that_do_not_fit_at_once_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from dropscope.runs import samples

    whole = ds.uncertainty(net(), "0=0.5", data(), passes=6, measures=[spread, "bald"])
    monkeypatch.setattr("dropscope.runs.passes.free_bytes", lambda device: 7 * bytes_per_example(6, 3))
    pieces: list[int] = []
    joined = samples.joined
    monkeypatch.setattr(samples, "joined", lambda blocks: pieces.append(1) or joined(blocks))
    split = ds.uncertainty(net(), "0=0.5", data(), passes=6, measures=[spread, "bald"])
    assert len(pieces) == 6  # of 7 examples each
    pd.testing.assert_frame_equal(split, whole, atol=1e-6)


def test_passes_that_do_not_fit_at_all_are_refused_before_any_work() -> None:
    passes = (1 << 20) // bytes_per_example(1, 3) + 1
    with refused("measures") as caught:
        ds.sweep(net(), ["0=.5"], data(), passes=passes, measures=[spread], memory=1 << 20)
    assert "spread" in str(caught.value)


def test_a_measure_that_is_not_finite_is_named() -> None:
    for broken in (lambda stats: stats.mean[..., 0] * float("nan"), lambda passes: passes.mean(0)[:, 0] / 0):
        row = measures.resolve([broken])[0]
        assert row.name == "lambda_1"
        for run in (ds.sweep, ds.uncertainty):
            with refused("measures") as caught:
                run(net(), "0=.5", data(), passes=2, engine="loop", measures=[broken])
            assert "lambda_1" in str(caught.value)


def test_maps_take_lambdas_of_both_kinds() -> None:
    found = ds.maps(
        zoo.unet3d(), "down1=.3", zoo.volumes(), passes=3,
        measures=[lambda stats: stats.class_variance.amax(-1), lambda passes: passes.std(0).amax(1)],
    )  # fmt: skip
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "lambda_1": (3, 8, 8, 8), "lambda_2": (3, 8, 8, 8), "prediction": (3, 8, 8, 8),
    }  # fmt: skip


# --- scores of probabilities ------------------------------------------------------------------------------------------


def test_calibration_is_that_of_the_mean_probabilities() -> None:
    run = sweep(keep="top:4", objective="nll", label="plain")
    labels = data()[1]
    for placement in ("0=0.5", "none", "0=0.2,2=0.5"):
        mean = ds.sample(net(), placement, data()[0], passes=6, seed=3).mean(0)
        rows = run.rows[run.rows.placement == placement]
        for name in scores.CALIBRATION:
            value = float(scores.TABLE[name].function(mean, labels))
            np.testing.assert_allclose(rows[name], value, atol=1e-6, err_msg=name)
    plain = net()(data()[0]).softmax(1).detach()
    for name in scores.CALIBRATION:
        np.testing.assert_allclose(run.baseline[name], float(scores.TABLE[name].function(plain, labels)), atol=1e-6)


def test_finalists_can_be_chosen_by_calibration_and_have_its_intervals() -> None:
    run = sweep(keep="top:5", objective="nll", scores=["nll", "ece", "brier"])
    assert not set(scores.RANKING) & set(run.rows)
    best = run.rows[run.rows.equivalent_to.isna()].sort_values("nll", kind="stable").placement.iloc[0]
    assert best in set(run.examples.placement)
    assert set(run.intervals.score) == {"accuracy", *scores.CALIBRATION}
    of_scores = run.intervals[run.intervals.score != "accuracy"]
    assert (of_scores.low <= of_scores.value).all()
    assert (of_scores.value <= of_scores.high).all()
    assert (of_scores.minus_single_pass_low <= of_scores.minus_single_pass + 1e-9).all()
    assert (of_scores.minus_single_pass <= of_scores.minus_single_pass_high + 1e-9).all()
    assert run.best("nll", 1).nll.iloc[0] == run.rows.nll.min()
    assert "nll↓" in repr(run.best("nll", 1))


def test_calibration_replicates_are_those_of_resampled_examples() -> None:
    from dropscope.runs.intervals import _Calibration, _Draws

    p, labels = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)).softmax(1), torch.arange(50) % 3
    draws = _Draws.of(50, [i // 5 for i in range(50)], 0, halves=False)
    drawn = _Calibration.of(scores.confidences_of(p, labels), draws).drawn
    for name in scores.CALIBRATION:
        one_by_one = [float(scores.TABLE[name].function(p[i], labels[i])) for i in draws.indices]
        np.testing.assert_allclose(drawn[name], one_by_one, atol=1e-6)


# --- scores of one's own ----------------------------------------------------------------------------------------------


def surest_half(uncertainty: Tensor, correct: Tensor) -> Tensor:
    return scores.risk_at_coverage(uncertainty, correct, coverage=0.5)


def found_among_ten(uncertainty: Tensor, correct: Tensor) -> float:
    """One ranking at a time, by way of NumPy."""
    last = np.argsort(uncertainty.numpy(), kind="stable")[-10:]
    return float((~correct.numpy())[last].mean())


surest_half.direction = "lower"  # type: ignore[attr-defined]
found_among_ten.direction = "higher"  # type: ignore[attr-defined]


def test_scores_of_ones_own_are_columns_with_intervals_and_a_direction() -> None:
    run = sweep(scores=["aurc", surest_half, found_among_ten], objective=found_among_ten, keep="top:3")
    assert set(run.rows) & {*scores.TABLE, "surest_half", "found_among_ten"} == {
        "aurc", "surest_half", "found_among_ten",
    }  # fmt: skip
    for text, measure in (("0=0.2,2=0.5", "bald"), ("none", "predictive_entropy")):
        table = ds.uncertainty(net(), text, data(), passes=6, seed=3)
        given = torch.tensor(table[measure].to_numpy()), torch.tensor(table.correct.to_numpy())
        (row,) = run.rows[(run.rows.placement == text) & (run.rows.measure == measure)].itertuples()
        assert row.surest_half == pytest.approx(float(surest_half(*given)), abs=1e-6)
        assert row.found_among_ten == pytest.approx(found_among_ten(*given), abs=1e-6)
    assert run.best("found_among_ten", 1).found_among_ten.iloc[0] == run.rows.found_among_ten.max()
    assert run.best("surest_half", 1).surest_half.iloc[0] == run.rows.surest_half.min()
    assert run.baseline[["surest_half", "found_among_ten"]].notna().all().all()
    assert run.intervals[run.intervals.score == "found_among_ten"].notna().all().all()
    assert "found_among_ten↑" in repr(run.best("found_among_ten", 2))
    assert list(run.rows)[-4:] == ["surest_half", "found_among_ten", "cost", "equivalent_to"]


def test_a_run_in_a_folder_belongs_to_its_functions(tmp_path: Path) -> None:
    def scaled(factor: float) -> Any:
        return scores.of_ranking(lambda u, c: factor * u.mean(-1), direction="lower", name="scaled")

    def run(factor: float) -> ds.Run:
        return sweep("loop", scores=[scaled(factor)], out=tmp_path / "run", keep="none")

    first = run(1.0)
    assert run(1.0).rows.equals(first.rows)
    with refused("out"):
        run(2.0)


def test_a_run_in_a_folder_belongs_to_its_noise(tmp_path: Path) -> None:
    def run(scale: float) -> ds.Run:
        ds.register_noise(lambda uniforms, rate: 1 + scale * rate * (uniforms - 0.5), name="runs_noise")
        text = "0=.5 noise=runs_noise"
        return ds.sweep(net(), [text], data(), passes=3, engine="loop", out=tmp_path / "run", keep="none")

    first = run(1.0)
    assert first.rows.placement.tolist()[0] == "0=0.5 noise=runs_noise"
    assert run(1.0).rows.equals(first.rows)
    with refused("out"):
        run(2.0)
