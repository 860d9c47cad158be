"""Case-level uncertainty from maps: closed forms, the obvious loops, masks; scores against 1 − Dice."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from dropscope import scores
from dropscope.scores import foreground_mean, loss_aurc, loss_correlation, worst_patch
from support.errors import refused

SHAPES = [(7,), (6, 5), (4, 5, 3)]


def some_maps(shape, images=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(images, *shape, generator=generator)
    prediction = torch.randint(0, 3, (images, *shape), generator=generator)
    valid = torch.rand(images, *shape, generator=generator) > 0.2
    return u, prediction, valid


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
        with refused("size"):
            worst_patch(u, wrong)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: foreground_mean(torch.rand(2, 3), torch.zeros(2, 4)), "prediction"),
        (lambda: foreground_mean(torch.rand(3), torch.zeros(3)), "uncertainty"),
        (lambda: worst_patch(torch.rand(2, 3), 2, valid_mask=torch.ones(2, 2)), "valid_mask"),
    ],
)
def test_refusals(call, name):
    with refused(name):
        call()


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
    with refused("loss"):
        loss_correlation(torch.rand(3), torch.tensor([0.1, float("nan"), 0.3]))
    with refused("loss"):
        loss_aurc(torch.rand(3), torch.rand(4))


def test_the_scores_are_in_the_table():
    for name in ("loss_correlation", "loss_aurc"):
        assert scores.TABLE[name].takes == "losses"
        assert ">>>" in (scores.TABLE[name].function.__doc__ or "")
