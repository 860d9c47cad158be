"""The mammography task on drawn and on real mammograms, and each way its input is bad."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dropscope.errors import BadInput

pytest.importorskip("cv2", reason="the extra medical is not installed")

from dropscope.studies.where_to_drop.effnet import LAYERS, EffNet
from dropscope.studies.where_to_drop.mammograms import NORMAL, find_mammograms, read_image
from dropscope.studies.where_to_drop.mammography import balanced_accuracy, mammography
from dropscope.studies.where_to_drop.patients import split_mammograms
from dropscope.studies.where_to_drop.preprocessing import Settings, steps
from support.drawn_mammograms import write_table, write_tree

CPU = torch.device("cpu")
SHARES = (2.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("ddsm") / "MINI-DDSM", patients=16)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("plain"))


def _nothing(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _truncated(folder: Path) -> None:
    path = folder / "m005.png"
    path.write_bytes(path.read_bytes()[:-3000])


def _overwritten(folder: Path) -> None:
    path = folder / "m005.png"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def _no_image(folder: Path) -> None:
    (folder / "m005.png").write_text("not an image")


def _tiny(folder: Path) -> None:
    Image.new("L", (67, 300)).save(folder / "m005.png")


def _rows(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        lines = (folder / "labels.csv").read_text().splitlines()
        (folder / "labels.csv").write_text("\n".join([lines[0], *change(lines[1:])]) + "\n")

    return changed


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no images": (_nothing, "come with labels.*0 images"),
    "truncated": (_truncated, r"whole and can be read.*m005\.png"),
    "a byte changed": (_overwritten, r"whole and can be read.*m005\.png"),
    "no image at all": (_no_image, r"whole and can be read.*m005\.png"),
    "too small": (_tiny, r"at least 68 pixels.*67x300 pixels.*m005\.png"),
    "missing file": (lambda folder: (folder / "m005.png").unlink(), r"m005\.png.*row 6 of labels\.csv"),
    "empty class": (_rows(lambda rows: [row[:-1] + "0" for row in rows]), "no abnormal one"),
    "unknown flag": (_rows(lambda rows: [*rows[:2], rows[2][:-1] + "maybe", *rows[3:]]), "0 or 1.*maybe.*row 3"),
    "no patient": (_rows(lambda rows: [*rows[:2], "m002.png,,1", *rows[3:]]), "every row has a patient.*row 3"),
    "twice": (_rows(lambda rows: [*rows, rows[0]]), r"row 1 has it too.*m000\.png.*row 25"),
    "few patients": (_rows(lambda rows: rows[:6]), "validation part has .* both classes.*3 in all"),
    "no table": (lambda folder: (folder / "labels.csv").unlink(), "24 images, no labels.csv"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error_and_nothing_is_written(name: str, table: Path, tmp_path: Path) -> None:
    spoil, expected = BAD[name]
    folder, cache = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(table, folder)
    spoil(folder)
    with pytest.raises(BadInput, match=f"(?s){expected}"):
        mammography(folder, side=32, shares=SHARES, cache=cache, show=False)
    assert not cache.exists()


def test_bad_folders_tables_and_options(tree: Path, table: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a data folder exists"):
        mammography(tmp_path / "absent")
    with pytest.raises(BadInput, match=r"a file that is named exists.*absent\.csv"):
        mammography(table, table / "absent.csv")
    with pytest.raises(BadInput, match="by patient or by image"):
        mammography(table, split="by_hand")
    with pytest.raises(BadInput, match="normal, all or none"):
        mammography(table, augment="some")
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy)
    shutil.rmtree(copy / "Benign")
    (copy / "Benign" / "0001").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"a class folder holds images.*Benign"):
        mammography(copy)
    no_patients = tmp_path / "no_patients.csv"
    no_patients.write_text("file,abnormal\nm000.png,1\n")
    with pytest.raises(BadInput, match=r"column 'patient'.*repeat the file name"):
        mammography(table, no_patients)
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("file,patient,label\nm000.png,a,1\n")
    with pytest.raises(BadInput, match=r"is a finding.*which class is which"):
        mammography(table, numbers)


# --- the task ---------------------------------------------------------------------------------------------------------


def test_the_task_on_the_mini_ddsm_tree(tree: Path, tmp_path: Path) -> None:
    task = mammography(tree, side=32, shares=SHARES, epochs=2, batch=8, cache=tmp_path / "cache", show=False)
    assert (task.layers, task.penultimate) == (LAYERS, ("block3", "block2"))
    inputs, labels = task.test
    assert inputs.shape == (len(labels), 1, 32, 32)
    assert inputs.dtype == torch.float32
    assert labels.bincount().tolist() == [len(labels) // 2] * 2  # balanced
    assert task.test_groups is not None
    assert len(task.test_groups) == len(labels)
    assert len(set(task.test_groups)) < len(labels)
    assert "split by_patient" in task.remarks[0]
    assert not any("LEAK" in line for line in task.remarks)
    assert any("lesion masks" in line for line in task.remarks)
    # normalised with the training part: found again from the files
    images = find_mammograms(tree).images
    split = split_mammograms(images, "by_patient", SHARES, 0)
    stack = np.stack(
        [steps(read_image(images[i].path.read_bytes(), images[i].path), Settings(side=32)).result for i in split.train]
    )
    first = split.validation[0]
    raw = steps(read_image(images[first].path.read_bytes(), images[first].path), Settings(side=32)).result
    expected = (raw - stack.mean(dtype=np.float64)) / stack.std(dtype=np.float64)
    np.testing.assert_allclose(task.validation[0][0, 0].numpy(), expected, atol=1e-5)
    assert task.about == mammography(tree, side=32, shares=SHARES, epochs=2, batch=8, show=False).about


def test_training_is_a_function_of_its_seed_and_keeps_the_best_epoch(table: Path) -> None:
    task = mammography(table, side=16, shares=SHARES, epochs=3, batch=8, show=False)
    assert task.train is not None
    state = torch.get_rng_state()
    nets, histories = [], []
    for seed in (0, 0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = EffNet((4, 6, 8, 10))
        histories.append(task.train(net, seed, CPU, False))
        nets.append(net)
    assert torch.equal(torch.get_rng_state(), state)
    assert histories[0] == histories[1] != histories[2]
    for name, value in nets[0].state_dict().items():
        assert torch.equal(value, nets[1].state_dict()[name])
    with torch.no_grad():
        best = balanced_accuracy(nets[0], *task.validation)
    assert best == pytest.approx(max(histories[0].scores))


def test_by_image_counts_the_leak_into_the_remarks(table: Path) -> None:
    task = mammography(table, split="by_image", side=16, shares=SHARES, show=False)
    images = find_mammograms(table).images
    split = split_mammograms(images, "by_image", SHARES, 0)
    known = {images[i].patient for i in split.train}
    assert task.test_groups is not None
    leaked = sum(patient in known for patient in task.test_groups)
    assert leaked > 0
    count = len(task.test_groups)
    assert any(
        line.startswith(f"LEAK: {leaked} of {count} test images ({leaked / count:.0%})") for line in task.remarks
    )


def test_copies_under_other_names_are_said(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(table, folder)
    images = find_mammograms(folder).images
    split = split_mammograms(images, "by_patient", SHARES, 0)
    shutil.copyfile(images[split.train[0]].path, images[split.test[0]].path)
    task = mammography(folder, side=16, shares=SHARES, balanced_test=False, show=False)
    assert "LEAK: 1 test images are copies of training or validation images under other names." in task.remarks


def test_limits_and_an_unbalanced_test(tree: Path) -> None:
    limited = mammography(tree, side=16, shares=SHARES, train=6, validation=4, test=4, show=False)
    assert limited.about["images"] == [6, 4, 4]
    assert limited.test[1].bincount().tolist() == [2, 2]
    whole = mammography(tree, side=16, shares=SHARES, balanced_test=False, show=False)
    images = find_mammograms(tree).images
    assert len(whole.test[1]) == len(split_mammograms(images, "by_patient", SHARES, 0).test)


def test_balanced_accuracy_of_always_the_larger_class_is_one_half() -> None:
    class Always(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[1.0, 0.0]]).expand(len(x), 2)

    labels = torch.tensor([0] * 9 + [1])
    assert balanced_accuracy(Always(), torch.zeros(10, 1, 4, 4), labels) == 0.5
    assert balanced_accuracy(Always(), torch.zeros(9, 1, 4, 4), labels[:9]) == 1.0


@pytest.mark.skipif("DROPSCOPE_DATA" not in os.environ, reason="DROPSCOPE_DATA is not set: no real mammograms")
def test_the_task_on_real_mammograms(tmp_path: Path) -> None:
    folder = Path(os.environ["DROPSCOPE_DATA"]) / "mias"
    task = mammography(folder, side=64, cache=tmp_path, show=False)
    trained, held, tested = task.about["images"]
    assert trained + held <= 82 - tested
    assert "82 mammograms" in task.remarks[0]
    assert len(task.test[1]) == tested == 2 * int((task.test[1] == NORMAL).sum())
    leaky = mammography(folder, side=64, split="by_image", cache=tmp_path, show=False)
    assert any("LEAK" in line for line in leaky.remarks)
