"""Sizes of windows: volumes padded to what a network takes, and windows that change volumes."""

import numpy as np
import pytest
import torch
from torch import nn

from dropscope.volumes.nifti import find_cases, read_case
from dropscope.volumes.prediction import plan_prediction, predict
from dropscope.volumes.windows import plan_windows
from support.errors import refused
from support.nifti_files import PLACEMENT, by_hand, maps_in, net, write

nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra 'medical'")

FEW = {"passes": 3, "overlays": False, "progress": False}


class Pooled(nn.Module):
    """A U-Net that pools by `factors`, one per axis, and takes multiples of them alone."""

    def __init__(self, factors=(4, 4, 4), out=3):
        super().__init__()
        torch.manual_seed(0)
        self.factors = factors
        dims = len(factors)
        conv, self.pool = ((nn.Conv2d, nn.functional.avg_pool2d), (nn.Conv3d, nn.functional.avg_pool3d))[dims - 2]
        self.down, self.inner, self.out = conv(1, 4, 3, padding=1), conv(4, 4, 1), conv(8, out, 1)
        with torch.no_grad():
            self.out.weight.mul_(10)

    def forward(self, x):
        x = torch.relu(self.down(x))
        deep = torch.relu(self.inner(self.pool(x, self.factors)))
        return self.out(torch.cat([x, nn.functional.interpolate(deep, scale_factor=self.factors)], 1))


@pytest.mark.parametrize("factors", [(2, 2, 2), (16, 16, 16), (8, 8, 1), (1, 2, 4)])
def test_volumes_are_padded_to_what_the_network_takes_and_cropped_back(tmp_path, factors):
    source, model = write(tmp_path / "odd.nii.gz", (11, 9, 7)), Pooled(factors).eval()
    table = predict(model, "inner=0.5", [source], tmp_path / "out", **FEW)
    (case,) = find_cases([source])
    windows = plan_windows(case.shape, None, 0.25, factors)
    assert all(size % of == 0 and size - n < of for size, n, of in zip(windows.size, case.shape, factors, strict=True))
    passes = by_hand(model, read_case(case), windows, 3, "inner=0.5")
    made = maps_in(tmp_path / "out" / "odd")
    assert np.array_equal(made["prediction.nii.gz"], passes.double().mean(0).argmax(1)[0].numpy())
    for name, values in made.items():
        assert values.shape == (11, 9, 7), name
    (remark,) = table.attrs["remarks"]
    assert "padded with zeros" in remark
    assert "×".join(map(str, windows.size)) in remark


def test_volumes_that_fit_are_left_alone(tmp_path):
    sources = [write(tmp_path / "a.nii.gz", (8, 8, 4)), write(tmp_path / "b.nii.gz", (8, 4, 4), seed=1)]
    assert predict(Pooled().eval(), "inner=0.5", sources, tmp_path / "out", **FEW).attrs["remarks"] == ()
    assert predict(net(), PLACEMENT, sources, tmp_path / "other", **FEW).attrs["remarks"] == ()


def test_the_first_volume_fits_and_the_second_does_not(tmp_path):
    sources = [write(tmp_path / "a.nii.gz", (8, 8, 8)), write(tmp_path / "b.nii.gz", (8, 7, 5), seed=1)]
    plan = plan_prediction(Pooled().eval(), "inner=0.5", sources, tmp_path / "out", passes=3)
    assert "1 of 2 volumes" in plan.remarks[0]
    assert "1 of 2 volumes" in str(plan)
    predict(Pooled().eval(), "inner=0.5", sources, tmp_path / "out", **FEW)
    assert maps_in(tmp_path / "out" / "b")["prediction.nii.gz"].shape == (8, 7, 5)


def test_windows_are_rounded_up(tmp_path):
    source = write(tmp_path / "a.nii.gz", (12, 12, 12))
    table = predict(Pooled().eval(), "inner=0.5", [source], tmp_path / "out", roi=(7, 8, 6), **FEW)
    assert any("windows of 7×8×6 became 8×8×8" in remark for remark in table.attrs["remarks"])


def test_a_network_of_two_dimensions_takes_whole_slices_without_being_told(tmp_path):
    source = write(tmp_path / "a.nii.gz", (9, 6, 5))
    for number, model in enumerate((net(dims=2), Pooled((4, 4)).eval())):
        out = tmp_path / f"out{number}"
        table = predict(model, "0=0.5" if number == 0 else "inner=0.5", [source], out, **FEW)
        assert maps_in(out / "a")["prediction.nii.gz"].shape == (9, 6, 5)
        assert len(table.attrs["remarks"]) == number  # the second needs multiples of 4


def test_a_network_that_gives_back_other_sizes_is_refused(tmp_path):
    strided = nn.Sequential(nn.Conv3d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv3d(4, 2, 1))
    with refused("model"):
        predict(strided, "0=0.5", [write(tmp_path / "a.nii.gz")], tmp_path / "out", **FEW)


def test_channels_that_the_network_does_not_have_are_named(tmp_path):
    source = write(tmp_path / "a.nii.gz", (9, 8, 7, 2))
    with refused(str(source)) as caught:
        predict(Pooled().eval(), "inner=0.5", [source], tmp_path / "out", **FEW)
    assert "2 channels" in str(caught.value)


class Sums(nn.Module):
    """Compares each voxel with the mean of all that it sees: windows change everything."""

    def __init__(self):
        super().__init__()
        self.unsure = nn.Conv3d(1, 8, 1)

    def forward(self, x):
        above = x - x.mean((2, 3, 4), keepdim=True)
        return torch.cat([-above, above], 1) * 20 + 0.01 * self.unsure(x).relu().sum(1, keepdim=True)


def test_windows_that_change_volumes_are_told(tmp_path):
    values = np.random.default_rng(0).normal(size=(16, 8, 8)).astype(np.float32)
    values[13:] += 4
    source = write(tmp_path / "a.nii.gz", values=values)
    names = ["background", "lesion"]
    options = FEW | {"roi": (8, 8, 8), "class_names": names}
    (remark,) = predict(Sums().eval(), "unsure=0.5", [source], tmp_path / "out", **options).attrs["remarks"]
    assert "lesion" in remark
    assert "change volumes" in remark
    voxelwise = nn.Sequential(nn.Conv3d(1, 8, 1), nn.ReLU(), nn.Conv3d(8, 2, 1))
    assert predict(voxelwise, "0=0.5", [source], tmp_path / "same", **options).attrs["remarks"] == ()
