"""Summaries of a plan: the tree, what is shared and merged, its cost against the naive run, memory, expected time.

Owns the description. It runs nothing; see `timing` for where the time comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dropscope.display import LINES, Table, cut
from dropscope.engine.cost import Workload, bytes_of
from dropscope.engine.tree import Plan
from dropscope.measures.statistics import PassStatistics
from dropscope.progress import format_count, format_duration

if TYPE_CHECKING:
    from dropscope.engine.analytic import AnalyticEngine
    from dropscope.engine.loop import LoopEngine
    from dropscope.engine.shared import SharedEngine
    from dropscope.engine.verification import Forest

_SHOWN = 2  # lines of the tree in a short form


Finish = Callable[[PassStatistics], Any]  # what the caller computes from statistics


def no_finish(kept: PassStatistics) -> None:
    """Nothing is computed from statistics."""


@dataclass(frozen=True)
class Expected:
    """Seconds of a run: what is done once, and its passes with all that is computed from them."""

    once: float
    passes: float

    @property
    def stages(self) -> dict[str, float]:
        return {"set-up": self.once, "passes": self.passes}


@dataclass(frozen=True)
class PlanSummary:
    """What a sweep will do. Prints itself.

    Attributes:
        engine: "shared", "loop" or "analytic".
        reason: Why the loop runs, where it does.
        placements: How many were asked for.
        computed: How many are left after merging what is equal by mathematics.
        passes: Passes per placement.
        examples: Examples of the data.
        tree: A line per site: how many variants reach it and leave it.
        merged: What was merged.
        multiply_adds: Of the whole run.
        naive: Multiply-adds of one loop per placement.
        bytes_moved: Bytes written by the whole run.
        naive_bytes: Bytes written by one loop per placement.
        memory: Bytes of values at the peak.
        seconds: Expected time in all.
        stages: Expected seconds of each stage: "set-up", "passes", "scores" and "finalists".
    """

    engine: str
    reason: str
    placements: int
    computed: int
    passes: int
    examples: int
    tree: tuple[str, ...]
    merged: tuple[str, ...]
    multiply_adds: int
    naive: int
    bytes_moved: int
    naive_bytes: int
    memory: int
    seconds: float
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def expected(self) -> str:
        """The expected time, and where it goes."""
        shown = [f"{name} {format_duration(seconds)}" for name, seconds in self.stages.items() if seconds >= 0.5]
        return format_duration(self.seconds) + (f" ({', '.join(shown)})" if len(shown) > 1 else "")

    def __str__(self) -> str:
        lines = [f"engine: {self.engine}" + (f" ({self.reason})" if self.reason else "")]
        lines.append(
            f"{self.placements} placements × {self.passes} passes × {self.examples} examples, {self.computed} computed"
        )
        if self.engine != "shared":
            return "\n".join([*lines, f"expected time: {self.expected}"])
        lines += [f"  {line}" for line in self.tree]
        lines += [f"  merged: {line}" for line in self.merged]
        fewer = self.naive / max(self.multiply_adds, 1)
        lines.append(
            f"multiply-adds: {format_count(self.multiply_adds)}, {fewer:.0f}× fewer than the {format_count(self.naive)}"
            " of a loop"
        )
        less = self.naive_bytes / max(self.bytes_moved, 1)
        lines.append(
            f"bytes written: {format_count(self.bytes_moved)}, {less:.0f}× fewer than {format_count(self.naive_bytes)}"
        )
        lines.append(f"memory for values: {self.memory / 2**20:.0f} MiB")
        lines.append(f"expected time: {self.expected}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        kept = replace(self, reason=cut(self.reason, 100), tree=self.tree[:_SHOWN], merged=self.merged[:1])
        lines = str(kept).splitlines()
        hidden = len(str(self).splitlines()) - len(lines)
        if hidden:
            lines.insert(2 + _SHOWN, f"  … and {hidden} more of them: print the plan")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        work = f"{self.placements} placements × {self.passes} passes × {self.examples} examples"
        rows = [("work", work), ("computed", f"{self.computed} placements"), ("expected time", self.expected)]
        if self.engine == "shared":
            fewer = self.naive / max(self.multiply_adds, 1)
            rows.append(("multiply-adds", f"{format_count(self.multiply_adds)}, {fewer:.0f}× fewer than a loop"))
            rows.append(("memory for values", f"{self.memory / 2**20:.0f} MiB"))
        notes = [*self.tree, *(f"merged: {line}" for line in self.merged)]
        if len(notes) > LINES:
            notes = [*notes[:LINES], f"… and {len(notes) - LINES} more of them: print the plan"]
        caption = f"plan for the {self.engine} engine" + (f" ({cut(self.reason, 160)})" if self.reason else "")
        return Table(("", ""), rows, caption, notes, names=2).html()


def describe(plan: Plan, passes: int, examples: int) -> dict[str, Any]:
    """What a plan shares: multiply-adds and bytes written, against one plain loop per placement."""
    load = Workload(plan)
    whole, whole_bytes = load.whole
    parts = [load.of(subtree) for subtree in plan.subtrees]
    shared = whole + passes * sum(part[0] for part in parts)
    shared_bytes = whole_bytes + passes * sum(part[1] for part in parts)
    naive = plan.distinct * passes
    return {
        "multiply_adds": shared * examples,
        "naive": naive * whole * examples,
        "fewer": naive * whole / max(shared, 1),
        "bytes": shared_bytes * examples,
        "naive_bytes": naive * whole_bytes * examples,
    }


def summarise_shared(shared: SharedEngine, expected: Expected) -> PlanSummary:
    """The plan of the shared engine, and its cost."""
    forests = shared.forests(shared.session.data.batches[0])
    n = shared.session.data.n
    parts = [describe(forest.plan, shared.passes, n) for forest in forests]
    totals = {key: sum(part[key] for part in parts) for key in ("multiply_adds", "naive", "bytes", "naive_bytes")}
    return PlanSummary(
        engine="shared",
        reason="",
        placements=len(shared.placements),
        computed=sum(forest.plan.distinct for forest in forests),
        passes=shared.passes,
        examples=n,
        tree=tuple(line for forest in forests for line in _tree(forest)),
        merged=tuple(line for forest in forests for line in _merged(forest.plan)),
        multiply_adds=totals["multiply_adds"],
        naive=totals["naive"],
        bytes_moved=totals["bytes"],
        naive_bytes=totals["naive_bytes"],
        memory=max((_memory(forest) for forest in forests), default=0),
        seconds=expected.once + expected.passes,
        stages=expected.stages,
    )


def summarise_plain(engine: LoopEngine | AnalyticEngine, expected: Expected) -> PlanSummary:
    """One placement after the other."""
    n, count = engine.session.data.n, len(engine.placements)
    computed = len({engine.equivalent(number) for number in range(count)})
    seconds, stages = expected.once + expected.passes, expected.stages
    about = engine.name, engine.reason, count, computed, engine.passes, n
    return PlanSummary(*about, (), (), 0, 0, 0, 0, 0, seconds, stages)


def _tree(forest: Forest) -> list[str]:
    """A line per step: how many variants reach it, and how many leave it."""
    lines = []
    for index, step in enumerate(forest.plan.steps):
        counts, before = [], []
        for tree in forest.plan.subtrees:
            if index in tree.steps:
                level = tree.steps.index(index)
                counts.append(len(tree.levels[level].parent))
                before.append(len(tree.levels[level - 1].parent) if level else 1)
        kind = f"{step.noise}, {step.mask} masks, {len(step.rates) - 1} rates"
        lines.append(f"{step.name} ({kind}): {sum(before)} → {sum(counts)} variants")
    blocks = forest.blocks
    lines.append(f"blocks of {blocks.examples} examples × {blocks.passes} passes")
    return lines


def _merged(plan: Plan) -> list[str]:
    lines = [
        f"{step.name}: {', '.join(point.position for point in step.points)} are one place"
        for step in plan.steps
        if len(step.points) > 1
    ]
    merged = len(plan.leaf_of) - len(set(plan.leaf_of.tolist()))
    return [*lines, f"{merged} placements are equal to another one by mathematics"] if merged else lines


def _memory(forest: Forest) -> int:
    """Rows at once of every step, times what a row holds there."""
    plan, blocks = forest.plan, forest.blocks
    rows = blocks.fused_rows or blocks.rows
    pairs = blocks.examples * blocks.passes
    widest = [
        max((len(t.levels[t.steps.index(i)].parent) for t in plan.subtrees if i in t.steps), default=0)
        for i in range(len(rows))
    ]
    held = [min(rows[i], widest[i] * pairs) * bytes_of(plan.captured, step.node) for i, step in enumerate(plan.steps)]
    return 2 * sum(held)


def work_of(shared: SharedEngine) -> int:
    """Multiply-adds and bytes of everything there is to run: a matter of the plan, not of the machine."""
    forests = shared.forests(shared.session.data.batches[0])
    parts = [describe(forest.plan, shared.passes, shared.session.data.n) for forest in forests]
    return sum(part["multiply_adds"] + part["bytes"] for part in parts)
