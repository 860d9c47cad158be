"""Case-level uncertainty: closed forms, the obvious loops, masks, and the streaming twin; scores against 1 − Dice."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from dropscope import scores
from dropscope.errors import BadInput
from dropscope.scores import (
    PassLabels,
    foreground_mean,
    loss_aurc,
    loss_correlation,
    pairwise_dice,
    volume_variation,
    worst_patch,
)

SHAPES = [(7,), (6, 5), (4, 5, 3)]


def some_maps(shape, images=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(images, *shape, generator=generator)
    prediction = torch.randint(0, 3, (images, *shape), generator=generator)
    valid = torch.rand(images, *shape, generator=generator) > 0.2
    return u, prediction, valid


def some_passes(shape, passes=6, images=2, classes=3, seed=0):
    """Label maps that agree mostly: a common map, some of it redrawn in each pass."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randint(0, classes, (1, images, *shape), generator=generator).expand(passes, -1, *shape)
    other = torch.randint(0, classes, common.shape, generator=generator)
    return torch.where(torch.rand(common.shape, generator=generator) < 0.3, other, common)


# --- from maps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_foreground_mean_is_the_mean_over_valid_foreground(shape):
    u, prediction, valid = some_maps(shape)
    for mask in (None, valid):
        inside = (prediction != 0) & (torch.ones_like(valid) if mask is None else mask)
        expected = [u[i][inside[i]].double().mean().item() for i in range(len(u))]
        got = foreground_mean(u, prediction, valid_mask=mask)
        assert got.tolist() == pytest.approx(expected, rel=1e-12)
    one = foreground_mean(u[0], prediction[0], spatial=len(shape))
    assert one.shape == ()
    assert one == foreground_mean(u, prediction)[0]


def test_foreground_mean_of_nothing_is_nan_and_the_background_can_be_another():
    u = torch.tensor([[0.25, 0.5]])
    assert foreground_mean(u, torch.zeros(1, 2, dtype=torch.long)).isnan().all()
    assert foreground_mean(u, torch.tensor([[2, 1]]), background=2).tolist() == [0.5]


def test_what_is_not_valid_may_be_nan():
    u = torch.tensor([[0.25, float("nan"), 0.75]])
    valid = torch.tensor([[True, False, True]])
    assert foreground_mean(u, torch.ones(1, 3, dtype=torch.long), valid_mask=valid).tolist() == [0.5]
    assert worst_patch(u, 2, valid_mask=valid).tolist() == [0.75]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_worst_patch_equals_a_loop_over_patches(shape, size):
    u, _, valid = some_maps(shape)
    for mask in (None, valid):
        expected = []
        for i in range(len(u)):
            counted = torch.ones(shape, dtype=torch.bool) if mask is None else mask[i]
            sides = [min(size, side) for side in shape]
            best = -np.inf
            for at in itertools.product(*(range(n - s + 1) for n, s in zip(shape, sides, strict=True))):
                patch = tuple(slice(a, a + s) for a, s in zip(at, sides, strict=True))
                if counted[patch].float().mean() >= 0.5:
                    best = max(best, u[i][patch][counted[patch]].double().mean().item())
            expected.append(best)
        assert worst_patch(u, size, valid_mask=mask).tolist() == pytest.approx(expected, rel=1e-9)


def test_worst_patch_takes_sides_and_refuses_wrong_ones():
    u = torch.zeros(1, 4, 4)
    u[0, 2, :] = 1
    assert worst_patch(u, (1, 4)).tolist() == [1.0]
    assert worst_patch(u, (4, 1)).tolist() == [0.25]
    assert worst_patch(u, 2, valid_mask=torch.zeros(1, 4, 4)).isnan().all()
    for wrong in (0, (2,), (2, 0)):
        with pytest.raises(BadInput, match="patch"):
            worst_patch(u, wrong)


# --- from passes ------------------------------------------------------------------------------------------------------


