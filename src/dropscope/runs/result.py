"""What a sweep found, as a user holds it: its tables, and the rows that score best."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope import scores
from dropscope.errors import BadInput, nearest

RANKING = tuple(name for name, score in scores.TABLE.items() if score.takes == "ranking")


@dataclass(frozen=True, eq=False)
class Run:
    """What a sweep found: `rows` per placement × measure, `baseline` of one plain pass, `examples` of the finalists."""

    rows: pd.DataFrame
    baseline: pd.DataFrame
    examples: pd.DataFrame
    spec: dict[str, Any]
    engine: str
    folder: Path | None = None
    levels: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # each penalty of a random and of a monotone measure
    seconds: dict[str, float] = field(default_factory=dict)  # wall time of each stage

    def best(self, score: str = "aurc", count: int = 10) -> pd.DataFrame:
        """The rows that score best."""
        check_score(score)
        if score not in self.rows:
            known = [name for name in RANKING if name in self.rows]
            raise BadInput("rows are ordered by a score they have", "score", score, f"write one of {known}")
        rising = scores.TABLE[score].direction == "lower"
        return self.rows.sort_values(score, ascending=rising, kind="stable").head(count)


def check_score(name: str) -> None:
    if name not in RANKING:
        raise BadInput("a score of a sweep is one of the ranking scores", "score", name, nearest(str(name), RANKING))
