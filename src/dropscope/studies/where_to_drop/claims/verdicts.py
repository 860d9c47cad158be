"""Verdicts from lines of the effects table, and their wording: the same rules for every claim of the study.

Owns what they share: an effect is decided by its interval and Holm's p of its family together, a published number by
a factor of two, the absence of an effect by a share of the mean score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from dropscope.analysis import Estimate, log_over_networks
from dropscope.report import Direction, Evidence, Verdict, decide, decide_all, deciding, format_estimate
from dropscope.studies.where_to_drop.published import AURC_MARGIN, FACTOR, LEAST_NETWORKS, MARGIN

MARGIN_WORDS = f"± {100 * MARGIN:.0f} % of the mean score"
AURC_WORDS = f"± {100 * AURC_MARGIN:.0f} % of the mean AURC"

# How claims name the scores they judge.
WORDS = {"isotonic_penalty": "isotonic penalty", "rearrangement_penalty": "rearrangement penalty", "aurc": "AURC"}

EVERY_ONE = (
    "stands if every difference does at .05, falls if one is reversed at .05 divided by how many there are; equivalent "
    "where one lies within the margin: that rival is as good; t over networks"
)

IDENTITY = "an identity"  # how a claim starts that no number of networks or images can change
ONE_NETWORK = f"one network, so no interval: a rule about networks needs {LEAST_NETWORKS} or more"


def estimate_of(line: pd.Series, p: str = "p_holm") -> Estimate:
    """A line of the table of effects, its p-value by default adjusted within its family; too few networks have none."""
    value, low, high, found = (float(line[name]) for name in ("value", "low", "high", p))
    return enough(Estimate(value, low, high, found, int(line["n"]), str(line["method"])))


def enough(estimate: Estimate) -> Estimate:
    """The estimate, without its interval where fewer than three networks gave it."""
    if estimate.n >= LEAST_NETWORKS:
        return estimate
    return replace(estimate, low=math.nan, high=math.nan, p=math.nan)


def share(estimate: Estimate, level: float, steps: float = 1.0) -> Estimate:
    """`steps` times the estimate as a share of the mean score, which margins are of."""
    factor = steps / level if level > 0 else math.nan
    value, low, high = (factor * end for end in (estimate.value, estimate.low, estimate.high))
    return replace(estimate, value=value, low=low, high=high)


def of_networks(rows: pd.DataFrame, statistic: Callable[[pd.DataFrame], float], null: float = 1.0) -> Estimate:
    """A positive statistic of each network's own rows, over networks on the scale of its logarithm."""
    return log_over_networks([statistic(own) for _, own in rows.groupby("network", sort=False, observed=True)], null)


def near(estimate: Estimate, published: float) -> Verdict:
    """Whether ours is the published number, within a factor of two."""
    rule = near_evidence(estimate, published)
    return decide(rule.estimate, rule.direction, bound=rule.bound, margin=rule.margin)


def near_evidence(estimate: Estimate, published: float) -> Evidence:
    """A number against the published one, as `near` has it."""
    margin = (published - published / FACTOR, published * (FACTOR - 1))
    return Evidence(enough(estimate), "same", published, margin, scale="log")


def effect_evidence(line: pd.Series, direction: Direction, name: str = "", bound: float = 0.0) -> Evidence:
    """A line of the table of effects behind a claim by itself, whose p-value is adjusted within its family."""
    family = "" if name else f"{line['effect']}, {line['statistic']}"
    return Evidence(estimate_of(line, "p" if name else "p_holm"), direction, bound, name=name, family=family)


def share_evidence(estimate: Estimate, level: float, name: str) -> Evidence:
    """An absent effect, as a share of the mean score, so that studies of other scores can be joined with it."""
    value, low, high = (end / level if level else math.nan for end in (estimate.value, estimate.low, estimate.high))
    return Evidence(replace(estimate, value=value, low=low, high=high), "same", margin=MARGIN, name=name)


def moves(change: Estimate, rank: Estimate) -> Verdict:
    """Whether a score moves with a quantity, in a direction that the paper does not give: the change from end to end,
    as a share of the mean score, and the rank correlation must agree. A change within the margin is none."""
    if decide(change, "same", margin=MARGIN) == "supported":
        return "equivalent"
    either = (decide_all([change, rank], way) for way in ("above", "below"))
    return "supported" if "supported" in either else "undecided"


def what_decided(texts: Sequence[str], evidence: Sequence[Evidence], *, one_is_enough: bool = False) -> str:
    """The text of the number that decided, of as many as there are numbers; the first where none did."""
    return texts[deciding(evidence, one_is_enough=one_is_enough)] if len(evidence) == len(texts) else texts[0]


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
    adjusted = f"p = {line['p']:.2g}, Holm's {line['p_holm']:.2g} within its family"
    return f"{line['method']}{_too_few(int(line['n']))}; {adjusted}"


def measured(estimate: Estimate) -> str:
    """How an estimate came about, in words."""
    return ONE_NETWORK if math.isnan(estimate.low) else f"{estimate.method}{_too_few(estimate.n)}"


def _too_few(networks: int) -> str:
    return "" if networks >= LEAST_NETWORKS else f", and a verdict needs {LEAST_NETWORKS}"
