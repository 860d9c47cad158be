"""The choice that a tuning comes to: what to use, beside everything that it was compared with."""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import nn

from dropscope.data import Data
from dropscope.deploy.predictor import UncertaintyPredictor
from dropscope.display import Table, headed
from dropscope.errors import BadInput, Phrase
from dropscope.progress import format_count
from dropscope.runs import LEAST_ERRORS, Choice, Run
from dropscope.runs import deferral_lines as lines_of_deferral

if TYPE_CHECKING:
    from dropscope.deploy.rivals import Comparison

_RANKS = {"95 % interval": 2, "acc↑": 3, "cost↓": 1, "ranked by": 4}


@dataclass(frozen=True, eq=False, kw_only=True)
class TunedChoice(Choice):
    """What to use on a model, and why: a `Choice` that a search came to, judged beside rivals.

    Attributes:
        objective: The score that the search was by.
        table: A row per finalist, rule and rival on the examples that judged, in the order of AURC: `name`, `kind`,
            `measure`, `accuracy`, `aurc` with its interval, other scores, `cost` in plain passes; `front` marks those
            that none is better than in accuracy, AURC and cost at once.
        differences: A row per name and score: `difference` to one plain pass with an interval that holds for all
            names at once.
        search: A row per placement and measure of the race, with its `state`; None where the whole grid ran.
        judged: The rows of the finalists and rules on the examples that judged.
        sizes: Examples that searched ("search"), judged ("judging") and are left for a predictor ("unused").
        predictions: Placements × passes × examples that ran, in the search and among the finalists.
        share: Of the predictions of a sweep over every placement of the space, with as many passes.
        unused: The examples that neither searched nor judged.
        comparison: Everything about the rivals; None for a choice that was read from its folder.
    """

    objective: str = "aurc"
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    differences: pd.DataFrame = field(default_factory=pd.DataFrame)
    search: pd.DataFrame | None = None
    judged: Run | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    predictions: int = 0
    share: float = 1.0
    unused: Data | None = None
    comparison: Comparison | None = None

    @property
    def pareto(self) -> pd.DataFrame:
        """The rows that none is better than in accuracy, AURC and cost at once, the cheapest first."""
        front = self.table[self.table.front].sort_values(["cost", "aurc"], kind="stable", ignore_index=True)
        return front[["name", "kind", "measure", "accuracy", "aurc", "cost"]]

    @property
    def verdict(self) -> str:
        """The answer in one or two sentences."""
        said = self.judgement
        silent = said.word == "better" or said.errors < LEAST_ERRORS
        begin = "" if silent else "One plain pass; MC dropout does not help here. "
        return f"{begin}{said}{self._beaten()}"

    def _beaten(self) -> str:
        """A rival that ranks better than the choice on the examples that judged, by more than its interval."""
        chosen = self.chosen_name
        rows = self.differences[self.differences.score == "aurc"].set_index("name")
        if chosen not in rows.index:
            return ""
        better = rows[(rows.difference_high < 0) & (rows.value < rows.value[chosen])].sort_values("value")
        better = better[[name != chosen for name in better.index]]
        kinds = self.table.set_index("name").kind
        better = better[[kinds[name] != "dropout" for name in better.index]]
        if not len(better):
            return ""
        name = str(better.index[0])
        cost = float(self.table.set_index("name").cost[name])
        return f" Look at {name} too: AURC {better.value.iloc[0]:.4f} for {cost:.3g} plain passes."

    @property
    def chosen_name(self) -> str:
        """The row of `table` that was chosen."""
        return self.measure.removeprefix("plain_") if self.placement is None else str(self.placement)

    def predictor(
        self,
        target_risk: float = 0.05,
        confidence: float = 0.9,
        *,
        data: Any = None,
        model: nn.Module | None = None,
        **rule: Any,
    ) -> UncertaintyPredictor:
        """A predictor with this placement and measure, or of one plain pass, calibrated on examples that are unused.

        Args:
            target_risk: What the error among the kept may be at most.
            confidence: Probability with which that holds.
            data: Labelled data that neither trained the model nor was given to `tune`; None takes those that were set
                aside, and those that judged, at half of the level, where none were.
            model: The model; needed for a choice that was read from its folder.
            **rule: Others that `defer` takes, such as budget=0.2.

        Returns:
            An `UncertaintyPredictor`.

        Raises:
            BadInput: For anything that cannot be used.
        """
        if self.judging is None and (model is None or data is None):
            got = Phrase("a choice that was read from its folder")
            what, remedy = "model and data must be given", "write choice.predictor(0.05, model=model, data=unused)"
            raise BadInput(what, "model" if model is None else "data", got, remedy)
        fresh = self.unused if data is None else data
        if fresh is None:
            return super().predictor(target_risk, confidence, **rule)
        known, options = (model, self._how()) if self.judging is None else (self.judging[0], self.judging[2])
        used = known if model is None else model
        assert used is not None
        return UncertaintyPredictor.fit(
            used, fresh, self.placement, self.passes, measure=self.measure,
            max_error=target_risk, confidence=confidence, rule=rule, **options,
        )  # fmt: skip

    def _how(self) -> dict[str, Any]:
        """How the passes of a choice that was read from its folder ran."""
        spec = {} if self.judged is None else self.judged.spec
        return {name: spec[name] for name in ("seed", "masks", "draws", "precision") if name in spec}

    def facts(self) -> dict[str, Any]:
        """The choice in values that JSON can hold."""
        rows, gaps, front = (
            json.loads(part.to_json(orient="records")) for part in (self.table, self.differences, self.pareto)
        )
        return {
            **super().facts(),
            "text": self.verdict,
            "objective": self.objective,
            "sizes": self.sizes,
            "predictions": self.predictions,
            "share": self.share,
            "table": rows,
            "differences": gaps,
            "pareto": front,
        }

    def __str__(self) -> str:
        """What was tried, everything on the examples that judged, what deferring does, and the verdict."""
        room = shutil.get_terminal_size().columns
        lines = [line for head, text in self._story() for line in headed(head, text)]
        lines += [line for remark in self.remarks for line in headed("remark", remark)]
        lines += ["", *self._printed().text(room).splitlines(), ""]
        lines += [*lines_of_deferral(self.deferral, list(self.rankings)), ""]
        return "\n".join([*lines, *textwrap.wrap(f"Verdict: {self.verdict}", min(room, 100) - 1)])

    def _story(self) -> list[tuple[str, str]]:
        part = f"{self.sizes['search']} examples"
        if self.search is None:
            count = self.evidence.rows.placement.nunique()
            tried = f"the whole grid, {count} placements, {self.evidence.spec['passes']} passes, on {part}"
        else:
            seen, finalists = self.search.placement.nunique(), self.search[self.search.state == "finalist"]
            share = f"{100 * self.share:.2g} % of a full sweep's" if self.share > 1e-6 else "next to none of the grid's"
            tried = (
                f"{seen} placements in a race on {part}, the best {finalists.placement.nunique()} on all of them "
                f"({format_count(self.predictions)} predictions, {share})"
            )
        said = [("tried", tried), ("judged", f"on {self.sizes['judging']} other examples, with fresh masks")]
        if self.sizes.get("unused"):
            said.append(("unused", f"{self.sizes['unused']} examples, for choice.predictor()"))
        return said

    def _printed(self) -> Table:
        gaps = self.differences[self.differences.score == "aurc"].set_index("name")
        rows = []
        for row in self.table.itertuples():
            gap = gaps.loc[row.name]
            there = not math.isnan(gap.difference_low)
            rows.append([
                ("→ " if row.name == self.chosen_name else "  ") + str(row.name),
                "–" if row.measure == "own" else str(row.measure), f"{row.aurc:.4f}", f"{gap.difference:+.4f}",
                f"{gap.difference_low:+.4f} to {gap.difference_high:+.4f}" if there else "–", f"{row.accuracy:.3f}",
                f"{row.cost:.1f}×", "●" if row.front else "",
            ])  # fmt: skip
        titles = ["name", "ranked by", "AURC↓", "vs plain", "95 % interval", "acc↑", "cost↓", "front"]
        rival = self.judgement.rival.removeprefix("plain_")
        notes = [
            "→ chosen; ● on the front: none is better in accuracy, AURC and cost at once",
            f"vs plain: less the AURC of one plain pass by {rival};",
            "95 % intervals of these hold for all rows at once",
        ]
        ranks = [_RANKS.get(title, 0) for title in titles]
        caption = f"{len(rows)} rows on the {self.sizes['judging']} examples that judged"
        return Table(titles, rows, caption, notes, names=2, least=24, ranks=ranks)

    def _repr_html_(self) -> str:
        table = self._printed()
        story = [f"{head}: {text}" for head, text in self._story()]
        return replace(table, notes=[*table.notes, *story, *self.remarks], caption=self.verdict).html()
