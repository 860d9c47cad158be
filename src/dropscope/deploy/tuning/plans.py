"""Plans of tunings: the whole grid or a race, with how many placements, and what fits a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dropscope.display import headed
from dropscope.engine import Session, choose_engine
from dropscope.placement import Placement
from dropscope.progress import format_count, format_duration
from dropscope.runs import FINALISTS, RACE_PASSES, Schedule, Space

_WHOLE = 400  # placements of a grid that is swept whole
_SEARCHING = 0.6  # share of the budget that the search may take; set-up, finalists, judging and rivals take the rest
_LEAST = 8  # placements that a race begins with, beside the rules
_RULES = 2


@dataclass(frozen=True)
class TuningPlan:
    """What a tuning would do. Prints itself.

    Attributes:
        whole: Whether the whole grid is swept; else placements race.
        opening: Placements that are swept, or that the race begins with.
        passes: Passes of the finalists.
        predictions: Placements × passes × examples of the search and the finalists, expected.
        grid: Placements of the whole space.
        seconds: Expected in all; None where nothing was timed.
        sizes: Examples that search, judge and are left.
        remarks: What was left out, and why.
    """

    whole: bool
    opening: tuple[Placement, ...]
    passes: int
    predictions: int
    grid: int
    seconds: float | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The plan in values that JSON can hold."""
        told = {name: getattr(self, name) for name in ("whole", "passes", "predictions", "grid", "seconds", "sizes")}
        return {**told, "opening": [str(placement) for placement in self.opening], "remarks": list(self.remarks)}

    def __str__(self) -> str:
        count, search = len(self.opening), self.sizes["search"]
        of = f"{format_count(self.grid)} placements of the space"
        if self.whole:
            lines = headed("tries", f"all {count} placements × {self.passes} passes × {search} examples")
        else:
            lines = headed("tries", f"{count} of the {of} in a race with {RACE_PASSES} passes, and their neighbours")
            lines += headed("", f"at most {FINALISTS} finalists × {self.passes} passes × {search} examples")
        lines += headed("judges", f"the best, the rules and the rivals on {self.sizes['judging']} other examples")
        if self.sizes.get("unused"):
            lines += headed("leaves", f"{self.sizes['unused']} examples for a predictor")
        lines += [line for remark in self.remarks for line in headed("remark", remark)]
        whole = self.predictions / (self.grid * self.passes * search)
        share = f", {100 * whole:.2g} % of a full sweep's" if whole > 1e-6 and not self.whole else ""
        lines += headed("work", f"about {format_count(self.predictions)} predictions{share}")
        if self.seconds is not None:
            lines += headed(
                "expected", f"{format_duration(self.seconds)} for the passes, beside set-up, rivals and resampling"
            )
        return "\n".join(lines)


def plan_of(
    session: Session, space: Space, right: Tensor, passes: int, budget: float | None, engine: str, *,
    sizes: dict[str, int] | None = None,
) -> TuningPlan:  # fmt: skip
    """The plan; timed where there is a budget to keep to, or where somebody wants to know (`sizes`)."""
    n, whole = session.data.n, space.size <= _WHOLE
    pace = _pace(session, space.whole() if whole else space.opening(), engine) if budget or sizes else None
    after = (FINALISTS + _RULES) * passes * n

    def planned(opening: Sequence[Placement], *, whole: bool, remarks: tuple[str, ...] = ()) -> TuningPlan:
        work = len(opening) * passes * n if whole else Schedule.of(session.data, right, len(opening)).predictions
        told = work if whole else work + after
        seconds = None if pace is None else pace * (told + after)  # judging takes as much as the finalists
        return TuningPlan(whole, tuple(opening), passes, told, space.size, seconds, sizes or {}, remarks)

    every = space.whole() if whole else space.opening()
    plan = planned(every, whole=whole)
    if budget is None or pace is None or plan.seconds is None or plan.seconds <= _SEARCHING * budget:
        return plan
    first = plan.seconds
    limit = len(space.opening())
    plan = planned(space.opening(), whole=False)
    while (plan.seconds or 0) > _SEARCHING * budget and limit > _LEAST:
        limit = max(limit // 2, _LEAST)
        plan = planned(space.opening(limit), whole=False)
    said = f"a race that begins with {len(plan.opening)} of {len(every)} placements, to keep to a budget of"
    remark = f"{said} {format_duration(budget)} (all would take {format_duration(first)})"
    return planned(plan.opening, whole=False, remarks=(remark,))


def _pace(session: Session, placements: Sequence[Placement], engine: str) -> float:
    """Seconds of a prediction, when so many placements share their work."""
    resolved = session.resolve(placements)
    running = choose_engine(session, resolved, RACE_PASSES, engine, verified=False)
    summary = running.summary()
    return summary.stages["passes"] / (len(placements) * RACE_PASSES * session.data.n)
