"""`dropscope study where-to-drop`: reads the options, runs the study, prints its claims."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dropscope.cli.console import print_json, stderr, stdout
from dropscope.cli.options import AsJson, DryRun, takes_records
from dropscope.cli.studies.group import print_summary, registers, study, summary_record
from dropscope.studies.where_to_drop import Options

if TYPE_CHECKING:
    from dropscope.studies.where_to_drop import Plan


@study.command("where-to-drop")
@takes_records()
def run_where_to_drop(
    options: Options,
    train_dropout: Annotated[
        bool, typer.Option("--train-dropout", help="Also train with dropout on, and repeat the study for it.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Where should dropout go in an image classifier? Trains, sweeps the grid of placements, judges each claim."""
    from dropscope.studies.where_to_drop import plan, preregister, run

    chosen = [options]
    if train_dropout:
        chosen.append(replace(options, train_dropout=True, out=Path(options.out) / "trained-with-dropout"))
    plans = [plan(each, dry=dry_run) for each in chosen]
    if dry_run:
        _print_plans(plans, as_json)
        return
    if registers(options.preregister, lambda: preregister(plans[0]), as_json=as_json):
        return
    answers = []
    for each in plans:
        outcome = run(each, say=stderr().print if as_json else stdout().print)
        answers.append({"folder": str(outcome.folder), **summary_record(outcome.summary)})
        if not as_json:
            print_summary(outcome.summary)
            stdout().print(f"summary.md, figures and tables in {outcome.folder}", soft_wrap=True)
    if as_json:
        print_json({"studies": answers})


def _print_plans(plans: list[Plan], as_json: bool) -> None:
    from dropscope.studies.where_to_drop import estimate

    if as_json:
        print_json({"studies": [{**plan.facts(), "sweep": asdict(estimate(plan))} for plan in plans]})
        return
    for plan in plans:
        sweep = estimate(plan)
        for key, value in plan.facts().items():
            stdout().print(f"{key}: {value}")
        stdout().print(f"per network, and two smaller sweeps besides:\n{sweep}", soft_wrap=True)
