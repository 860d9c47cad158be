"""The predictor of volumes: bounded losses, patients as units, kept whole, and one clear error for everything else."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from dropscope.deploy import UncertaintyPredictor, VolumePredictor
from dropscope.volumes import find_cases, predict, read_intensities, scale_intensities
from support.errors import refused
from support.nifti_files import AFFINE, sure_net, write
from support.terminal import commands_in

nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra 'medical'")

FEW = {"passes": 3, "progress": False, "overlays": False}
CASES = 24
PLACEMENT = "0=0.05"


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A folder of scans, and one of label maps: what the network says without noise, some voxels of it changed."""
    root, model = tmp_path_factory.mktemp("scans"), sure_net()
    for folder in ("scans", "labels"):
        (root / folder).mkdir()
    for number in range(CASES):
        path = write(root / "scans" / f"c{number:02}.nii.gz", (8, 8, 6), seed=number)
        image = scale_intensities(torch.from_numpy(read_intensities(path))[None], [path.name])
        with torch.no_grad():
            label = model(image[None])[0].argmax(0).numpy()
        rng = np.random.default_rng(number)
        label = np.where(rng.random(label.shape) < 0.02 * (number % 8), (label + 1) % 3, label)
        write(root / "labels" / path.name, values=label.astype(np.uint8), affine=AFFINE)
    return root


@pytest.fixture(scope="module")
def predictor(scans):
    return VolumePredictor.fit(sure_net(), PLACEMENT, [scans / "scans"], scans / "labels", max_error=0.5, **FEW)


def test_the_loss_of_a_case_is_what_the_table_of_cases_says(scans, predictor, tmp_path):
    table = predict(sure_net(), PLACEMENT, [scans / "scans"], tmp_path / "m", labels=scans / "labels", **FEW)
    table = table.sort_values("case")
    assert predictor.known.ids == table.case.tolist()
    np.testing.assert_allclose(predictor.known.right, table.dice)
    np.testing.assert_allclose(predictor.known.uncertainty, table.uncertainty)
    assert predictor.rule.found
    assert predictor.rule.error == pytest.approx(1 - table.dice.mean(), abs=0.1)


def test_new_scans_get_maps_an_expected_loss_and_a_decision(scans, predictor, tmp_path):
    some = sorted((scans / "scans").iterdir())[:4]
    table = predictor(some, tmp_path / "maps", overlays=False, progress=False)
    assert (table.defer == (table.uncertainty > predictor.rule.threshold)).all()
    assert table.expected_loss.is_monotonic_decreasing
    assert (tmp_path / "maps" / "c00" / "predictive_entropy.nii.gz").is_file()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "maps" / "cases.csv"), table, check_dtype=False)


