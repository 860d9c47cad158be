"""Commands for a first start: the demo, and templates of a model file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from dropscope.checks import check_new_file, check_passes
from dropscope.cli.app import app
from dropscope.cli.console import print_json, records, stdout
from dropscope.cli.options import AsJson, DryRun, Passes
from dropscope.placement import PlacementGrid

DEFAULT_FILE = "my_model.py"


@app.command()
def demo(
    out: Annotated[str, typer.Option(help="Folder for the rows and the picture.")] = "dropscope-demo",
    passes: Passes = 100,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show the whole flow on handwritten digits: sites, audit, sweep, verdict. Takes under a minute."""
    check_passes(passes)
    from dropscope.demo import SITES, run_demo

    if dry_run:
        placements = len(PlacementGrid(SITES))
        answer = {"placements": placements, "passes": passes, "would_write": out}
        print_json(answer) if as_json else stdout().print(f"{placements} placements × {passes} passes; writes {out}")
        return
    lines: list[str] = []
    run = run_demo(out, passes, lines.append if as_json else lambda line: stdout().print(line, soft_wrap=True))
    if as_json:
        baseline = run.with_intervals(run.baseline)
        print_json({"best": records(run.best("aurc", 5)), "baseline": records(baseline), "text": lines})


@app.command()
def new(
    framework: Annotated[
        Literal["torch", "hf", "monai"],
        typer.Argument(metavar="FRAMEWORK", help="The library that the model is written with."),
    ],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write.")] = DEFAULT_FILE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write a Python file with a model and data for the other commands. It runs as it is; then put your own in."""
    command = f"dropscope sites {file}:model --data {file}:data"
    if dry_run:
        check_new_file(file, "file", (".py",))
        answer = {"would_write": file, "lines": template(framework, file).count("\n"), "next": command}
    else:
        answer = {"wrote": str(write_template(framework, file)), "next": command}
    if as_json:
        print_json(answer)
        return
    for key, value in answer.items():
        stdout().print(f"{key.replace('_', ' ')}: {value}", soft_wrap=True)


def template(framework: str, file: str = DEFAULT_FILE) -> str:
    """The template for `framework` (torch, hf, monai), with `file` in the commands it shows."""
    text = (
        resources.files("dropscope")
        .joinpath("cli", "template_files", f"{framework}.py.txt")
        .read_text(encoding="utf-8")
    )
    return text.replace(DEFAULT_FILE, file)


def write_template(framework: str, file: str = DEFAULT_FILE) -> Path:
    """Writes the template to a new file, and never over an existing one."""
    path = check_new_file(file, "file", (".py",))
    with path.open("x", encoding="utf-8") as new:
        new.write(template(framework, file))
    return path
