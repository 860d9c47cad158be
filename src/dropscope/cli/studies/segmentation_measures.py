"""The command `dropscope study segmentation-measures`."""

from __future__ import annotations

from typing import Any

from dropscope.cli.console import print_json, records, stdout
from dropscope.cli.options import AsJson, DryRun, takes_records
from dropscope.cli.studies.group import print_summary, registers, study, summary_record
from dropscope.studies.segmentation_measures import Options


@study.command("segmentation-measures")
@takes_records(noises="--noise")
def run_segmentation_measures(options: Options, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Which uncertainty measure finds the wrong voxels of a segmentation: a grid of trained networks."""
    from dropscope.studies.segmentation_measures import estimate, plan, preregister, run

    show = False if as_json else None
    planned = plan(options, show=show)
    if dry_run:
        facts = planned.facts() | {"estimate": estimate(planned)}
        print_json(facts) if as_json else _print_plan(facts)
        return
    if registers(options.preregister, lambda: preregister(planned), as_json=as_json):
        return
    outcome = run(planned, show=show)
    if as_json:
        measures = records(outcome.tables["measures"])
        print_json({"folder": str(outcome.folder), **summary_record(outcome.summary), "measures": measures})
        return
    print_summary(outcome.summary)
    stdout().print(f"summary.md, figures and tables in {outcome.folder}", soft_wrap=True)


def _print_plan(facts: dict[str, Any]) -> None:
    from dropscope.progress import format_duration

    for name, value in facts.items():
        if name == "estimate":
            time, gib = format_duration(value["seconds"]), value["bytes"] / 2**30
            each = f"{value['seconds_per_step']:.3g} s a step, {value['seconds_per_forward']:.3g} s a forward"
            stdout().print(f"estimate: about {time} ({each}), {gib:.1f} GiB", soft_wrap=True)
        elif value != []:
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            stdout().print(f"{name.replace('_', ' ')}: {text}", soft_wrap=True)
