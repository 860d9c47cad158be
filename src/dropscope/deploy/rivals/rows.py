"""Rows of a comparison: scores of every rival on the same examples, and its paired differences to one of them.

Owns which measure and which temperature a row gets (both from the fitting examples) and what its intervals are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import scores
from dropscope.analysis import (
    REPLICATES,
    absolute_sum_interval,
    bootstrap_calibration,
    bootstrap_scores,
    resamples,
    simultaneous_intervals,
    t_interval,
)
from dropscope.deploy.rivals.answers import Answer
from dropscope.deploy.rivals.forwards import PlainPass
from dropscope.scores import Confidences

SCORES = ("aurc", "augrc", "error_auroc", "nll", "brier", "ece")
LEAST_ERRORS = 10  # with fewer, no interval of a ranking's score holds what it promises
_RISKS = ("aurc", "augrc")  # positive and skewed


@dataclass(frozen=True, eq=False)
class Settings:
    """What the fitting examples decide about a row.

    Attributes:
        measure: The measure that ranks.
        temperature: Of its probabilities, before NLL, Brier score and ECE.
    """

    measure: str
    temperature: float

    @classmethod
    def of(cls, answer: Answer, seen: PlainPass, measure: str, label: str) -> Settings:
        """The measure of least AURC, unless one is asked for, and the temperature of least log loss."""
        labels, found = _labels(seen), answer.measures
        if len(found) > 1 and measure == "best":
            right = _correct(answer, seen, label)
            areas = {name: float(scores.aurc(value, right)) for name, value in found.items()}
            measure = min(areas, key=lambda name: areas[name])
        elif len(found) == 1:
            measure = next(iter(found))
        return cls(measure, scores.fit_temperature(answer.probabilities, labels))


@dataclass(frozen=True, eq=False)
class Judged:
    """A rival on the examples that judge: `[n]` each."""

    uncertainty: Tensor
    correct: Tensor
    prediction: Tensor
    confidences: Confidences

    @classmethod
    def of(cls, answer: Answer, seen: PlainPass, settings: Settings, label: str) -> Judged:
        p = scores.tempered(answer.probabilities, settings.temperature)
        value = answer.measures[settings.measure]
        chosen = (seen.probabilities if label == "plain" else answer.probabilities).argmax(1)
        return cls(value, _correct(answer, seen, label), chosen, scores.confidences_of(p, _labels(seen)))

    @property
    def errors(self) -> int:
        """Predictions of the rarer outcome, right or wrong."""
        right = int(self.correct.sum())
        return min(right, len(self.correct) - right)

    def values(self) -> dict[str, float]:
        """Accuracy, and every score."""
        found = scores.detection_scores(self.uncertainty, self.correct)
        found |= scores.calibration_of(scores.calibration_means(self.confidences))
        table = {name: float(found[name]) for name in SCORES}
        return {"accuracy": float(self.correct.double().mean()), **table}


def _labels(seen: PlainPass) -> Tensor:
    assert seen.labels is not None
    return seen.labels


def _correct(answer: Answer, seen: PlainPass, label: str) -> Tensor:
    p = seen.probabilities if label == "plain" else answer.probabilities
    return p.argmax(1) == _labels(seen)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A row on every resample."""

    scores: dict[str, np.ndarray]  # [replicates] each
    bins: tuple[np.ndarray, np.ndarray]  # of the calibration error: [terms], [replicates, terms]

    @classmethod
    def of(cls, row: Judged, indices: Sequence[Tensor], wanted: Sequence[str]) -> _Drawn:
        if tuple(wanted) == ("aurc",):
            area = scores.weighted_aurc(row.uncertainty, row.correct, _counts(indices, len(row.correct)))
            return cls({"aurc": area.numpy()}, (np.zeros(0), np.zeros((0, 0))))
        means, replicates = bootstrap_calibration(row.confidences, indices)
        found = bootstrap_scores(row.uncertainty, row.correct, indices) | scores.calibration_of(replicates)
        ends = means[:-2].numpy(), replicates[:, :-2].numpy()
        return cls({name: found[name].numpy() for name in wanted}, ends)


def _counts(indices: Sequence[Tensor], n: int) -> Tensor:
    return torch.stack([torch.bincount(chosen, minlength=n) for chosen in indices])


def difference_table(
    rows: dict[str, Judged],
    against: str,
    groups: Sequence[Hashable] | None,
    seed: int = 0,
    wanted: Sequence[str] = SCORES,
) -> pd.DataFrame:
    """A row per rival and score: its value, and its difference to `against` on the same resamples of the examples.

    Intervals of values are 95 % each. Those of differences hold for all rivals of a score at once (a max-statistic
    over paired resamples), so that the best of them may be picked by them. With fewer than ten errors there are none.

    Args:
        rows: Every rival on the same examples.
        against: Which one the others are compared with.
        groups: What is resampled instead of examples.
        seed: Of the resampling.
        wanted: The scores.

    Returns:
        Columns `name`, `score`, `value`, `low`, `high`, `difference`, `difference_low`, `difference_high`.
    """
    n = len(rows[against].correct)
    count = n if groups is None else len({str(group) for group in groups})
    freedom = min(count, *(row.errors for row in rows.values())) - 1
    enough = freedom + 1 >= LEAST_ERRORS and count > 1
    indices = resamples(n, groups, REPLICATES, seed)
    drawn = {name: _Drawn.of(row, indices, wanted) for name, row in rows.items()}
    values = {name: row.values() for name, row in rows.items()}
    others = [name for name in rows if name != against]
    found = []
    for score in wanted:
        apart = [values[name][score] - values[against][score] for name in others]
        ends = [(math.nan, math.nan)] * len(others)
        if enough and others:
            gaps = np.stack([drawn[name].scores[score] - drawn[against].scores[score] for name in others])
            ends = simultaneous_intervals(apart, gaps, freedom=freedom)
        between = dict(zip(others, zip(apart, ends, strict=True), strict=True))
        for name in rows:
            value = values[name][score]
            own = _interval(score, value, drawn[name], freedom) if enough else (math.nan, math.nan)
            difference, (low, high) = between.get(name, (0.0, (math.nan, math.nan)))
            found.append((name, score, value, *own, difference, low, high))
    columns = ["name", "score", "value", "low", "high", "difference", "difference_low", "difference_high"]
    return pd.DataFrame(found, columns=columns)


def _interval(score: str, value: float, drawn: _Drawn, freedom: int) -> tuple[float, float]:
    if score == "ece":
        low, high = absolute_sum_interval(*drawn.bins, freedom)
    else:
        low, high = t_interval(value, drawn.scores[score], freedom, log=score in _RISKS)
    return min(max(low, 0.0), value), max(min(high, 1.0) if score == "error_auroc" else high, value)


def risk_bands(
    row: Judged, coverages: Tensor, groups: Sequence[Hashable] | None, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Risk at each coverage, and the ends of its 95 % interval at that coverage alone."""
    n = len(row.correct)
    counts = _counts(resamples(n, groups, REPLICATES, seed), n)
    whole = scores.weighted_risk_curve(row.uncertainty, row.correct, torch.ones(1, n), coverages)[0].numpy()
    drawn = scores.weighted_risk_curve(row.uncertainty, row.correct, counts, coverages).numpy()
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return whole, np.minimum(low, whole), np.maximum(high, whole)
