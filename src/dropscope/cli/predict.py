"""The command `dropscope predict`: NIfTI volumes in, label and uncertainty maps out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from dropscope.cli.app import app
from dropscope.cli.console import print_json, records, stdout
from dropscope.cli.model import load_model
from dropscope.cli.options import AsJson, Device, DryRun, Measures, Memory, ModelName, Outputs, Passes, Seed, words
from dropscope.errors import BadInput


@app.command("predict")
def run_predict(
    model: ModelName,
    placement: Annotated[str, typer.Option(help="Where noise goes, such as 'own', 'all=0.2' or 'up.1=0.3'.")],
    images: Annotated[
        list[str],
        typer.Option(
            "--image", help="A NIfTI file, a folder, or a.nii.gz,b.nii.gz for channels of one case; may be repeated."
        ),
    ],
    out: Annotated[str, typer.Option(help="Folder of the maps; finished cases in it are not predicted again.")],
    roi: Annotated[
        str | None,
        typer.Option(help="Window, such as 128x128x16; 128x128 for the slices of a 2-D network. Default: all at once."),
    ] = None,
    overlap: Annotated[float, typer.Option(help="Share of a window that the next one covers again.")] = 0.25,
    passes: Passes = 50,
    measures: Measures = None,
    scale: Annotated[
        str, typer.Option(help="percentiles: the 5th of each channel becomes 0 and the 95th 1. Or none.")
    ] = "percentiles",
    outputs: Outputs = "logits",
    masks: Annotated[
        str, typer.Option(help="per_example: a draw for each window; per_pass: one for all windows of a pass.")
    ] = "per_example",
    batch_size: Annotated[int, typer.Option(help="Windows at once.")] = 4,
    seed: Seed = 0,
    device: Device = None,
    memory: Memory = "auto",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Label map and uncertainty maps of volumes, as NIfTI with the geometry of the image."""
    from dropscope import volumes
    from dropscope.measures import SEGMENTATION

    options: dict[str, Any] = {
        "passes": passes, "measures": SEGMENTATION if measures is None else words(measures),
        "roi": _sides(roi), "overlap": overlap, "seed": seed, "masks": masks, "outputs": outputs, "scale": scale,
        "batch_size": batch_size, "device": device, "memory": memory,
    }  # fmt: skip
    loaded = load_model(model)
    if dry_run:
        plan = volumes.plan_prediction(loaded.module, placement, images, out, **options)
        if as_json:
            cases = [asdict(case) | {"files": [str(file) for file in case.files]} for case in plan.cases]
            print_json(asdict(plan) | {"cases": cases})
        else:
            stdout().print(str(plan), soft_wrap=True)
        return
    table = volumes.predict(loaded.module, placement, images, out, **options)
    if as_json:
        print_json({"folder": out, "cases": records(table)})
        return
    for row in records(table):
        numbers = ", ".join(
            f"{name} {value:.4g}"
            for name, value in row.items()
            if isinstance(value, float) and name.startswith(("millilitres", "volume_variation", "pairwise_dice"))
        )
        stdout().print(f"{row['case']}: {numbers}", soft_wrap=True)
    stdout().print(f"{len(table)} cases in {out}; the table is {out}/cases.csv", soft_wrap=True)


def _sides(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.lower().replace("×", "x").replace(",", "x").split("x"))
    except ValueError as error:
        what = "--roi must be the sides of a window, joined by x"
        raise BadInput(what, "--roi", text, "write --roi 128x128x16") from error
