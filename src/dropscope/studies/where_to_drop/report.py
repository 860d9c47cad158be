"""Report of the study: tables, figures, claims and the summary.

Owns the list of files, and what the summary says about the work and about where it is smaller than the paper's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dropscope.report import Claim, Summary, markdown, write_summary, write_table, write_text
from dropscope.studies.where_to_drop import tables
from dropscope.studies.where_to_drop.answers import TERMS, above_random, answer, choices, topic_of
from dropscope.studies.where_to_drop.claims import judge
from dropscope.studies.where_to_drop.curves import table_three
from dropscope.studies.where_to_drop.figures import write_figures
from dropscope.studies.where_to_drop.presets import PRESETS, Preset
from dropscope.studies.where_to_drop.published import published_for
from dropscope.studies.where_to_drop.rows import NetworkResult, StudyRows, join_results
from dropscope.studies.where_to_drop.tasks import Task

log = logging.getLogger("dropscope")

_NOT_MADE = "not-made.md"
_MARGINALS = ("p_mean", "n_layers", "position", "first", "last")


def write_report(
    folder: Path,
    task: Task,
    results: Sequence[NetworkResult],
    size: Preset,
    placements: int,
    beside: StudyRows | None = None,
) -> tuple[Summary, dict[str, pd.DataFrame]]:
    """Writes tables, figures and `summary.md`; returns what it says first, and the tables by name.

    With `beside`, figures show that task too.
    """
    study = join_results(task, results, size.passes)
    smaller = smaller_than_paper(task, size)
    claims, made = write_tables_and_figures(folder, study, beside, smaller)
    own = published_for(task) is None
    accuracies = ", ".join(f"{result.name} {100 * result.accuracy:.2f} %" for result in results)
    work = f"{placements:,} placements × {size.passes} passes × {study.examples:,} test examples per network"
    details = [f"Accuracy of one plain pass: {accuracies}.", f"Work: {work}.", *task.remarks]
    if (worse := above_random(study)) and not tables.untrained(study):
        details.insert(0, worse)
    if failed := tables.untrained(study):
        details.append(f"At chance, so not trained, and no evidence for any claim: {', '.join(failed)}.")
    if own and smaller:
        details.append(f"Smaller than the preset `paper`: {'; '.join(smaller)}.")
    if len(picked := choices(study)):
        details += [
            "Chosen by AURC on validation examples, judged on test examples with fresh masks:",
            markdown(picked),
        ]
    title, lines, topic = f"Where to drop: {task.name}", answer(study, claims), topic_of(study)
    return write_summary(folder, title, lines, claims, details, None if own else smaller, topic, TERMS), made


def write_tables_and_figures(
    folder: Path, study: StudyRows, beside: StudyRows | None = None, smaller: Sequence[str] = ()
) -> tuple[list[Claim], dict[str, pd.DataFrame]]:
    """Writes `tables/` and `figures/`; returns the judged claims and the tables by name.

    With `beside`, figures show both tasks; tables and claims are of the first. What has no data is left out, and
    `not-made.md` says why. `smaller` are the ways in which the run is not the paper's.
    """
    effects = tables.effect_table(study)
    captioned = _tables(study, effects)
    made = {name: table for name, (table, _) in captioned.items() if not table.empty}
    for name, table in made.items():
        write_table(folder, name, table, captioned[name][1], digits=5)
    missing = {name: "no rows" for name in captioned if name not in made}
    missing |= write_figures(folder, [study] if beside is None else [study, beside])
    if missing:
        lines = [f"- {name}: {reason}" for name, reason in missing.items()]
        write_text(folder / _NOT_MADE, "# Not made, for want of data\n\n" + "\n".join(lines) + "\n")
        log.info("not made: %s", "; ".join(f"{name} ({reason})" for name, reason in missing.items()))
    else:
        (folder / _NOT_MADE).unlink(missing_ok=True)  # of an earlier, smaller run
    return judge(study, effects, smaller), made


def _tables(study: StudyRows, effects: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, str]]:
    """Every table with its caption."""
    over = f"{study.networks} network{'s' if study.networks > 1 else ''}, {study.examples:,} test examples"
    return {
        "accuracies": (tables.accuracies(study), "Accuracy of one plain pass on the test examples"),
        "table-3": (
            table_three(study),
            "Table 3: expected entropy under two placements, disjoint batches and all examples, beside the published "
            "cells and the levels of a random and a monotone measure",
        ),
        "best-placements": (
            tables.best_placements(study),
            f"Best placements of each measure, chosen on the test examples ({over}; optimistic), beside a plain pass; "
            "errors are those of the averaged passes",
        ),
        "chosen": (
            tables.chosen(study),
            "Chosen on validation examples, judged on test examples against the entropy of one plain pass",
        ),
        "single-layers": (tables.single_layers(study), f"One layer masked alone: mean and peak over rates ({over})"),
        "effects": (
            effects,
            f"Effects over networks ({over}); descriptive_p treats placements as replicates, which they are not",
        ),
        **{
            f"by-{by.replace('_', '-')}": (
                tables.marginals(study, by),
                f"Mean over placements by {by} ({over}); low to high: 95 % over networks; std over placements "
                "describes the grid, it is no interval",
            )
            for by in _MARGINALS
        },
    }


def smaller_than_paper(task: Task, size: Preset) -> list[str]:
    """Each way in which a run is smaller than the paper's, by its preset or by its data."""
    paper, lines = PRESETS["paper"], []
    if task.noise != "bernoulli":
        lines.append(f"{task.noise} noise instead of Bernoulli")
    if size.rates != paper.rates:
        lines.append(f"rates {', '.join(f'{rate:g}' for rate in size.rates)} instead of .1 to .9")
    if size.passes != paper.passes:
        lines.append(f"{size.passes} passes instead of {paper.passes}")
    there = {"validation": len(task.validation[1]), "test": len(task.test[1])}
    for name, what in (("train", "training"), ("validation", "validation"), ("test", "test")):
        count = getattr(size, name)
        if count is not None and (there[name] >= count if name in there else task.train is not None):
            lines.append(f"at most {count:,} {what} examples instead of all")
    lines += _fewer_examples(task, size)
    if size.epochs is not None and task.train is not None:
        lines.append(f"{size.epochs} epochs of training instead of the recipe's own number (20 in the paper)")
    return lines


def _fewer_examples(task: Task, size: Preset) -> list[str]:
    """Where the data themselves, not the preset, are fewer than the paper's."""
    published = published_for(task)
    if published is None:
        return []
    counts = {"validation": len(task.validation[1]), "test": len(task.test[1])}
    return [
        f"{count:,} {name} examples instead of the paper's {published.examples[name]:,}"
        for name, count in counts.items()
        if count < published.examples[name] and getattr(size, name) is None
    ]
