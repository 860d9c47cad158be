"""The command `dropscope report`: one HTML file about runs, and gates for continuous integration."""

from __future__ import annotations

from typing import Annotated

import typer

from dropscope.checks import check_new_file
from dropscope.cli.app import app
from dropscope.cli.console import print_facts, print_json, stderr, stdout
from dropscope.cli.options import AsJson, DryRun


@app.command("report")
def run_report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Folders of sweeps, trials, tunings, comparisons, predictors, volumes and studies."
        ),
    ],
    out: Annotated[str, typer.Option(help="The page: an HTML file. One that is there is replaced.")] = "report.html",
    data: Annotated[
        str | None, typer.Option(help="Folder of the images or scans, to show pictures of the errors.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page. Default: the names of the folders.")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="What every run must reach, such as 'accuracy>=0.9'; may be repeated. Exit code 1 if not."),
    ] = None,
    junit: Annotated[str | None, typer.Option(help="JUnit file of the audits and requirements: an .xml file.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about runs: verdict, what deferring would do, every placement. It needs no network."""
    check_new_file(out, "out", (".html",), overwrite=True)
    target = None if junit is None else check_new_file(junit, "junit", (".xml",), overwrite=True)
    from dropscope.report import write_report, write_text

    report = write_report(*runs, out=None if dry_run else out, data=data, title=title, require=require or ())
    if dry_run:
        print_facts({"runs": [chapter.title for chapter in report.chapters], "would_write": out}, as_json)
        return
    if target is not None:
        write_text(target, report.junit())
    if as_json:
        print_json({**report.facts(), "file": out})
    else:
        for chapter in report.chapters:
            stdout().print(f"{chapter.title}: {chapter.headline}", soft_wrap=True)
        stdout().print(f"page     {out}{'' if junit is None else f', JUnit in {junit}'}", soft_wrap=True)
    failed = [(chapter, check) for chapter in report.chapters for check in chapter.checks if not check.ok]
    for chapter, check in failed:
        stderr().print(f"failed: {chapter.title}: {check.name}: {check.message}", style="red")
    if failed:
        raise typer.Exit(1)
