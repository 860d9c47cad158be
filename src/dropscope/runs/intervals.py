"""Intervals of a sweep's finalists: of each score, and of its paired difference to one plain pass.

Owns which interval a score gets. Each contains its value; with few errors there is none; differences of rows that were
picked among many hold for all of these at once.
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
    HALVES,
    REPLICATES,
    absolute_sum_interval,
    bootstrap,
    bootstrap_calibration,
    bootstrap_scores,
    half_samples,
    penalty_interval,
    resamples,
    t_factor,
    t_interval,
)
from dropscope.measures import PLAIN_TABLE
from dropscope.progress import track
from dropscope.runs.finalists import AGAINST, Finalists
from dropscope.scores import Confidences, Score

LEAST_ERRORS = 10  # with fewer, no interval of a ranking's score holds what it promises
INTERVAL = ("low", "high", "minus_single_pass", "minus_single_pass_low", "minus_single_pass_high")
MONTE_CARLO = "monte_carlo"
_COLUMNS = ("placement", "measure", "score", "value", *INTERVAL, "errors", "picked_from", MONTE_CARLO)
_BETWEEN = ["minus_single_pass_low", "minus_single_pass_high"]
_PENALTIES = ("isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty")
_RISKS = ("aurc", "excess_aurc", "augrc")  # positive and skewed
_SHARES = ("accuracy", "error_auroc", "error_auprc")  # at most 1


def interval_table(
    finalists: Finalists,
    scored: pd.DataFrame,
    chosen: Sequence[Score],
    groups: Sequence[Hashable] | None,
    seed: int,
    device: torch.device,
    *,
    show: bool | None,
) -> pd.DataFrame:
    """A row per ranking and score: 95 % intervals of the value, and of its paired difference to the plain entropy's.

    `errors` are the predictions of the rarer outcome, right or wrong: with fewer than ten there is no interval. The
    interval of a penalty or of the calibration error reaches 0 where chance alone may have made the value. Differences
    hold for all `picked_from` rows of the sweep at once: the best of them were picked on these very examples.
    `monte_carlo` is the standard error of the value, and of the difference, by the draw of the passes.

    Args:
        finalists: Per-example values of the finalists and the baselines.
        scored: Rows of a sweep and its baselines: the values themselves. A placement that equals another by
            mathematics gets the intervals of the one that was computed.
        chosen: The scores.
        groups: What is resampled instead of examples.
        seed: Of the resampling.
        device: Where it is computed.
        show: Whether progress is shown.
    """
    kept = list(finalists.examples.groupby(["placement", "measure"], sort=False))
    kept.sort(key=lambda pair: pair[0][1] != AGAINST)  # what the others are compared with comes first
    names = ["accuracy", *(score.name for score in chosen)]
    draws = _Draws.of(len(kept[0][1]), groups, seed, halves=any(name in _PENALTIES for name in names))
    values = scored.set_index(["placement", "measure"])[names].astype(float)
    of_all = picked_from(scored)
    calibrations = {text: _Calibration.of(read, draws) for text, read in finalists.confidences.items()}
    reference: _Ranking | None = None
    found = []
    with track("intervals", len(kept), "rows", show=show) as tick:
        for (placement, measure), group in kept:
            ranking = _Ranking.of(group, chosen, draws, calibrations.get(placement), device)
            reference = reference or ranking
            of = 1 if measure in PLAIN_TABLE else of_all
            for name in names:
                value, plain = values.at[(placement, measure), name], values.at[("none", AGAINST), name]
                ends = ranking.interval(name, value)
                apart = ranking.drawn[name] - reference.drawn[name]
                between = _between(value - plain, apart, min(ranking.freedom, reference.freedom), of)
                by_passes = (
                    0.0 if measure in PLAIN_TABLE else finalists.errors.get((placement, measure, name), math.nan)
                )
                about = ranking.errors, of, by_passes
                found.append((placement, measure, name, value, *ends, value - plain, *between, *about))
            tick(1)
    table = pd.DataFrame(found, columns=_COLUMNS)
    return pd.concat([table, _of_equivalents(table, scored)], ignore_index=True)


def picked_from(rows: pd.DataFrame) -> int:
    """How many rows a best one is picked from: those of several passes that were computed."""
    return max(1, int((rows.equivalent_to.isna() & ~rows.measure.isin(PLAIN_TABLE)).sum()))


def widened(intervals: pd.DataFrame, examples: pd.DataFrame, of: int) -> pd.DataFrame:
    """Intervals of a run that is read together with others, so that its rows are picked from more."""
    plain = int(intervals.errors[intervals.measure == AGAINST].min())
    groups = examples.group.nunique() if "group" in examples else plain
    freedom = (intervals.errors.clip(upper=min(plain, groups)) - 1).astype(int)
    picked = ~intervals.measure.isin(PLAIN_TABLE)
    now = intervals.picked_from.where(~picked, of)
    known = zip(freedom, now, intervals.picked_from, strict=True)
    scale = np.array([t_factor(f, of=after) / t_factor(f, of=before) for f, after, before in known])
    centre = intervals.minus_single_pass
    ends = {name: centre + scale * (intervals[name] - centre) for name in _BETWEEN}
    return intervals.assign(**ends, picked_from=now)


@dataclass(frozen=True, eq=False)
class _Draws:
    """What the intervals of one data set share: resamples of its examples, or groups, and random halves of them."""

    indices: list[Tensor]
    halves: list[Tensor]  # empty where no penalty asks for them
    share: float  # of a half
    groups: int  # or examples

    @classmethod
    def of(cls, n: int, groups: Sequence[Hashable] | None, seed: int, *, halves: bool) -> _Draws:
        count = n if groups is None else len({str(group) for group in groups})
        drawn, share = half_samples(n, groups, HALVES, seed) if halves and count > 1 else ([], 0.5)
        return cls(resamples(n, groups, REPLICATES, seed), drawn, share, count)


@dataclass(frozen=True, eq=False)
class _Calibration:
    """Means over examples that the scores of probabilities are functions of."""

    means: np.ndarray  # [bins + 2]
    replicates: np.ndarray  # [replicates, bins + 2]

    @classmethod
    def of(cls, read: Confidences, draws: _Draws) -> _Calibration:
        return cls(*(part.numpy() for part in bootstrap_calibration(read, draws.indices)))

    @property
    def drawn(self) -> dict[str, np.ndarray]:
        found = scores.calibration_of(torch.from_numpy(self.replicates))
        return {name: value.numpy() for name, value in found.items()}


@dataclass(frozen=True, eq=False)
class _Ranking:
    """One measure of one placement: every score on every resample."""

    drawn: dict[str, np.ndarray]
    halves: dict[str, np.ndarray]
    calibration: _Calibration | None
    errors: int
    freedom: int  # −1 where errors or groups are too few for an interval
    share: float

    @classmethod
    def of(
        cls, group: pd.DataFrame, chosen: Sequence[Score], draws: _Draws, calibration: _Calibration | None,
        device: torch.device,
    ) -> _Ranking:  # fmt: skip
        uncertainty = torch.as_tensor(group.uncertainty.to_numpy(copy=True), device=device)
        correct = torch.as_tensor(group.correct.to_numpy(copy=True), device=device)
        right = int(correct.sum())
        errors = min(right, len(correct) - right)
        enough = errors >= LEAST_ERRORS and draws.groups > 1
        drawn = _on_cpu(ranking_replicates(chosen, uncertainty, correct, draws.indices))
        halves = _on_cpu(bootstrap_scores(uncertainty, correct, draws.halves)) if draws.halves else {}
        drawn |= {} if calibration is None else calibration.drawn
        freedom = min(errors, draws.groups) - 1 if enough else -1
        return cls(drawn, halves, calibration, errors, freedom, draws.share)

    def interval(self, name: str, value: float) -> tuple[float, float]:
        """Of a score, within what it can be."""
        if self.freedom < 1:
            return math.nan, math.nan
        if name in _PENALTIES:
            low, high = penalty_interval(value, self.halves[name], self.freedom, share=self.share)
        elif name == "ece" and self.calibration is not None:
            bins, drawn = self.calibration.means[:-2], self.calibration.replicates[:, :-2]
            low, high = absolute_sum_interval(bins, drawn, self.freedom)
        else:
            low, high = t_interval(value, self.drawn[name], self.freedom, log=name in _RISKS)
        low = max(low, 0.0) if name in scores.TABLE or name in _SHARES else low
        high = min(high, 1.0) if name in _SHARES else high
        return min(low, value), max(high, value)


def _between(value: float, apart: np.ndarray, freedom: int, of: int) -> tuple[float, float]:
    return t_interval(value, apart, freedom, of=of) if freedom > 0 else (math.nan, math.nan)


def _on_cpu(drawn: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.cpu().numpy() for name, value in drawn.items()}


def _of_equivalents(table: pd.DataFrame, scored: pd.DataFrame) -> pd.DataFrame:
    """The intervals of placements that are equal to a computed one by mathematics."""
    equals = scored[["placement", "equivalent_to"]].dropna().drop_duplicates()
    computed = table.rename(columns={"placement": "equivalent_to"})
    return equals.merge(computed, on="equivalent_to")[[*_COLUMNS]]


def ranking_replicates(
    chosen: Sequence[Score], uncertainty: Tensor, correct: Tensor, indices: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The scores of a ranking on every resample, those of the user's own included."""
    drawn = bootstrap_scores(uncertainty, correct, indices)
    own = [score for score in chosen if score.own]
    return drawn | _own_replicates(own, uncertainty, correct, indices) if own else drawn


def _own_replicates(
    own: Sequence[Score], uncertainty: Tensor, correct: Tensor, indices: Sequence[Tensor]
) -> dict[str, Tensor]:
    uncertainty, correct = uncertainty.cpu(), correct.cpu()

    def statistics(chosen: Tensor) -> dict[str, Tensor]:
        drawn = uncertainty[chosen], correct[chosen]
        return {s.name: scores.score_rankings(s.function, s.name, *drawn, batched=s.batched) for s in own}

    return bootstrap(statistics, indices)
