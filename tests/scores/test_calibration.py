"""Calibration: closed forms, the plain loop, scikit-learn, contracts."""

import inspect

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

from dropscope import scores
from support.errors import refused

ROWS = [row for row in scores.TABLE.values() if row.takes == "probabilities"]


def some_predictions(n=300, classes=4, leading=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(*leading, n, classes, generator=generator)).softmax(-1)
    return p, torch.randint(0, classes, (n,), generator=generator)


def naive_ece(p, labels, bins):
    confidence, right = p.max(-1), p.argmax(-1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    total = 0.0
    for b in range(bins):
        if (place == b).any():
            total += (place == b).mean() * abs(right[place == b].mean() - confidence[place == b].mean())
    return total


def test_closed_forms():
    p, labels = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6], [0.0, 1.0]]), torch.tensor([0, 1, 1, 1])
    assert scores.ece(p, labels).item() == pytest.approx((2 * abs(0.5 - 0.8) + 0.4) / 4)
    assert scores.brier(p, labels).item() == pytest.approx(2 * (0.04 + 0.64 + 0.16 + 0) / 4)
    assert scores.nll(p, labels).item() == pytest.approx(-np.log(0.8 * 0.2 * 0.6) / 4, rel=1e-6)


def test_impossible_label_costs_the_floor():
    p, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert scores.nll(p, labels).item() == pytest.approx(-np.log(1e-12))
    assert scores.nll(p, labels, floor=1e-7).item() == pytest.approx(-np.log(1e-7))
    assert scores.brier(p, labels).item() == 2
    assert scores.ece(p, labels).item() == 1


@pytest.mark.parametrize("bins", [1, 10, 15, 100])
def test_ece_is_the_plain_loop(bins):
    p, labels = some_predictions()
    assert scores.ece(p, labels, bins).item() == pytest.approx(naive_ece(p.numpy(), labels.numpy(), bins), abs=1e-6)


def test_ece_by_mass_is_the_plain_loop_without_ties():
    p, labels = some_predictions(n=150)
    confidence, predicted = p.max(-1)
    order = confidence.argsort()
    gap = ((predicted == labels).double() - confidence.double())[order]
    expected = sum(abs(float(part.sum())) for part in gap.split(10)) / 150
    assert scores.ece(p, labels, 15, binning="mass").item() == pytest.approx(expected, abs=1e-9)


def test_scikit_learn_agrees():
    p, labels = some_predictions()
    assert scores.nll(p, labels).item() == pytest.approx(
        log_loss(labels, p.double() / p.double().sum(-1, keepdim=True))
    )
    two, truth = some_predictions(classes=2)
    assert scores.brier(two, truth).item() == pytest.approx(2 * brier_score_loss(truth, two[:, 1]), abs=1e-6)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
class TestEveryCalibrationScore:
    def test_leading_dimensions_are_a_loop(self, row):
        p, labels = some_predictions(leading=(2, 3))
        got = row.function(p, labels)
        assert got.shape == (2, 3)
        assert got.dtype == torch.float64
        for i in range(2):
            for j in range(3):
                torch.testing.assert_close(got[i, j], row.function(p[i, j], labels))

    def test_row_order_does_not_matter(self, row):
        p, labels = some_predictions()
        p = ((p * 8).round() + 1) / ((p * 8).round() + 1).sum(-1, keepdim=True)  # many of them alike
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(row.function(p[order], labels[order]), row.function(p, labels), atol=1e-12, rtol=0)

    def test_right_and_sure_is_best(self, row):
        labels = torch.arange(12) % 3
        assert row.function(torch.nn.functional.one_hot(labels).float(), labels).item() == 0

    def test_refusals(self, row):
        p, labels = some_predictions(5)
        for bad in (p[0], p[:0], p * 5, p * torch.nan):
            with refused("probabilities"):
                row.function(bad, labels[: len(bad)])
        for bad in (labels[:3], labels.float(), labels + 9, labels - 9, labels.expand(2, 5)):
            with refused("labels"):
                row.function(p, bad)

    def test_documented(self, row):
        doc = inspect.getdoc(row.function) or ""
        parts = ("Args:", "Returns:", "Raises:", "Examples:", ">>>", "Reference:", "\nNot ", "better")
        assert all(part in doc for part in parts)


def test_ece_by_mass_keeps_ties_together():
    p = torch.tensor([[0.75, 0.25]]).expand(40, 2)
    labels = (torch.arange(40) >= 30).long()
    assert scores.ece(p, labels, bins=5, binning="mass").item() == pytest.approx(0)


def test_options_are_checked():
    p, labels = some_predictions(5)
    with refused("bins"):
        scores.ece(p, labels, bins=0)
    with refused("binning"):
        scores.ece(p, labels, binning="height")
    with refused("floor"):
        scores.nll(p, labels, floor=0)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_probabilities_sum_to_one_over_the_classes(row):
    p, labels = some_predictions()
    with refused("probabilities"):
        row.function(p / 2, labels)
    assert row.function(p.half(), labels) == pytest.approx(float(row.function(p, labels)), abs=2e-3)
