"""Predictions of volumes: geometry, reproducibility, resume, refusals, and the command `dropscope predict`."""

import inspect
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dropscope as ds
from dropscope import measures
from dropscope.cli import app
from dropscope.errors import AuditFailed
from dropscope.injection.audits import audit
from dropscope.model.inputs import Call
from dropscope.volumes import prediction
from dropscope.volumes.nifti import find_cases, read_case, voxel_volume
from dropscope.volumes.options import MAPS
from dropscope.volumes.prediction import plan_prediction, predict
from dropscope.volumes.windows import Windows, plan_windows
from support.errors import refused
from support.nifti_files import PLACEMENT, by_hand, maps_in, net, write

nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra 'medical'")

FEW = {"passes": 6, "roi": (6, 6, 4), "overlays": False, "progress": False}


class Tiny(nn.Module):
    """A U-Net of one pooling: windows must have even sides."""

    def __init__(self):
        super().__init__()
        self.down, self.inner, self.out = (
            nn.Conv3d(1, 4, 3, padding=1),
            nn.Conv3d(4, 4, 3, padding=1),
            nn.Conv3d(8, 2, 1),
        )

    def forward(self, x):
        x = torch.relu(self.down(x))
        deep = torch.relu(self.inner(nn.functional.max_pool3d(x, 2)))
        return self.out(torch.cat([x, nn.functional.interpolate(deep, scale_factor=2)], 1))


class Fixed(Tiny):
    """A network of one size, far from that of any window."""

    def forward(self, x):
        return super().forward(x.reshape(len(x), 1, 100, 100, 100))


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_maps_have_the_geometry_of_their_image(tmp_path, kind):
    source = write(tmp_path / "case.nii.gz", (9, 8, 7), kind=kind)
    table = predict(net(), PLACEMENT, [source], tmp_path / "out", **FEW)
    image = nibabel.load(source)
    names = {f"{name}.nii.gz" for name in ("prediction", "mean_probability", *MAPS)}
    assert {path.name for path in (tmp_path / "out" / "case").iterdir()} == {*names, "case.json"}
    for name in names:
        made = nibabel.load(tmp_path / "out" / "case" / name)
        assert type(made) is kind
        np.testing.assert_array_equal(made.affine, image.affine)
        assert made.shape == image.shape
        assert made.header.get_zooms() == image.header.get_zooms()
        assert made.header.get_xyzt_units() == image.header.get_xyzt_units()
        for code in ("qform_code", "sform_code"):
            assert made.header[code] == image.header[code]
        assert np.isfinite(made.get_fdata()).all()
    assert nibabel.load(tmp_path / "out" / "case" / "prediction.nii.gz").get_data_dtype() == np.uint8
    assert table.case.tolist() == ["case"]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out" / "cases.csv"), table, check_dtype=False)


def test_what_is_written_is_what_was_measured(tmp_path):
    source = write(tmp_path / "case.nii.gz", (9, 8, 7, 2))
    model = net(2)
    predict(model, PLACEMENT, [source], tmp_path / "out", overlap=0.4, **FEW)
    (case,) = find_cases([source])
    passes = by_hand(model, read_case(case), plan_windows(case.shape, (6, 6, 4), 0.4), 6)
    made = maps_in(tmp_path / "out" / "case")
    assert np.array_equal(made["prediction.nii.gz"], passes.double().mean(0).argmax(1)[0].numpy())
    expected = measures.averaged_variance(passes)[0].numpy()
    np.testing.assert_allclose(made["averaged_variance.nii.gz"], expected, atol=1e-6)
    record = json.loads((tmp_path / "out" / "case" / "case.json").read_text())["found"]
    inside = made["prediction.nii.gz"] > 0
    found = record["maps"]["averaged_variance"]["foreground_mean"]
    assert found == pytest.approx(expected[inside].mean(), rel=1e-4)
    assert record["millilitres"][0] == pytest.approx((made["prediction.nii.gz"] == 1).sum() * voxel_volume(case))
    mean = passes.double().mean(0)[0]
    np.testing.assert_allclose(made["mean_probability.nii.gz"], mean.amax(0), atol=1e-6)
    entropy = torch.special.entr(mean).sum(0).numpy()
    assert record["uncertainty"] == pytest.approx(entropy[inside].mean(), rel=1e-4)
    assert record["uncertainties"][1] == pytest.approx(entropy[made["prediction.nii.gz"] == 2].mean(), rel=1e-4)
    volumes = (passes.argmax(2) == 1).flatten(1).sum(1).double().numpy() * voxel_volume(case)
    assert record["millilitres_low"][0] == pytest.approx(volumes.min())
    assert record["millilitres_high"][0] == pytest.approx(volumes.max())


