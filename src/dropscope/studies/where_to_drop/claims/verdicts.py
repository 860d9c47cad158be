"""Verdicts from lines of the effects table, and their wording: the same rules for every claim of the study.

Owns the rules: an interval decides, within a family only together with Holm's p; a published number holds when ours
lies within a factor of two; "no effect" holds only when the interval lies inside a stated margin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from dropscope.analysis import Estimate
from dropscope.report import Verdict, format_estimate, verdict_of_interval

ALPHA = 0.05
FACTOR = 2.0  # a published number is met within this factor
MARGIN = 0.1  # "no effect": less than this share of the mean score

# How claims name the scores they judge.
WORDS = {"isotonic_penalty": "isotonic penalty", "rearrangement_penalty": "rearrangement penalty", "aurc": "AURC"}

UNDECIDED: Verdict = "cannot be decided"
ONE_NETWORK = "one network, so no interval: a rule about networks needs two or more"


def decide(line: pd.Series, *, above: float | None = None, below: float | None = None) -> Verdict:
    """`decided`, but only where Holm's p of the line's family agrees."""
    verdict = verdict_of_interval(float(line["low"]), float(line["high"]), above=above, below=below)
    return verdict if line["p_holm"] <= ALPHA else UNDECIDED


def moved(line: pd.Series) -> Verdict:
    """Whether there is an effect in either direction; none found is not none there."""
    return "holds" if decide(line, above=0) != UNDECIDED else UNDECIDED


def without_effect(line: pd.Series, mean: float) -> Verdict:
    """Whether the effect is absent: inside ± MARGIN of the mean score it is; outside zero and reaching past the margin
    it is not."""
    low, high, margin = float(line["low"]), float(line["high"]), MARGIN * mean
    if math.isnan(low) or math.isnan(high):
        return UNDECIDED
    if -margin < low and high < margin:
        return "holds"
    return "does not hold" if decide(line, above=0) != UNDECIDED else UNDECIDED


def within(low: float, high: float, least: float, most: float) -> Verdict:
    """Whether an interval lies inside a range, outside it, or across its edge.

    >>> within(0.72, 0.74, 0.71, 0.76), within(0.60, 0.70, 0.71, 0.76), within(0.70, 0.74, 0.71, 0.76)
    ('holds', 'does not hold', 'cannot be decided')
    """
    if math.isnan(low) or math.isnan(high):
        return UNDECIDED
    if least <= low and high <= most:
        return "holds"
    return "does not hold" if high < least or low > most else UNDECIDED


def near(low: float, high: float, published: float) -> Verdict:
    """Whether ours is the published number, within a factor of two."""
    return within(low, high, published / FACTOR, published * FACTOR)


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim that is several at once: it stands when all do and falls when one does.

    >>> all_of(["holds", "cannot be decided"]), all_of(["holds", "does not hold"]), all_of([])
    ('cannot be decided', 'does not hold', 'cannot be decided')
    """
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts and all(verdict == "holds" for verdict in verdicts) else UNDECIDED


def any_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim that one case is enough for.

    >>> any_of(["does not hold", "holds"]), any_of(["does not hold", "cannot be decided"]), any_of(["does not hold"])
    ('holds', 'cannot be decided', 'does not hold')
    """
    if "holds" in verdicts:
        return "holds"
    return "does not hold" if verdicts and all(verdict == "does not hold" for verdict in verdicts) else UNDECIDED


def with_interval(of: pd.Series | Estimate) -> str:
    """A number with its interval, to three significant digits; without one where there is none (`by_test` says why)."""
    value, low, high = (float(of[n] if isinstance(of, pd.Series) else getattr(of, n)) for n in ("value", "low", "high"))
    if math.isnan(value):
        return "undefined"
    if math.isnan(low) or math.isnan(high):
        return f"{value:.3g}"
    largest = max(abs(value), abs(low), abs(high))
    return format_estimate(value, low, high, digits=max(1, 3 - math.ceil(math.log10(largest)) if largest else 1))


def by_test(line: pd.Series) -> str:
    """The test of a line in words."""
    if math.isnan(float(line["p"])):
        return ONE_NETWORK
    return f"{line['method']}; p = {line['p']:.2g}, Holm's {line['p_holm']:.2g} within its family"


def measured(estimate: Estimate) -> str:
    """How an estimate came about, in words."""
    return ONE_NETWORK if math.isnan(estimate.low) else estimate.method
