"""Deferral rules: what they promise over repeated draws, what they refuse, and what they say where nothing is found."""

import json

import numpy as np
import pytest

from dropscope.deploy import DeferralRule, defer
from dropscope.deploy.deferral import METHODS
from support.errors import refused
from support.planted_errors import broken, draw, draw_patients, naive_threshold, true_error

DELTA = 0.1
SLACK = 0.05  # two standard errors of a share of 200 draws, and a little


def data(n=1000, seed=0):
    return draw(np.random.default_rng(seed), n)


# --- what is promised -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name in METHODS if name != "average"])
def test_a_promise_is_broken_no_more_often_than_it_may_be(method):
    assert broken(lambda rng: defer(*draw(rng, 600), 0.1, method=method).threshold, 0.1) <= DELTA + SLACK


def test_the_same_check_catches_a_naive_threshold():
    assert broken(lambda rng: naive_threshold(*draw(rng, 600), 0.1), 0.1) > 0.35


def test_the_default_keeps_more_than_its_alternatives():
    kept = {name: np.mean([defer(*data(600, seed), 0.1).alternatives[name] for seed in range(40)]) for name in METHODS}
    best = 0.3**0.5  # what could be kept by one who knows the risk
    assert 0.8 * best < kept["fixed_sequence"] < best
    assert kept["fixed_sequence"] > max(kept["sgr"], kept["holm"], kept["starts"])


def test_on_average_the_error_is_at_its_limit():
    """The error of a new example counts where it is kept: its mean excess over draws is 0 at most, and barely."""
    thresholds = [defer(*data(200, seed), 0.1, method="average").threshold or 0.0 for seed in range(400)]
    excess = np.array([t * (true_error(t) - 0.1) for t in thresholds])
    assert -0.01 < excess.mean() <= 2 * excess.std() / 20
    assert broken(lambda rng: defer(*draw(rng, 200), 0.1, method="average").threshold, 0.1) > 0.3


def test_rows_of_one_patient_are_one_piece_of_evidence():
    """As if rows were independent the promise is broken often; with groups it is not."""

    def as_rows(rng):
        u, right, _ = draw_patients(rng, 200, 5)
        return defer(u, right, 0.1).threshold

    def as_groups(rng):
        u, right, patients = draw_patients(rng, 200, 5)
        return defer(u, right, 0.1, groups=patients).threshold

    assert broken(as_rows, 0.1) > 2 * DELTA
    assert broken(as_groups, 0.1) <= DELTA + SLACK


def test_groups_of_one_row_are_examples():
    u, right = data()
    assert defer(u, right, groups=list(range(1000))).threshold == defer(u, right).threshold


def test_a_dice_score_is_a_share_that_is_right():
    rng = np.random.default_rng(0)
    u = rng.random(300)
    dice = np.clip(0.98 - 0.4 * u**2 + rng.normal(0, 0.03, 300), 0, 1)
    rule = defer(u, dice, max_error=0.1)
    assert 0.5 < rule.coverage < 0.9
    assert rule.error < 0.1
    assert rule.risks[0]["name"] == "loss"


def test_finalists_share_the_level():
    """Five measures of which four are noise: the promise holds for the one that is picked."""

    def threshold(rng):
        u, right = draw(rng, 400)
        noise = {f"noise{i}": rng.random(400) for i in range(4)}
        rule = defer({"good": u, **noise}, right, 0.1)
        return rule.threshold if rule.measure == "good" else None

    assert broken(threshold, 0.1, 100) <= DELTA + SLACK
    u, right = data(2000)
    rule = defer({"noise": np.random.default_rng(1).random(2000), "good": u}, right, 0.1)
    assert rule.measure == "good"
    assert rule.n == 2000


def test_more_than_five_finalists_are_chosen_on_other_examples():
    u, right = data(2000)
    rng = np.random.default_rng(1)
    rule = defer({"good": u, **{str(i): rng.random(2000) for i in range(6)}}, right, 0.1)
    assert rule.measure == "good"
    assert rule.n == 1000
    assert "1,000" in rule.remarks[0]


