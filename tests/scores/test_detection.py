"""Detection: closed forms, scikit-learn, ties; and the contract of every ranking score in the table."""

import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from dropscope import scores
from support.errors import refused

RANKING = [row for row in scores.TABLE.values() if row.takes == "ranking"]


def some_examples(n=200, leading=(), ties=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(*leading, n, generator=generator)
    correct = torch.rand(*leading, n, generator=generator) < 1 - 0.6 * u
    return (u * 10).floor() / 10 if ties else u, correct


def naive_aurc(u, correct):
    order = np.argsort(u, kind="stable")
    risk = np.cumsum(1 - correct[order]) / np.arange(1, len(u) + 1)
    return risk.mean()


def test_closed_forms():
    u, correct = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1, 0, 1, 0])
    got = {name: value.item() for name, value in scores.detection_scores(u, correct).items()}
    best = (0 + 0 + 1 / 3 + 2 / 4) / 4
    area = (0 + 1 / 2 + 1 / 3 + 2 / 4) / 4
    assert got["aurc"] == pytest.approx(area)
    assert got["excess_aurc"] == pytest.approx(area - best)
    assert got["augrc"] == pytest.approx(0.25 * 0.25 + 0.125)
    assert got["error_auroc"] == 0.75
    assert got["error_auprc"] == pytest.approx((1 + 2 / 3) / 2)


def test_perfect_and_useless():
    correct = torch.arange(100) < 80
    best = scores.detection_scores(torch.arange(100.0), correct)
    assert best["excess_aurc"].item() == pytest.approx(0, abs=1e-12)
    assert best["error_auroc"].item() == best["error_auprc"].item() == 1
    assert best["augrc"].item() == pytest.approx(0.5 * 0.2**2)
    useless = scores.detection_scores(torch.zeros(100), correct)
    assert useless["aurc"].item() == pytest.approx(0.2)
    assert useless["augrc"].item() == pytest.approx(0.1)
    assert useless["error_auroc"].item() == 0.5
    assert useless["error_auprc"].item() == pytest.approx(0.2)


@pytest.mark.parametrize("ties", [False, True])
def test_scikit_learn_agrees(ties):
    for seed in range(5):
        u, correct = some_examples(ties=ties, seed=seed)
        wrong = ~correct.numpy()
        assert scores.error_auroc(u, correct).item() == pytest.approx(roc_auc_score(wrong, u), abs=1e-10)
        assert scores.error_auprc(u, correct).item() == pytest.approx(average_precision_score(wrong, u), abs=1e-10)


def test_aurc_without_ties_is_the_plain_loop():
    u, correct = some_examples()
    assert scores.aurc(u, correct).item() == pytest.approx(naive_aurc(u.numpy(), correct.numpy().astype(int)))


def test_aurc_under_ties_is_the_mean_over_all_orders():
    u, correct = np.array([0.1, 0.5, 0.5, 0.5, 0.9]), np.array([1, 0, 1, 1, 0])
    orders = [[0, *middle, 4] for middle in itertools.permutations([1, 2, 3])]
    expected = np.mean([naive_aurc(u[list(o)], correct[list(o)]) for o in orders])
    assert scores.aurc(torch.from_numpy(u), torch.from_numpy(correct)).item() == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40))
@settings(max_examples=80, deadline=None)
def test_augrc_has_its_closed_form(rows):
    u, correct = (torch.tensor(column) for column in zip(*rows, strict=True))
    got = scores.detection_scores(u, correct)
    accuracy = correct.double().mean().item()
    auroc = got["error_auroc"].item()
    expected = (1 - accuracy) ** 2 / 2
    if not math.isnan(auroc):
        expected += (1 - auroc) * accuracy * (1 - accuracy)
    assert got["augrc"].item() == pytest.approx(expected, abs=1e-12)
    assert got["excess_aurc"].item() >= 0


def test_risk_coverage_curve_and_risk_at_coverage():
    u, correct = some_examples(100)
    coverage, risk = scores.risk_coverage_curve(u, correct)
    assert coverage[-1].item() == 1
    assert risk[-1].item() == pytest.approx(1 - correct.double().mean().item())
    assert risk.mean().item() == pytest.approx(scores.aurc(u, correct).item())
    assert scores.risk_at_coverage(u, correct, 0.07) == risk[6]  # .07 · 100 is 7.000000000000001
    assert scores.risk_at_coverage(u, correct, 1e-9) == risk[0]
    with refused("coverage"):
        scores.risk_at_coverage(u, correct, 0)


def test_undefined_is_nan_not_a_number():
    u = torch.rand(5, generator=torch.Generator().manual_seed(0))
    perfect, hopeless = (scores.detection_scores(u, torch.full((5,), right)) for right in (True, False))
    assert math.isnan(perfect["error_auroc"])
    assert math.isnan(perfect["error_auprc"])
    assert math.isnan(hopeless["error_auroc"])
    assert hopeless["error_auprc"].item() == 1
    assert (perfect["aurc"].item(), hopeless["aurc"].item()) == (0, 1)
    assert hopeless["excess_aurc"].item() == 0


