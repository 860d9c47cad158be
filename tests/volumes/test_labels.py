"""Label maps and names of classes, and the table that they go into."""

import numpy as np
import pandas as pd
import pytest
import torch

from dropscope.scores import dice
from dropscope.volumes.labels import find_labels, structure_names
from dropscope.volumes.nifti import find_cases
from dropscope.volumes.prediction import predict
from dropscope.volumes.tables import case_table
from support.errors import refused
from support.nifti_files import AFFINE, PLACEMENT, maps_in, net, write

nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra 'medical'")

FEW = {"passes": 3, "overlays": False, "progress": False}
SHAPE = (6, 5, 4)


def label(path, seed=0, most=3):
    path.parent.mkdir(exist_ok=True)
    return write(path, values=np.random.default_rng(seed).integers(0, most, SHAPE).astype(np.uint8))


@pytest.fixture
def sources(tmp_path):
    return [write(tmp_path / f"{name}.nii.gz", SHAPE, seed=i) for i, name in enumerate("ab")]


def test_labels_in_a_folder_by_pattern_or_alone(tmp_path, sources):
    for name in "ab":
        label(tmp_path / "labels" / f"{name}.nii.gz")
        label(tmp_path / "seg" / f"{name}_gt.nii.gz")
    cases = find_cases(sources)
    expected = {name: tmp_path / "seg" / f"{name}_gt.nii.gz" for name in "ab"}
    assert find_labels(tmp_path / "labels", cases) == {name: tmp_path / "labels" / f"{name}.nii.gz" for name in "ab"}
    assert find_labels(f"{tmp_path}/seg/{{case}}_gt.nii.gz", cases) == expected
    assert find_labels(f"{tmp_path}/seg/*_gt.nii.gz", cases) == expected
    assert find_labels(expected["a"], cases[:1]) == {"a": expected["a"]}
    assert find_labels(None, cases) == {}


def test_dice_of_each_structure_and_who_has_no_label(tmp_path, sources):
    truth = label(tmp_path / "labels" / "a.nii.gz")
    options = FEW | {"labels": tmp_path / "labels", "class_names": ["background", "front", "back"]}
    table = predict(net(), PLACEMENT, sources, tmp_path / "out", **options)
    assert "1 of 2 cases" in table.attrs["remarks"][0]
    found = torch.from_numpy(maps_in(tmp_path / "out" / "a")["prediction.nii.gz"]).long()
    expected = dice(found[None], torch.from_numpy(np.asarray(nibabel.load(truth).dataobj)).long()[None], 3)[0]
    row = table.set_index("case").loc["a"]
    assert row.dice_front == pytest.approx(float(expected[1]))
    assert row.dice == pytest.approx(float(expected[1:].mean()))
    assert np.isnan(table.set_index("case").loc["b"].dice)
    assert row.ml_front_low <= row.ml_front_high
    assert row.maps == "a"
    same = predict(net(), PLACEMENT, sources, tmp_path / "out", **FEW)  # labels and names change no map
    assert "dice" not in same
    assert same.ml_1.tolist() == table.ml_front.tolist()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out" / "cases.csv"), same, check_dtype=False)


def test_labels_that_do_not_fit_are_refused_before_any_pass(tmp_path, sources):
    def refusal(path, name="labels"):
        with refused(name) as caught:
            predict(net(), PLACEMENT, sources, tmp_path / "out", **FEW, labels=path)
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere", sources[0], f"{tmp_path}/{{case}}_x.nii.gz"):
        refusal(path)
    wrong = label(tmp_path / "wrong" / "a.nii.gz", most=6)
    assert "0 … 2" in refusal(wrong.parent)
    parts = write(tmp_path / "wrong" / "a.nii.gz", values=np.full(SHAPE, 0.5, np.float32))
    assert "0.5" in refusal(parts.parent)
    moved = write(tmp_path / "wrong" / "a.nii.gz", values=np.zeros(SHAPE, np.uint8), affine=AFFINE + np.eye(4, k=3))
    refusal(moved.parent, str(moved))
    small = write(tmp_path / "wrong" / "a.nii.gz", (5, 5, 4))
    refusal(small.parent, str(small))


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c", "d"], ["a", "a", "b"], ["", "b"], ["Background", "b"]])
def test_names_that_do_not_fit(names):
    with refused("class_names"):
        structure_names(names, 3)


def test_cases_are_ranked_with_the_most_uncertain_first_and_empty_ones_before():
    numbers = {"millilitres": [1.0], "millilitres_low": [1.0], "millilitres_high": [1.0], "foreground": [1.0] * 3}
    numbers |= {"volume_variation": [0.1], "pairwise_dice": [None], "maps": {}, "image": "x"}
    levels = {"sure": 0.1, "unsure": 0.4, "empty": None, "between": 0.2}
    found = [numbers | {"case": name, "uncertainty": u, "uncertainties": [u]} for name, u in levels.items()]
    table = case_table(found, ["1"], {}, {name: {"maps": name} for name in levels})
    assert table.case.tolist() == ["empty", "unsure", "between", "sure"]
    assert table["rank"].tolist() == [1, 2, 3, 4]
    assert table.pairwise_dice_1.isna().all()
