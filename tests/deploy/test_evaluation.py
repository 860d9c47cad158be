"""Evaluation: shares by hand, intervals that cover, groups that count once."""

import numpy as np
import pytest

from dropscope.deploy.evaluation import evaluate_answers, rate
from support.errors import refused


def test_shares_are_those_of_a_hand_count():
    labels, predictions = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1, 0])
    deferred = np.array([False, False, True, False, True, True])
    found = evaluate_answers(
        labels, predictions, deferred, unit=None, by={"site": list("aabbab")}, class_names=["no", "yes"], max_error=0.1
    )
    row = found.table.iloc[0]
    assert (row.coverage, row.error_kept, row.error) == (0.5, 0.0, pytest.approx(1 / 3))
    assert row.error_deferred == pytest.approx(2 / 3)
    assert found.table.subset.tolist() == ["all", "site=a", "site=b"]
    yes = found.classes[(found.classes["class"] == "yes") & (found.classes.part == "all")].iloc[0]
    assert (yes.sensitivity, yes.specificity) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert yes.sensitivity_low < 2 / 3 < yes.sensitivity_high
    assert not found.refuted
    assert "yes" in str(found)
    with refused("by"):
        evaluate_answers(labels, predictions, deferred, unit=None, by=["a"], class_names=None, max_error=None)


def test_intervals_cover():
    rng, inside = np.random.default_rng(0), []
    for _ in range(300):
        found = rate("error", rng.random(80) < 0.1, np.ones(80, bool), None)
        inside.append(found["error_low"] <= 0.1 <= found["error_high"])
    assert np.mean(inside) >= 0.95


def test_intervals_of_rows_that_are_wrong_together_cover():
    rng, grouped, rows = np.random.default_rng(0), [], []
    unit = np.repeat(np.arange(60), 5)
    for _ in range(300):
        wrong = np.repeat(rng.random(60) < 0.2, 5)
        for found, of in ((grouped, unit), (rows, None)):
            ends = rate("error", wrong, np.ones(300, bool), of)
            found.append(ends["error_low"] <= 0.2 <= ends["error_high"])
    assert np.mean(grouped) >= 0.93
    assert np.mean(rows) < 0.75


def test_a_promise_that_is_clearly_broken_is_refuted():
    labels = np.arange(200) % 2
    predictions = np.where(np.arange(200) < 80, 1 - labels, labels)
    found = evaluate_answers(
        labels, predictions, np.zeros(200, bool), unit=None, by=None, class_names=None, max_error=0.1
    )
    assert found.refuted
    assert found.facts()["classes"][2]["sensitivity"] is None  # nothing is deferred
