"""Which mammograms a folder holds: the Mini-DDSM tree, a folder with a CSV, and files of other depths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("cv2", reason="the extra medical is not installed")

from dropscope.studies.where_to_drop.mammograms import ABNORMAL, NORMAL, find_mammograms, read_image
from dropscope.studies.where_to_drop.preprocessing import steps
from support.drawn_mammograms import draw, write_table, write_tree
from support.errors import refused


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("ddsm") / "MINI-DDSM", patients=16)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("plain"))


def test_the_mini_ddsm_tree_is_read_from_itself_and_from_its_parent(tree: Path) -> None:
    found = find_mammograms(tree)
    assert found == find_mammograms(tree.parent)
    assert len(found.images) == 32
    assert len({image.patient for image in found.images}) == 16
    by_name = {image.path.name: image for image in found.images}
    assert by_name["A_0004_1.LEFT_CC.png"].label == NORMAL  # patients 4, 8, … and 3, 7, … are normal
    assert by_name["B_0001_1.LEFT_CC.png"].label == ABNORMAL  # benign
    assert by_name["C_0002_1.RIGHT_MLO.png"].label == ABNORMAL  # cancer
    assert by_name["C_0002_1.RIGHT_MLO.png"].patient == "0002"
    assert found.remarks == ("16 lesion masks lie beside the mammograms and were not read",)


def test_patients_come_from_file_names_or_from_folders(tmp_path: Path) -> None:
    for name in ("Normal/D_0007_1.LEFT_CC.png", "Normal/someone/1.png", "Cancer/D_0007_1.RIGHT_CC.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(0).image).save(tmp_path / name)
    found = find_mammograms(tmp_path)
    assert sorted(image.patient for image in found.images) == ["0007", "0007", "someone"]
    Image.fromarray(draw(0).image).save(tmp_path / "Normal" / "nobody.png")
    with refused(str(tmp_path / "Normal" / "nobody.png")):
        find_mammograms(tmp_path)


def test_a_table_may_name_findings_and_what_it_does_not_list_is_said(table: Path, tmp_path: Path) -> None:
    assert find_mammograms(table) == find_mammograms(table, table / "labels.csv")
    words = tmp_path / "words.csv"
    words.write_text("file,patient,label\nm000.png,a,Cancer\nm001.png,a,normal\n")
    found = find_mammograms(table, words)
    assert [(image.patient, image.label) for image in found.images] == [("a", ABNORMAL), ("a", NORMAL)]
    assert found.remarks == ("22 images in the folder have no row in words.csv and were not read",)


def test_deep_and_coloured_files_are_the_same_image(tmp_path: Path) -> None:
    image = draw(3).image
    deep, colour = tmp_path / "deep.png", tmp_path / "colour.png"
    Image.fromarray(image.astype(np.uint16) * 257).save(deep)
    Image.fromarray(np.stack([image] * 3, -1)).save(colour)
    for path in (deep, colour):
        assert np.array_equal(steps(read_image(path.read_bytes(), path)).grey, image)
