"""Rivals of several forwards against the same written out: views, batch statistics, members, stored arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dropscope as ds
from dropscope import rivals
from dropscope.deploy.rivals.dropout import PlacementRuns
from dropscope.deploy.rivals.forwards import plain_pass
from dropscope.engine import open_session
from support.errors import refused
from support.rival_data import CLASSES, picture_net, two_parts

FITTING, SEEN = two_parts()
X = SEEN.session.data.batches[0].call.args[0]


@torch.no_grad()
def softmax(net: nn.Module, x: torch.Tensor = X) -> torch.Tensor:
    return net(x).softmax(1)


def test_views_are_averaged_the_image_itself_first():
    net = picture_net()
    answer = rivals.Augmentation(["flips", lambda images: images * 0.5])(SEEN)
    expected = torch.stack([softmax(net), softmax(net, X.flip(-1)), softmax(net, X * 0.5)])
    assert torch.allclose(answer.probabilities, expected.mean(0), atol=1e-5)
    assert torch.allclose(answer.measures["bald"].double(), ds.measures.bald(expected).double(), atol=1e-5)
    assert answer.passes == 3


def test_crops_move_an_image_towards_each_corner():
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    views = rivals.Augmentation(["crops"]).functions
    assert [int(view(image)[0, 0, 4, 4]) for view in views] == [27, 29, 43, 45]
    assert all(view(image).shape == image.shape for view in views)


def test_views_that_are_none_are_refused():
    with refused("views"):
        rivals.Augmentation(["flip"])(SEEN)
    with refused("views"):
        rivals.Augmentation([lambda images: images[..., 1:]])(SEEN)
    flat = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with refused("rivals"):
        rivals.Augmentation()(plain_pass(open_session(flat, torch.randn(4, 4))))


def test_batch_statistics_are_those_of_random_fitting_batches_and_the_model_is_left_alone():
    net = picture_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    answer = rivals.MonteCarloBatchNorm(passes=4, batch_size=16, seed=3).fit(FITTING)(SEEN)
    draw, fitted = torch.Generator().manual_seed(3), FITTING.session.data.batches[0].call.args[0]
    found = []
    for _ in range(4):
        chosen = torch.randperm(len(fitted), generator=draw)[:16].sort().values
        other = picture_net()
        with torch.no_grad():
            inside = other.conv(fitted[chosen])
            other.norm.running_mean.copy_(inside.mean((0, 2, 3)))
            other.norm.running_var.copy_(inside.var((0, 2, 3)))
        found.append(softmax(other))
    assert torch.allclose(answer.probabilities, torch.stack(found).mean(0), atol=1e-5)
    assert answer.passes == 4
    again = plain_pass(SEEN.session)
    assert torch.equal(again.probabilities, SEEN.probabilities)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_members_are_modules_or_files_of_weights(tmp_path: Path):
    other = picture_net(seed=7)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    torch.save(picture_net(seed=8).state_dict(), tmp_path / "third.pt")
    members = [picture_net(), str(tmp_path / "other.safetensors"), tmp_path / "third.pt"]
    answer = rivals.Ensemble(members).fit(FITTING)(SEEN)
    expected = torch.stack([softmax(net) for net in (picture_net(), other, picture_net(seed=8))])
    assert torch.allclose(answer.probabilities, expected.mean(0), atol=1e-5)
    assert answer.passes == 3


def test_members_that_do_not_fit_are_refused(tmp_path: Path):
    save_file({"head.weight": torch.zeros(2, 2)}, tmp_path / "wrong.safetensors")
    for members in ([], [str(tmp_path / "wrong.safetensors")], [str(tmp_path / "gone.pt")]):
        with refused("checkpoints"):
            rivals.Ensemble(members).fit(FITTING)
    with refused("checkpoints"):
        rivals.Ensemble([nn.Sequential(nn.Flatten(), nn.Linear(64, 5))]).fit(FITTING)


def test_a_placement_is_what_uncertainty_says_of_it():
    runs = PlacementRuns([ds.Placement.parse("last=0.5"), ds.Placement.parse("conv=0.2")], 10, "auto")
    runs.open(SEEN.session)
    for number, text in enumerate(("last=0.5", "conv=0.2")):
        answer = runs.rival(number)(SEEN)
        table = ds.uncertainty(picture_net(), text, X, passes=10, measures=["bald", "max_probability"])
        assert np.allclose(answer.measures["bald"], table.bald, atol=1e-6)
        assert np.allclose(answer.probabilities.amax(1), table.probability, atol=1e-6)
    assert runs.rival(1)(SEEN).passes >= runs.rival(0)(SEEN).passes >= 1


def stored(members: int = 2) -> torch.Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.randn(members, SEEN.n, CLASSES, generator=draw).softmax(-1)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".parquet", "member.parquet"])
def test_every_kind_of_file_is_read_as_it_was_written(tmp_path: Path, suffix: str):
    array, path = stored(), tmp_path / f"rival{suffix}"
    if suffix == ".npz":
        np.savez(path, data=array.numpy(), fit=array.numpy()[:, :5])
    elif suffix == ".npy":
        np.save(path, array.numpy())
    elif suffix == ".safetensors":
        save_file({"probabilities": array}, path)
    else:
        array = array if "member" in suffix else array[:1]
        table = pd.DataFrame(array.flatten(0, 1).numpy(), columns=["cat", "dog", "owl"])
        if "member" in suffix:
            table.insert(0, "member", np.repeat([1, 2], SEEN.n))
        table.to_parquet(path)
    found = rivals.StoredProbabilities.of(path)
    assert torch.allclose(found.arrays["data"].float(), array, atol=1e-6)
    answer = found(SEEN)
    assert torch.allclose(answer.probabilities, array.mean(0), atol=1e-5)
    assert answer.passes == len(array)


def test_stored_arrays_that_cannot_be_used_are_refused(tmp_path: Path):
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 no archive")
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for given in (tmp_path / "gone.npz", tmp_path / "damaged.npz", pickled, tmp_path / "table.csv", torch.zeros(3),
                  {"train": stored()[0], "test": stored()[0]}, [["a"]]):  # fmt: skip
        with refused("probabilities"):
            rivals.StoredProbabilities.of(given)
    wrong = (stored()[:, 1:], stored()[..., 1:], stored() * 2, stored() * 0.9, stored() * float("nan"), -stored())
    for array in wrong:
        with refused("probabilities"):
            rivals.StoredProbabilities.of(array).check("data", SEEN.n, CLASSES)
    with refused("probabilities"):
        rivals.StoredProbabilities.of(stored()).check("fit", SEEN.n, CLASSES)
