"""Judgements: a placement against one plain pass on the same examples, and what deferring by either would do.

Owns the rule that turns a paired difference of a score, AURC mostly, into words. It decides only where the errors are
enough for the interval to hold, and widens the interval where the placement was picked on the examples it is judged on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dropscope import scores
from dropscope.analysis import REPLICATES, resamples, t_factor

LEAST_ERRORS = 30  # with fewer, the interval of an AURC does not hold what it promises
DEFERRED = (0.0, 0.05, 0.1, 0.2, 0.3)
_MOVED = 200  # times that uncertainties are moved by their errors
_LONGEST = 60  # characters of a placement in a sentence


@dataclass(frozen=True)
class Judgement:
    """How a placement ranks errors, compared with one plain pass.

    Attributes:
        placement: Text of the placement.
        measure: The measure that ranks its examples.
        rival: The measure of one plain pass that it is compared with.
        difference: Score of the placement minus that of the plain pass; of AURC, below 0 the placement ranks better.
        low: Lower end of the interval of the difference.
        high: Upper end.
        examples: How many examples both rank.
        errors: The fewer of the errors that either ranks.
        picked_from: Of how many rows this one was the best on these very examples; 1 where it was picked on others.
        monte_carlo: Standard error of the difference by the draw of the passes; None where it is not known.
        score: The score of the rankings.
        level: Of the interval.

    Examples:
        >>> verdict = Judgement("last=0.5", "bald", "plain_entropy", -0.02, -0.03, -0.01, 500, 60)
        >>> verdict.word
        'better'
    """

    placement: str
    measure: str
    rival: str
    difference: float
    low: float
    high: float
    examples: int
    errors: int
    picked_from: int = 1
    monte_carlo: float | None = None
    score: str = "aurc"
    level: float = 0.95

    @property
    def word(self) -> Literal["better", "worse", "undecided"]:
        """What the interval says; undecided too where the errors are too few for an interval that holds."""
        if self.errors < LEAST_ERRORS or not self.low * self.high > 0:
            return "undecided"
        return "better" if (self.high < 0) == (scores.TABLE[self.score].direction == "lower") else "worse"

    def __str__(self) -> str:
        title = "AURC" if self.score == "aurc" else self.score
        interval = f"{100 * self.level:g} % interval {self.low:+.4f} to {self.high:+.4f}"
        numbers = f"{title} difference {self.difference:+.4f}, {interval}"
        if self.picked_from > 1:
            numbers += f", widened because it is the best of {self.picked_from} rows on these very examples"
        if self.monte_carlo is not None:
            numbers += f", Monte Carlo error {self.monte_carlo:.4f}"
            if abs(self.difference) < 2 * self.monte_carlo:
                numbers += ": no more than other masks could make of it, so take more passes"
        if self.errors < LEAST_ERRORS:
            few = f"only {self.errors} of {self.examples} predictions are wrong, and a verdict needs {LEAST_ERRORS}"
            return f"Undecided: {few}. Use one plain pass until there are more examples ({numbers})."
        named = short_placement(self.placement)
        if self.word == "better":
            return f"{named} ranks errors better than one plain pass here ({numbers})."
        if self.word == "worse":
            return f"One plain pass ranks errors better than {named} here ({numbers}). Use the plain pass."
        return (
            f"No evidence that {named} ranks errors better than one plain pass here ({numbers}). "
            "Use the plain pass: it costs one forward."
        )


def short_placement(text: str) -> str:
    """A placement as a sentence can hold it; `Judgement.placement` has all of it.

    >>> short_placement("layer1.conv=0.5,layer2.conv=0.5,layer3.conv=0.5,layer4.conv=0.5")
    'layer1.conv=0.5 and 3 more sites'
    """
    terms = text.split(" ")[0].split(",")
    return text if len(text) <= _LONGEST or len(terms) < 2 else f"{terms[0]} and {len(terms) - 1} more sites"


def judge(
    names: tuple[str, str, str],
    mc: pd.DataFrame,
    plain: pd.DataFrame,
    *,
    groups: Sequence[Hashable] | None = None,
    picked_from: int = 1,
    seed: int = 0,
    monte_carlo: float | None = None,
    score: str = "aurc",
    level: float = 0.95,
) -> Judgement:
    """Compares two rankings of the same examples.

    The interval is the difference ± t·s, with s its standard error over resampled examples (or groups) and t the
    quantile of Student's distribution with errors − 1 degrees of freedom, at (1 − level)/`picked_from` (Bonferroni).

    Args:
        names: Placement, its measure, and the measure of the plain pass.
        mc: Columns `uncertainty` and `correct` under the placement; `error` too, where the Monte Carlo standard errors
            of the uncertainties are known and those of different examples are independent.
        plain: The same of the plain pass.
        groups: What is resampled instead of examples.
        picked_from: How many rows the placement was picked from by these very examples.
        seed: Of the resampling.
        monte_carlo: Standard error of the difference by the draw of the passes, where it is known already.
        score: A score of a ranking, by name.
        level: Of the interval; .98 is that of a test on one side at 99 %.

    Returns:
        The judgement.
    """
    sides = [(_tensor(table.uncertainty), _tensor(table.correct)) for table in (mc, plain)]
    first, second = (float(scores.TABLE[score].function(*side)) for side in sides)
    errors = min(int((~right.bool()).sum()) for _, right in sides)
    indices = resamples(len(mc), groups, REPLICATES, seed)
    counts = torch.stack([torch.bincount(chosen, minlength=len(mc)) for chosen in indices])
    drawn = _replicates(score, sides[0], counts) - _replicates(score, sides[1], counts)
    spread = float(drawn.std())
    half = t_factor(errors - 1, level, picked_from) * spread
    difference = first - second
    by_passes = _monte_carlo(mc, sides[0], seed, score) if monte_carlo is None else monte_carlo
    ends = difference - half, difference + half
    return Judgement(*names, difference, *ends, len(mc), errors, picked_from, by_passes, score, level)


def _replicates(score: str, side: tuple[Tensor, Tensor], counts: Tensor) -> Tensor:
    if score == "aurc":
        return scores.weighted_aurc(*side, counts)
    return scores.weighted_ranking_scores(*side, counts)[score]


def _monte_carlo(mc: pd.DataFrame, side: tuple[Tensor, Tensor], seed: int, score: str) -> float | None:
    """The spread of the score when each uncertainty moves by its own error."""
    if "error" not in mc or not np.isfinite(mc.error).all():
        return None
    uncertainty, right = side
    draw = torch.Generator().manual_seed(seed)
    moved = torch.randn(_MOVED, len(mc), generator=draw) * _tensor(mc.error).float()
    return float(scores.TABLE[score].function(uncertainty.float() + moved, right.expand(_MOVED, -1)).std())


def deferral_table(rankings: Mapping[str, pd.DataFrame], shares: Sequence[float] = DEFERRED) -> pd.DataFrame:
    """What deferring the most uncertain examples does: a row per share and ranking.

    Args:
        rankings: Name of each → table with columns `uncertainty` and `correct`.
        shares: Shares of the examples that are deferred.

    Returns:
        Columns `deferred`, `ranking`, `accuracy` of the kept, `errors_caught` (share of all errors) and `errors_kept`.

    Examples:
        >>> table = pd.DataFrame({"uncertainty": [0.1, 0.2, 0.3, 0.9], "correct": [True, True, True, False]})
        >>> deferral_table({"plain": table}, [0.25])[["accuracy", "errors_caught"]].values.tolist()
        [[1.0, 1.0]]
    """
    rows = []
    for share in shares:
        for name, table in rankings.items():
            kept = table.sort_values("uncertainty", kind="stable").head(round((1 - share) * len(table))).correct
            wrong, left = int((~table.correct.astype(bool)).sum()), int((~kept.astype(bool)).sum())
            caught = (wrong - left) / wrong if wrong else float("nan")
            accuracy = float(kept.mean()) if len(kept) else float("nan")
            rows.append({"deferred": share, "ranking": name, "accuracy": accuracy,
                         "errors_caught": caught, "errors_kept": left})  # fmt: skip
    return pd.DataFrame(rows)


def deferral_lines(deferral: pd.DataFrame, names: list[str]) -> list[str]:
    """The table of two rankings, in lines of less than 80 columns."""
    lines = [f"({letter}) {name}" for letter, name in zip("ab", names, strict=True)]
    lines.append(f"{'deferred':>10} {'accuracy of the kept':>25} {'errors caught':>22}")
    lines.append(f"{'':>10} {'(a)':>14} {'(b)':>10} {'(a)':>12} {'(b)':>10}")
    for share, both in deferral.groupby("deferred"):
        accuracy = " ".join(f"{100 * value:>8.1f} %" for value in both.accuracy)
        caught = " ".join(f"{100 * value:>8.0f} %" for value in both.errors_caught)
        lines.append(f"{100 * float(share):>8.0f} %      {accuracy}   {caught}")
    return lines


def _tensor(column: pd.Series) -> Tensor:
    return torch.as_tensor(np.asarray(column).copy())
