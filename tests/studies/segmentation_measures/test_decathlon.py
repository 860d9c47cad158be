"""Volumes: the Decathlon layout and everything that can be wrong with it, preparing, splitting, the phantom."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dropscope.studies.segmentation_measures.cases import split
from dropscope.studies.segmentation_measures.decathlon import read_decathlon, write_decathlon
from dropscope.studies.segmentation_measures.phantom import CENTRES, make_phantom
from dropscope.studies.segmentation_measures.preparation import (
    check_classes,
    choose_region,
    crop_or_pad,
    prepare_volumes,
    read_prepared,
    write_prepared,
)
from dropscope.volumes import scale_intensities
from support.errors import refused
from support.small_volumes import decathlon_folder, plain_prepared, save

pytest.importorskip("nibabel")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return decathlon_folder(tmp_path / "Task00")


def test_a_folder_without_dataset_json(folder: Path) -> None:
    volumes = read_decathlon(folder)
    assert [case.name for case in volumes.cases] == ["case_0", "case_1", "case_2"]
    assert (volumes.dims, volumes.channels, len(volumes.classes)) == (3, ("channel 0",), 3)
    image, label = volumes.cases[0].load()
    assert image.shape == (1, 10, 12, 6)
    assert label.unique().tolist() == [0, 1, 2]


def renamed(folder: Path, names: list[str]) -> Path:
    for part in ("imagesTr", "labelsTr"):
        for number, name in enumerate(names):
            (folder / part / f"case_{number}.nii.gz").rename(folder / part / f"{name}.nii.gz")
    return folder


def test_frames_of_a_patient_are_one_patient(folder: Path) -> None:
    volumes = read_decathlon(renamed(folder, ["patient001_frame01", "patient001_frame12", "patient002_frame01"]))
    assert [case.patient for case in volumes.cases] == ["patient001", "patient001", "patient002"]
    assert "3 cases of 2 patients" in volumes.remarks[0]


def test_patients_by_a_pattern_or_a_table(folder: Path) -> None:
    root = renamed(folder, ["ab_1", "ab_2", "cd_1"])
    assert [case.patient for case in read_decathlon(root).cases] == ["ab_1", "ab_2", "cd_1"]
    assert [case.patient for case in read_decathlon(root, patients="^[a-z]+").cases] == ["ab", "ab", "cd"]
    for wrong in ("^ab", "("):
        with refused("patients"):
            read_decathlon(root, patients=wrong)
    (root / "cases.csv").write_text("case,patient\nab_1,x\nab_2,y\ncd_1,y\n")
    volumes = read_decathlon(root, patients="^[a-z]+")
    assert [case.patient for case in volumes.cases] == ["x", "y", "y"]
    assert volumes.remarks == ()


def test_channels_names_centres_and_roles(tmp_path: Path) -> None:
    root = decathlon_folder(tmp_path, channels=2)
    (root / "dataset.json").write_text(
        json.dumps({"modality": {"0": "T1", "1": "T2"}, "labels": {"0": "background", "1": "front", "2": "back"}})
    )
    (root / "cases.csv").write_text(
        "case,centre,patient,role\ncase_0,X,p,train\ncase_1,X,q,validation\ncase_2,Y,r,test\n"
    )
    volumes = read_decathlon(root)
    assert (volumes.channels, volumes.classes) == (("T1", "T2"), ("background", "front", "back"))
    assert [(c.centre, c.patient, c.role) for c in volumes.cases][2] == ("Y", "r", "test")
    image, _ = volumes.cases[1].load()
    assert image.shape == (2, 10, 12, 6)
    assert not torch.equal(image[0], image[1])
    (root / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "back": 2, "front": 1}}))
    assert read_decathlon(root).classes == ("background", "front", "back")


def test_a_file_per_channel_as_nnunet_has_them(tmp_path: Path) -> None:
    import nibabel

    together, apart = decathlon_folder(tmp_path / "a", channels=2), decathlon_folder(tmp_path / "b", channels=2)
    for path in sorted((apart / "imagesTr").iterdir()):
        values = nibabel.load(path).get_fdata(dtype=np.float32)
        for channel in range(2):
            name = path.name.replace(".nii.gz", f"_{channel:04d}.nii.gz")
            save(path.with_name(name), values[..., channel])
        path.unlink()
    one, other = read_decathlon(together), read_decathlon(apart)
    assert [case.name for case in other.cases] == [case.name for case in one.cases]
    assert other.channels == one.channels
    for a, b in zip(one.cases, other.cases, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.load(), b.load(), strict=True))
    (apart / "imagesTr" / "case_1_0000.nii.gz").unlink()
    with refused("case_1") as caught:
        read_decathlon(apart)
    assert caught.value.received == ["0001"]


def test_class_numbers_with_a_gap_are_refused(folder: Path) -> None:
    (folder / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "front": 1, "back": 5}}))
    with refused("labels"):
        read_decathlon(folder)


def test_two_dimensional_images(tmp_path: Path) -> None:
    volumes = read_decathlon(decathlon_folder(tmp_path, shape=(10, 12)))
    assert volumes.dims == 2
    assert volumes.cases[0].load()[0].shape == (1, 10, 12)


def _other_shape(root: Path) -> tuple[str, str]:
    save(root / "labelsTr" / "case_1.nii.gz", np.zeros((10, 12, 7), np.uint8))
    return str(root / "imagesTr" / "case_1.nii.gz"), "(10, 12, 6)"


def _other_affine(root: Path) -> tuple[str, str]:
    save(root / "labelsTr" / "case_1.nii.gz", np.zeros((10, 12, 6), np.uint8), np.diag([1, 1, 2.0, 1]))
    return str(root / "imagesTr" / "case_1.nii.gz"), "affines that differ by 1"


def _nan(root: Path) -> tuple[str, str]:
    image = np.full((10, 12, 6), 5.0, np.float32)
    image[0, 0, 0] = np.nan
    save(root / "imagesTr" / "case_2.nii.gz", image)
    return str(root / "imagesTr" / "case_2.nii.gz"), "1 NaN or infinite voxels"


def _one_slice(root: Path) -> tuple[str, str]:
    for part in ("imagesTr", "labelsTr"):
        save(root / part / "case_0.nii.gz", np.zeros((10, 12, 1), np.uint8))
    return str(root / "imagesTr" / "case_0.nii.gz"), "(10, 12, 1)"


def _stray_file(root: Path) -> tuple[str, str]:
    (root / "imagesTr" / "notes.txt").write_text("hello")
    return str(root / "imagesTr" / "notes.txt"), "notes.txt"


def _not_nifti(root: Path) -> tuple[str, str]:
    (root / "imagesTr" / "case_1.nii.gz").write_text("hello")
    return str(root / "imagesTr" / "case_1.nii.gz"), "not a gzip file"


def _cut_short(root: Path) -> tuple[str, str]:
    path = root / "imagesTr" / "case_1.nii.gz"
    path.write_bytes(path.read_bytes()[:-400])
    return str(root / "imagesTr" / "case_1.nii.gz"), ""


def _no_label(root: Path) -> tuple[str, str]:
    os.remove(root / "labelsTr" / "case_1.nii.gz")
    return str(root / "imagesTr" / "case_1.nii.gz"), ""


def _half_label(root: Path) -> tuple[str, str]:
    save(root / "labelsTr" / "case_0.nii.gz", np.full((10, 12, 6), 0.5, np.float32))
    return str(root / "labelsTr" / "case_0.nii.gz"), "0.5"


def _constant(root: Path) -> tuple[str, str]:
    save(root / "imagesTr" / "case_0.nii.gz", np.full((10, 12, 6), 3.0, np.float32))
    return f"channel 0 of {root / 'imagesTr' / 'case_0.nii.gz'}", "3 for both"


def _more_channels(root: Path) -> tuple[str, str]:
    save(root / "imagesTr" / "case_2.nii.gz", np.ones((10, 12, 6, 2), np.float32))
    return str(root / "imagesTr" / "case_2.nii.gz"), "2 channels"


def _label_too_high(root: Path) -> tuple[str, str]:
    (root / "dataset.json").write_text(json.dumps({"labels": {"0": "background", "1": "organ"}}))
    return str(root / "imagesTr" / "case_0.nii.gz"), "2"


def _wrong_table(root: Path) -> tuple[str, str]:
    (root / "cases.csv").write_text("case,centre\ncase_0,X\n")
    return str(root / "cases.csv"), "case_1"


def _infinite_label(root: Path) -> tuple[str, str]:
    save(root / "labelsTr" / "case_0.nii.gz", np.full((10, 12, 6), np.inf, np.float32))
    return str(root / "labelsTr" / "case_0.nii.gz"), "inf"


def _corrupted(root: Path) -> tuple[str, str]:
    path = root / "imagesTr" / "case_1.nii.gz"
    there = bytearray(path.read_bytes())
    there[len(there) // 2 : len(there) // 2 + 8] = b"\xff" * 8
    path.write_bytes(bytes(there))
    return str(root / "imagesTr" / "case_1.nii.gz"), ""


def _colours(root: Path) -> tuple[str, str]:
    save(root / "imagesTr" / "case_1.nii.gz", np.zeros((10, 12, 6), [("R", "u1"), ("G", "u1"), ("B", "u1")]))
    return str(root / "imagesTr" / "case_1.nii.gz"), "('R', 'u1')"


def _complex(root: Path) -> tuple[str, str]:
    save(root / "imagesTr" / "case_1.nii.gz", np.ones((10, 12, 6), np.complex64))
    return str(root / "imagesTr" / "case_1.nii.gz"), "complex64"


def _twice(root: Path) -> tuple[str, str]:
    save(root / "imagesTr" / "case_1.nii", np.ones((10, 12, 6), np.float32))
    return str(root / "imagesTr" / "case_1.nii.gz"), "case_1.nii"


def _empty_table(root: Path) -> tuple[str, str]:
    (root / "cases.csv").write_text("")
    return "cases.csv", "No columns"


def _ignored_class(root: Path) -> tuple[str, str]:
    labels = {"background": 0, "organ": 1, "other": 2, "ignore": 3}
    (root / "dataset.json").write_text(json.dumps({"labels": labels}))
    return "ignore_label", "None"


@pytest.mark.parametrize(
    "break_it",
    [
        _infinite_label, _corrupted, _colours, _complex, _twice, _empty_table, _ignored_class, _other_shape,
        _other_affine, _nan, _one_slice, _stray_file, _not_nifti, _cut_short, _no_label, _half_label,
        _constant, _more_channels, _label_too_high, _wrong_table,
    ],
)  # fmt: skip
def test_bad_input_names_the_file(folder: Path, break_it: Callable[[Path], tuple[str, str]]) -> None:
    name, received = break_it(folder)
    with refused(name) as caught:
        prepare_volumes(read_decathlon(folder), (8, 8, 6), show=False)
    assert received in str(caught.value.received)


def test_a_class_that_nnunet_ignores_is_none(folder: Path) -> None:
    labels = {"background": 0, "organ": 1, "other": 2, "ignore": 3}
    (folder / "dataset.json").write_text(json.dumps({"labels": labels}))
    assert read_decathlon(folder, ignore_label=3).classes == ("background", "organ", "other")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with refused("data") as caught:
        read_decathlon(tmp_path)
    assert "imagesTr" in str(caught.value.received)


def test_files_that_macos_leaves_are_passed_over(folder: Path) -> None:
    (folder / "imagesTr" / "._case_0.nii.gz").write_text("x")
    assert len(read_decathlon(folder).cases) == 3


# --- preparing --------------------------------------------------------------------------------------------------------


def test_scaling_and_fitting_are_monais() -> None:
    transforms = pytest.importorskip("monai.transforms")
    torch.manual_seed(0)
    image = torch.randn(2, 9, 14, 5) * 50 + torch.tensor([10.0, -300]).reshape(2, 1, 1, 1)
    theirs = torch.cat([transforms.ScaleIntensityRangePercentiles(5, 95, 0, 1)(c[None]).as_tensor() for c in image])
    torch.testing.assert_close(scale_intensities(image, ["x", "y"]), theirs)
    for roi in ((8, 8, 8), (9, 20, 4), (13, 7, 5)):
        assert torch.equal(crop_or_pad(image, roi), transforms.ResizeWithPadOrCrop(roi)(image).as_tensor())


def test_padding_and_ignored_labels_are_not_valid(folder: Path) -> None:
    label = np.zeros((10, 12, 6), np.uint8)
    label[2:6, 3:8], label[6:8, 3:8], label[0] = 1, 2, 9
    save(folder / "labelsTr" / "case_0.nii.gz", label)
    prepared = prepare_volumes(read_decathlon(folder, ignore_label=9), (16, 12, 6), ignore_label=9, show=False)
    assert prepared.classes == 3
    assert prepared.valid.flatten(1).sum(1).tolist() == [9 * 12 * 6, 10 * 12 * 6, 10 * 12 * 6]
    assert not bool(prepared.labels[~prepared.valid].any())


def test_what_lies_outside_the_region_is_counted_and_nothing_inside_is_refused(folder: Path) -> None:
    prepared = prepare_volumes(read_decathlon(folder), (4, 12, 6), show=False)
    # The middle four rows 3 … 6 keep three of the four rows of class 1 and one of two of class 2, 5 × 6 voxels each.
    assert prepared.about["lost"] == {f"case_{i}": 60 for i in range(3)}
    label = np.zeros((10, 12, 6), np.uint8)
    label[0] = 1
    save(folder / "labelsTr" / "case_1.nii.gz", label)
    with refused("roi") as caught:
        prepare_volumes(read_decathlon(folder), (4, 12, 6), show=False)
    assert "case_1" in str(caught.value)


def test_a_region_holds_every_volume_and_fits_the_network(folder: Path) -> None:
    volumes = read_decathlon(folder)
    assert choose_region(volumes, None, (8, 8, 1)) == (16, 16, 6)
    with refused("roi") as caught:
        choose_region(volumes, (12, 16, 6), (8, 8, 1))
    assert "roi=(16, 16, 6)" in str(caught.value)
    with refused("roi"):
        choose_region(volumes, (16, 16), (8, 8, 1))


def test_a_class_that_is_not_in_the_training_set_is_named() -> None:
    prepared = plain_prepared(torch.randn(2, 1, 4, 4), torch.tensor([0, 1]).reshape(2, 1, 1).expand(2, 4, 4))
    check_classes(prepared, [0, 1])
    with refused("class 1 (organ)") as caught:
        check_classes(prepared, [0])
    assert "case 0" in str(caught.value.received)


def test_prepared_volumes_come_back_from_their_file(folder: Path, tmp_path: Path) -> None:
    prepared = prepare_volumes(read_decathlon(folder), (8, 8, 6), show=False)
    again = read_prepared(write_prepared(prepared, tmp_path / "prepared.safetensors"))
    assert again.fingerprint() == prepared.fingerprint()
    assert again.about == prepared.about
    (tmp_path / "other.safetensors").write_text("x")
    with refused("data") as caught:
        read_prepared(tmp_path / "other.safetensors")
    assert "other.safetensors" in caught.value.received


# --- split ------------------------------------------------------------------------------------------------------------


def test_training_sets_are_nested_and_patients_stay_on_one_side() -> None:
    patients = [f"p{i // 2}" for i in range(40)]
    s = split(patients, [None] * 40, 7, [3, 5, 9])
    sets = [set(s.first(n)) for n in (3, 5, 9)]
    assert sets[0] < sets[1] < sets[2]
    assert [len(one) for one in sets] == [6, 10, 18]
    sides = [{patients[i] for i in side} for side in (s.first(len(s.train)), s.validation, s.test)]
    assert not sides[0] & sides[1] | sides[0] & sides[2] | sides[1] & sides[2]
    assert sum(map(len, sides)) == 20
    assert split(patients, [None] * 40, 7, [3]) == s
    assert split(patients, [None] * 40, 8, [3]) != s


def test_the_papers_shares() -> None:
    s = split([str(i) for i in range(145)], [None] * 145, 0, [69])
    assert (len(s.train), len(s.validation), len(s.test)) == (69, 24, 52)


@pytest.mark.parametrize("wanted", [[7], [0], [5, 100]])
def test_more_training_patients_than_there_are(wanted: list[int]) -> None:
    with refused("n_train") as caught:
        split([str(i) for i in range(10)], [None] * 10, 0, wanted, 2, 2)
    assert caught.value.received == next(n for n in wanted if not 1 <= n <= 6)


@pytest.mark.parametrize("name", ["n_validation", "n_test"])
def test_validation_and_test_need_a_patient_each(name: str) -> None:
    with refused(name):
        split([str(i) for i in range(10)], [None] * 10, 0, [1], **({"n_validation": 1, "n_test": 1} | {name: 0}))


def test_roles_in_the_data_win_and_a_patient_has_one() -> None:
    roles = ["train", "train", "validation", "test"]
    s = split(list("abcd"), roles, 0, [2])
    assert (sorted(s.first(2)), s.validation, s.test) == ([0, 1], (2,), (3,))
    with refused("role"):
        split(list("abca"), roles, 0, [1])


# --- phantom ----------------------------------------------------------------------------------------------------------


def test_the_phantom_is_a_vessel_the_same_for_the_same_seed() -> None:
    volumes = make_phantom((2, 1, 3), seed=4, shape=(64, 64, 8), spacing=(0.45, 0.45, 4.0))
    image, label = volumes.cases[0].load()
    again, same = volumes.cases[0].load()
    other, _ = make_phantom((2, 1, 3), seed=5, shape=(64, 64, 8), spacing=(0.45, 0.45, 4.0)).cases[0].load()
    assert torch.equal(image, again)
    assert torch.equal(label, same)
    assert not torch.equal(image, other)
    assert image.shape == (5, 64, 64, 8)
    lumen, wall = label == 2, label == 1
    for z in range(8):  # a lumen in every slice, within a wall: no lumen voxel touches the background
        assert bool(lumen[..., z].any())
        grown = torch.nn.functional.max_pool2d(lumen[..., z].float()[None, None], 3, 1, 1)[0, 0] > 0
        assert bool((grown & (label[..., z] == 0)).sum() == 0)
    tof, t2 = image[2], image[4]
    around = ~(lumen | wall)
    assert float(tof[lumen].mean()) > 2 * float(tof[around].mean())  # bright blood
    assert float(t2[lumen].mean()) < 0.5 * float(t2[around].mean())  # black blood


def test_the_phantom_trains_at_one_centre_and_is_tested_at_three() -> None:
    volumes = make_phantom()
    roles = [case.role for case in volumes.cases]
    assert [roles.count(r) for r in ("train", "validation", "test")] == [69, 24, 52]
    tested = [case.centre for case in volumes.cases if case.role == "test"]
    assert [tested.count(f"centre {c}") for c in CENTRES] == [15, 24, 13]
    assert {case.centre for case in volumes.cases if case.role != "test"} == {"centre A"}


def test_the_phantom_as_a_folder(tmp_path: Path) -> None:
    volumes = make_phantom((1, 1, 1), shape=(16, 16, 4), spacing=(1.8, 1.8, 6.0))
    read = read_decathlon(write_decathlon(volumes, tmp_path / "phantom"))
    assert (read.channels, read.classes, read.spacing) == (
        volumes.channels,
        volumes.classes,
        pytest.approx((1.8, 1.8, 6.0)),
    )
    assert [(c.name, c.centre, c.role) for c in read.cases] == [(c.name, c.centre, c.role) for c in volumes.cases]
    for ours, theirs in zip(volumes.cases[0].load(), read.cases[0].load(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_real_hippocampus_volumes() -> None:
    data = os.environ.get("DROPSCOPE_DATA")
    if not data:
        pytest.skip("DROPSCOPE_DATA is not set")
    volumes = read_decathlon(Path(data) / "Task04_Hippocampus")
    assert (len(volumes.cases), len(volumes.classes), volumes.dims) == (200, 3, 3)
    assert choose_region(volumes, None, (8, 8, 1)) == (48, 64, 47)
    image, label = volumes.cases[0].load()
    assert image.shape[1:] == label.shape == volumes.cases[0].shape
    assert label.unique().tolist() == [0, 1, 2]


def test_a_copy_elsewhere_is_the_same_data(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    first, second = (prepare_volumes(read_decathlon(f), (8, 8, 6), show=False).fingerprint() for f in (folder, copy))
    assert first == second
