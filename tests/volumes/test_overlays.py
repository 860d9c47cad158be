"""Pictures: which way round volumes are shown, which slices, and when they are drawn again."""

import numpy as np
import pytest

from dropscope.volumes.nifti import upright
from dropscope.volumes.overlays import Picture, cut_slices, draw_case, draw_overview, drawn_mark
from dropscope.volumes.prediction import predict
from support.nifti_files import PLACEMENT, net, write

nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra 'medical'")
Image = pytest.importorskip("PIL.Image")

SHAPE, SPACING = (12, 10, 6), (1.0, 1.5, 4.0)


def marked():
    """A volume in RAS whose one bright voxel lies to the right, in front and on top."""
    image = np.zeros(SHAPE, np.float32)
    image[-1, -1, -1] = 1
    return image, np.diag([*SPACING, 1.0])


@pytest.mark.parametrize("codes", ["RAS", "LPS", "SRA", "PIL"])
def test_volumes_are_turned_upright_from_any_orientation(codes):
    image, affine = marked()
    stored = nibabel.Nifti1Image(image, affine)
    turns = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(affine), nibabel.orientations.axcodes2ornt(tuple(codes))
    )
    other = stored.as_reoriented(turns)
    found, spacing = upright(np.asarray(other.dataobj), other.affine)
    np.testing.assert_array_equal(found, image)
    assert spacing == pytest.approx(SPACING)


def picture(image, affine, prediction=None, label=None, uncertainty=None, lines=("class 1",)):
    empty = np.zeros(image.shape)
    prediction = empty if prediction is None else prediction
    uncertainty = empty if uncertainty is None else uncertainty
    return Picture(image, prediction.astype(int), uncertainty, label, affine, lines, "a case", "bald", 1.0)


def test_the_patients_right_is_on_the_left_and_the_front_and_head_are_on_top():
    image, affine = marked()
    uncertainty = image  # the slices go through the bright voxel
    slices = {part.plane: part for part in cut_slices(picture(image, affine, uncertainty=uncertainty))}
    axial, coronal, sagittal = (slices[name] for name in ("axial", "coronal", "sagittal"))
    assert axial.layers["image"][-1, 0] == coronal.layers["image"][-1, 0] == sagittal.layers["image"][-1, 0] == 1
    assert axial.sides == ("R", "L", "P", "A")
    assert sagittal.sides == ("A", "P", "I", "S")
    assert (axial.number, coronal.number, sagittal.number) == (5, 9, 11)
    assert axial.spacing == (1.0, 1.5)
    assert coronal.spacing == (1.0, 4.0)
    assert axial.layers["image"].shape == (10, 12)


def test_slices_go_through_most_uncertainty_of_the_structures():
    prediction, uncertainty = np.zeros((40, 40, 40)), np.zeros((40, 40, 40))
    prediction[18:22, 18:22, 10:14] = 1
    uncertainty[19, 20, 12], uncertainty[2, 2, 2] = 0.5, 5.0  # the second lies in the background
    slices = cut_slices(picture(np.ones((40, 40, 40)), np.diag([3.0, 3, 3, 1]), prediction, uncertainty=uncertainty))
    assert [part.number for part in slices] == [12, 20, 19]
    assert slices[0].layers["image"].shape == (12, 12)  # 4 voxels and 12 mm on either side


def noisy(shape):
    draw = np.random.default_rng(0)
    prediction = draw.integers(0, 3, shape)
    return picture(draw.normal(size=shape), np.eye(4), prediction, prediction[::-1], draw.random(shape))


PICTURES = {"volume": noisy(SHAPE), "slice": noisy((12, 1, 10)), "nothing": picture(np.zeros(SHAPE), np.eye(4))}


@pytest.mark.parametrize("kind", list(PICTURES))
def test_pictures_of_volumes_slices_and_nothing(tmp_path, kind):
    path = draw_case(tmp_path / "case.png", PICTURES[kind], "a mark")
    assert drawn_mark(path) == "a mark"
    with Image.open(path) as drawn:
        assert min(drawn.size) > 200


def test_an_overview_of_volumes_and_slices(tmp_path):
    path = draw_overview(tmp_path / "overview.png", list(PICTURES.values()), 9)
    assert drawn_mark(tmp_path / "none.png") is None
    with Image.open(path) as drawn:
        assert min(drawn.size) > 200


def test_a_picture_is_drawn_again_where_its_words_change(tmp_path):
    source = write(tmp_path / "a.nii.gz", (6, 5, 4))
    options = {"passes": 3, "progress": False, "measures": ["bald"]}
    overlay = tmp_path / "out" / "a" / "overlay.png"
    table = predict(net(), PLACEMENT, [source], tmp_path / "out", **options)
    assert table.overlay.tolist() == ["a/overlay.png"]
    first, when = overlay.read_bytes(), overlay.stat().st_mtime_ns
    predict(net(), PLACEMENT, [source], tmp_path / "out", **options)
    assert overlay.stat().st_mtime_ns == when
    predict(net(), PLACEMENT, [source], tmp_path / "out", class_names=["x", "y"], **options)
    assert overlay.read_bytes() != first
    overlay.write_bytes(b"no picture")
    predict(net(), PLACEMENT, [source], tmp_path / "out", **options)
    assert overlay.read_bytes() == first
    assert (tmp_path / "out" / "overview.png").exists()