def dice_of(a, b, c):
    a, b = a == c, b == c
    return 2 * (a & b).sum().item() / (a.sum() + b.sum()).item() if (a | b).any() else np.nan


@pytest.mark.parametrize("shape", SHAPES)
def test_pairwise_dice_equals_a_loop_over_pairs(shape):
    labels = some_passes(shape)
    valid = some_maps(shape, 2, seed=4)[2]
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
    monkeypatch.setattr(scores.cases, "_VOXELS_AT_ONCE", 7)
    assert torch.equal(pairwise_dice(labels, 3), whole)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_streaming_twin(shape):
    labels = some_passes(shape)
    valid = some_maps(shape, 2, seed=4)[2]
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


def test_memory_of_the_twin_does_not_grow_with_passes():
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
    ("call", "words"),
    [
        (lambda: foreground_mean(torch.rand(2, 3), torch.zeros(2, 4)), "prediction"),
        (lambda: foreground_mean(torch.rand(3), torch.zeros(3)), "an image"),
        (lambda: worst_patch(torch.rand(2, 3), 2, valid_mask=torch.ones(2, 2)), "valid_mask"),
        (lambda: pairwise_dice(torch.zeros(1, 1, 3, dtype=torch.long), 2), "two passes"),
        (lambda: volume_variation(torch.ones(3)), "passes"),
        (lambda: PassLabels(0), "class"),
        (lambda: PassLabels(2).volumes, "at least one pass"),
        (lambda: PassLabels(2).pairwise_dice, "two passes"),
        (lambda: PassLabels(2).update(torch.rand(1, 3)), "class indices"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_maps_of_another_shape_are_refused():
    kept = PassLabels(2)
    kept.update(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(BadInput, match="every pass"):
        kept.update(torch.zeros(1, 4, dtype=torch.long))


# --- scored against 1 − Dice ------------------------------------------------------------------------------------------


def test_loss_correlation_is_spearmans():
    generator = torch.Generator().manual_seed(0)
    u = torch.randint(0, 6, (4, 25), generator=generator).double()  # with ties
    loss = torch.rand(4, 25, generator=generator) + 0.1 * u
    expected = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(u.numpy(), loss.numpy(), strict=True)]
    assert loss_correlation(u, loss).tolist() == pytest.approx(expected, rel=1e-12)
    assert loss_correlation(torch.ones(3), torch.rand(3)).isnan()


def test_loss_aurc_is_the_mean_over_orders_of_ties():
    u, loss = torch.tensor([0.2, 0.2, 0.1, 0.9]), torch.tensor([0.1, 0.5, 0.0, 0.7])
    orders = ([0.0, 0.1, 0.5, 0.7], [0.0, 0.5, 0.1, 0.7])
    expected = np.mean([np.mean([np.mean(order[: k + 1]) for k in range(4)]) for order in orders])
    assert loss_aurc(u, loss).item() == pytest.approx(expected, rel=1e-6)
    assert loss_aurc(torch.ones(5), torch.arange(5.0)).item() == pytest.approx(2.0)
    assert loss_aurc(torch.ones(1), torch.tensor([0.25])).item() == 0.25


def test_with_losses_of_zero_and_one_it_is_aurc():
    generator = torch.Generator().manual_seed(1)
    u = torch.rand(3, 30, generator=generator)
    correct = torch.rand(3, 30, generator=generator) > 0.3
    torch.testing.assert_close(loss_aurc(u, (~correct).double()), scores.aurc(u, correct), atol=1e-12, rtol=0)


def test_losses_are_finite_and_one_per_case():
    with pytest.raises(BadInput, match="losses"):
        loss_correlation(torch.rand(3), torch.tensor([0.1, float("nan"), 0.3]))
    with pytest.raises(BadInput, match="losses"):
        loss_aurc(torch.rand(3), torch.rand(4))


def test_the_scores_are_in_the_table():
    for name in ("loss_correlation", "loss_aurc"):
        assert scores.TABLE[name].takes == "losses"
        assert ">>>" in (scores.TABLE[name].function.__doc__ or "")
