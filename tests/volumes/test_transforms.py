"""Preprocessing by the user's own code."""

import numpy as np
import pytest
import torch

from dropscope.volumes.nifti import find_cases, read_case
from dropscope.volumes.prediction import predict
from dropscope.volumes.transforms import read_transformed
from support.errors import refused
from support.nifti_files import PLACEMENT, maps_in, net, write

nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra 'medical'")


@pytest.fixture
def case(tmp_path):
    return find_cases([write(tmp_path / "a.nii.gz", (6, 5, 4))])[0]


def test_a_function_of_the_array(case):
    raw = read_case(case, "none")
    for function in (lambda x: x / 100, lambda x: torch.from_numpy(x) / 100, lambda x: x[0] / 100):
        torch.testing.assert_close(read_transformed(case, "none", function), raw / 100)
    both = read_transformed(case, "none", lambda x: np.concatenate([x, -x]))
    assert both.shape == (2, 6, 5, 4)
    assert both.dtype == torch.float32


def test_transforms_of_monai_of_arrays_of_dicts_and_with_a_loader(case):
    t = pytest.importorskip("monai.transforms", reason="MONAI is in the extra 'medical'")
    raw = read_case(case, "none")
    expected = (raw - raw.min()) / (raw.max() - raw.min())
    for transforms in (
        t.ScaleIntensity(),
        t.Compose([t.ScaleIntensity()]),
        t.ScaleIntensityd(keys="image"),
        t.Compose([t.LoadImaged(["image"]), t.EnsureChannelFirstd(["image"]), t.ScaleIntensityd(["image"])]),
        t.Compose([t.LoadImage(), t.EnsureChannelFirst(), t.ScaleIntensity()]),
        t.Compose([t.ScaleIntensityd(["scan"]), t.Lambdad(["scan"], lambda x: x)]),
    ):
        found = read_transformed(case, "none", transforms)
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, expected)


def test_transforms_that_move_the_image_or_fail_are_refused(case):
    t = pytest.importorskip("monai.transforms", reason="MONAI is in the extra 'medical'")
    load = [t.LoadImaged(["image"]), t.EnsureChannelFirstd(["image"])]
    for transforms in (
        lambda x: x[:, :-1],
        lambda x: x.movedim,
        lambda x: {"a": x},
        lambda x: None,
        lambda x: x * np.nan,
        lambda x: x.reshape(-1),
        t.Compose([*load, t.Spacingd(["image"], (1.0, 1.0, 1.0))]),
        t.Compose([*load, t.Orientationd(["image"], "RAS", labels=None)]),
        t.Compose([t.LoadImaged(["image", "label"])]),
    ):
        with refused("transforms"):
            read_transformed(case, "none", transforms)


def test_predictions_see_the_transformed_voxels_alone(tmp_path):
    source, few = write(tmp_path / "a.nii.gz", (6, 5, 4)), {"passes": 3, "overlays": False, "progress": False}
    predict(net(), PLACEMENT, [source], tmp_path / "out", transforms=lambda x: (x - 100) / 30, **few)
    image = nibabel.load(source)
    (tmp_path / "b").mkdir()
    moved = write(tmp_path / "b" / "a.nii.gz", values=((np.asarray(image.dataobj) - 100) / 30).astype(np.float32))
    predict(net(), PLACEMENT, [moved], tmp_path / "other", scale="none", **few)
    one, two = maps_in(tmp_path / "out" / "a"), maps_in(tmp_path / "other" / "a")
    np.testing.assert_allclose(one["predictive_entropy.nii.gz"], two["predictive_entropy.nii.gz"], atol=1e-4)
    with refused("out") as caught:  # other voxels are another prediction
        predict(net(), PLACEMENT, [source], tmp_path / "out", transforms=lambda x: x / 30, **few)
    assert "voxels" in caught.value.received
