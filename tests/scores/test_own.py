"""Scores of a user's own: of one ranking or of many at once, with a direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dropscope import scores
from dropscope.scores import of_ranking, resolve
from dropscope.scores.own import score_rankings
from support.errors import refused


def share(uncertainty: Tensor, correct: Tensor) -> Tensor:
    return (uncertainty * correct).mean(-1)


KINDS = {
    "many at once": (share, True),
    "a number": (lambda u, c: float(share(u, c)), False),
    "NumPy": (lambda u, c: np.mean(u.numpy() * c.numpy()), False),
    "wrong on many": (lambda u, c: (u * c).mean(0) if u.dim() > 1 else (u * c).mean(), False),
    "one for all": (lambda u, c: (u * c).mean(), False),
}


@pytest.mark.parametrize(("function", "batched"), KINDS.values(), ids=KINDS)
def test_rankings_are_scored_one_by_one_or_at_once_with_one_result(function: Any, batched: bool) -> None:
    row = of_ranking(function, direction="lower", name="mine")
    assert row.batched is batched
    u, correct = torch.rand(3, 2, 9), torch.rand(2, 9) < 0.5
    found = score_rankings(row.function, row.name, u, correct.expand(u.shape), batched=row.batched)
    torch.testing.assert_close(found, share(u, correct).double(), check_dtype=False)


def test_resolve() -> None:
    share.direction = "higher"  # type: ignore[attr-defined]
    rows = resolve(["aurc", share, scores.ece, "aurc"])
    assert [(row.name, row.direction, row.own) for row in rows] == [
        ("aurc", "lower", False), ("share", "higher", True), ("ece", "lower", False),
    ]  # fmt: skip
    assert [row.name for row in resolve()] == [*scores.RANKING, *scores.CALIBRATION]


WRONG = {
    "a typo": "aurk",
    "not of a sweep": "dice",
    "no direction": lambda u, c: u.mean(-1),
    "no number": scores.Score,
}


@pytest.mark.parametrize("score", WRONG.values(), ids=WRONG)
def test_what_a_sweep_cannot_have_is_refused(score: Any) -> None:
    with refused("scores"):
        resolve([score])


@pytest.mark.parametrize(
    "function",
    [lambda u, c: u, lambda u, c: None, lambda u, c: "low", lambda u: u.mean(), lambda u, c: u.nothing_like_it],
)
def test_what_is_no_score_is_refused(function: Any) -> None:
    with refused("scores"):
        of_ranking(function, direction="lower", name="mine")


@pytest.mark.parametrize("name", ["aurc", "accuracy", "two words", "<lambda>"])
def test_names_that_rows_cannot_have_are_refused(name: str) -> None:
    with refused("scores"):
        of_ranking(share, direction="lower", name=name)
    with refused("objective"):
        resolve("nothing", "objective")


def test_undefined_stays_undefined() -> None:
    row = of_ranking(lambda u, c: float("nan"), direction="lower", name="never")
    found = score_rankings(row.function, row.name, torch.rand(2, 5), torch.ones(2, 5, dtype=torch.bool), batched=False)
    assert found.isnan().all()
