"""The verdict algebra: every word where it belongs, and no word where nothing is known."""

from __future__ import annotations

import math

import pytest

from dropscope.analysis import Estimate
from dropscope.report import Evidence, all_of, any_of, decide, decide_all, deciding, judge

NAN = math.nan


def estimate(low: float, high: float, p: float = 0.001) -> Estimate:
    return Estimate((low + high) / 2, low, high, p, 9, "t")


def test_an_effect_needs_interval_and_p_together() -> None:
    assert decide(estimate(0.1, 0.2), "above") == "supported"
    assert decide(estimate(0.1, 0.2), "below") == "contradicted"
    assert decide(estimate(-0.2, -0.1), "below") == "supported"
    assert decide(estimate(0.1, 0.2, p=0.06), "above") == "undecided"
    assert decide(estimate(-0.1, 0.2, p=0.01), "above") == "undecided"
    assert decide(estimate(0.0, 0.2), "above") == "undecided"
    for unknown in (estimate(NAN, NAN), estimate(0.1, 0.2, p=NAN), estimate(0.1, NAN)):
        assert decide(unknown, "above") == "undecided"


def test_an_effect_within_the_margin_is_equivalence_even_where_it_is_significant() -> None:
    assert decide(estimate(0.001, 0.009), "above", margin=0.01) == "equivalent"
    assert decide(estimate(0.001, 0.011), "above", margin=0.01) == "supported"
    assert decide(estimate(-0.005, 0.011, p=0.4), "above", margin=0.01) == "undecided"


def test_absence_needs_a_margin_and_not_rejecting_is_no_support() -> None:
    with pytest.raises(TypeError):
        decide(estimate(-1, 1, p=0.9), "same")
    assert decide(estimate(-1, 1, p=0.9), "same", margin=0.5) == "undecided"
    assert decide(estimate(-0.1, 0.2), "same", margin=0.5) == "supported"
    assert decide(estimate(0.1, 0.7), "same", margin=0.5) == "undecided"  # there is an effect, perhaps a small one
    assert decide(estimate(0.6, 0.7), "same", margin=0.5) == "contradicted"
    assert decide(estimate(NAN, NAN), "same", margin=0.5) == "undecided"


def test_a_published_number_is_met_within_a_margin_of_either_side() -> None:
    ends = {"bound": 0.08, "margin": (0.04, 0.08)}
    assert decide(estimate(0.05, 0.15), "same", **ends) == "supported"
    assert decide(estimate(0.03, 0.15), "same", **ends) == "undecided"
    assert decide(estimate(0.17, 0.25), "same", **ends) == "contradicted"


def test_other_bounds_than_zero() -> None:
    assert decide(estimate(0.2, 0.4), "below", bound=0.5) == "supported"
    assert decide(estimate(0.2, 0.4), "above", bound=0.3) == "undecided"


def test_several_claims_are_as_weak_as_the_weakest() -> None:
    assert all_of(["supported", "supported"]) == "supported"
    assert all_of(["supported", "equivalent"]) == "equivalent"
    assert all_of(["undecided", "equivalent", "contradicted"]) == "contradicted"
    assert any_of(["equivalent", "contradicted"]) == "equivalent"
    assert any_of([]) == all_of([]) == "undecided"


def test_one_of_many_contradicts_only_beyond_their_number() -> None:
    weak, strong = estimate(-0.3, -0.01, p=0.03), estimate(-0.3, -0.1, p=0.004)
    assert decide_all([estimate(0.1, 0.2), weak], "above") == "undecided"
    assert decide_all([estimate(0.1, 0.2), strong], "above") == "contradicted"
    assert decide_all([weak, strong], "below") == "supported"
    assert decide_all([], "above") == "undecided"


def test_one_of_many_contradicts_an_absence_only_beyond_their_number() -> None:
    inside, beyond = estimate(-0.01, 0.01), estimate(0.101, 0.2)
    assert decide(beyond, "same", margin=0.1) == "contradicted"
    assert decide_all([beyond], "same", margin=0.1) == "contradicted"
    assert decide_all([beyond, *[inside] * 14], "same", margin=0.1) == "undecided"
    assert decide_all([inside] * 15, "same", margin=0.1) == "supported"


def test_the_number_that_decided_has_the_verdict_of_the_claim() -> None:
    up, down, flat = estimate(0.1, 0.2), estimate(-0.2, -0.1), estimate(-0.005, 0.005, p=0.9)
    cases = {
        "supported": [estimate(0.3, 0.4), up],
        "contradicted": [up, flat, down, estimate(-0.3, -0.2)],
        "equivalent": [up, flat],
        "undecided": [up, estimate(-0.1, 0.2, p=0.3)],
    }
    for verdict, several in cases.items():
        evidence = [Evidence(e, "above", margin=0.01) for e in several]
        assert judge(evidence) == verdict
        assert deciding(evidence) == len(several) - 1
    one = [Evidence(e, "below", margin=0.01) for e in (up, down, estimate(-0.4, -0.3))]
    assert judge(one, one_is_enough=True) == "supported"
    assert deciding(one, one_is_enough=True) == 2
    assert deciding([Evidence(estimate(NAN, NAN, NAN), "same", margin=0.1)] * 2) == 0
