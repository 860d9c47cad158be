"""Agreement of label maps: the obvious loops over pairs, masks, and the streaming form."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from dropscope.scores import PassLabels, agreement, pairwise_dice, volume_variation
from support.errors import refused

SHAPES = [(7,), (6, 5), (4, 5, 3)]


def some_mask(shape, images=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(images, *shape, generator=generator) > 0.2


def some_passes(shape, passes=6, images=2, classes=3, seed=0):
    """Label maps that agree mostly: a common map, some of it redrawn in each pass."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randint(0, classes, (1, images, *shape), generator=generator).expand(passes, -1, *shape)
    other = torch.randint(0, classes, common.shape, generator=generator)
    return torch.where(torch.rand(common.shape, generator=generator) < 0.3, other, common)


def dice_of(a, b, c):
    a, b = a == c, b == c
    return 2 * (a & b).sum().item() / (a.sum() + b.sum()).item() if (a | b).any() else np.nan


@pytest.mark.parametrize("shape", SHAPES)
def test_pairwise_dice_equals_a_loop_over_pairs(shape):
    labels = some_passes(shape)
    valid = some_mask(shape, 2, seed=4)
    got, masked = pairwise_dice(labels, 3), pairwise_dice(labels, 3, valid_mask=valid)
    for i, c in itertools.product(range(2), range(3)):
        pairs = list(itertools.combinations(range(len(labels)), 2))
        expected = np.nanmean([dice_of(labels[a, i], labels[b, i], c) for a, b in pairs])
        assert got[i, c].item() == pytest.approx(expected, rel=1e-12)
        inside = [dice_of(labels[a, i][valid[i]], labels[b, i][valid[i]], c) for a, b in pairs]
        assert masked[i, c].item() == pytest.approx(np.nanmean(inside), rel=1e-12)


def test_pairwise_dice_in_slabs_is_the_same(monkeypatch):
    labels = some_passes((5, 6))
    whole = pairwise_dice(labels, 3)
    monkeypatch.setattr(agreement, "_VOXELS_AT_ONCE", 7)
    assert torch.equal(pairwise_dice(labels, 3), whole)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_streaming_form(shape):
    labels = some_passes(shape)
    valid = some_mask(shape, 2, seed=4)
    for mask in (None, valid):
        kept = PassLabels(3, valid_mask=mask)
        for each in labels:
            kept.update(each)
        inside = torch.ones(2, *shape, dtype=torch.bool) if mask is None else mask
        volumes = torch.stack([((labels == c) & inside).flatten(2).sum(-1) for c in range(3)], -1)
        assert torch.equal(kept.volumes, volumes)
        expected = scipy.stats.variation(volumes.double().numpy(), axis=0)
        np.testing.assert_allclose(kept.volume_variation.numpy(), expected, rtol=1e-12)
        for i, c in itertools.product(range(2), range(3)):
            over, under = 0, 0
            for a, b in itertools.combinations(range(len(labels)), 2):
                x, y = ((labels[t, i] == c) & inside[i] for t in (a, b))
                over, under = over + 2 * int((x & y).sum()), under + int(x.sum() + y.sum())
            assert kept.pairwise_dice[i, c].item() == pytest.approx(over / under, rel=1e-12)


def test_equal_volumes_make_both_pairwise_dice_one_number():
    generator = torch.Generator().manual_seed(0)
    labels = torch.stack([(torch.randperm(40, generator=generator) < 10).long().reshape(1, 8, 5) for _ in range(7)])
    kept = PassLabels(2)
    for each in labels:
        kept.update(each)
    torch.testing.assert_close(kept.pairwise_dice, pairwise_dice(labels, 2), atol=1e-12, rtol=0)
    assert kept.volume_variation.tolist() == [[0.0, 0.0]]


def test_memory_of_the_streaming_form_does_not_grow_with_passes():
    kept = PassLabels(3)
    sizes = []
    for labels in some_passes((16, 16), passes=40, images=1):
        kept.update(labels)
        sizes.append(kept._votes.numel() * kept._votes.element_size())
    assert set(sizes) == {3 * 256 * 4}
    assert kept.volumes.shape == (40, 1, 3)


def test_a_class_that_is_nowhere_has_no_number():
    labels = torch.zeros(3, 1, 4, dtype=torch.long)
    kept = PassLabels(2)
    for each in labels:
        kept.update(each)
    assert kept.volume_variation[0].isnan().tolist() == [False, True]
    assert kept.pairwise_dice[0].isnan().tolist() == [False, True]
    assert pairwise_dice(labels, 2)[0].isnan().tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: pairwise_dice(torch.zeros(1, 1, 3, dtype=torch.long), 2), "labels"),
        (lambda: volume_variation(torch.ones(3)), "volumes"),
        (lambda: PassLabels(0), "classes"),
        (lambda: PassLabels(2).volumes, "passes"),
        (lambda: PassLabels(2).pairwise_dice, "passes"),
        (lambda: PassLabels(2).update(torch.rand(1, 3)), "labels"),
    ],
)
def test_refusals(call, name):
    with refused(name):
        call()


def test_maps_of_another_shape_are_refused():
    kept = PassLabels(2)
    kept.update(torch.zeros(1, 3, dtype=torch.long))
    with refused("labels"):
        kept.update(torch.zeros(1, 4, dtype=torch.long))


def test_voxels_beside_each_other_are_of_the_same_passes():
    labels = some_passes((6,))
    whole, left, right = PassLabels(3), PassLabels(3), PassLabels(3)
    for each in labels:
        whole.update(each)
        left.update(each[:, :2])
        right.update(each[:, 2:])
    both = left.beside(right)
    assert torch.equal(both.volumes, whole.volumes)
    assert torch.equal(both.pairwise_dice, whole.pairwise_dice)
    with refused("other"):
        left.beside(PassLabels(3))
