"""Everything the study shows, from what was found out about its networks: tables, figures, claims.

Owns the list of files. The summary, and what was smaller than in the paper, are `study`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dropscope.report import Claim, write_table, write_text
from dropscope.studies.where_to_drop import tables
from dropscope.studies.where_to_drop.effects import effects
from dropscope.studies.where_to_drop.figures import write_figures
from dropscope.studies.where_to_drop.gathered import Gathered, gather
from dropscope.studies.where_to_drop.judged import judged
from dropscope.studies.where_to_drop.table_three import table_three
from dropscope.studies.where_to_drop.task import NetworkResult, Task

log = logging.getLogger("dropscope")

_NOT_MADE = "not-made.md"
_MARGINALS = ("p_mean", "n_layers", "position", "first", "last")


def write_reports(
    folder: Path,
    task: Task,
    results: Sequence[NetworkResult],
    beside: tuple[Task, Sequence[NetworkResult]] | None = None,
) -> list[Claim]:
    """Writes `tables/` and `figures/` and returns the judged claims. With `beside`, figures show both tasks; tables and
    claims are of the first. What has no data is left out, and `not-made.md` says why."""
    g = gather(task, results)
    found = effects(g)
    missing = _write_tables(folder, g, found)
    missing |= write_figures(folder, [g] if beside is None else [g, gather(*beside)])
    if missing:
        lines = [f"- {name}: {reason}" for name, reason in missing.items()]
        write_text(folder / _NOT_MADE, "# Not made, for want of data\n\n" + "\n".join(lines) + "\n")
        log.info("not made: %s", "; ".join(f"{name} ({reason})" for name, reason in missing.items()))
    else:
        (folder / _NOT_MADE).unlink(missing_ok=True)  # of an earlier, smaller run
    return judged(g, found)


def _write_tables(folder: Path, g: Gathered, found: pd.DataFrame) -> dict[str, str]:
    over = f"{g.networks} network{'s' if g.networks > 1 else ''}, {g.examples:,} test examples"
    made: dict[str, tuple[pd.DataFrame, str]] = {
        "accuracies": (tables.accuracies(g), "Accuracy of one plain pass on the test examples"),
        "table-3": (
            table_three(g),
            "Table 3: expected entropy under two placements, disjoint batches and all examples, beside the published "
            "cells and the levels of a random and a monotone measure",
        ),
        "best-placements": (
            tables.best_placements(g),
            f"Best placements of each measure, chosen on the test examples ({over}; optimistic), beside a plain pass; "
            "errors are those of the averaged passes",
        ),
        "chosen": (
            tables.chosen(g),
            "Chosen on validation examples, judged on test examples against the entropy of one plain pass",
        ),
        "single-layers": (tables.single_layers(g), f"One layer masked alone: mean and peak over rates ({over})"),
        "effects": (
            found,
            f"Effects over networks ({over}); descriptive_p treats placements as replicates, which they are not",
        ),
        **{
            f"by-{by.replace('_', '-')}": (
                tables.marginals(g, by),
                f"Mean over placements by {by} ({over}); low to high: 95 % over networks; std over placements "
                "describes the grid, it is no interval",
            )
            for by in _MARGINALS
        },
    }
    missing = {}
    for name, (table, caption) in made.items():
        if table.empty:
            missing[name] = "no rows"
        else:
            write_table(folder, name, table, caption, digits=5)
    return missing
