"""Drift and labels: how often there is an alarm where nothing changed, and where something did."""

import threading

import numpy as np
import pytest

from dropscope.deploy.calibration import Calibration, ErrorCurve
from dropscope.deploy.drift import check_drift
from dropscope.deploy.monitors import Monitor
from support.errors import refused


def examples(rng, n, shift=0.0):
    """Class probabilities of three classes with their uncertainties; a shift makes all less certain."""
    logits = rng.normal(0, 2, (n, 3)) * (1 - shift)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = rng.random(n) < p.max(1)
    return p.astype(np.float32), 1 - p.max(1), right


def calibration(rng, n=1000):
    p, u, right = examples(rng, n)
    labels = np.where(right, p.argmax(1), (p.argmax(1) + 1) % 3)
    nothing = np.full(n, np.nan, np.float32)
    curve = ErrorCurve.fit(u, right)
    return Calibration([str(i) for i in range(n)], u, right, labels, p.argmax(1), p, nothing, curve, np.arange(n))


def checked(seed, shift, n=300):
    rng = np.random.default_rng(seed)
    before = calibration(rng)
    p, u, right = examples(rng, n, shift)
    away = (u > 0.3, before.uncertainty > 0.3)
    return check_drift(before, u, p, np.full(n, np.nan, np.float32), away, 0.05), right


def test_false_alarms_keep_to_their_level():
    assert np.mean([checked(seed, 0.0)[0].drifted for seed in range(300)]) <= 0.05 + 0.02


def test_a_shift_is_seen_and_the_accuracy_follows_it():
    found = [checked(seed, 0.3) for seed in range(40)]
    assert np.mean([check.drifted for check, _ in found]) >= 0.9
    gap = np.mean([check.accuracy - right.mean() for check, right in found])
    assert abs(gap) < 0.03
    assert np.mean([check.accuracy for check, _ in found]) < found[0][0].accuracy_before - 0.03
    assert all(len(line) < 80 for line in str(found[0][0]).splitlines())


def test_a_rate_that_is_all_or_nothing_is_no_look():
    rng = np.random.default_rng(0)
    before = calibration(rng)
    p, u, _ = examples(rng, 100)
    check = check_drift(before, u, p, np.full(100, np.nan), (np.ones(100, bool), np.ones(1000, bool)), 0.05)
    assert "deferral rate" not in check.p_values
    assert check.deferred == 1.0


@pytest.mark.parametrize(("name", "n", "alpha"), [("alpha", 50, 0.0), ("inputs", 5, 0.05)])
def test_what_cannot_be_compared_is_refused(name, n, alpha):
    rng = np.random.default_rng(0)
    p, u, _ = examples(rng, n)
    with refused(name):
        check_drift(calibration(rng), u, p, np.full(n, np.nan), None, alpha)


# --- labels -----------------------------------------------------------------------------------------------------------


def alarms(error, labels, runs=300):
    """Share of runs with an alarm at any of its labels."""
    found = []
    for seed in range(runs):
        monitor = Monitor(0.05)
        found.append(monitor.update(np.random.default_rng(seed).random(labels) >= error).alarm)
    return np.mean(found)


def test_a_monitor_that_is_looked_at_all_the_time_rarely_cries_wolf():
    assert alarms(0.05, 1000) <= 0.05 + 0.02


def test_a_monitor_sees_an_error_that_doubled():
    assert alarms(0.1, 1000, 100) >= 0.9


def test_deferred_examples_do_not_count():
    monitor = Monitor(0.05)
    monitor.update([False] * 50 + [True] * 10, [True] * 50 + [False] * 10)
    assert (monitor.state.labelled, monitor.state.errors) == (10, 0)
    with refused("deferred"):
        monitor.update([True], [True, False])
    with refused("correct"):
        monitor.update([0.5])
    with refused("alpha"):
        Monitor(0.05, 0)


def test_threads_share_a_monitor():
    monitor = Monitor(0.5)
    works = [threading.Thread(target=lambda: [monitor.update([True, False]) for _ in range(100)]) for _ in range(4)]
    for work in works:
        work.start()
    for work in works:
        work.join()
    assert (monitor.state.labelled, monitor.state.errors) == (800, 400)
