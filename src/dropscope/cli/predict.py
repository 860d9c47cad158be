"""The command `dropscope predict`: maps of NIfTI volumes, or what a predictor says about images and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import typer

from dropscope.checks import check_passes
from dropscope.cli.app import app
from dropscope.cli.console import print_json, records, stdout
from dropscope.cli.model import load_model, with_noises
from dropscope.cli.options import (
    AsJson,
    DataOptions,
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
from dropscope.errors import BadInput
from dropscope.placement import Placement

_LISTED, _FIRST = 30, 3  # cases in the list, and those to look at first
_NAME = 26  # columns of a case's name


@dataclass(frozen=True)
class ExampleOptions(DataOptions):
    __doc__ = DataOptions.__doc__

    data: str | None = None  # type: ignore[assignment]  # volumes are --image


@dataclass(frozen=True)
class VolumeOptions:
    """How volumes are cut into windows and what is written of them; arguments of `volumes.predict` by the same names.

    Attributes:
        roi: Window, such as 128x128x16; 128x128 for the slices of a 2-D network. Default: all at once.
        overlap: Share of a window that the next one covers again.
        measures: Maps. Default: predictive_entropy, averaged_variance, plain_entropy.
        scale: percentiles: the 5th of each channel becomes 0, the 95th 1 (default without --transforms); or none.
        masks: per_example: a draw for each window; per_pass: one for all windows of a pass.
        batch_size: Windows at once.
        overlays: Draw a picture of every case, and one of all.
    """

    roi: str | None = None
    overlap: float = 0.25
    measures: Sequence[str] | None = None
    scale: Literal["percentiles", "none"] | None = None
    masks: Literal["per_example", "per_pass"] = "per_example"
    batch_size: int = 4
    overlays: bool = True

    def arguments(self) -> dict[str, Any]:
        given = asdict(self) | {"roi": _sides(self.roi)}
        return given if self.measures is not None else {name: given[name] for name in given if name != "measures"}


@app.command("predict")
@takes_records()
def run_predict(
    *,
    model: ModelName,
    source: ExampleOptions,
    predictor: Annotated[
        str | None, typer.Option(help="With --data: folder that dropscope calibrate wrote. It knows the placement.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help="Where noise goes, such as 'own', 'all=0.2' or 'up.1=0.3'.")
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            "--image", help="A NIfTI file, a folder, or a.nii.gz,b.nii.gz for channels of one case; may be repeated."
        ),
    ] = None,
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
    transforms: Annotated[
        str | None,
        typer.Option(help="Preprocessing of your own, file.py:callable: a function of the array, or MONAI transforms."),
    ] = None,
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
    rows = records(table)
    if as_json:
        print_json({"folder": out, "cases": rows, "remarks": list(table.attrs["remarks"])})
        return
    for line in _review(rows, out):
        stdout().print(line, soft_wrap=True)


def _check_given(needed: dict[str, Any], other: dict[str, Any]) -> None:
    """Volumes need some options, examples others."""
    for name, value in needed.items():
        if not value:
            beside = "data and predictor go together" if "data" in needed else "pass a volume, or data and a predictor"
            raise BadInput(f"{name} must be given", name, None, beside)
    for name, value in other.items():
        if value:
            raise BadInput(f"{name} must not be given with data", name, value, "leave it out: the predictor knows")


def _review(rows: list[dict[str, Any]], out: str) -> list[str]:
    """A short line per case, most uncertain first, and what to look at."""
    from dropscope.volumes import format_volume

    width = min(_NAME, max(len(row["case"]) for row in rows))
    lines = [f"{len(rows)} case{'s'[: len(rows) > 1]}, most uncertain first (mean entropy over the foreground)"]
    for row in rows[:_LISTED]:
        name = row["case"] if len(row["case"]) <= width else f"{row['case'][: width - 9]}…{row['case'][-8:]}"
        level = "nothing found" if row["uncertainty"] is None else f"{row['uncertainty']:.3f} nats"
        volume = format_volume(row["ml_low"], row["ml"], row["ml_high"])
        line = f"{row['rank']:>4}  {name:<{width}}  {level}  {volume}"
        lines.append(line if row.get("dice") is None else f"{line}  Dice {row['dice']:.2f}")
    if len(rows) > _LISTED:
        lines.append(f"      … {len(rows) - _LISTED} more in {out}/cases.csv")
    if "overlay" in rows[0]:
        lines.append("look at these first:")
        lines += [f"  {out}/{row['overlay']}" for row in rows[:_FIRST]]
        lines.append(f"all at a glance: {out}/overview.png")
    return [*lines, f"table: {out}/cases.csv"]


def _sides(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.lower().replace("×", "x").replace(",", "x").split("x"))
    except ValueError as error:
        what = "--roi must be the sides of a window, joined by x"
        raise BadInput(what, "--roi", text, "write --roi 128x128x16") from error