def test_one_window_is_what_maps_gives(tmp_path):
    """A volume of one window, under the same key: `dropscope.maps` and `predict` are one thing."""
    source = write(tmp_path / "case.nii.gz", (6, 6, 4))
    predict(net(), PLACEMENT, [source], tmp_path / "out", **(FEW | {"roi": None}))
    image = read_case(find_cases([source])[0])
    key = int(Call((image[None],)).keys()[0])
    found = ds.maps(net(), PLACEMENT, image[None], passes=6, measures=MAPS[:2], ids=[f"{key}:(0, 0, 0)"])
    made = maps_in(tmp_path / "out" / "case")
    assert np.array_equal(made["prediction.nii.gz"], found["prediction"][0].numpy())
    np.testing.assert_allclose(made["averaged_variance.nii.gz"], found["averaged_variance"][0].numpy(), atol=1e-6)


def test_slices_for_a_network_of_two_dimensions(tmp_path):
    source = write(tmp_path / "case.nii.gz", (9, 8, 5))
    single = write(tmp_path / "slice.nii.gz", (9, 8))
    model = net(dims=2)
    predict(model, PLACEMENT, [source, single], tmp_path / "out", passes=4, roi=(6, 8), progress=False)
    assert (tmp_path / "out" / "slice" / "overlay.png").exists()
    assert nibabel.load(tmp_path / "out" / "case" / "prediction.nii.gz").shape == (9, 8, 5)
    assert nibabel.load(tmp_path / "out" / "slice" / "predictive_entropy.nii.gz").shape == (9, 8)
    (case,) = find_cases([source])
    passes = by_hand(model, read_case(case), plan_windows(case.shape, (6, 8), 0.25), 4)
    made = maps_in(tmp_path / "out" / "case")
    np.testing.assert_allclose(made["averaged_variance.nii.gz"], measures.averaged_variance(passes)[0], atol=1e-6)


def test_a_network_of_monai_under_its_own_dropout(tmp_path):
    nets = pytest.importorskip("monai.networks.nets", reason="MONAI is in the extra 'medical'")
    torch.manual_seed(0)
    model = nets.UNet(3, 1, 3, channels=(4, 8), strides=(2,), num_res_units=1, dropout=0.3).eval()
    source = write(tmp_path / "case.nii.gz", (9, 8, 7))
    table = predict(model, "own", [source], tmp_path / "out", passes=4, roi=(8, 8, 4), progress=False)
    assert table["averaged_variance_worst_patch"].item() > 0


def test_a_rerun_does_only_what_is_missing(tmp_path, monkeypatch):
    sources = [write(tmp_path / f"{name}.nii.gz", seed=i) for i, name in enumerate("abc")]
    ran = []
    real = prediction.predict_volume
    monkeypatch.setattr(prediction, "predict_volume", lambda *given: ran.append(1) or real(*given))
    first = predict(net(), PLACEMENT, sources, tmp_path / "out", **FEW)
    before = maps_in(tmp_path / "out" / "b")
    assert len(ran) == 3
    (tmp_path / "out" / "b" / "case.json").unlink()
    (tmp_path / "out" / "b" / "averaged_variance.nii.gz").unlink()
    again = predict(net(), PLACEMENT, sources, tmp_path / "out", batch_size=1, **FEW)
    assert len(ran) == 4
    pd.testing.assert_frame_equal(first, again)
    for name, values in maps_in(tmp_path / "out" / "b").items():
        np.testing.assert_allclose(values, before[name], atol=1e-4)
    assert not list((tmp_path / "out").rglob(".part-*"))


