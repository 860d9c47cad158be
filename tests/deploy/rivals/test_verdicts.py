"""The verdict of a comparison: what it says of known rows, its size under the null and its power (R37)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from dropscope.deploy.rivals.rows import Judged, difference_table
from dropscope.deploy.rivals.verdicts import Verdict, decide
from dropscope.scores import Confidences

EXAMPLES, RIVALS = 300, 8
NONE = Confidences(*(torch.zeros(EXAMPLES),) * 4)


def verdict_of(noise: list[float], draw: np.random.Generator) -> Verdict:
    """On rivals that see the true difficulty of each example through noise of their own."""
    hard = draw.normal(size=EXAMPLES)
    wrong = draw.random(EXAMPLES) < 1 / (1 + np.exp(1.9 - 1.5 * hard))
    right = torch.from_numpy(~wrong)
    views = {f"r{k}": torch.from_numpy(hard + sigma * draw.normal(size=EXAMPLES)) for k, sigma in enumerate(noise)}
    rows = {name: Judged(view, right, right.long(), NONE) for name, view in views.items()}
    gaps = difference_table(rows, "r0", None, wanted=("aurc",))
    table = pd.DataFrame({"name": gaps.name, "kind": "one pass", "accuracy": 0.8, "aurc": gaps.value, "cost": 1.0})
    return decide(table, gaps, "r0", EXAMPLES, rows["r0"].errors)


def test_among_rivals_that_are_all_alike_one_is_rarely_called_better():
    draw = np.random.default_rng(5)
    found = [verdict_of([1.0] * RIVALS, draw).word for _ in range(60)]
    assert found.count("better") <= 4


def test_a_rival_that_is_much_better_is_found():
    draw = np.random.default_rng(6)
    found = [verdict_of([3.0, 0.2, *[3.0] * (RIVALS - 2)], draw).best for _ in range(20)]
    assert found.count("r1") >= 16


def rows_of(**gaps: tuple[float, float, float, str, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table from name → difference, its ends, kind and cost; the reference has an AURC of .1."""
    known = {"plain": (0.0, np.nan, np.nan, "one pass", 1.0), **gaps}
    table = pd.DataFrame(
        [
            {"name": name, "kind": kind, "accuracy": 0.8, "aurc": 0.1 + gap, "cost": cost}
            for name, (gap, _, _, kind, cost) in known.items()
        ]
    )
    differences = pd.DataFrame(
        [
            {"name": name, "score": "aurc", "difference": gap, "difference_low": low, "difference_high": high}
            for name, (gap, low, high, _, _) in known.items()
        ]
    )
    return table, differences


def test_the_best_of_those_that_are_better_is_named_and_a_cheaper_one_beside_it():
    rows = rows_of(
        ensemble=(-0.04, -0.05, -0.03, "several forwards", 4.0),
        norm=(-0.02, -0.03, -0.01, "one pass", 1.0),
        drop=(-0.05, -0.11, 0.01, "dropout", 9.0),
    )
    verdict = decide(*rows, "plain", 500, 100)
    assert (verdict.word, verdict.best, verdict.dropout, verdict.dropout_word) == (
        "better",
        "ensemble",
        "drop",
        "undecided",
    )
    assert "norm" in verdict.text
    assert "drop" in str(verdict)


def test_where_dropout_loses_the_reference_is_recommended():
    rows = rows_of(drop=(0.03, 0.01, 0.05, "dropout", 9.0), other=(0.04, 0.02, 0.06, "one pass", 1.0))
    verdict = decide(*rows, "plain", 500, 100)
    assert (verdict.word, verdict.best, verdict.dropout_word) == ("undecided", "plain", "worse")


def test_few_errors_decide_nothing():
    rows = rows_of(norm=(-0.02, -0.03, -0.01, "one pass", 1.0))
    verdict = decide(*rows, "plain", 500, 20)
    assert (verdict.word, verdict.best, verdict.dropout) == ("undecided", "plain", None)
    assert "20 of 500 predictions are wrong" in verdict.text


def test_a_reference_alone_has_a_verdict_too():
    assert decide(*rows_of(), "plain", 500, 100).best == "plain"