def test_a_budget_is_spent_and_says_what_it_buys():
    held = []
    for seed in range(100):
        rule = defer(*data(500, seed), None, budget=0.3)
        held.append(1 - rule.threshold <= 0.3 and true_error(rule.threshold) <= rule.bound)
    assert np.mean(held) >= 1 - DELTA - SLACK
    assert rule.coverage < 0.8


def test_a_target_and_a_budget_may_not_go_together():
    rule = defer(*data(), 0.1, budget=0.1)
    assert rule.threshold is None
    assert rule.reason
    ((error, coverage),) = rule.reach
    assert coverage >= 0.9
    assert error > 0.1
    assert defer(*data(), 0.3, budget=0.5).threshold is not None


def classes(n, seed=0, share=0.3):
    """Two classes; misses of class 1 are twice as frequent as false alarms."""
    rng = np.random.default_rng(seed)
    u, labels = rng.random(n), (rng.random(n) < share).astype(int)
    right = rng.random(n) >= u**2 * np.where(labels == 1, 1.0, 0.5)
    return u, right, labels, np.where(right, labels, 1 - labels)


def test_false_negatives_are_bounded_too():
    over = []
    for seed in range(100):
        u, right, labels, _ = classes(1500, seed)
        over.append(true_error(defer(u, right, 0.2, labels=labels, max_false_negatives=0.1).threshold) > 0.1)
    assert np.mean(over) <= DELTA + SLACK
    alone = defer(u, right, 0.2)
    both = defer(u, right, 0.2, labels=labels, max_false_negatives=0.1)
    assert both.coverage < alone.coverage
    assert [risk["name"] for risk in both.risks] == ["error", "false negatives"]


def test_costs_are_bounded_in_their_own_units():
    u, right, labels, predictions = classes(2000)
    asked = {"labels": labels, "predictions": predictions, "costs": [[0, 1], [5, 0]], "max_cost": 0.2}
    rule = defer(u, right, None, **asked)
    kept = ~rule(u)
    cost = np.where(labels == 1, 5.0, 1.0) * ~right
    assert rule.risks[0]["observed"] == pytest.approx(cost[kept].mean())
    assert cost[kept].mean() < 0.2 < cost.mean()
    named = defer(u, right, None, **{**asked, "costs": {(0, 1): 1, (1, 0): 5}})
    assert named.threshold == rule.threshold


def test_every_predicted_class_keeps_the_promise():
    u, right, _, predictions = classes(4000)
    rule = defer(u, right, 0.1, predictions=predictions, per_class=True)
    assert set(rule.thresholds) == {"0", "1"}
    kept = ~rule(u, predictions)
    for name in (0, 1):
        assert (~right)[kept & (predictions == name)].mean() < 0.1
    assert rule(u, predictions).sum() == 4000 - rule.kept
    assert rule([0.0], [7]).tolist() == [True]  # a class that was never seen
    with refused("predictions"):
        rule(u)


def test_an_enriched_set_answers_for_the_prevalence_stated():
    """Half of the examples are positive, a tenth will be; positives alone are ever wrong."""
    over, kept = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        u, labels = rng.random(1000), np.arange(1000) % 2
        right = (labels == 0) | (rng.random(1000) >= u**2)
        rule = defer(u, right, 0.03, labels=labels, prevalence={0: 0.9, 1: 0.1})
        over.append(0.1 * true_error(rule.threshold) > 0.03)
        kept.append(rule.coverage)
    assert np.mean(over) <= DELTA + SLACK
    assert np.mean(kept) > 0.5
    assert defer(u, right, 0.03).coverage < np.mean(kept)


# --- where nothing is found -------------------------------------------------------------------------------------------


def test_too_few_examples_say_how_many_are_needed():
    rule = defer(*data(30))
    assert rule.threshold is None
    assert "n = 45 " in rule.reason
    assert rule([0.0, 0.5]).all()
    assert not rule.found


def test_an_unreachable_target_says_what_could_be_reached():
    u, _ = data(1000)
    wrong = np.random.default_rng(1).random(1000) < 0.2
    rule = defer(u, ~wrong, 0.05)
    assert rule.threshold is None
    error, coverage = rule.reach[0]
    assert 0.15 < error < 0.4
    assert coverage > 0
    assert all(wide[0] > narrow[0] for narrow, wide in zip(rule.reach, rule.reach[1:], strict=False))
    assert all(len(line) < 80 for line in str(rule).splitlines())


