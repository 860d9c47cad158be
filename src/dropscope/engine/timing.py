"""Expected time of a run: a few of its blocks, timed, and scaled by the work to all of it.

Owns the clock. What comes before the noise runs once per block of examples and unit, what comes after it once per pass
and variant, so both are timed apart: with noise in the last layer the first is nearly everything.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dropscope.engine.cost import Workload
from dropscope.engine.executor import Work, pass_statistics
from dropscope.engine.summary import Expected, Finish
from dropscope.engine.tree import Subtree, cut, pieces
from dropscope.measures.statistics import PassStatistics

if TYPE_CHECKING:
    from dropscope.data import Batch
    from dropscope.engine.engine import WorkUnit
    from dropscope.engine.loop import LoopEngine
    from dropscope.engine.shared import SharedEngine
    from dropscope.engine.verification import Forest

_SECONDS = 2.0  # to spend on timing, roughly
_PLACEMENTS = 16  # of one unit that are timed: enough to share what a whole unit shares
# Seconds to compile a segment, and what compiled segments take of their eager time (benchmarks/dry_run.py).
_COMPILING = 4.0
_COMPILED = 0.8


@dataclass(frozen=True, eq=False)
class PassTiming:
    """Some passes of some examples, timed, and the statistics they gave."""

    seconds: float
    passes: int
    examples: int
    statistics: list[tuple[np.ndarray, PassStatistics]]


def timed(work: Callable[[], Any], device: torch.device, times: int = 1) -> float:
    """Seconds that some work takes, the least of so many times; waits for the device."""
    found = []
    for _ in range(times):
        started = time.monotonic()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.monotonic() - started)
    return min(found)


def expected_shared(shared: SharedEngine, needs: Collection[str], finish: Finish, *, compiled: bool) -> Expected:
    """The shared engine's: per group of units whose noise starts at the same site, one piece of one unit is timed."""
    forests = shared.forests(shared.session.data.batches[0])
    loads = [Workload(forest.plan) for forest in forests]
    groups: dict[tuple[int, tuple[int, ...]], list[WorkUnit]] = {}
    plain_units = 0
    for unit in shared.units():
        if unit.subtrees:
            groups.setdefault((unit.forest, unit.subtrees[0].steps), []).append(unit)
        else:
            plain_units += 1
    work = {key: sum(sum(loads[key[0]].of(unit.subtrees[0])) for unit in units) for key, units in groups.items()}
    n, once, trunk = shared.session.data.n, 0.0, {}
    rates: dict[tuple[int, tuple[int, ...]], float] = {}  # seconds per unit of work, for one example and pass
    finishing = 0.0  # seconds per placement and example
    started = time.monotonic()
    with torch.no_grad(), shared.session.sealed():
        for number in range(len(forests)):
            trunk[number] = _time_plain(shared, forests[number])
        for key in sorted(groups, key=work.__getitem__, reverse=True):
            left = _SECONDS - (time.monotonic() - started)
            if left <= 0 and rates:
                break
            share = left / (len(groups) - len(rates))
            timing = _time_group(shared, groups[key][0], loads[key[0]], needs, finish, share)
            rates[key], once = timing.rate, once + timing.once
            finishing = max(finishing, timing.finishing)
    typical = sum(rates.values()) / max(len(rates), 1)
    seconds = sum(work[key] * rates.get(key, typical) for key in groups) * n * shared.passes
    once *= len(groups) / max(len(rates), 1)
    if compiled:
        segments = sum(len(tree.levels) for forest in forests for tree in forest.plan.subtrees)
        once, seconds = once + _COMPILING * segments, seconds * _COMPILED
    beginning = n * (sum(trunk[key[0]] * len(units) for key, units in groups.items()) + trunk[0] * plain_units)
    placements = sum(len(tree.leaf) for forest in forests for tree in forest.plan.subtrees)
    return Expected(once, beginning + seconds + finishing * placements * n)


@dataclass(frozen=True)
class _GroupTiming:
    rate: float  # seconds per unit of work, example and pass
    once: float  # seconds of the first call alone
    finishing: float  # seconds per placement and example