@pytest.mark.parametrize(
    ("change", "field"),
    [({"seed": 1}, "seed"), ({"passes": 7}, "passes"), ({"overlap": 0.5}, "overlap"), ({"scale": "none"}, "scale")],
)
def test_a_case_predicted_otherwise_is_not_mixed_up(tmp_path, change, field):
    source = write(tmp_path / "a.nii.gz")
    predict(net(), PLACEMENT, [source], tmp_path / "out", **FEW)
    with refused("out") as caught:
        predict(net(), PLACEMENT, [source], tmp_path / "out", **(FEW | change))
    assert field in caught.value.received
    with refused("out") as caught:  # also where other maps are asked for
        predict(net(), PLACEMENT, [source], tmp_path / "out", measures=["averaged_std"], **(FEW | change))
    assert field in caught.value.received
    write(source, seed=9)
    with refused("out") as caught:
        predict(net(), PLACEMENT, [source], tmp_path / "out", **FEW)
    assert "voxels" in caught.value.received


def test_a_kill_between_maps_leaves_no_finished_case(tmp_path, monkeypatch):
    source = write(tmp_path / "a.nii.gz")
    real = nibabel.save
    count = []

    def dies(image, path):
        count.append(path)
        if len(count) == 3:
            raise KeyboardInterrupt
        real(image, path)

    monkeypatch.setattr(nibabel, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        predict(net(), PLACEMENT, [source], tmp_path / "out", **FEW)
    monkeypatch.undo()
    assert not (tmp_path / "out" / "a" / "case.json").exists()
    assert not list((tmp_path / "out").rglob(".part-*"))
    assert len(predict(net(), PLACEMENT, [source], tmp_path / "out", **FEW)) == 1


def test_the_model_is_afterwards_what_it_was(tmp_path, untouched):
    source, model = write(tmp_path / "a.nii.gz"), net()
    with untouched(model):
        predict(model, PLACEMENT, [source], tmp_path / "out", **FEW)


def test_the_plan_says_what_would_be_done(tmp_path):
    sources = [write(tmp_path / f"{name}.nii.gz", seed=i) for i, name in enumerate("ab")]
    options = {name: value for name, value in FEW.items() if name != "progress"}
    predict(net(), PLACEMENT, sources[:1], tmp_path / "out", **FEW)
    plan = plan_prediction(net(), PLACEMENT, sources, tmp_path / "out", **options)
    windows_each = len(Windows((9, 8, 7), (6, 6, 4), 0.25).origins())
    assert plan.done == ("a",)
    assert plan.windows == {"a": windows_each, "b": windows_each}
    assert f"b: 1 × 9×8×7, {windows_each} windows × 6 passes" in str(plan)
    assert "a: 1 × 9×8×7, done" in str(plan)
    assert not (tmp_path / "out" / "b").exists()


# --- bad input --------------------------------------------------------------------------------------------------------


def holed(path):
    values = np.random.default_rng(0).normal(size=(9, 8, 7)).astype(np.float32)
    values[1, 2, 3] = np.nan
    return write(path, values=values)


BAD = {
    "text.nii.gz": (lambda p: p.write_text("no volume") and p, "not a gzip file"),
    "scan.dcm": (lambda p: p.write_bytes(b"DICM") and p, "scan.dcm"),
    "holes.nii.gz": (holed, "1 NaN or infinite voxels"),
    "slice.nii.gz": (lambda p: write(p, (9, 8, 1)), "(9, 8, 1)"),
    "flat.nii.gz": (lambda p: write(p, values=np.ones((9, 8, 7), np.float32)), "1 for both"),
    "four.nii.gz": (lambda p: write(p, (9, 8, 7, 2)), "2 channels"),
    "five.nii.gz": (lambda p: write(p, (9, 8, 7, 1, 2)), "(9, 8, 7, 1, 2)"),
    "complex.nii.gz": (lambda p: write(p, values=np.ones((9, 8, 7), np.complex64)), "complex64"),
}


@pytest.mark.parametrize("name", list(BAD))
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_file_among_the_others_is_named_before_any_work(tmp_path, name, first):
    make, received = BAD[name]
    bad, good = make(tmp_path / name), write(tmp_path / "good.nii.gz")
    with refused(str(good if first and name == "four.nii.gz" else bad)) as caught:  # the first says how many channels
        predict(net(), PLACEMENT, [bad, good] if first else [good, bad], tmp_path / "out", **FEW)
    assert received in str(caught.value)
    assert str(bad) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_truncated_file_is_named(tmp_path):
    whole = write(tmp_path / "whole.nii.gz", (20, 20, 20))
    cut = tmp_path / "cut.nii.gz"
    cut.write_bytes(whole.read_bytes()[:-2000])
    with refused(str(cut)):
        predict(net(), PLACEMENT, [cut], tmp_path / "out", **FEW)


def test_a_file_whose_bits_are_broken_is_named(tmp_path):
    path = write(tmp_path / "broken.nii.gz", (20, 20, 20))
    there = bytearray(path.read_bytes())
    there[len(there) // 2 : len(there) // 2 + 8] = b"\xff" * 8
    path.write_bytes(bytes(there))
    with refused(str(path)):
        predict(net(), PLACEMENT, [path], tmp_path / "out", **FEW)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("measures", ("blad",)),
        ("measures", "blad"),
        ("passes", 0),
        ("batch_size", 0),
        ("scale", "zscore"),
        ("roi", (6, 6, 4, 2)),
    ],
)
def test_bad_options(tmp_path, name, value):
    source = write(tmp_path / "a.nii.gz")
    with refused(name):
        predict(net(), PLACEMENT, [source], tmp_path / "out", **(FEW | {name: value}))
    assert not (tmp_path / "out").exists()


