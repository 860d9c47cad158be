"""Networks that came trained: which are judged, on which cases, and what their P(error) and strata say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dropscope.studies.segmentation_measures import Options, calibrated, plan, run
from dropscope.studies.segmentation_measures.calibration import (
    BINS,
    ErrorCurve,
    calibration_table,
    expected_calibration_error,
    fit_curve,
    group_voxels,
    judge_curve,
)
from dropscope.studies.segmentation_measures.cases import split
from dropscope.studies.segmentation_measures.networks import UNet
from dropscope.studies.segmentation_measures.own_report import recommend
from dropscope.studies.segmentation_measures.strata import divide_by_distance, strata_table
from support.errors import refused
from support.small_volumes import decathlon_folder

OWN = """
import torch
from torch import nn

def dropping():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Dropout3d(0.4), nn.Conv3d(4, 3, 1))

def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 3, 1))

def halved(array):
    return array / 2

def cropped(array):
    return array[:, 1:]
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    return decathlon_folder(tmp_path / "data", cases=9)


def options(data: Path, **changes: Any) -> Options:
    wanted: dict[str, Any] = {"data": str(data), "preset": "smoke", "passes": 4, "device": "cpu", "train": "none"}
    return Options(**{**wanted, "out": data.parent / "out", **changes})


def weights(data: Path, *names: str) -> list[str]:
    paths = []
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        paths.append(str(data.parent / f"{name}.safetensors"))
        save_file(UNet(1, 3, features=(4, 8)).state_dict(), paths[-1])
    return paths


def test_a_network_with_dropout_is_judged_at_its_own_rates_and_nothing_is_trained(data: Path) -> None:
    outcome = run(plan(options(data, model=f"{data.parent}/mine.py:dropping"), show=False), show=False)
    assert set(outcome.rows.experiment) == {"dropping"}
    assert set(outcome.rows.network) == {"dropping"}
    assert outcome.rows.case.nunique() == 6  # of nine, three are for the curves
    summary = (outcome.folder / "summary.md").read_text()
    assert "Keep one plain pass" in summary or "**Take " in summary
    assert not list((outcome.folder / "networks").glob("*.safetensors"))
    assert {"calibration", "strata"} <= {*outcome.tables}
    assert (outcome.folder / "figures" / "reliability.png").exists()
    curve = calibrated(outcome.folder, "averaged_variance")
    p = curve(torch.tensor([0.0, 0.01, 1e9]))
    assert bool((p[1:] >= p[:-1]).all())
    assert 0 <= float(p.min()) <= float(p.max()) <= 1
    with refused("measure"):
        calibrated(outcome.folder, "nothing")


def test_every_file_of_weights_is_a_network_and_every_rate_an_experiment(data: Path) -> None:
    files = weights(data, "first", "second", "third")
    planned = plan(options(data, weights=files, features=(4, 8), rates=(0.2, 0.4)), show=False)
    assert [e.name for e in planned.experiments[:2]] == ["first-bernoulli-0.2", "first-bernoulli-0.4"]
    assert planned.work.placement.startswith("dropout=")
    assert (planned.steps, planned.forwards) == (0, 6 * 9 * 4)
    assert planned.facts()["own"] == ["first", "second", "third"]
    plain = plan(options(data, model=f"{data.parent}/mine.py:plain", rates=(0.1,)), show=False)
    assert plain.work.placement == "all={rate} noise={noise}"


def test_cases_that_were_trained_on_are_left_out(data: Path) -> None:
    table = pd.DataFrame({"case": [f"case_{i}" for i in range(9)]})
    table["role"] = ["train"] * 3 + ["validation"] * 2 + ["test"] * 4
    table["patient"] = list("aabcdeffg")
    table.to_csv(data / "cases.csv", index=False)
    planned = plan(options(data, model=f"{data.parent}/mine.py:dropping"), show=False)
    assert [len(part) for part in (planned.split.train, planned.split.validation, planned.split.test)] == [0, 2, 4]
    assert any("left out" in remark for remark in planned.remarks)
    assert {planned.prepared.about["patients"][i] for i in planned.split.test} == {"e", "f", "g"}


def test_without_training_all_patients_are_validation_and_test() -> None:
    names = [f"p{i}" for i in range(38)]
    parts = split(names, [None] * 38, 0, [])
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (0, 12, 26)


def test_preprocessing_of_ones_own(data: Path) -> None:
    model = f"{data.parent}/mine.py:dropping"
    raw = plan(options(data, model=model, scale="none"), show=False).prepared.images
    halved = plan(options(data, model=model, scale="none", transforms=f"{data.parent}/mine.py:halved"), show=False)
    torch.testing.assert_close(halved.prepared.images, raw / 2)
    with refused("transforms"):
        plan(options(data, model=model, transforms=f"{data.parent}/mine.py:cropped"), show=False)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({}, "model"),
        ({"weights": ["nowhere.safetensors"]}, "weights"),
        ({"weights": []}, "weights"),
        ({"model": "mine.py:dropping", "steps": 3}, "steps"),
        ({"model": "mine.py:dropping", "train": "grid", "weights": ["a"]}, "weights"),
        ({"model": "mine.py:dropping", "placement": "own", "rates": (0.1,)}, "placement"),
        ({"model": "mine.py:dropping", "n_validation": 9}, "n_test"),
    ],
)
def test_what_cannot_be_judged_is_refused(data: Path, asked: dict[str, Any], name: str) -> None:
    if "model" in asked:
        asked["model"] = f"{data.parent}/{asked['model']}"
    with refused(name):
        plan(options(data, **asked), show=False)


