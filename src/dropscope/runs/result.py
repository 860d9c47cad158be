"""The result of a sweep, as a user holds it: `Run`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from dropscope import scores
from dropscope.checks import check_choice
from dropscope.display import Table
from dropscope.runs.finalists import AGAINST
from dropscope.runs.intervals import INTERVAL, MONTE_CARLO, picked_from
from dropscope.runs.plots import RunPlots
from dropscope.runs.ranking import BestRows, best_table
from dropscope.runs.verdicts import Judgement, judge

_EXPLORED = 2_000  # rows of the report in a notebook, which must not grow large
_SHOWN_BY = ("aurc", "augrc")  # the score that a run shows its best rows by


@dataclass(frozen=True, eq=False)
class Run:
    """What a sweep found.

    Attributes:
        rows: A row per placement and measure: accuracy, every score, `aurc_minus_single_pass` (AURC less that of one
            plain pass ranked by its entropy: below 0 is better) and cost. `equivalent_to` names the placement that was
            computed instead, where two are equal by mathematics.
        baseline: The measures of one plain pass, scored on the same examples.
        intervals: A row per finalist or baseline and score: `value`, its 95 % interval `low` to `high`,
            `minus_single_pass` (the difference to one plain pass) and the interval of that, paired by example. The
            latter hold for all `picked_from` rows at once; without ten `errors` there are none. `monte_carlo` is the
            standard error of the value, and of the difference, by the draw of the passes: what another seed would
            move them by. A plain pass has none; NaN where it is not known (one block of passes, large sweeps).
        examples: Per-example uncertainty and correctness of the finalists and the baseline.
        spec: What identifies the run: data, weights, code, placements, seed.
        engine: The engine that ran: "shared" or "loop".
        folder: Where the run is stored: a path, or the text of an address; None without `out`.
        levels: Each penalty of a random and of a perfectly monotone measure on as many examples.
        seconds: Wall time of each stage.
        reason: Why the loop ran, where "auto" took it; empty for a run that was opened from its folder.
        origin: Where the rows come from: the model's `sites`, the audit's `findings` at those that got noise,
            `versions`, and the `command` that started the process, where one did.

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
    intervals: pd.DataFrame
    examples: pd.DataFrame
    spec: dict[str, Any]
    engine: str
    folder: Path | str | None = None
    levels: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def plot(self) -> RunPlots:
        """Pictures, each as matplotlib Axes: `plot()`, `plot.risk_coverage()`, `.accuracy_curves()` and `.sites()`."""
        return RunPlots(self.rows, self.baseline, self.examples, self._directions)

    @cached_property
    def verdict(self) -> Judgement | None:
        """The row of least AURC against one plain pass; None where the run keeps no examples of its rows.

        The row was picked on the examples that judge it, so its interval is widened for the number of rows it was
        picked from. `try_out` picks and judges on different examples, which is sharper.
        """
        rankings = self.rankings()
        if not rankings:
            return None
        mc, plain = rankings.values()
        names = (str(mc.placement.iloc[0]), str(mc.measure.iloc[0]), AGAINST)
        groups = mc.group.tolist() if "group" in mc else None
        seed = self.spec.get("seed", 0)
        found = self.with_intervals(mc.head(1)[["placement", "measure"]].assign(aurc=0.0))[MONTE_CARLO].iloc[0]
        return judge(
            names, mc, plain, groups=groups, picked_from=picked_from(self.rows), seed=seed,
            monte_carlo=None if pd.isna(found) else float(found),
        )  # fmt: skip

    def rankings(self, count: int = 1) -> dict[str, pd.DataFrame]:
        """Per-example values of the rows of least AURC and of one plain pass, by name; empty where none are kept.

        Args:
            count: How many rows beside the plain pass.

        Returns:
            The best row first, the plain pass last.
        """
        kept = dict(iter(self.examples.groupby(["placement", "measure"], sort=False)))
        if "aurc" not in self.rows:
            return {}
        best = self.rows.sort_values("aurc", kind="stable")[["placement", "measure"]].itertuples(index=False, name=None)
        found = {f"{key[0]}, {key[1]}": kept[key] for key in itertools.islice(filter(kept.__contains__, best), count)}
        return found | {"one plain pass, entropy": kept["none", AGAINST]} if found else {}

    def best(self, score: str = "aurc", count: int = 10) -> pd.DataFrame:
        """The rows that score best.

        Args:
            score: A score that the rows have.
            count: How many rows.

        Returns:
            Rows of `rows`, the best first, with the intervals of that score where they are known. The table has all
            columns and prints the few by which rows are chosen.

        Raises:
            BadInput: For a score that the rows do not have.
        """
        directions = self._directions
        scores.check_score(score, "score", directions)
        best = self.rows.sort_values(score, ascending=directions[score] == "lower", kind="stable").head(count)
        return BestRows.of(self.with_intervals(best, score), score, directions[score])

    @property
    def _directions(self) -> dict[str, str]:
        """Every score of the rows, with the direction that is better."""
        known = {row.name: row.direction for row in scores.TABLE.values()} | self.spec.get("own_scores", {})
        return {name: direction for name, direction in known.items() if name in self.rows}

    def with_intervals(self, table: pd.DataFrame, score: str = "aurc") -> pd.DataFrame:
        """Rows with the intervals of one score.

        Args:
            table: Rows of `rows` or `baseline`.
            score: A score that they have, or "accuracy".

        Returns:
            The rows with columns `low` and `high` (95 % interval of the score), `minus_single_pass` (its difference
            to one plain pass), `minus_single_pass_low` and `minus_single_pass_high` (which hold for all `picked_from`
            rows of the sweep at once), `errors`, and `monte_carlo` (the standard error of the score by the draw of
            the passes); NaN where none are kept.

        Raises:
            BadInput: For a score that the rows do not have.
        """
        check_choice(score, "score", list(self.intervals.score.unique()))
        columns = ["placement", "measure", *INTERVAL, "errors", "picked_from", MONTE_CARLO]
        found = self.intervals[self.intervals.score == score].reindex(columns=columns)
        plain = float(self.baseline[score][self.baseline.measure == AGAINST].iloc[0])
        known = table.join(found.set_index(["placement", "measure"]), on=["placement", "measure"])
        return known.assign(minus_single_pass=known[score] - plain)

    def __repr__(self) -> str:
        return self._table(count=3, baselines=1).text()

    def _repr_html_(self) -> str:
        from dropscope import write_report  # stands above

        page = write_report(self, out=None, rows=_EXPLORED)._repr_html_()
        table = self._table(count=5, baselines=3).html()  # all that is left where a viewer takes frames out
        return f"{table}<details open><summary>Report</summary>{page}</details>"

    def _table(self, count: int, baselines: int) -> Table:
        """The best rows beside one plain pass."""
        score = next(name for name in (*_SHOWN_BY, *self._directions) if name in self.rows)
        plain = self.with_intervals(self.baseline, score)
        plain = plain.sort_values("measure", key=lambda names: names != AGAINST, kind="stable").head(baselines)
        placements, measures = self.rows.placement.nunique(), self.rows.measure.nunique()
        passes, examples = self.spec.get("passes"), self.spec.get("examples")
        caption = f"{placements} placements × {measures} measures, {passes} passes on {examples} examples"
        notes = [f"the best of {len(self.rows)} rows by {score}, and one plain pass; {self.engine} engine"]
        notes += [] if self.folder is None else [f"folder: {self.folder}"]
        best = pd.concat([self.best(score, count), plain])
        return best_table(best, score, self._directions[score], caption, notes)