def test_an_option_that_does_not_exist_is_pythons_error(tmp_path):
    with pytest.raises(TypeError, match="colour"):
        predict(net(), PLACEMENT, [write(tmp_path / "a.nii.gz")], tmp_path / "out", colour=1)


def test_predict_and_its_plan_take_the_same_arguments():
    arguments = inspect.signature(predict).parameters
    planned = inspect.signature(plan_prediction).parameters
    assert {name: p for name, p in arguments.items() if name != "progress"} == dict(planned)


def test_a_window_the_network_cannot_take_and_a_network_that_is_no_segmentation(tmp_path):
    source = write(tmp_path / "odd.nii.gz", (9, 8, 7))
    with refused("roi") as caught:
        predict(Fixed().eval(), "inner=0.5", [source], tmp_path / "out", passes=3, progress=False)
    assert "odd.nii.gz" in str(caught.value)
    strided = nn.Sequential(nn.Conv3d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv3d(4, 2, 1))
    with refused("model"):
        predict(strided, "0=0.5", [source], tmp_path / "other", passes=3, progress=False)


def test_noise_that_does_nothing_is_refused(tmp_path):
    model = net()
    with torch.no_grad():
        model[4].weight.zero_()
    assert not audit(model, PLACEMENT, torch.rand(2, 1, 6, 6, 4)).ok
    with pytest.raises(AuditFailed):
        predict(model, PLACEMENT, [write(tmp_path / "a.nii.gz")], tmp_path / "out", **FEW)


# --- the command ------------------------------------------------------------------------------------------------------

MODEL = """
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 3, 1)).eval()
"""


