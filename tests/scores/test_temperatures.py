"""Temperatures: closed forms, what they leave alone, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from dropscope import scores
from support.errors import refused


def test_the_temperature_of_two_classes_is_a_ratio_of_logits():
    """All examples alike: the best probability is the share that is right."""
    p = torch.tensor([[0.99, 0.01]]).expand(10, 2)
    labels = torch.tensor([0] * 8 + [1] * 2)
    expected = math.log(0.99 / 0.01) / math.log(0.8 / 0.2)
    assert scores.fit_temperature(p, labels) == pytest.approx(expected, rel=1e-3)
    assert scores.tempered(p, expected)[0, 0].item() == pytest.approx(0.8, rel=1e-5)


def test_a_temperature_divides_the_logits_and_leaves_the_prediction():
    z = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)).double()
    p = z.softmax(1)
    assert torch.allclose(scores.tempered(p, 1.7), (z / 1.7).softmax(1))
    assert torch.equal(scores.tempered(p, 1.7).argmax(1), p.argmax(1))


def test_it_never_raises_the_loss_of_what_it_was_fitted_to():
    draw = torch.Generator().manual_seed(1)
    p = (3 * torch.randn(200, 4, generator=draw)).softmax(1)
    labels = torch.multinomial(p.sqrt(), 1, generator=draw).squeeze(1)
    found = scores.fit_temperature(p, labels)
    assert found > 1
    assert scores.nll(scores.tempered(p, found), labels) < scores.nll(p, labels)


def test_certain_probabilities_have_a_temperature_too():
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert scores.fit_temperature(p, torch.tensor([0, 1, 1])) == pytest.approx(20, rel=1e-2)


def test_what_is_no_temperature_is_refused():
    for value in (0.0, -1.0, math.nan, math.inf):
        with refused("temperature"):
            scores.tempered(torch.tensor([[0.5, 0.5]]), value)
    with refused("probabilities"):
        scores.fit_temperature(torch.randn(4, 3) * 9, torch.zeros(4, dtype=torch.long))
    with refused("labels"):
        scores.fit_temperature(torch.full((4, 2), 0.5), torch.zeros(3, dtype=torch.long))
