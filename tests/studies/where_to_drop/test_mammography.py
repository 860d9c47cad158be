"""The mammography task on drawn and on real mammograms, and each way its input is bad."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dropscope as ds
from dropscope.errors import BadInput

pytest.importorskip("cv2", reason="the extra medical is not installed")

from dropscope.studies.where_to_drop import Options, plan
from dropscope.studies.where_to_drop.mammograms import NORMAL, find_mammograms, read_image
from dropscope.studies.where_to_drop.mammography import Protocol, balanced_accuracy, mammography_task
from dropscope.studies.where_to_drop.networks import EFFNET_LAYERS, EffNet
from dropscope.studies.where_to_drop.patients import split_mammograms
from dropscope.studies.where_to_drop.preprocessing import Settings, steps
from dropscope.studies.where_to_drop.published import published_for
from dropscope.studies.where_to_drop.tasks import Task, TrainingRun
from support.drawn_mammograms import write_table, write_tree
from support.errors import refused

CPU = torch.device("cpu")
SHARES = (2.0, 1.0, 1.0)


def task_on(
    folder: Path, labels: Path | None = None, side: int = 200, cache: Path | None = None, **chosen: Any
) -> Task:
    return mammography_task(folder, labels, Protocol(**chosen, preprocessing=Settings(side=side)), cache, show=False)


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


# What is done to the folder, what the error is about (in the folder, where it starts with "/"), and what it must say.
BAD: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no images": (_nothing, "data", "0 images"),
    "truncated": (_truncated, "/m005.png", "m005.png"),
    "a byte changed": (_overwritten, "/m005.png", "m005.png"),
    "no image at all": (_no_image, "/m005.png", "m005.png"),
    "too small": (_tiny, "/m005.png", "at least 68 pixels on each side"),
    "missing file": (lambda folder: (folder / "m005.png").unlink(), "row 6 of labels.csv", "m005.png"),
    "empty class": (_rows(lambda rows: [row[:-1] + "0" for row in rows]), "data", "no abnormal one"),
    "unknown flag": (
        _rows(lambda rows: [*rows[:2], rows[2][:-1] + "maybe", *rows[3:]]),
        "row 3 of labels.csv",
        "'maybe'",
    ),
    "no patient": (_rows(lambda rows: [*rows[:2], "m002.png,,1", *rows[3:]]), "row 3 of labels.csv", "patient"),
    "twice": (_rows(lambda rows: [*rows, rows[0]]), "row 25 of labels.csv", "row 1"),
    "few patients": (_rows(lambda rows: rows[:6]), "data", "validation"),
    "no table": (lambda folder: (folder / "labels.csv").unlink(), "data", "24 images and no labels.csv"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error_and_nothing_is_written(case: str, table: Path, tmp_path: Path) -> None:
    spoil, name, words = BAD[case]
    folder, cache = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(table, folder)
    spoil(folder)
    with refused(f"{folder}{name}" if name.startswith("/") else name) as caught:
        task_on(folder, side=32, shares=SHARES, cache=cache)
    assert words in str(caught.value)
    assert not cache.exists()


def test_bad_folders_tables_and_options(tree: Path, table: Path, tmp_path: Path) -> None:
    with refused("data") as caught:
        task_on(tmp_path / "absent")
    assert caught.value.received == str(tmp_path / "absent")
    with pytest.raises(BadInput) as other:
        task_on(table, table / "absent.csv")
    assert "absent.csv" in str(other.value)
    with refused("split"):
        task_on(table, split="by_hand")
    with refused("augment"):
        task_on(table, augment="some")
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy)
    shutil.rmtree(copy / "Benign")
    (copy / "Benign" / "0001").mkdir(parents=True)
    with refused(str(copy / "Benign")):
        task_on(copy)
    no_patients = tmp_path / "no_patients.csv"
    no_patients.write_text("file,abnormal\nm000.png,1\n")
    with refused("patient") as caught:
        task_on(table, no_patients)
    assert "no_patients.csv" in str(caught.value)
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("file,patient,label\nm000.png,a,1\n")
    with refused("row 1 of numbers.csv") as caught:
        task_on(table, numbers)
    assert "normal, benign, cancer" in caught.value.remedy


# --- the task ---------------------------------------------------------------------------------------------------------


def test_the_task_on_the_mini_ddsm_tree(tree: Path, tmp_path: Path) -> None:
    task = task_on(tree, side=32, shares=SHARES, epochs=2, batch=8, cache=tmp_path / "cache")
    assert (task.layers, task.penultimate) == (EFFNET_LAYERS, ("block3", "block2"))
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
    assert task.about == task_on(tree, side=32, shares=SHARES, epochs=2, batch=8).about


def test_masks_inside_the_blocks_and_the_papers_own_steps(table: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"data": table, "task": "mammography", "preset": "smoke", "device": "cpu"}
    usual = plan(Options(**common, out=tmp_path / "a"), dry=True).task
    inside = plan(Options(**common, out=tmp_path / "b", positions="activation", preprocessing="paper"), dry=True).task
    assert inside.layers == ("stem.conv", "block1.shrink", "block2.shrink", "block3.shrink")
    assert inside.penultimate == ("block3.shrink", "block2.shrink")
    assert inside.positions == ("before_activation", "after_activation")
    assert usual.penultimate == ("block3", "block2")
    published = published_for(inside)
    assert published is not None
    assert {number.layer for number in published.single} == {"block2.shrink", "block3.shrink"}
    assert inside.about["settings"]["whole_breast"] is False
    assert usual.about["settings"]["whole_breast"] is True
    assert any("as written" in text for text in inside.remarks)
    run = ds.sweep(
        inside.build().eval(), ds.PlacementGrid(inside.layers, (0.5,), inside.positions), inside.test, 2, progress=False
    )
    assert run.rows["equivalent_to"].notna().any()  # LeakyReLU commutes: before and after are one


def test_training_is_a_function_of_its_seed_and_keeps_the_best_epoch(table: Path) -> None:
    task = task_on(table, side=16, shares=SHARES, epochs=3, batch=8)
    assert task.train is not None
    state = torch.get_rng_state()
    nets, histories = [], []
    for seed in (0, 0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = EffNet((4, 6, 8, 10))
        histories.append(task.train(net, TrainingRun(seed, CPU, show=False)))
        nets.append(net)
    assert torch.equal(torch.get_rng_state(), state)
    assert histories[0] == histories[1] != histories[2]
    for name, value in nets[0].state_dict().items():
        assert torch.equal(value, nets[1].state_dict()[name])
    with torch.no_grad():
        best = balanced_accuracy(nets[0], *task.validation)
    assert best == pytest.approx(max(histories[0].scores))


def test_by_image_counts_the_leak_into_the_remarks(table: Path) -> None:
    task = task_on(table, split="by_image", side=16, shares=SHARES)
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
    task = task_on(folder, side=16, shares=SHARES, balanced_test=False)
    assert "LEAK: 1 test images are copies of training or validation images under other names." in task.remarks


def test_limits_and_an_unbalanced_test(tree: Path) -> None:
    limited = task_on(tree, side=16, shares=SHARES, train=6, validation=4, test=4)
    assert limited.about["images"] == [6, 4, 4]
    assert limited.test[1].bincount().tolist() == [2, 2]
    whole = task_on(tree, side=16, shares=SHARES, balanced_test=False)
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
    task = task_on(folder, side=64, cache=tmp_path)
    trained, held, tested = task.about["images"]
    assert trained + held <= 82 - tested
    assert "82 mammograms" in task.remarks[0]
    assert len(task.test[1]) == tested == 2 * int((task.test[1] == NORMAL).sum())
    leaky = task_on(folder, side=64, split="by_image", cache=tmp_path)
    assert any("LEAK" in line for line in leaky.remarks)
