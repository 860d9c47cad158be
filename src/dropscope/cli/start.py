"""Commands to start with: the demonstration, and templates of a model file."""

from __future__ import annotations

from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from dropscope.checks import check_passes
from dropscope.cli.app import AsJson, DryRun, app
from dropscope.cli.console import print_json, records, stdout
from dropscope.demo import SITES as DEMO_SITES
from dropscope.demo import demo as run_demo
from dropscope.errors import BadInput
from dropscope.placement import PlacementGrid

DEMO_PLACEMENTS = len(PlacementGrid(DEMO_SITES))
DEFAULT = "my_model.py"


class Framework(str, Enum):
    torch = "torch"
    hf = "hf"
    monai = "monai"


@app.command()
def demo(
    out: Annotated[str, typer.Option(help="Folder for the rows and the picture.")] = "dropscope-demo",
    passes: Annotated[int, typer.Option(help="Passes per placement.")] = 100,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """The whole way on handwritten digits: sites, audit, sweep, verdict. Takes under a minute."""
    check_passes(passes)
    if dry_run:
        answer = {"placements": DEMO_PLACEMENTS, "passes": passes, "would_write": out}
        print_json(answer) if as_json else stdout().print(
            f"{DEMO_PLACEMENTS} placements × {passes} passes; writes {out}"
        )
        return
    said: list[str] = []
    run = run_demo(out, passes, said.append if as_json else lambda line: stdout().print(line, soft_wrap=True))
    if as_json:
        print_json({"best": records(run.best("aurc", 5)), "baseline": records(run.baseline), "text": said})


@app.command()
def new(
    framework: Annotated[Framework, typer.Argument(help="What the model is written with.")],
    file: Annotated[str, typer.Argument(metavar="FILE")] = DEFAULT,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write a file that names a model and data for the other commands: it runs as it is, then make it yours."""
    command = f"dropscope sites {file}:model --data {file}:data"
    if dry_run:
        check_target(file)
        answer = {"would_write": file, "lines": template(framework.value, file).count("\n"), "next": command}
    else:
        answer = {"wrote": str(write_template(framework.value, file)), "next": command}
    if as_json:
        print_json(answer)
        return
    for key, value in answer.items():
        stdout().print(f"{key.replace('_', ' ')}: {value}", soft_wrap=True)


def template(framework: str, file: str = DEFAULT) -> str:
    """The text for `framework` (torch, hf, monai), whose commands name `file`."""
    text = (
        resources.files("dropscope")
        .joinpath("cli", "template_files", f"{framework}.py.txt")
        .read_text(encoding="utf-8")
    )
    return text.replace(DEFAULT, file)


def check_target(file: str) -> Path:
    """The path to write, or the error that says why nothing is written there."""
    path = Path(file)
    if path.suffix != ".py":
        raise BadInput("a template is a Python file", "FILE", file, f"write {path.stem or 'my_model'}.py")
    if path.exists():
        raise BadInput("a file that exists is never overwritten", "FILE", file, "choose another name, or move it away")
    if not path.parent.is_dir():
        raise BadInput("a file is written into a folder that exists", "FILE", file, f"make {path.parent} first")
    return path


def write_template(framework: str, file: str = DEFAULT) -> Path:
    """Writes the template to a new file."""
    path = check_target(file)
    with path.open("x", encoding="utf-8") as new:
        new.write(template(framework, file))
    return path
