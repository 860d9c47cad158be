"""Measures of the passes themselves: all passes of some examples in memory, as many examples as that holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dropscope.engine import Engine, PassBlock, StatisticsBlock, Tick, check_finite, quiet
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure
from dropscope.measures.statistics import PassStatistics, begin_statistics

_COPIES = 3  # of the passes at the peak: as they come, joined, and what a measure makes of them


def bytes_per_example(passes: int, values: int) -> int:
    """What all passes of one example take; `values` is the size of one pass's output."""
    return _COPIES * 4 * passes * values


def check_memory(rows: Sequence[Measure], passes: int, values: int, memory: int) -> int:
    """How many examples fit at once.

    Raises:
        BadInput: If not one does.
    """
    each = bytes_per_example(passes, values)
    if each > memory:
        names = ", ".join(row.name for row in rows if row.of == "passes")
        what = f"measures of the passes ({names}) must have room for all passes of an example"
        received = Phrase(f"{each / 2**30:.2f} GiB for {passes} passes of {values:,} values, {memory / 2**30:.2f} free")
        remedy = "take fewer passes, give more memory, or write the measure as a function of the statistics"
        raise BadInput(what, "measures", received, remedy)
    return memory // each


def measured_on_passes(
    engine: Engine, number: int, rows: Sequence[Measure], needs: Collection[str], memory: int, tick: Tick = quiet
) -> Iterator[tuple[StatisticsBlock, dict[str, Tensor]]]:
    """One placement, block of examples by block, with each measure `[n, …]`; both kinds of measure from one run."""
    for batch in engine.session.data.batches:
        with torch.no_grad(), engine.session.sealed():
            plain = engine.session.plain(batch)
        at_once = check_memory(rows, engine.passes, plain[0].numel(), memory)
        for begin in range(0, batch.n, at_once):
            few = batch if at_once >= batch.n else batch.take(range(begin, min(begin + at_once, batch.n)))
            own = plain[begin : begin + few.n]
            passes = joined(engine.samples(number, few, range(engine.passes), tick))
            check_finite(passes)
            kept = begin_statistics(needs, own.movedim(1, -1), engine.passes, engine.session.draws)
            # With a dimension for the one placement, as the engines give statistics.
            kept.update(passes.movedim(2, -1).unsqueeze(1), passes_dim=0, check=False)
            given: dict[str, PassStatistics | Tensor] = {"passes": passes, "plain": own, "statistics": kept}
            values = {row.name: row(given[row.of]) for row in rows}
            values |= {row.name: values[row.name][0] for row in rows if row.of == "statistics"}
            yield StatisticsBlock(few, own, [(np.array([number]), kept)]), values


def joined(blocks: Iterator[PassBlock]) -> Tensor:
    """Blocks of examples beside each other, their passes below each other: `[passes, n, …]`."""
    columns: dict[int, list[Tensor]] = {}
    for block in blocks:
        columns.setdefault(block.rows.start, []).append(block.probabilities)
    return torch.cat([torch.cat(columns[start]) for start in sorted(columns)], 1)