# --- P(error) ---------------------------------------------------------------------------------------------------------


def voxels(seed: int, n: int = 40_000) -> tuple[Tensor, Tensor, Tensor]:
    """Uncertainties whose probability of an error is u²/4, and what that is."""
    draw = torch.Generator().manual_seed(seed)
    u = torch.rand(n, generator=draw)
    p = u**2 / 4
    return u, torch.rand(n, generator=draw) < p, p


def test_a_curve_finds_the_probability_of_an_error_and_is_calibrated_on_other_cases() -> None:
    curve = fit_curve(group_voxels(*voxels(seed)[:2]) for seed in range(4))
    u, wrong, p = voxels(9)
    assert float((curve(u) - p).abs().mean()) < 0.01
    assert curve.share == pytest.approx(1 / 12, abs=0.005)
    rows = pd.DataFrame([judge_curve(curve(u), wrong, curve.share)])
    assert expected_calibration_error(rows) < 0.01
    off = pd.DataFrame([judge_curve((curve(u) + 0.2).clamp(max=1), wrong, curve.share)])
    assert expected_calibration_error(off) == pytest.approx(0.2, abs=0.01)
    assert rows.brier[0] < rows.brier_constant[0]
    again = ErrorCurve.of(json.loads(json.dumps(curve.facts())))
    torch.testing.assert_close(again(u), curve(u))


def test_expected_calibration_error_by_hand() -> None:
    kept = judge_curve(torch.tensor([0.0, 0.0, 0.99, 0.99]), torch.tensor([True, False, True, True]), 0.5)
    assert kept["bin_voxels"][0] == kept["bin_voxels"][BINS - 1] == 2
    assert expected_calibration_error(pd.DataFrame([kept])) == pytest.approx((1 + 0.02) / 4)
    assert kept["brier"] == pytest.approx((1 + 2 * 0.01**2) / 4)


def test_curves_of_useless_and_of_constant_measures() -> None:
    draw = torch.Generator().manual_seed(0)
    wrong = torch.rand(20_000, generator=draw) < 0.1
    useless = fit_curve([group_voxels(torch.rand(20_000, generator=draw), wrong)])
    assert float((useless(torch.rand(1000, generator=draw)) - 0.1).abs().max()) < 0.1
    constant = fit_curve([group_voxels(torch.zeros(20_000), wrong)])
    assert constant(torch.tensor([-1.0, 0.0, 5.0])).tolist() == pytest.approx([constant.share] * 3)


def test_rows_without_curves_or_strata_give_no_tables() -> None:
    rows = pd.DataFrame({"experiment": ["a"], "case": ["c"], "measure": ["averaged_variance"], "auprc": [0.5]})
    assert calibration_table(rows).empty
    assert strata_table(rows).empty


# --- strata and recommendation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [2, 3])
def test_strata_are_distances_to_another_class(dims: int) -> None:
    draw = np.random.default_rng(dims)
    label = torch.from_numpy(
        (draw.random((2, *[9] * dims)) < 0.03).astype(np.int64) * draw.integers(1, 3, (2, *[9] * dims))
    )
    valid = torch.from_numpy(draw.random(label.shape) < 0.95)
    found = divide_by_distance(label, valid)
    places = np.argwhere(valid.numpy())
    for image, *at in places[:: max(1, len(places) // 30)]:
        others = [p[1:] for p in places if p[0] == image and label[tuple(p)] != label[(image, *at)]]
        distance = min((int(np.abs(np.array(at) - p).max()) for p in others), default=99)
        name = "border" if distance <= 1 else "near" if distance <= 3 else "far"
        assert found[name][(image, *at)], (distance, at)
    assert torch.equal(sum(part.int() for part in found.values()), valid.int())


def made_rows(gain: float, networks: int = 1, patients: int = 12) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    lines = []
    for network in range(networks):
        for patient in range(patients):
            level = draw.random()
            cell = {"network": f"n{network}", "experiment": f"n{network}", "patient": patient, "case": patient}
            values = {"plain_entropy": level, "averaged_entropy": level + gain + 0.01 * draw.normal()}
            lines += [{**cell, "measure": name, "auprc": value} for name, value in values.items()]
    return pd.DataFrame(lines)


def test_a_measure_is_recommended_where_it_beats_one_plain_pass() -> None:
    assert recommend(made_rows(0.1)).startswith("**Take averaged entropy**")
    assert "nothing about other networks" in recommend(made_rows(0.1))
    assert recommend(made_rows(0.0)).startswith("**Keep one plain pass**")
    assert recommend(made_rows(-0.1)).startswith("**Keep one plain pass**")
    assert "3 networks × 40 patients" in recommend(made_rows(0.1, networks=3, patients=40))
