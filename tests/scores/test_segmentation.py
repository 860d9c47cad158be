"""Segmentation: Dice by hand, voxel AUC-PR against scikit-learn, masks."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from dropscope import scores
from support.errors import refused


def some_images(n=3, size=(6, 7, 4), classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    prediction, label = torch.randint(0, classes, (2, n, *size), generator=generator)
    return prediction, label, torch.rand(n, *size, generator=generator)


def test_dice_closed_form():
    prediction, label = torch.tensor([[0, 1, 1, 2], [0, 0, 0, 0]]), torch.tensor([[0, 1, 2, 2], [0, 0, 0, 0]])
    got = scores.dice(prediction, label, classes=3)
    assert got[0].tolist() == [1, pytest.approx(2 / 3), pytest.approx(2 / 3)]
    assert got[1, 0] == 1
    assert bool(got[1, 1:].isnan().all())


def test_dice_is_the_f1_score_of_each_image():
    prediction, label, _ = some_images()
    got = scores.dice(prediction, label, classes=3)
    for i in range(3):
        expected = f1_score(label[i].flatten(), prediction[i].flatten(), average=None)
        assert got[i].tolist() == pytest.approx(expected.tolist())


def test_dice_leaves_out_what_is_ignored():
    prediction, label, _ = some_images()
    label[:, 0] = 255
    expected = scores.dice(prediction[:, 1:], label[:, 1:], classes=3)
    assert torch.equal(scores.dice(prediction, label, classes=3, ignore_label=255), expected)
    with refused("label") as caught:
        scores.dice(prediction, label, classes=3)
    assert "ignore_label" in caught.value.remedy


def test_leading_dimensions_with_spatial():
    prediction, label, u = some_images(n=6)
    wrong = prediction != label
    dice, auprc = scores.dice(prediction, label, 3), scores.voxel_auprc(u, wrong)
    split = [x.reshape(2, 3, 6, 7, 4) for x in (prediction, label, u, wrong)]
    assert torch.equal(scores.dice(split[0], split[1], 3, spatial=3), dice.reshape(2, 3, 3))
    assert torch.equal(scores.voxel_auprc(split[2], split[3], spatial=3), auprc.reshape(2, 3))


def test_voxel_auprc_is_average_precision_per_image():
    prediction, label, u = some_images()
    u = (u * 9).floor()  # ties
    wrong = prediction != label
    wrong[2] = False
    got = scores.voxel_auprc(u, wrong)
    for i in range(2):
        expected = average_precision_score(wrong[i].flatten(), u[i].flatten())
        assert got[i].item() == pytest.approx(expected, abs=1e-12)
    assert math.isnan(got[2])


def test_voxel_auprc_leaves_out_what_is_not_valid():
    prediction, label, u = some_images()
    wrong, valid = prediction != label, u > 0.3
    u = torch.where(valid, (u * 9).floor(), torch.nan)
    got = scores.voxel_auprc(u, wrong, valid)
    for i in range(3):
        expected = average_precision_score(wrong[i][valid[i]], u[i][valid[i]])
        assert got[i].item() == pytest.approx(expected, abs=1e-12)
    assert bool(scores.voxel_auprc(u, wrong, torch.zeros_like(valid)).isnan().all())


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda p, t, u: scores.dice(p, t[:1], 3), "label"),
        (lambda p, t, u: scores.dice(p.float(), t, 3), "prediction"),
        (lambda p, t, u: scores.dice(p, t.float(), 3), "label"),
        (lambda p, t, u: scores.dice(p, t, 2), "prediction"),
        (lambda p, t, u: scores.dice(p[:0], t[:0], 3), "prediction"),
        (lambda p, t, u: scores.dice(p, t, 3, spatial=9), "prediction"),
        (lambda p, t, u: scores.voxel_auprc(u, (p != t)[:1]), "wrong"),
        (lambda p, t, u: scores.voxel_auprc(u, p != t, (p != t)[:1]), "valid_mask"),
        (lambda p, t, u: scores.voxel_auprc(u * torch.nan, p != t), "uncertainty"),
        (lambda p, t, u: scores.voxel_auprc(u, p), "wrong"),
        (lambda p, t, u: scores.voxel_auprc(u - torch.inf, p != t, p == p), "uncertainty"),
    ],
)
def test_refusals(call, name):
    with refused(name):
        call(*some_images())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_equals_cpu():
    prediction, label, u = some_images()
    wrong = prediction != label
    torch.testing.assert_close(scores.dice(prediction.cuda(), label.cuda(), 3).cpu(), scores.dice(prediction, label, 3))
    torch.testing.assert_close(scores.voxel_auprc(u.cuda(), wrong.cuda()).cpu(), scores.voxel_auprc(u, wrong))
