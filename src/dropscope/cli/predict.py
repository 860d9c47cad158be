"""The command `dropscope predict`: maps of NIfTI volumes, or what a predictor says about images and tables."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from dropscope.checks import check_passes
from dropscope.cli.app import app
from dropscope.cli.console import print_json, stdout
from dropscope.cli.model import load_model, with_noises
from dropscope.cli.options import (
    AsJson,
    Device,
    Draws,
    DryRun,
    Memory,
    ModelName,
    Outputs,
    Passes,
    Seed,
    takes_records,
)
from dropscope.cli.predictors import predict_examples
from dropscope.cli.volumes import (
    ExampleOptions,
    Images,
    VolumeOptions,
    VolumeTransforms,
    predict_cases,
    print_cases,
)
from dropscope.errors import BadInput
from dropscope.placement import Placement


@app.command("predict")
@takes_records()
def run_predict(
    *,
    model: ModelName,
    source: ExampleOptions,
    predictor: Annotated[
        str | None, typer.Option(help="Folder that dropscope calibrate wrote. It knows the placement.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help="Where noise goes, such as 'own', 'all=0.2' or 'up.1=0.3'.")
    ] = None,
    images: Images = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder of the maps; finished cases in it are not predicted again. With --data: a .csv file."
        ),
    ] = None,
    windows: VolumeOptions,
    passes: Passes = 50,
    labels: Annotated[
        str | None,
        typer.Option(help="Label maps, for Dice: a folder of CASE.nii.gz, or a pattern such as 'seg/{case}.nii.gz'."),
    ] = None,
    class_names: Annotated[
        str | None, typer.Option(help="Names of the classes, such as background,anterior,posterior.")
    ] = None,
    transforms: VolumeTransforms = None,
    outputs: Outputs = "logits",
    seed: Seed = 0,
    draws: Draws = "independent",
    device: Device = None,
    memory: Memory = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Predict finished cases again.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Predict with uncertainty: maps and pictures of NIfTI volumes, or a row per image or text of --data."""
    if images and predictor is not None:
        _check_given({"out": out}, {"placement": placement, "class_names": class_names})
        predict_cases(model, images, predictor, str(out), labels=labels, transforms=transforms,
                      overlays=windows.overlays, overwrite=overwrite, device=device, dry_run=dry_run,
                      as_json=as_json)  # fmt: skip
        return
    if source.data is not None or predictor is not None:
        _check_given({"data": source.data, "predictor": predictor}, {"placement": placement, "images": images})
        data = replace(source, class_names=class_names, transforms=transforms)
        predict_examples(model, data, str(predictor), out, overwrite=overwrite, device=device, dry_run=dry_run,
                         as_json=as_json)  # fmt: skip
        return
    _check_given({"images": images, "placement": placement, "out": out}, {})
    assert images is not None
    assert placement is not None
    assert out is not None
    with_noises(model, lambda: Placement.parse(placement))
    cut = windows.arguments()
    check_passes(passes)
    from dropscope import volumes
    from dropscope.loading import as_class_names, load_transforms

    options: dict[str, Any] = {
        **cut, "passes": passes, "seed": seed, "draws": draws, "outputs": outputs, "device": device, "memory": memory,
        "labels": labels, "class_names": as_class_names(class_names),
        "overwrite": overwrite, "transforms": None if transforms is None else load_transforms(transforms),
    }  # fmt: skip
    volumes.find_cases(images)  # a file that is missing is reported before the model is loaded
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
    print_cases(table, out, windows.rank_by, as_json=as_json)


def _check_given(needed: dict[str, Any], other: dict[str, Any]) -> None:
    """Volumes need some options, examples others."""
    for name, value in needed.items():
        if not value:
            beside = "data and predictor go together" if "data" in needed else "pass a volume, or data and a predictor"
            raise BadInput(f"{name} must be given", name, None, beside)
    for name, value in other.items():
        if value:
            what = f"{name} must not be given with a predictor"
            raise BadInput(what, name, value, "leave it out: the predictor knows")
