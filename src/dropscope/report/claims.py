"""Published claims beside what was measured here, and whether they stand.

Owns the four verdicts and the rule behind them: an interval decides, together with its p-value, or nothing does. Not
rejecting is not support, and the absence of an effect needs a margin that was named before the run. Which claims there
are, how each is measured and what its margin is, is up to the studies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import pandas as pd

from dropscope.analysis import Estimate, t_factor

Verdict = Literal["supported", "contradicted", "equivalent", "undecided"]
Direction = Literal["above", "below", "same"]
Scale = Literal["linear", "log", "correlation"]
ALPHA = 0.05


@dataclass(frozen=True)
class Evidence:
    """A number behind a verdict with the rule it is held against: what `meta` pools over studies.

    Attributes:
        estimate: The number, its 95 % interval and its replicates.
        direction: On which side of the bound the claim puts it, or "same".
        bound: What it is compared with.
        margin: How far below and above the bound still counts as the bound.
        name: Which of a claim's several numbers it is.
        scale: On which scale its interval is symmetric.
        family: Tests that share Holm's adjustment; empty where it has none.
    """

    estimate: Estimate
    direction: Direction
    bound: float = 0.0
    margin: float | tuple[float, float] | None = None
    name: str = ""
    scale: Scale = "linear"
    family: str = ""


@dataclass(frozen=True)
class Claim:
    """One line of a study's summary.

    Attributes:
        name: Short name, unique within a study.
        statement: The claim as a sentence.
        published: The published number, in words.
        ours: The number measured here, in words.
        verdict: Whether the claim stands.
        how: The test that decided.
        quotation: The paper's own sentence with its section; empty where it is paraphrased or not the paper's.
        estimand: What is estimated, of which population.
        margin: The margin named before the run, in words.
        arithmetic: Whether the verdict is on published numbers alone, whatever was measured here.
        evidence: The numbers that decided, all of which must bear the claim out; none where no estimate did.
        one_is_enough: Whether one of them bears the claim out.
        brief: What decided in a few words, for the table of verdicts; empty where the first part of `ours` did.
    """

    name: str
    statement: str
    published: str
    ours: str
    verdict: Verdict
    how: str
    quotation: str = ""
    estimand: str = ""
    margin: str = ""
    arithmetic: bool = False
    evidence: tuple[Evidence, ...] = ()
    one_is_enough: bool = False
    brief: str = ""


def decide(
    estimate: Estimate, direction: Direction, *, bound: float = 0.0,
    margin: float | tuple[float, float] | None = None, alpha: float = ALPHA,
) -> Verdict:  # fmt: skip
    """The verdict on a claim about one number.

    - "above" or "below": the claim of an effect. The interval must exclude the bound and p must be below `alpha`. An
      interval within the margin around the bound is "equivalent": the effect, if any, does not matter.
    - "same": the claim of no difference, or of a published number. Supported by an interval inside the margin around
      the bound, contradicted by one wholly outside; p plays no part.

    An estimate without an interval, or an effect without a p-value, decides nothing.

    Args:
        estimate: What was measured; its p-value is of "it is the bound".
        direction: On which side of the bound the claim puts it, or "same".
        bound: What it is compared with.
        margin: How far from the bound still counts as the bound: one number, or one below and one above it.
        alpha: Level of the test.

    Returns:
        The verdict.

    Raises:
        TypeError: For "same" without a margin.

    Examples:
        >>> risen, little = Estimate(0.3, 0.2, 0.4, 0.001, 9, ""), Estimate(0.01, -0.01, 0.03, 0.4, 9, "")
        >>> decide(risen, "above"), decide(risen, "below"), decide(little, "above")
        ('supported', 'contradicted', 'undecided')
        >>> decide(little, "above", margin=0.05)
        'equivalent'
        >>> decide(little, "same", margin=0.05), decide(risen, "same", margin=0.05), decide(risen, "same", margin=0.3)
        ('supported', 'contradicted', 'undecided')
        >>> decide(risen, "same", bound=0.25, margin=(0.125, 0.25))
        'supported'
    """
    if margin is None and direction == "same":
        raise TypeError("a claim of no difference needs a margin")
    low, high = estimate.low - bound, estimate.high - bound
    if math.isnan(low) or math.isnan(high):
        return "undecided"
    down, up = (margin, margin) if isinstance(margin, int | float) else margin or (0.0, 0.0)
    inside = margin is not None and -down <= low and high <= up
    if direction == "same":
        return "supported" if inside else "contradicted" if high < -down or low > up else "undecided"
    if inside:
        return "equivalent"
    if not estimate.p < alpha or low <= 0 <= high:
        return "undecided"
    return "supported" if (low > 0) == (direction == "above") else "contradicted"


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim that is several at once: it stands when all do, and is as weak as its weakest part.

    >>> all_of(["supported", "undecided"]), all_of(["supported", "contradicted"]), all_of([])
    ('undecided', 'contradicted', 'undecided')
    """
    order: tuple[Verdict, ...] = ("contradicted", "equivalent", "undecided")
    return next((word for word in order if word in verdicts), "supported" if verdicts else "undecided")


