"""The result of a sweep, as a user holds it: `Run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope import scores
from dropscope.checks import check_choice

RANKING = tuple(name for name, score in scores.TABLE.items() if score.takes == "ranking")


@dataclass(frozen=True, eq=False)
class Run:
    """What a sweep found.

    Attributes:
        rows: A row per placement and measure: accuracy, every score, cost, and for the finalists intervals and paired
            differences to one plain pass. `equivalent_to` names the placement that was computed instead, where two are
            equal by mathematics.
        baseline: The measures of one plain pass, scored on the same examples.
        examples: Per-example uncertainty and correctness of the finalists and the baseline.
        spec: What identifies the run: data, weights, code, placements, seed.
        engine: The engine that ran: "shared" or "loop".
        folder: Where the run is stored; None without `out`.
        levels: Each penalty of a random and of a perfectly monotone measure on as many examples.
        seconds: Wall time of each stage.

    Examples:
        >>> import torch
        >>> from dropscope import sweep
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        >>> run = sweep(net, ["last=0.5"], (torch.randn(40, 4), torch.randint(0, 3, (40,))), passes=5)
        >>> len(run.best("aurc", count=2))
        2
    """

    rows: pd.DataFrame
    baseline: pd.DataFrame
    examples: pd.DataFrame
    spec: dict[str, Any]
    engine: str
    folder: Path | None = None
    levels: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def best(self, score: str = "aurc", count: int = 10) -> pd.DataFrame:
        """The rows that score best.

        Args:
            score: A score that the rows have.
            count: How many rows.

        Returns:
            Rows of `rows`, the best first.

        Raises:
            BadInput: For a score that the rows do not have.
        """
        check_choice(score, "score", [name for name in RANKING if name in self.rows])
        rising = scores.TABLE[score].direction == "lower"
        return self.rows.sort_values(score, ascending=rising, kind="stable").head(count)
