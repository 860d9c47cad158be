"""Stratified draws through the engines: the same masks, bit for bit, in any batch, order, padding, engine and range."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dropscope as ds
from support import zoo
from support.errors import refused


class Shown(nn.Module):
    """A model that returns what noise does to ones: the masks themselves, whatever the inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.units, self.maps = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones_like(x)
        units = self.units(ones)
        maps = self.maps(ones.unsqueeze(-1).expand(-1, -1, 4))
        return torch.cat([units, maps[..., 0]], 1)


def shares(masks: Tensor) -> Tensor:
    """As probabilities of two classes for every unit; Gaussian factors lie within ±8."""
    return torch.stack([(masks + 8) / 16, (8 - masks) / 16], 1)


INPUTS = torch.randn(32, 40, generator=torch.Generator().manual_seed(0))
PLACEMENTS = (
    "units=.3,maps=.5 mask=element",
    "units=.3,maps=.2 noise=gaussian mask=element",
    "units=.3,maps=.2 mask=channel",
)


def masks_of(placement: str, passes: int = 20, rows: list[int] | None = None, **options: object) -> Tensor:
    inputs = INPUTS if rows is None else INPUTS[rows]
    given = {"outputs": shares, "draws": "stratified", "seed": 5, **options}
    return ds.sample(Shown(), placement, inputs, passes, progress=False, **given)[:, :, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_masks_are_the_same_bits_in_every_engine_batch_and_order(placement: str) -> None:
    whole = masks_of(placement, engine="reference")
    shuffled = torch.randperm(32, generator=torch.Generator().manual_seed(1)).tolist()
    for engine in ("loop", "shared"):
        for size in (1, 7, 32):
            assert torch.equal(masks_of(placement, engine=engine, batch_size=size), whole)
        assert torch.equal(masks_of(placement, engine=engine, rows=shuffled), whole[:, shuffled])
        assert torch.equal(masks_of(placement, engine=engine, rows=[3]), whole[:, [3]])


@pytest.mark.parametrize("engine", ["loop", "shared"])
def test_more_passes_extend_a_run(engine: str) -> None:
    longer = masks_of(PLACEMENTS[0], passes=64, engine=engine)
    for passes in (1, 10, 16, 23):
        assert torch.equal(masks_of(PLACEMENTS[0], passes=passes, engine=engine), longer[:passes])
    assert not torch.equal(longer, masks_of(PLACEMENTS[0], passes=64, engine=engine, draws="independent"))
    dropped = (longer[:, :, :40] == 0.5).unflatten(0, (-1, 16)).sum(1)
    assert set(dropped.unique().tolist()) == {4, 5}  # of 16 at .3


@pytest.mark.parametrize("engine", ["loop", "shared"])
def test_all_examples_of_a_pass_may_share_their_masks(engine: str) -> None:
    drawn = masks_of(PLACEMENTS[0], engine=engine, masks="per_pass")
    assert torch.equal(drawn, drawn[:, :1].expand_as(drawn))


def test_padding_moves_no_mask() -> None:
    net, texts = zoo.hugging_face("bert"), zoo.text(4, 12)
    padded = {name: nn.functional.pad(value, (0, 5)) for name, value in texts.items()}
    runs = [
        ds.sample(net, "own", given, 20, draws="stratified", ids=range(4), engine=engine, progress=False)
        for given in (texts, padded)
        for engine in ("loop", "shared")
    ]
    for other in runs[1:]:
        torch.testing.assert_close(other, runs[0], rtol=0, atol=2e-6)


def test_noise_that_was_put_in_by_hand_is_that_of_the_engines() -> None:
    net, drawn = Shown(), masks_of(PLACEMENTS[0])
    with torch.no_grad(), ds.injected(net, PLACEMENTS[0], seed=5, draws="stratified") as noise:
        for number in (0, 15, 16, 19):
            noise.at(pass_=number)
            assert torch.equal(shares(net(INPUTS))[:, 0], drawn[number])


def test_means_over_passes_come_closer_to_their_limit() -> None:
    net, inputs = zoo.cifar(), zoo.images(6)
    exact = ds.sample(net, "fc1=.5", inputs, 4000, seed=99, progress=False).mean(0)
    errors = {
        draws: torch.stack(
            [
                (ds.sample(net, "fc1=.5", inputs, 32, seed=seed, draws=draws, progress=False).mean(0) - exact).square()
                for seed in range(6)
            ]
        ).mean()
        for draws in ("independent", "stratified")
    }
    assert errors["stratified"] < errors["independent"] / 2


def test_unknown_draws_are_refused() -> None:
    with refused("draws"), ds.injected(Shown(), "units=.3", draws="sobol"):
        pass