def test_all_right_keeps_everything_and_says_so():
    rule = defer(data()[0], np.ones(1000, bool))
    assert rule.coverage == 1.0
    assert rule.remarks
    assert defer(data()[0], np.zeros(1000, bool)).threshold is None


# --- rules as objects -------------------------------------------------------------------------------------------------


def test_equal_scores_are_kept_or_deferred_together():
    u, right = data()
    coarse = np.round(u, 1)
    rule = defer(coarse, right, 0.1)
    assert len(set(coarse[~rule(coarse)])) * 100 > rule.kept * 0.8
    assert rule.kept == (~rule(coarse)).sum()
    assert defer(np.zeros(1000), right, 0.9).kept == 1000


def test_rows_in_another_order_give_the_same_rule():
    u, right = data()
    order = np.random.default_rng(0).permutation(1000)
    assert defer(u[order], right[order]).facts() == defer(u, right).facts()


def test_a_rule_is_saved_and_loaded(tmp_path):
    u, right, _, predictions = classes(3000)
    rules = [
        defer(u, right, 0.1),
        defer(u, right, 0.1, predictions=predictions, per_class=True),
        defer(u[:9], right[:9]),
    ]
    for number, rule in enumerate(rules):
        path = rule.save(tmp_path / f"{number}.json")
        again = DeferralRule.load(path)
        assert again.facts() == rule.facts()
        assert str(again) == str(rule)
        assert (again(u, predictions) == rule(u, predictions)).all()


def test_what_is_no_rule_is_refused(tmp_path):
    path = defer(*data()).save(tmp_path / "rule.json")
    content = json.loads(path.read_text())
    for other in ([], {}, {**content, "version": 99}, {**content, "threshold": "low"}):
        path.write_text(json.dumps(other))
        with refused(str(path)):
            DeferralRule.load(path)


def test_examples_without_an_uncertainty_are_deferred_and_count():
    u, right = data()
    u[:100] = np.nan
    rule = defer(u, right, 0.9)
    assert (rule.kept, rule.n, rule.coverage) == (900, 1000, 0.9)
    assert rule(u).sum() == 100
    spent = defer(u, right, None, budget=0.3)
    assert spent.kept == (~spent(u)).sum() < 900
    assert defer(u, right, 0.9, per_class=True, predictions=[i < 100 for i in range(1000)]).thresholds["True"] is None


def test_what_cannot_be_compared_is_deferred():
    rule = defer(*data())
    assert rule([float("nan"), float("inf"), float("-inf")]).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("confidence", {"confidence": 1.0}),
        ("confidence", {"confidence": 90}),
        ("max_error", {"max_error": 0.0}),
        ("max_error", {"max_error": None}),
        ("method", {"method": "sgd"}),
        ("groups", {"groups": [1, 2]}),
        ("budget", {"budget": 2}),
        ("labels", {"max_false_negatives": 0.1}),
        ("labels", {"prevalence": 0.1}),
        ("max_cost", {"costs": [[0, 1], [1, 0]]}),
        ("predictions", {"per_class": True}),
        ("positive", {"labels": ["a", "b"] * 500, "max_false_negatives": 0.1}),
        ("prevalence", {"labels": [0, 1] * 500, "prevalence": {0: 0.5, 1: 0.1}}),
        ("costs", {"labels": [0, 1] * 500, "predictions": [0, 2] * 500, "costs": [[0, 1], [1, 0]], "max_cost": 0.5}),
        ("uncertainty", {"uncertainty": [0.1]}),
        ("uncertainty", {"uncertainty": [float("nan")] * 1000}),
        ("uncertainty", {"uncertainty": [[0.1]] * 1000}),
        ("correct", {"correct": [0.5, 2.0]}),
        ("correct", {"correct": []}),
        ("correct", {"correct": ["yes"] * 1000}),
    ],
)
def test_what_cannot_be_used_is_refused(name, change):
    u, right = data()
    with refused(name):
        defer(**{"uncertainty": u, "correct": right, **change})