def decide_all(
    estimates: Sequence[Estimate], direction: Direction, *, bound: float = 0.0,
    margin: float | tuple[float, float] | None = None,
) -> Verdict:  # fmt: skip
    """Of a claim that several numbers must bear out, each as in `decide`.

    Support needs every one of them at .05, which is no easier for their number. One of k is enough to contradict the
    claim, so that is tested at .05/k (Bonferroni); where an interval decides alone, by one that is as much wider.

    >>> up, down = Estimate(0.3, 0.2, 0.4, 0.001, 9, ""), Estimate(-0.3, -0.59, -0.01, 0.04, 9, "")
    >>> decide_all([up, up], "above"), decide_all([up, down], "above"), decide_all([up, up], "below")
    ('supported', 'undecided', 'contradicted')
    """
    return judge([Evidence(estimate, direction, bound, margin) for estimate in estimates])


def judge(evidence: Sequence[Evidence], *, one_is_enough: bool = False) -> Verdict:
    """The verdict on a claim by the numbers behind it: as in `decide_all`, each with a rule of its own.

    Where one of them is enough, as in `any_of`, each at .05 divided by how many there are.
    """
    each = _each(evidence, one_is_enough=one_is_enough)
    return any_of(each) if one_is_enough else all_of(each)


def deciding(evidence: Sequence[Evidence], *, one_is_enough: bool = False) -> int:
    """Which of the numbers behind a claim the verdict hangs on: of those that have it, the one that speaks least for
    the claim; where one is enough, most.

    >>> up, down = Estimate(0.3, 0.2, 0.4, 0.001, 9, ""), Estimate(-0.3, -0.4, -0.2, 0.001, 9, "")
    >>> deciding([Evidence(up, "above"), Evidence(down, "above")])
    1
    """
    each, verdict = _each(evidence, one_is_enough=one_is_enough), judge(evidence, one_is_enough=one_is_enough)
    having = [at for at, one in enumerate(each) if one == verdict]
    return (max if one_is_enough else min)(having, key=lambda at: _favour(evidence[at]))


def _each(evidence: Sequence[Evidence], *, one_is_enough: bool) -> list[Verdict]:
    """The verdict of each number: one that contradicts the claim does so at .05 divided by how many there are."""

    def verdicts(k: int) -> list[Verdict]:
        return [
            decide(
                _widened(e.estimate, k) if e.direction == "same" else e.estimate,
                e.direction, bound=e.bound, margin=e.margin, alpha=ALPHA / k,
            )
            for e in evidence
        ]  # fmt: skip

    strictly = verdicts(max(1, len(evidence)))
    if one_is_enough:
        return strictly
    pairs = zip(strictly, verdicts(1), strict=True)
    return [
        strict if strict == "contradicted" else "undecided" if plain == "contradicted" else plain
        for strict, plain in pairs
    ]


def _favour(e: Evidence) -> float:
    """How far a number lies on the side of the claim, in widths of its interval."""
    apart = e.estimate.value - e.bound
    width = e.estimate.high - e.estimate.low
    towards = {"above": apart, "below": -apart, "same": -abs(apart)}[e.direction]
    favour = towards / width if width > 0 else towards
    return -math.inf if math.isnan(favour) else favour


def _widened(e: Estimate, k: int) -> Estimate:
    """The estimate with an interval at 1 − .05/k: Student's, of as many replicates as it has."""
    factor = t_factor(e.n - 1, of=k) / t_factor(e.n - 1)
    return replace(e, low=e.value + factor * (e.low - e.value), high=e.value + factor * (e.high - e.value))


def any_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim that one case is enough for.

    >>> any_of(["contradicted", "supported"]), any_of(["contradicted", "undecided"]), any_of(["contradicted"])
    ('supported', 'undecided', 'contradicted')
    """
    order: tuple[Verdict, ...] = ("supported", "undecided", "equivalent")
    return next((word for word in order if word in verdicts), "contradicted" if verdicts else "undecided")


def format_estimate(value: float, low: float, high: float, digits: int = 4, unit: str = "") -> str:
    """A number with its 95 % interval, as summaries print it.

    >>> format_estimate(0.12345, 0.1, 0.2)
    '0.1235 (0.1000 to 0.2000)'
    >>> format_estimate(0.12345, math.nan, math.nan)
    '0.1235 (no interval)'
    """
    if math.isnan(low) or math.isnan(high):
        return f"{value:.{digits}f}{unit} (no interval)"
    return f"{value:.{digits}f}{unit} ({low:.{digits}f}{unit} to {high:.{digits}f}{unit})"


def claims_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """One row per claim, one column per attribute; the numbers of its evidence are in `claims.json`."""
    table = pd.DataFrame([asdict(claim) for claim in claims])
    return table.drop(columns=["evidence", "one_is_enough", "brief"], errors="ignore")
