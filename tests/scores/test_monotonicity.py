"""Monotonicity: closed forms, scipy's PAVA, the authors' code, ties, reference levels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from dropscope import scores
from dropscope.scores import monotonicity
from support.errors import refused

PENALTIES = (scores.isotonic_penalty, scores.rearrangement_penalty, scores.running_minimum_penalty)


def some_examples(n=300, leading=(), ties=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(*leading, n, generator=generator)
    correct = torch.rand(*leading, n, generator=generator) < 1 - 0.6 * u
    return (u * 12).floor() / 12 if ties else u, correct


def test_thresholds_are_counted_in_integers():
    # ceil(.07 * 10000) is 701 in floating point; the 7 % set has 700 examples.
    correct = torch.ones(10000, dtype=torch.bool)
    correct[700:] = False
    curve = scores.accuracy_curve(torch.arange(10000.0), correct)
    assert curve[:7].tolist() == [1.0] * 7
    assert curve[7].item() == 700 / 800
    assert curve[-1].item() == 0.07


def test_curve_written_out():
    for n in (1, 7, 99, 100, 250):
        for ties in (False, True):
            u, correct = some_examples(n, ties=ties)
            ordered = u.sort().values
            expected = []
            for j in range(1, 101):
                inside = u <= ordered[-(-j * n // 100) - 1]
                expected.append(correct[inside].double().mean().item())
            np.testing.assert_allclose(scores.accuracy_curve(u, correct).numpy(), expected, atol=1e-12)


def test_a_perfect_order_has_no_penalty_at_all():
    correct = torch.arange(1000) < 730
    for penalty in PENALTIES:
        assert penalty(torch.arange(1000.0), correct).item() == 0


def test_all_tied_is_flat():
    correct = torch.arange(50) % 3 > 0
    for penalty in PENALTIES:
        assert penalty(torch.zeros(50), correct).item() == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
@settings(max_examples=150, deadline=None)
def test_isotonic_correction_is_scipys(values):
    curve = torch.tensor(values, dtype=torch.float64)
    expected = isotonic_regression(np.array(values), increasing=False).x
    np.testing.assert_allclose(scores.isotonic_correction(curve).numpy(), expected, atol=1e-11)


def test_isotonic_correction_of_many_curves():
    curves = torch.rand(3, 5, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = scores.isotonic_correction(curves)
    expected = isotonic_regression(curves[2, 3].numpy(), increasing=False).x
    np.testing.assert_allclose(whole[2, 3].numpy(), expected, atol=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=80, deadline=None)
def test_corrections_fall_and_rearrangement_is_within_twice_isotonic(values):
    curve = torch.tensor(values, dtype=torch.float64)
    for correction in (
        scores.isotonic_correction,
        scores.rearrangement_correction,
        scores.running_minimum_correction,
    ):
        assert bool((correction(curve).diff() <= 1e-12).all())
    isotonic = monotonicity.isotonic_penalty_of(curve)
    assert monotonicity.rearrangement_penalty_of(curve) <= 2 * isotonic + 1e-12


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [5, 100, 128, 781])
def test_running_minimum_is_the_authors_code(n, ties):
    u, correct = some_examples(n, ties=ties, seed=n)
    q = np.linspace(0, 1, 100)
    thresholds = np.quantile(u.double().numpy(), q)
    kept, curve = [], []
    for quantile, threshold in zip(q, thresholds, strict=True):
        inside = u.double().numpy() < threshold - 1e-12
        if inside.any():
            kept.append(quantile)
            curve.append(correct.numpy()[inside].mean())
    expected = np.trapezoid(np.array(curve) - np.minimum.accumulate(curve), kept)
    assert scores.running_minimum_penalty(u, correct).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "random", "monotone"),
    [
        (10000, (0.0033, 0.0055), (0.00004, 0.00006)),
        (781, (0.012, 0.020), (0.0008, 0.0013)),
        (200, (0.022, 0.037), (0.0025, 0.0044)),
    ],
)
def test_reference_levels_are_the_published_ones(n, random, monotone):
    levels = scores.reference_levels(0.73, n)
    for at, name in enumerate(("isotonic_penalty", "rearrangement_penalty")):
        assert levels[name]["random"] == pytest.approx(random[at], rel=0.3)
        assert levels[name]["monotone"] == pytest.approx(monotone[at], rel=0.5)
    assert levels["running_minimum_penalty"]["random"] > levels["running_minimum_penalty"]["monotone"]


def test_reference_levels_are_repeatable_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    first = scores.reference_levels(0.8, 100, draws=20)
    first["isotonic_penalty"]["random"] = -1.0
    monotonicity._levels.cache_clear()
    second = scores.reference_levels(0.8, 100, draws=20)
    assert second == scores.reference_levels(0.8, 100, draws=20)
    assert second["isotonic_penalty"]["random"] > 0
    assert second != scores.reference_levels(0.8, 100, draws=20, seed=1)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 1.0])
def test_reference_levels_at_any_accuracy(accuracy):
    levels = scores.reference_levels(accuracy, 50, draws=10)
    assert all(0 <= value <= 1 for level in levels.values() for value in level.values())


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: scores.accuracy_curve(torch.rand(5), torch.ones(5), points=1), "points"),
        (lambda: scores.running_minimum_penalty(torch.rand(5), torch.ones(5), points=1), "points"),
        (lambda: scores.isotonic_correction(torch.ones(3, dtype=torch.long)), "curve"),
        (lambda: scores.reference_levels(73, 100), "accuracy"),
        (lambda: scores.reference_levels(0.7, 0), "n"),
        (lambda: scores.reference_levels(0.7, 10, draws=0), "draws"),
    ],
)
def test_refusals(call, name):
    with refused(name):
        call()
