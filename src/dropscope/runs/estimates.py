"""Expected time of what a sweep does beside its passes: scores, and a closer look at the finalists."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dropscope.analysis import HALVES, REPLICATES, resamples
from dropscope.engine import timed
from dropscope.measures import PLAIN_TABLE
from dropscope.runs.intervals import ranking_replicates
from dropscope.runs.rows import RowMaker, score_all

_VALUES = 1 << 18  # that are scored or resampled to time it
_PER_ROW = 0.005  # seconds for the tables and quantiles of a finalist


@dataclass(frozen=True)
class Rest:
    """Seconds of what comes beside the passes.

    Attributes:
        scores: Of all rows.
        intervals: Of the finalists and the baselines, with their plain pass.
        again: The share of the passes that is run again for the finalists.
    """

    scores: float
    intervals: float
    again: float

    def finalists(self, passes: float) -> float:
        """Seconds of everything after the last row, in a sweep whose passes take so many."""
        return self.intervals + self.again * passes


def expected_rest(maker: RowMaker, keep: int | None) -> Rest:
    """Times a little of everything on made-up values.

    Args:
        maker: Of the sweep.
        keep: How many rows become finalists; None for all.
    """
    device, n = maker.session.device, maker.session.data.n
    placements, measures = len(maker.placements), len(maker.measures)
    finalists = placements * measures if keep is None else min(keep, placements * measures)
    generator = torch.Generator().manual_seed(0)
    shape = measures, max(1, min(placements, _VALUES // (measures * n))), n
    made_up = torch.rand(shape, generator=generator).to(device)
    right = made_up[0] < 0.8
    rankings = [score for score in maker.scores if score.takes == "ranking"]
    scoring = timed(lambda: score_all(rankings, made_up, right, None), device, 2) / made_up.shape[1]
    drawn = resamples(n, None, min(REPLICATES, max(10, _VALUES // n)), 0)
    once = timed(lambda: ranking_replicates(rankings, made_up[0, 0], right[0], drawn), device, 2)
    bootstrapping = once * (REPLICATES + HALVES) / len(drawn)
    few = maker.session.data.batches[0].take(range(min(16, maker.session.data.batches[0].n)))
    with torch.no_grad(), maker.session.sealed():
        plain = timed(lambda: maker.session.plain(few), device, 2) / few.n
    return Rest(
        scoring * placements,
        plain * n + (bootstrapping + _PER_ROW) * (finalists + len(PLAIN_TABLE)),
        0.0 if maker.remembers else min(finalists, placements) / placements,
    )
