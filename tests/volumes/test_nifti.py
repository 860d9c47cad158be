"""NIfTI files: cases, channels, scaling, and files that do not fit."""

import gzip
import struct

import numpy as np
import pytest
import torch

from dropscope.volumes.nifti import find_cases, read_case, voxel_volume
from support.errors import refused
from support.nifti_files import AFFINE, write

nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra 'medical'")


def test_cases_of_files_folders_and_channels(tmp_path):
    folder, channels = tmp_path / "plain", tmp_path / "channels"
    for each in (folder, channels):
        each.mkdir()
    write(folder / "b.nii.gz")
    write(folder / "a.nii", (4, 5, 6))
    (folder / "._b.nii.gz").write_bytes(b"a Mac's own")
    for case in ("x", "y"):
        for channel in range(2):
            write(channels / f"{case}_{channel:04d}.nii.gz", seed=channel)
    four = write(tmp_path / "four.nii.gz", (5, 4, 3, 2))
    t1, t2 = write(tmp_path / "t1.nii.gz"), write(tmp_path / "t2.nii.gz", seed=1)
    found = find_cases([folder, channels, four, f"{t1},{t2}"])
    assert [(c.name, c.channels, c.shape) for c in found] == [
        ("a", 1, (4, 5, 6)), ("b", 1, (9, 8, 7)), ("x", 2, (9, 8, 7)), ("y", 2, (9, 8, 7)), ("four", 2, (5, 4, 3)),
        ("t1", 2, (9, 8, 7)),
    ]  # fmt: skip
    both = read_case(found[-1], "none")
    assert torch.equal(both[0], torch.from_numpy(np.asarray(nibabel.load(t1).dataobj)))
    assert torch.equal(both[1], torch.from_numpy(np.asarray(nibabel.load(t2).dataobj)))
    assert read_case(found[4], "none").shape == (2, 5, 4, 3)


def test_scaling_puts_percentiles_at_zero_and_one(tmp_path):
    (case,) = find_cases([write(tmp_path / "a.nii.gz", (5, 4, 3, 2))])
    scaled = read_case(case)
    assert scaled.dtype == torch.float32
    for channel in scaled:
        assert np.percentile(channel.numpy(), [5, 95]) == pytest.approx([0, 1], abs=1e-5)


def test_scaled_integers_with_a_slope_are_read_as_the_file_means_them(tmp_path):
    image = nibabel.Nifti1Image(np.arange(60, dtype=np.int16).reshape(5, 4, 3), AFFINE)
    image.header.set_slope_inter(0.5, 10)
    nibabel.save(image, tmp_path / "a.nii.gz")
    (case,) = find_cases([tmp_path / "a.nii.gz"])
    assert read_case(case, "none").max().item() == pytest.approx(
        float(nibabel.load(tmp_path / "a.nii.gz").get_fdata().max())
    )
    assert voxel_volume(case) == pytest.approx(abs(np.linalg.det(AFFINE[:3, :3])) / 1000)


def test_a_stray_file_or_channel_in_a_folder_is_named(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    write(folder / "x_0000.nii.gz")
    write(folder / "x_0001.nii.gz")
    write(folder / "y_0000.nii.gz")
    with refused("y") as caught:
        find_cases([folder])
    assert caught.value.received == ["0000"]
    (folder / "notes.txt").write_text("hello")
    with refused(str(folder / "notes.txt")):
        find_cases([folder])
    empty = tmp_path / "empty"
    empty.mkdir()
    with refused(str(empty)):
        find_cases([empty])


def test_one_case_in_two_formats_is_refused(tmp_path):
    """`a.nii` beside `a.nii.gz`: one of the two would be predicted, and nobody would know which."""
    write(tmp_path / "a.nii")
    write(tmp_path / "a.nii.gz")
    with refused(str(tmp_path / "a.nii.gz")) as caught:
        find_cases([tmp_path])
    assert caught.value.received == ["a.nii", "a.nii.gz"]


def test_channels_must_lie_in_one_place(tmp_path):
    moved = AFFINE.copy()
    moved[0, 3] += 5
    a, b, c = (tmp_path / f"{name}.nii.gz" for name in "abc")
    write(a), write(b, affine=moved), write(c, (9, 8, 6))
    with refused(str(b)) as caught:
        find_cases([f"{a},{b}"])
    assert "affines that differ by 5" in caught.value.received
    with refused(str(c)) as caught:
        find_cases([f"{a},{c}"])
    assert caught.value.received == (9, 8, 6)
    with refused("a") as caught:
        find_cases([a, a])
    assert caught.value.received == [str(a), str(a)]
    with refused("images") as caught:
        find_cases([tmp_path / "nowhere.nii.gz"])
    assert "nowhere.nii.gz" in caught.value.received


def header_edited(path, at, form, *values):
    """A good file whose header says something else, at an offset of the NIfTI-1 header."""
    there = bytearray(gzip.decompress(write(path).read_bytes()))
    struct.pack_into(form, there, at, *values)
    path.write_bytes(gzip.compress(bytes(there)))
    return path


@pytest.mark.parametrize(
    ("at", "form", "values"),
    [
        (40, "<8h", (3, 30000, 30000, 30000, 1, 1, 1, 1)),
        (40, "<8h", (3, 1000, 1000, 1000, 1, 1, 1, 1)),
        (40, "<8h", (3, -5, 8, 7, 1, 1, 1, 1)),
        (40, "<8h", (3, 0, 8, 7, 1, 1, 1, 1)),
        (40, "<8h", (0, 9, 8, 7, 1, 1, 1, 1)),
        (40, "<8h", (9, 9, 8, 7, 1, 1, 1, 1)),
        (70, "<h", (9999,)),
        (280, "<4f", (float("nan"), 0, 0, 0)),
        (280, "<12f", (0,) * 12),
    ],
    ids=["108 TB", "4 GB", "negative", "zero", "no axes", "nine axes", "unknown type", "NaN affine", "flat affine"],
)
def test_a_header_that_cannot_be_is_one_clear_error(tmp_path, capfd, at, form, values):
    path = header_edited(tmp_path / "a.nii.gz", at, form, *values)
    with refused(str(path)):
        find_cases([path])
    assert capfd.readouterr() == ("", "")


def test_files_cut_short_and_of_another_kind(tmp_path):
    whole = write(tmp_path / "whole.nii.gz")
    plain = gzip.decompress(whole.read_bytes())
    contents = {
        "empty.nii.gz": b"", "cut.nii.gz": whole.read_bytes()[:100], "cut.nii": plain[:600],
        "packed.nii": whole.read_bytes(), "plain.nii.gz": plain, "scan.mha": plain, "scan": plain,
    }  # fmt: skip
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with refused(str(path)):
            find_cases([path])


def test_a_series_of_one_time_point_is_a_volume(tmp_path):
    (case,) = find_cases([write(tmp_path / "a.nii.gz", (9, 8, 7, 1))])
    assert (case.shape, case.channels) == ((9, 8, 7), 1)
    assert read_case(case).shape == (1, 9, 8, 7)
