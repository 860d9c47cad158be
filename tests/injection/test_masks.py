"""Masks made for many points and passes at once: the numbers of `noise.disturb`, in whatever order passes come."""

from __future__ import annotations

import pytest
import torch

from dropscope.injection.masks import Masks
from dropscope.injection.resolution import SiteNoise
from dropscope.noise import DRAWS, Keys, Layout, disturb, in_blocks, site_key, streams
from dropscope.tracing import Point

POINTS = [Point("a", 0, "output"), Point("b", 0, "output"), Point("b", 1, "output")]
SPECS = dict(
    zip(
        POINTS,
        (
            SiteNoise(0.3, "bernoulli", "element", Layout()),
            SiteNoise(0.3, "bernoulli", "element", Layout()),
            SiteNoise(0.5, "gaussian", "channel", Layout(channel_dim=1)),
        ),
        strict=True,
    )
)
VALUES = dict(zip(POINTS, (torch.randn(4, 6), torch.randn(4, 6), torch.randn(4, 3, 5)), strict=True))


def alone(point: Point, passes: torch.Tensor, examples: torch.Tensor, draws: str) -> Keys:
    numbers, places = in_blocks(passes, draws)
    return Keys.of(streams(7, site_key(point.name, point.call), numbers, examples), places)


def check(masks: Masks, number: int, examples: torch.Tensor, draws: str) -> bool:
    """Whether keys and factors of a forward are those of each point alone; returns whether factors were made."""
    masks.begin(SPECS, torch.tensor([number]), examples, number)
    made = []
    for point, spec in SPECS.items():
        keys, found = alone(point, torch.tensor([number]), examples, draws), masks.keys(point, examples.device)
        assert found is not None
        assert torch.equal(found.states, keys.states)
        value, factor = VALUES[point], masks.factor(point, VALUES[point], spec)
        made.append(factor is not None)
        if factor is not None:
            expected = disturb(value, keys, spec.rate, spec.kind, spec.mask, spec.layout)
            assert torch.equal(value * factor, expected)
    return all(made)


@pytest.mark.parametrize("draws", DRAWS)
def test_passes_in_any_order_get_their_own_masks(draws: str) -> None:
    masks, examples = Masks(7, draws), torch.tensor([11, 12, 13, 14])
    made = [check(masks, number, examples, draws) for number in (0, 1, 2, 3, 16, 17, 18, 40, 5, 6, 5, 100)]
    assert made == [False, *[True] * 11]  # the first forward shows what there is


@pytest.mark.parametrize("draws", DRAWS)
def test_examples_that_are_written_to_are_other_examples(draws: str) -> None:
    masks, examples = Masks(7, draws), torch.tensor([11, 12, 13, 14])
    for number in range(3):
        check(masks, number, examples, draws)
    examples.add_(1)
    assert check(masks, 3, examples, draws)
    assert check(masks, 4, examples.clone(), draws)


@pytest.mark.parametrize("draws", DRAWS)
def test_passes_that_differ_from_example_to_example(draws: str) -> None:
    masks, examples, passes = Masks(7, draws), torch.tensor([11, 12, 11, 12]), torch.tensor([0, 0, 17, 17])
    masks.begin(SPECS, passes, examples, None)
    found, keys = masks.keys(POINTS[0], examples.device), alone(POINTS[0], passes, examples, draws)
    assert found is not None
    assert torch.equal(found.states, keys.states)
    assert (found.places is None) == (draws == "independent")