def test_a_folder_holds_the_whole_predictor_and_no_other(scans, predictor, tmp_path):
    predictor.save(tmp_path / "p")
    again = VolumePredictor.load(tmp_path / "p", sure_net())
    assert str(again) == str(predictor)
    assert again.options == predictor.options
    with refused("model"):
        VolumePredictor.load(tmp_path / "p", sure_net(seed=1))
    with refused("folder"):
        UncertaintyPredictor.load(tmp_path / "p", sure_net())
    with refused("transforms"):
        VolumePredictor.load(tmp_path / "p", sure_net(), transforms=lambda x: x)
    content = bytearray((tmp_path / "p" / "calibration.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "p" / "calibration.safetensors").write_bytes(content)
    with refused("folder"):
        VolumePredictor.load(tmp_path / "p", sure_net())


def test_patients_are_the_units_of_everything(scans, predictor, tmp_path):
    names = [case.name for case in find_cases([scans / "scans"])]
    patients = {name: f"p{number % 22}" for number, name in enumerate(names)}
    options = {"max_error": 0.5, "groups": patients, "maps": tmp_path / "maps", **FEW}
    grouped = VolumePredictor.fit(sure_net(), PLACEMENT, [scans / "scans"], scans / "labels", **options)
    assert len(np.unique(grouped.known.unit)) == 22
    assert any("22 groups" in text for text in grouped.rule.assumptions)
    quiet = {"groups": patients, "progress": False}
    check = grouped.check([scans / "scans"], tmp_path / "maps", **quiet)
    assert (check.groups, check.n, check.drifted) == (22, CASES, False)
    assert "volumes" in check.p_values
    subgroups = ["a"] * 10 + ["b"] * 14
    found = grouped.evaluate([scans / "scans"], scans / "labels", tmp_path / "maps", by=subgroups, overlays=False,
                             **quiet)  # fmt: skip
    assert found.table.subset.tolist() == ["all", "a", "b"]
    assert (found.table.error_low <= found.table.error).all()
    assert (found.table.error <= found.table.error_high).all()
    assert not found.refuted
    assert not grouped.monitor().update(grouped.known.right, groups=grouped.known.unit.tolist()).alarm


def test_the_volume_error_is_a_loss_too(scans, tmp_path):
    fitted = VolumePredictor.fit(
        sure_net(), PLACEMENT, [scans / "scans"], scans / "labels", measure="pairwise_dice", loss="volume_error", **FEW
    )
    assert ((fitted.known.right >= 0) & (fitted.known.right <= 1)).all()
    table = fitted([scans / "scans"], tmp_path / "m", labels=scans / "labels", overlays=False, progress=False)
    assert table.pairwise_dice.is_monotonic_increasing
    np.testing.assert_allclose(np.sort(1 - table.volume_error), np.sort(fitted.known.right))


@pytest.mark.parametrize(("name", "given"), [
    ("loss", {"loss": "iou"}),
    ("measure", {"measure": "predictive_entropy_median"}),
    ("groups", {"groups": ["a"]}),
    ("groups", {"groups": {"c00": "a"}}),
    ("confidence", {"confidence": 1.0}),
    ("max_error", {"max_error": 0.0}),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_any_pass(scans, name, given, tmp_path):
    with refused(name):
        VolumePredictor.fit(
            sure_net(), PLACEMENT, [scans / "scans"], scans / "labels", maps=tmp_path / "m", **given, **FEW
        )
    assert not (tmp_path / "m").exists()


def test_too_few_cases_are_refused(scans):
    with refused("labels"):
        VolumePredictor.fit(sure_net(), PLACEMENT, [scans / "scans" / "c00.nii.gz"], scans / "labels", **FEW)


NET = """
import torch

from support.nifti_files import sure_net

def model():
    return sure_net()

def patches():
    return torch.randn(3, 1, 8, 8, 6)
"""


def test_commands_from_scans_to_decisions(scans, tmp_path, monkeypatch):
    run = commands_in(tmp_path, monkeypatch, NET)
    for folder in ("scans", "labels"):
        shutil.copytree(scans / folder, tmp_path / folder)
    pd.DataFrame({"case": [f"c{i:02}" for i in range(CASES)], "patient": [f"p{i % 22}" for i in range(CASES)]}).to_csv(
        tmp_path / "patients.csv", index=False
    )
    made = ("calibrate", "net.py:model", "--image", "scans", "--labels", "labels", "--placement", PLACEMENT,
            "--passes", "3", "--groups", "patients.csv", "--maps", "maps", "--no-overlays", "--out", "p")  # fmt: skip
    result = run(*made, "--max-error", "0.5", "--test", "scans")
    assert "22 groups" in result.stdout
    result = run("predict", "net.py:model", "--image", "scans", "--predictor", "p", "--out", "maps", "--no-overlays")
    assert "deferred: a person should look at them" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    result = run("check", "net.py:model", "--image", "scans", "--predictor", "p", "--maps", "maps",
                 "--groups", "patients.csv")  # fmt: skip
    assert "no alarm" in result.stdout
    assert "defer" in run("defer", "maps/cases.csv", "--loss", "expected_loss", "--max-error", "0.5").stdout
    assert "--labels" in run(*[one for one in made if one not in ("--labels", "labels")], code=2).stderr
    assert (
        "--predictor" in run("predict", "net.py:model", "--data", "net.py:patches", "--predictor", "p", code=2).stderr
    )
    assert "--image" in run("check", "net.py:model", "--predictor", "p", code=2).stderr