def run(*arguments):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_the_command(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    source = write(tmp_path / "a.nii.gz")
    common = [f"{tmp_path / 'net.py'}:model", "--placement", "0=0.5", "--image", source, "--out", tmp_path / "out"]
    common += ["--roi", "6x6x4", "--passes", "4", "--measures", "averaged_variance, predictive_entropy"]
    plan = run(*common, "--dry-run", "--json")
    assert plan.exit_code == 0, plan.output
    files = {"prediction.nii.gz", "mean_probability.nii.gz", "averaged_variance.nii.gz", "predictive_entropy.nii.gz"}
    assert set(json.loads(plan.stdout)["files"]) == {*files, "overlay.png"}
    assert not (tmp_path / "out").exists()
    assert "4 passes" in run(*common, "--dry-run").stdout
    done = run(*common, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["cases"][0]["case"] == "a"
    assert set(maps_in(tmp_path / "out" / "a")) == files
    lines = run(*common).stdout.splitlines()
    assert [line for line in lines if " a  " in line and "nats" in line]
    assert max(map(len, (line for line in lines if str(tmp_path) not in line))) <= 80
    assert f"  {tmp_path / 'out' / 'a' / 'overlay.png'}" in lines


def test_the_command_with_labels_names_and_transforms(tmp_path):
    (tmp_path / "net.py").write_text(MODEL + "\n\ndef halved(image):\n    return image / 200\n")
    source = write(tmp_path / "a.nii.gz")
    (tmp_path / "seg").mkdir()
    write(tmp_path / "seg" / "a_gt.nii.gz", values=np.ones((9, 8, 7), np.uint8))
    common = [f"{tmp_path / 'net.py'}:model", "--placement", "0=0.5", "--image", source, "--out", tmp_path / "out"]
    common += ["--passes", "2", "--no-overlays", "--labels", f"{tmp_path}/seg/{{case}}_gt.nii.gz"]
    common += ["--class-names", "background,left,right", "--transforms", f"{tmp_path / 'net.py'}:halved"]
    done = run(*common, "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["cases"]
    assert {"dice_left", "ml_right", "ml_right_low", "uncertainty_left"} <= set(row)
    assert "Dice" in run(*common).stdout
    assert not (tmp_path / "out" / "overview.png").exists()
    other = run(*common, "--seed", "1")
    assert other.exit_code == 2
    assert "--overwrite" in other.stderr
    assert run(*common, "--seed", "1", "--overwrite").exit_code == 0


def test_the_command_names_what_is_wrong(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "a.nii.gz").write_text("no")
    common = [f"{tmp_path / 'net.py'}:model", "--placement", "0=0.5", "--out", tmp_path / "out"]
    failed = run(*common, "--image", tmp_path / "a.nii.gz")
    assert failed.exit_code == 2
    assert "a.nii.gz" in failed.stderr
    assert "Traceback" not in failed.stderr
    wrong = run(*common, "--image", write(tmp_path / "b.nii.gz"), "--roi", "large")
    assert wrong.exit_code == 2
    assert "--roi" in wrong.stderr


# --- real volumes -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.environ.get("DROPSCOPE_DATA"), reason="DROPSCOPE_DATA names no folder of real volumes")
def test_real_hippocampus_volumes(tmp_path):
    folder = Path(os.environ["DROPSCOPE_DATA"]) / "Task04_Hippocampus" / "imagesTr"
    sources = sorted(folder.glob("*.nii.gz"))[:2]
    table = predict(net(), PLACEMENT, sources, tmp_path / "out", passes=3, roi=(32, 32, 32), progress=False)
    assert len(table) == 2
    for source in sources:
        image = nibabel.load(source)
        made = nibabel.load(tmp_path / "out" / source.name.removesuffix(".nii.gz") / "predictive_entropy.nii.gz")
        assert made.shape == image.shape
        np.testing.assert_array_equal(made.affine, image.affine)
