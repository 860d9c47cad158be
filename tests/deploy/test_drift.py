"""Drift and labels: how often there is an alarm where nothing changed, and where something did."""

import threading

import numpy as np
import pytest

from dropscope.deploy.calibration import ErrorCurve
from dropscope.deploy.drift import Seen, check_drift
from dropscope.deploy.monitors import Monitor
from support.errors import refused


def examples(rng, n, shift=0.0):
    """Class probabilities of three classes with their uncertainties; a shift makes all less certain."""
    logits = rng.normal(0, 2, (n, 3)) * (1 - shift)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = rng.random(n) < p.max(1)
    return p.astype(np.float32), 1 - p.max(1), right


def seen(p, u, *, deferred=True, unit=None):
    away = u > 0.3 if deferred else None
    return Seen(u, p, np.full(len(u), np.nan), away, unit)


def compared(rng, now, alpha=0.05, n=1000):
    p, u, right = examples(rng, n)
    before = seen(p, u, deferred=now.deferred is not None)
    return check_drift(before, now, alpha, curve=ErrorCurve.fit(u, right), accuracy=float(right.mean()))


def checked(seed, shift, n=300):
    rng = np.random.default_rng(seed)
    p, u, right = examples(rng, n, shift)
    return compared(rng, seen(p, u)), right


def test_false_alarms_keep_to_their_level():
    assert np.mean([checked(seed, 0.0)[0].drifted for seed in range(300)]) <= 0.05 + 0.02


def test_a_shift_is_seen_and_the_accuracy_follows_it():
    found = [checked(seed, 0.3) for seed in range(40)]
    assert np.mean([check.drifted for check, _ in found]) >= 0.9
    gap = np.mean([check.accuracy - right.mean() for check, right in found])
    assert abs(gap) < 0.03
    assert np.mean([check.accuracy for check, _ in found]) < found[0][0].accuracy_before - 0.03
    assert all(len(line) < 80 for line in str(found[0][0]).splitlines())


def test_rows_of_patients_are_no_further_evidence():
    """Twenty like rows of each of fifteen patients: as examples they cry wolf, as groups they do not."""

    def drifted(seed, *, grouped):
        rng = np.random.default_rng(seed)
        p, u, _ = examples(rng, 25)
        p, u = np.repeat(p, 20, 0), np.repeat(u, 20)
        return compared(rng, seen(p, u, unit=np.repeat(np.arange(25), 20) if grouped else None))

    assert np.mean([drifted(seed, grouped=True).drifted for seed in range(200)]) <= 0.05 + 0.02
    assert np.mean([drifted(seed, grouped=False).drifted for seed in range(50)]) > 0.3
    grouped, alone = drifted(0, grouped=True), drifted(0, grouped=False)
    assert (grouped.groups, grouped.n, alone.groups) == (25, 500, None)
    assert grouped.accuracy_high - grouped.accuracy_low > 4 * (alone.accuracy_high - alone.accuracy_low)


def test_a_rate_that_is_all_or_nothing_is_no_look():
    rng = np.random.default_rng(0)
    p, u, _ = examples(rng, 100)
    every = Seen(u + 1, p, np.full(100, np.nan), np.ones(100, bool))
    check = check_drift(every, every, 0.05, curve=ErrorCurve.fit(u, u < 0.5), accuracy=0.5)
    assert "deferral rate" not in check.p_values
    assert check.deferred == 1.0


@pytest.mark.parametrize(("name", "n", "alpha"), [("alpha", 50, 0.0), ("inputs", 5, 0.05)])
def test_what_cannot_be_compared_is_refused(name, n, alpha):
    rng = np.random.default_rng(0)
    p, u, _ = examples(rng, n)
    with refused(name):
        compared(rng, seen(p, u, deferred=False), alpha)


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
        monitor.update([1.5])
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


def grouped_alarms(error, runs=200):
    """Ten rows a patient, all wrong or all right: whether a patient's are wrong is one event."""
    found = []
    for seed in range(runs):
        monitor, rng = Monitor(0.1, largest=10), np.random.default_rng(seed)
        for first in range(0, 400, 40):
            wrong = np.repeat(rng.random(40) < error, 10)
            state = monitor.update(~wrong, groups=np.repeat(np.arange(first, first + 40), 10).tolist())
        found.append(state.alarm)
    return np.mean(found)


def test_a_monitor_of_groups_counts_groups():
    assert grouped_alarms(0.1) <= 0.05 + 0.02
    assert grouped_alarms(0.25, 40) >= 0.9


def test_a_group_comes_whole_and_is_not_too_large():
    monitor = Monitor(0.1, largest=2)
    assert monitor.update([True, False], groups=["a", "a"]).groups == 1
    for groups in (["a"], ["b", "b", "b"], ["c"] * 2):
        with refused("groups"):
            monitor.update([True] * (1 if groups == ["c"] * 2 else len(groups)), groups=groups)
    assert monitor.state.labelled == 2


def test_a_monitor_takes_bounded_losses():
    rng = np.random.default_rng(0)
    good, bad = Monitor(0.2), Monitor(0.2)
    assert not good.update(1 - rng.beta(2, 8, 500)).alarm
    assert "loss" in str(bad.update(1 - rng.beta(3, 7, 500)))
    assert bad.state.alarm
