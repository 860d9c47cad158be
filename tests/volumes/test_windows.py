"""Windows over volumes, and passes over all of them against passes by hand."""

import numpy as np
import pytest
import torch

from dropscope import measures
from dropscope.engine.session import open_session
from dropscope.volumes import windows
from dropscope.volumes.windows import plan_windows, predict_volume
from support.errors import refused
from support.nifti_files import PLACEMENT, by_hand, net


@pytest.mark.parametrize("shape", [(5, 5, 5), (12, 7, 6), (6, 6, 4), (3, 20, 9)])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 0.9])
def test_windows_cover_every_voxel_and_stay_inside(shape, overlap):
    found = plan_windows(shape, (6, 6, 4), overlap)
    covered = np.zeros(found.padded, int)
    for origin in found.origins():
        assert all(o >= 0 and o + s <= p for o, s, p in zip(origin, found.size, found.padded, strict=True))
        covered[tuple(slice(o, o + s) for o, s in zip(origin, found.size, strict=True))] += 1
    assert covered.min() >= 1
    if overlap == 0 and all(p % s == 0 for p, s in zip(found.padded, found.size, strict=True)):
        assert covered.max() == 1
    assert len(set(found.origins())) == len(found.origins())


def test_windows_of_rows_are_those_that_touch_them():
    found = plan_windows((20, 6, 4), (6, 6, 4), 0.5)
    touching = [o for o in found.origins() if o[0] < 9 and o[0] + 6 > 7]
    assert found.origins(7, 9) == touching
    assert 0 < len(touching) < len(found.origins())


@pytest.mark.parametrize(
    ("roi", "overlap", "name"),
    [
        ((6, 6), 1.0, "overlap"),
        ((6, 6), -0.1, "overlap"),
        ((0, 4, 4), 0.2, "roi"),
        ((4,), 0.2, "roi"),
        ((4, 10**11), 0.2, "roi"),
    ],
)
def test_windows_refuse(roi, overlap, name):
    with refused(name):
        plan_windows((9, 9, 9), roi, overlap)


@pytest.mark.parametrize(
    ("shape", "roi"), [((9, 8, 7), (6, 6, 4)), ((4, 8, 3), (6, 6, 4)), ((7, 6, 5), (6, 4)), ((5, 4, 6), None)]
)
def test_a_volume_is_measured_as_its_averaged_passes_are(shape, roi):
    found = plan_windows(shape, roi, 0.4)
    model = net(2, dims=2 if found.flat else 3)
    image = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    first = windows.cut_out(windows.pad(image, found), found, found.origins()[0])
    session = open_session(model, first[None])
    (resolved,) = session.resolve([PLACEMENT])
    rows = measures.resolve([*measures.SEGMENTATION, "variation_ratio", "predictive_entropy"])
    got = predict_volume(session, resolved, image, found, rows, passes=5, batch_size=1)
    passes = by_hand(model, image, found, 5)
    assert torch.equal(got.labels, passes.double().mean(0).argmax(1)[0])
    for row in rows:
        torch.testing.assert_close(got.maps[row.name], row.function(passes)[0], atol=1e-5, rtol=0)
    assert torch.equal(
        got.pass_labels.volumes[:, 0], torch.stack([(passes.argmax(2) == c).flatten(1).sum(1) for c in range(3)], 1)
    )


def volume(batch_size=4, memory=None, masks="per_example", seed=0, overlap=0.5, image=None, passes=5):
    image = torch.rand(1, 12, 7, 5, generator=torch.Generator().manual_seed(2)) if image is None else image
    found = plan_windows(image.shape[1:], (6, 6, 4), overlap)
    session = open_session(net(), image[None, :, :6, :6, :4], seed=seed, masks=masks)
    (resolved,) = session.resolve([PLACEMENT])
    return predict_volume(
        session, resolved, image, found, measures.resolve(["averaged_variance"]), passes, batch_size, memory
    )


def test_batch_size_and_slabs_do_not_matter():
    one = volume(batch_size=1)
    for other in (volume(batch_size=7), volume(memory=4 * 7 * 5 * 200), volume(batch_size=3, memory=7 * 5 * 150)):
        torch.testing.assert_close(other.maps, one.maps, atol=1e-6, rtol=0)
        assert torch.equal(other.labels, one.labels)
        assert torch.equal(other.pass_labels.volumes, one.pass_labels.volumes)
        torch.testing.assert_close(other.pass_labels.pairwise_dice, one.pass_labels.pairwise_dice)
    with refused("memory"):
        volume(memory=100)


def test_seeds_volumes_and_windows_have_masks_of_their_own():
    base = volume().maps["averaged_variance"]
    assert torch.equal(volume().maps["averaged_variance"], base)
    assert not torch.allclose(volume(seed=1).maps["averaged_variance"], base)
    # The same values everywhere: windows that shared their masks would give the same map in each of them.
    flat = torch.ones(1, 12, 6, 4)
    own = volume(image=flat, overlap=0.0).maps["averaged_variance"]
    shared = volume(image=flat, overlap=0.0, masks="per_pass").maps["averaged_variance"]
    assert not torch.allclose(own[:6], own[6:])
    torch.testing.assert_close(shared[:6], shared[6:], atol=1e-7, rtol=0)