def _time_group(
    shared: SharedEngine, unit: WorkUnit, load: Workload, needs: Collection[str], finish: Finish, budget: float
) -> _GroupTiming:
    """One placement cold, then warm; then as many of the unit's as the budget allows."""
    (subtree,), forest = unit.subtrees, shared.forests(shared.session.data.batches[0])[unit.forest]
    middle = len(subtree.leaf) // 2
    piece = cut(subtree, middle, middle + 1)
    first = _time_passes(shared, forest, piece, 1, needs)
    found = one = _time_passes(shared, forest, piece, None, needs)
    fitting = min(_PLACEMENTS, int((budget - first.seconds - found.seconds) / max(2 * found.seconds, 1e-6)))
    if fitting > 1 and len(subtree.leaf) > 1:
        ranges = pieces(subtree, fitting)
        piece = cut(subtree, *ranges[len(ranges) // 2])
        found = _time_passes(shared, forest, piece, None, needs)
    again = min(found, _time_passes(shared, forest, piece, None, needs), key=lambda t: t.seconds)
    rate = again.seconds / (again.passes * again.examples) / max(sum(load.of(piece)), 1)
    device = shared.session.device
    finishing = timed(lambda: [finish(kept) for _, kept in again.statistics], device, 2)
    return _GroupTiming(rate, max(0.0, first.seconds - one.seconds), finishing / len(piece.leaf) / again.examples)


def _time_plain(shared: SharedEngine, forest: Forest) -> float:
    """Seconds per example of what runs once for all passes of a unit."""
    block = shared.first_block(forest)
    run = functools.partial(forest.executor.plain, block.call)
    run()  # warms up
    return timed(run, shared.session.device) / block.n


def _time_passes(
    shared: SharedEngine, forest: Forest, subtree: Subtree, passes: int | None, needs: Collection[str]
) -> PassTiming:
    """Runs some passes (None: as many as run at once) of a block of examples and a part of a tree."""
    block, count = shared.first_block(forest), passes or min(forest.blocks.passes, shared.passes)
    begun, work = forest.executor.plain(block.call), Work(count, needs, forest.blocks)
    found: list[tuple[np.ndarray, PassStatistics]] = []
    seconds = timed(
        lambda: found.extend(pass_statistics(forest.executor, [subtree], block.keys, begun, work)),
        shared.session.device,
    )
    return PassTiming(seconds, count, block.n, found)


def expected_loop(loop: LoopEngine, needs: Collection[str], finish: Finish) -> Expected:
    """The loop's: some placements on some batches, each on as many examples as the time allows."""
    session, batches = loop.session, loop.session.data.batches
    numbers = _spread(sorted(range(len(loop.placements)), key=lambda i: len(loop.placements[i])), 5)
    pairs = [(number, batch) for number in numbers for batch in _spread(batches, 3)]
    rates, plain, finishing = [], [], []
    started = time.monotonic()
    with torch.no_grad(), session.sealed():
        loop.time_passes(numbers[-1], batches[0].take(range(1)), needs)  # warms up
        for done, (number, batch) in enumerate(pairs):
            budget = (_SECONDS - (time.monotonic() - started)) / (len(pairs) - done)
            few = batch.first_two()
            timing = loop.time_passes(number, few, needs)
            fitting = int(few.n * budget / max(timing.seconds, 1e-6))
            if fitting > few.n and batch.n > few.n:
                few = batch.take(range(min(fitting, batch.n)))
                timing = loop.time_passes(number, few, needs)
            rates.append(timing.seconds / (timing.passes * few.n) / _length(few))
            finishing.append(timed(functools.partial(finish, timing.statistics[0][1]), session.device) / few.n)
            plain.append(timed(functools.partial(session.plain, few), session.device) / few.n)
    passes = float(np.mean(rates)) * loop.passes * sum(batch.n * _length(batch) for batch in batches)
    once_per_unit = float(np.mean(plain)) * session.data.n * len(loop.units())
    finished = float(np.mean(finishing)) * session.data.n
    computed = len({loop.equivalent(number) for number in range(len(loop.placements))})
    return Expected(0.0, once_per_unit + (passes + finished) * computed)


def _length(batch: Batch) -> int:
    """Tokens per text; 1 for what has no length."""
    return 1 if batch.lengths is None else int(batch.call.kwargs["attention_mask"].shape[1])


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most so many of the items, from the first to the last."""
    return [items[int(i)] for i in np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round())]
