"""Published claims beside what was measured here, and whether they stand.

Owns the three verdicts and the rule behind them: an interval decides or it does not. Which claims there are, and how
each is measured, is up to the studies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd

Verdict = Literal["holds", "does not hold", "cannot be decided"]


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
    """

    name: str
    statement: str
    published: str
    ours: str
    verdict: Verdict
    how: str


def verdict_of_interval(low: float, high: float, *, above: float | None = None, below: float | None = None) -> Verdict:
    """Whether an interval lies on the claimed side of a bound; one that crosses it, or is undefined, decides nothing.

    >>> [verdict_of_interval(low, low + 0.2, above=0) for low in (0.2, -0.3, -0.1)]
    ['holds', 'does not hold', 'cannot be decided']
    >>> verdict_of_interval(0.2, 0.4, below=1), verdict_of_interval(float("nan"), 1, below=0)
    ('holds', 'cannot be decided')
    """
    if (above is None) == (below is None):
        raise TypeError("give either above or below, and not both")
    if math.isnan(low) or math.isnan(high):
        return "cannot be decided"
    if above is not None:
        return "holds" if low > above else "does not hold" if high < above else "cannot be decided"
    assert below is not None
    return "holds" if high < below else "does not hold" if low > below else "cannot be decided"


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
    """One row per claim, one column per attribute."""
    return pd.DataFrame([asdict(claim) for claim in claims])
