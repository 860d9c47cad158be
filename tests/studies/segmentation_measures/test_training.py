"""The U-Net, its dropout, the Dice loss and the batches of the segmentation study."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.studies.segmentation_measures.dice_training import Batches, dice_loss, train
from dropscope.studies.segmentation_measures.networks import GaussianFeatureDropout, UNet, feature_dropout
from dropscope.studies.segmentation_measures.presets import Regime
from support.errors import refused
from support.small_volumes import plain_prepared, prepared_phantom

CPU = torch.device("cpu")


# --- Dice loss --------------------------------------------------------------------------------------------------------


def test_dice_loss_by_hand() -> None:
    p = torch.tensor([[[0.8, 0.4, 0.1], [0.2, 0.6, 0.9]]])
    label = torch.tensor([[0, 1, 1]])
    first = 2 * 0.8 / (0.8 + 0.4 + 0.1 + 1)
    second = 2 * (0.6 + 0.9) / (0.2 + 0.6 + 0.9 + 2)
    loss = dice_loss(p, label, torch.ones(1, 3, dtype=torch.bool), epsilon=0.0)
    assert loss.tolist() == pytest.approx([1 - (first + second) / 2])


def test_dice_loss_leaves_out_what_is_not_valid_and_a_class_in_neither_costs_its_share() -> None:
    p = torch.tensor([[[1.0, 0.0, 0.3], [0.0, 1.0, 0.7], [0.0, 0.0, 0.0]]])
    valid = torch.tensor([[True, True, False]])
    loss = dice_loss(p, torch.tensor([[0, 1, 0]]), valid)
    assert loss.tolist() == pytest.approx([1 - 2 / 3], abs=1e-6)


def test_dice_loss_is_of_each_image_not_of_the_batch() -> None:
    torch.manual_seed(0)
    p, label = torch.rand(3, 2, 4, 4, 2).softmax(1), torch.randint(0, 2, (3, 4, 4, 2))
    valid = torch.rand(3, 4, 4, 2) > 0.2
    alone = torch.cat([dice_loss(p[i : i + 1], label[i : i + 1], valid[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(dice_loss(p, label, valid), alone)


# --- network ----------------------------------------------------------------------------------------------------------


def test_the_network_is_the_papers() -> None:
    net = UNet(5, 3)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv3d)]
    widths = [(m.in_channels, m.out_channels) for m in convolutions]
    down = [(5, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
    up = [(128 + 64, 64), (64, 64), (64 + 32, 32), (32, 32), (32 + 16, 16), (16, 16)]
    assert widths == [*down, *up, (16, 3)]
    assert {m.kernel_size for m in convolutions} == {(3, 3, 3)}
    assert {m.kernel_size for m in net.modules() if isinstance(m, nn.MaxPool3d)} == {(2, 2, 1)}
    dropouts = [name for name, m in net.named_modules() if isinstance(m, nn.Dropout3d)]
    assert len(dropouts) == 6 + 3 + 6
    assert not any(name.startswith("encoder.0") for name in dropouts)
    assert net(torch.zeros(1, 5, 16, 16, 3)).shape == (1, 3, 16, 16, 3)


def test_two_dimensions_and_other_depths() -> None:
    net = UNet(1, 2, 0.2, "gaussian", features=(4, 8, 16), dims=2)
    assert net(torch.zeros(2, 1, 8, 12)).shape == (2, 2, 8, 12)
    with refused("features"):
        UNet(1, 2, features=(4,))
    with refused("dims"):
        UNet(1, 2, dims=4)


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
def test_training_noise_has_mean_one_and_variance_p_over_1_minus_p_per_feature_map(noise: str) -> None:
    torch.manual_seed(0)
    module = feature_dropout(3, 0.3, noise).train()
    factors = module(torch.ones(200, 100, 2, 2, 2))
    assert torch.equal(factors, factors[..., :1, :1, :1].expand_as(factors))
    units = factors[..., 0, 0, 0].double()
    assert float(units.mean()) == pytest.approx(1, abs=0.02)
    assert float(units.var()) == pytest.approx(0.3 / 0.7, rel=0.05)
    assert torch.equal(module.eval()(torch.ones(1, 2, 2, 2, 2)), torch.ones(1, 2, 2, 2, 2))


@pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("trained_at", [0.0, 0.4])
def test_a_placement_reaches_the_dropout_modules_and_nothing_else(noise: str, trained_at: float) -> None:
    torch.manual_seed(0)
    net, x = UNet(2, 3, trained_at, noise, features=(4, 8, 16)).eval(), torch.randn(2, 2, 8, 8, 3)
    found = ds.audit(net, f"dropout=0.4 noise={noise}", x).raise_if_failed()
    modules = [name for name, m in net.named_modules() if isinstance(m, nn.Dropout3d | GaussianFeatureDropout)]
    assert sorted(f.site for f in found.findings) == sorted(f"{name}@output" for name in modules)
    assert {f.asked for f in found.findings} == {0.4}
    with torch.no_grad(), ds.injected(net, f"dropout=0.4 noise={noise}") as noises:
        noises.watcher = lambda point, live, before, after, keys: seen.append((live.mask, live.layout.channel_dim))
        seen: list[tuple[str, int]] = []
        net(x)
    assert set(seen) == {("channel", 1)}


def test_an_unknown_noise_is_refused() -> None:
    with refused("noise"):
        feature_dropout(3, 0.3, "gausian")


# --- batches and training ---------------------------------------------------------------------------------------------


def test_an_epoch_sees_every_case_once_some_flipped_along_x() -> None:
    images = torch.arange(5.0).reshape(5, 1, 1, 1, 1) + torch.tensor([0.0, 0.1]).reshape(1, 1, 2, 1, 1)
    prepared = plain_prepared(images, torch.zeros(5, 2, 1, 1))
    batches = Batches(prepared, [0, 1, 2, 3, 4], Regime(epochs=20), 0, CPU)
    seen = [[image for image, _, _ in batches] for _ in range(20)]
    assert (batches.rounds, len(batches)) == (20, 5)
    for epoch in seen:
        assert sorted(int(image.min().round()) for image in epoch) == [0, 1, 2, 3, 4]
    flipped = [bool(image[0, 0, 0] > image[0, 0, 1]) for epoch in seen for image in epoch]
    assert 30 < sum(flipped) < 70


def test_labels_and_masks_are_flipped_with_their_image() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 2, (3, 4, 2, 2))
    valid = torch.rand(3, 4, 2, 2) > 0.5
    prepared = plain_prepared(labels.unsqueeze(1) + 2 * valid.unsqueeze(1), labels, valid)
    for image, label, mask in Batches(prepared, [2, 0], Regime(epochs=None, steps=10, batch=2), 1, CPU):
        assert torch.equal(image[:, 0], label + 2.0 * mask)


def test_steps_are_the_same_for_every_training_set_and_epochs_are_not() -> None:
    by_steps = Regime(epochs=None, steps=1000, validations=10, batch=4)
    assert by_steps.rounds(3) == by_steps.rounds(100) == (10, 100)
    assert Regime(epochs=600).rounds(69) == (600, 69)
    assert Regime(epochs=600, validations=60).rounds(69) == (60, 690)
    for name, wrong in (
        ("epochs", {"epochs": 5, "steps": 5}),
        ("epochs", {"epochs": None}),
        ("epochs", {"epochs": 0}),
        ("steps", {"epochs": None, "steps": 0}),
        ("validations", {"validations": 0}),
        ("batch", {"batch": 0}),
        ("precision", {"precision": "fp8"}),
    ):
        with refused(name):
            Regime(**wrong)  # type: ignore[arg-type]


def test_training_learns_keeps_the_best_and_is_the_same_twice() -> None:
    prepared = prepared_phantom()

    def trained() -> tuple[UNet, tuple[float, ...], int]:
        torch.manual_seed(3)
        net = UNet(5, 3, 0.1, "gaussian", features=(4, 8))
        regime = Regime(epochs=None, steps=24, validations=4, batch=1)
        state = torch.get_rng_state()
        history = train(net, prepared, [0, 1], [3], regime, 0, CPU)
        assert torch.equal(state, torch.get_rng_state())
        return net, history.scores, history.best

    (net, scores, best), (again, _, _) = trained(), trained()
    assert scores[best] == max(scores)
    assert max(scores) > scores[0]
    assert not net.training
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), again.state_dict().values(), strict=True))
    with torch.no_grad():
        validated = dice_loss(net(prepared.images[3:4]).softmax(1), prepared.labels[3:4], prepared.valid[3:4])
    assert -float(validated) == pytest.approx(scores[best], abs=1e-5)
    assert np.isfinite(scores).all()
