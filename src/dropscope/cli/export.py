"""The command `dropscope export`: a model with its passes in one file, for ONNX or torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from dropscope.checks import check_new_file, check_passes
from dropscope.cli.app import app
from dropscope.cli.console import print_facts, print_json, stdout
from dropscope.cli.model import load_both, with_noises
from dropscope.cli.options import AsJson, DataOptions, Draws, DryRun, ModelName, Outputs, Passes, Seed, takes_records
from dropscope.placement import Placement


@app.command("export")
@takes_records()
def run_export(
    model: ModelName,
    source: DataOptions,
    out: Annotated[str, typer.Option(help="The file: .onnx, or .pt2 for torch.")],
    placement: Annotated[str, typer.Option(help="Where noise goes: 'own', 'last=0.5'; 'none' is one plain pass.")],
    passes: Passes = 100,
    measure: Annotated[
        str | None, typer.Option(help="Measure of the uncertainty. Default: predictive_entropy.")
    ] = None,
    label: Annotated[
        Literal["plain", "mean"], typer.Option(help="What decides the label: one plain pass, or the averaged passes.")
    ] = "plain",
    threshold: Annotated[float | None, typer.Option(help="Defer what is more uncertain: the file says so.")] = None,
    length: Annotated[
        int | None, typer.Option(help="For texts: tokens that the file takes. Default: those of the longest example.")
    ] = None,
    package: Annotated[
        bool, typer.Option("--package", help="For .pt2: compile it, for machines like this one (needs a C++ compiler).")
    ] = False,
    seed: Seed = 0,
    draws: Draws = "independent",
    outputs: Outputs = "logits",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write a model with its passes to one file that runs without its code: examples in, uncertainty out."""
    asked = with_noises(model, lambda: Placement.parse(placement))
    check_new_file(out, "out", (".onnx", ".pt2"), overwrite=overwrite)
    check_passes(passes)
    from dropscope.deploy import export
    from dropscope.progress import stage

    loaded, data = load_both(model, source, labelled=False)
    options: dict[str, Any] = {
        "measure": measure, "label": label, "threshold": threshold, "length": length, "package": package,
        "seed": seed, "draws": draws, "outputs": outputs,
    }  # fmt: skip
    if dry_run:
        print_facts({"placement": str(asked), "passes": passes, **options, "would_write": out}, as_json)
        return
    with stage("writing the file"):
        made = export(loaded.module, asked, data, out, passes, overwrite=overwrite, **options)
    facts = asdict(made.facts)
    if as_json:
        print_json({"file": out, "bytes": made.path.stat().st_size, **facts})
        return
    inputs = ", ".join(f"{name} [N, {', '.join(map(str, shape))}]" for name, shape in made.facts.inputs.items())
    lines = (
        f"file     {out}, {made.path.stat().st_size / 1e6:.1f} MB",
        f"runs     {made.facts.passes} passes of {made.facts.placement}, {made.facts.measure}",
        f"takes    examples [N] (int64, a key per example), {inputs}",
        f"returns  {', '.join(made.outputs)}",
        "checked  on the first examples: it says what the model says",
    )
    for line in lines:
        stdout().print(line, soft_wrap=True)