def test_class_risk():
    labels = torch.tensor([0, 0, 1, 1, 1, 3])
    correct = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]])
    got = scores.class_risk(correct, labels, 4)
    assert got[:, [0, 1, 3]].tolist() == [[0, pytest.approx(2 / 3), 1], [1, 0, 0]]
    assert bool(got[:, 2].isnan().all())
    with refused("labels"):
        scores.class_risk(correct, labels, 3)
    with refused("labels"):
        scores.class_risk(correct, labels[:3], 4)


@pytest.mark.parametrize("row", RANKING, ids=lambda row: row.name)
class TestEveryRankingScore:
    @pytest.mark.parametrize("ties", [False, True])
    def test_row_order_does_not_matter(self, row, ties):
        u, correct = some_examples(ties=ties)
        expected = row.function(u, correct)
        for seed in range(3):
            order = torch.randperm(len(u), generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(row.function(u[order], correct[order]), expected, atol=1e-12, rtol=0)

    @pytest.mark.parametrize("ties", [False, True])
    def test_leading_dimensions_are_a_loop(self, row, ties):
        u, correct = some_examples(60, (2, 3), ties)
        got = row.function(u, correct)
        assert got.shape == (2, 3)
        assert got.dtype == torch.float64
        for i, j in itertools.product(range(2), range(3)):
            torch.testing.assert_close(got[i, j], row.function(u[i, j], correct[i, j]), equal_nan=True)

    def test_correct_broadcasts_and_takes_any_0_1(self, row):
        u, correct = some_examples(60, (4,))
        expected = row.function(u, correct[0].expand(4, 60))
        for form in (correct[0], correct[:1], correct[0].int(), correct[0].float()):
            assert torch.equal(row.function(u, form), expected)

    def test_only_the_order_counts(self, row):
        u, correct = some_examples(ties=True)
        for form in (3 * u - 7, u.double(), torch.where(u == u.max(), torch.inf, u), (u * 10).round().int()):
            torch.testing.assert_close(row.function(form, correct), row.function(u, correct), atol=1e-12, rtol=0)

    def test_range(self, row):
        low, high = (float(eval(end)) for end in row.range.strip("[]").split(","))
        for ties, seed in itertools.product((False, True), range(5)):
            u, correct = some_examples(30, ties=ties, seed=seed)
            for value in (row.function(u, correct), row.function(-u, correct)):
                assert low <= value.item() <= high

    def test_direction(self, row):
        if row.name.endswith("penalty"):
            u = torch.arange(100.0)  # a penalty asks for a falling curve only
        else:
            u, _ = some_examples(100)
        correct = u <= u.median()
        good, bad = row.function(u, correct).item(), row.function(-u, correct).item()
        assert good < bad if row.direction == "lower" else good > bad

    def test_one_example(self, row):
        value = row.function(torch.tensor([0.3]), torch.tensor([True])).item()
        assert value == 0 or math.isnan(value)

    def test_refusals(self, row):
        u, correct = some_examples(5)
        for bad_u, bad_correct, name in (
            (torch.full((5,), torch.nan), correct, "uncertainty"),
            (u[:0], correct[:0], "uncertainty"),
            (u, correct[:3], "correct"),
            (u, correct[:1], "correct"),
            (u, correct.float() * 0.5 + 0.1, "correct"),
            (u, correct.expand(2, 5), "correct"),
        ):
            with refused(name):
                row.function(bad_u, bad_correct)

    def test_ranking_scores_has_it(self, row):
        u, correct = some_examples(60, (2,), ties=True)
        assert torch.equal(scores.ranking_scores(u, correct)[row.name], row.function(u, correct))

    def test_documented(self, row):
        doc = inspect.getdoc(row.function) or ""
        parts = ("Args:", "Returns:", "Raises:", "Examples:", ">>>", "Reference:", "\nNot ", "better")
        assert all(part in doc for part in parts)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    def test_cuda_equals_cpu(self, row):
        u, correct = some_examples(500, (3,), ties=True)
        got = row.function(u.cuda(), correct.cuda())
        assert got.is_cuda
        torch.testing.assert_close(got.cpu(), row.function(u, correct), atol=1e-12, rtol=0)


def test_float32_uncertainties_of_a_large_set_are_exact():
    u, correct = some_examples(200_000)
    wrong = ~correct.numpy()
    assert scores.error_auroc(u, correct).item() == pytest.approx(roc_auc_score(wrong, u), abs=1e-9)
    assert scores.aurc(u, correct).item() == pytest.approx(naive_aurc(u.numpy(), correct.numpy().astype(int)), abs=1e-9)
