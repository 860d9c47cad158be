"""Weighted ranking scores: equal to the plain ones on repeated examples, ties and empty groups included."""

from __future__ import annotations

import pytest
import torch

from dropscope import scores
from dropscope.scores.weighted import weighted_ranking_scores
from support.errors import refused


@pytest.mark.parametrize("levels", [3, 1000])
def test_counts_stand_for_repeated_examples(levels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randint(0, levels, (60,), generator=generator).float()
    right = torch.rand(60, generator=generator) < 0.7
    counts = torch.randint(0, 4, (5, 60), generator=generator)
    counts[1] = torch.arange(60) == 7  # one example alone: no errors, or nothing else
    found = weighted_ranking_scores(u, right, counts)
    for i, count in enumerate(counts):
        repeated = torch.repeat_interleave(torch.arange(60), count)
        wanted = scores.ranking_scores(u[repeated], right[repeated])
        wanted["accuracy"] = right[repeated].double().mean()
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name][i], value, equal_nan=True, rtol=0, atol=1e-12)


def test_what_cannot_be_ranked_is_refused() -> None:
    with refused("uncertainty"):
        weighted_ranking_scores(torch.tensor([0.1, float("nan")]), torch.ones(2), torch.ones(1, 2))
    with refused("correct"):
        weighted_ranking_scores(torch.tensor([0.1, 0.2]), torch.tensor([0, 2]), torch.ones(1, 2))


def test_a_weighted_risk_curve_is_that_of_the_repeated_examples():
    draw = torch.Generator().manual_seed(4)
    u, correct = torch.randint(0, 12, (40,), generator=draw).double(), torch.rand(40, generator=draw) < 0.7
    counts = torch.randint(0, 3, (5, 40), generator=draw)
    for row in counts:
        coverage, risk = scores.risk_coverage_curve(u.repeat_interleave(row), correct.repeat_interleave(row))
        assert torch.allclose(scores.weighted_risk_curve(u, correct, row[None], coverage)[0], risk)
