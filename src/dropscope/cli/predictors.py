"""Commands of a predictor: calibrate makes one, check looks at recent inputs; `predict --predictor` is here too."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dropscope.checks import check_new_file, check_passes
from dropscope.cli.answers import TABLE_FORMS, write_table
from dropscope.cli.app import app
from dropscope.cli.console import print_facts, print_json, print_table, records, stdout
from dropscope.cli.model import load_both, with_noises
from dropscope.cli.options import AsJson, DataOptions, Device, DryRun, ModelName, Passes, PassOptions, takes_records
from dropscope.cli.volumes import (
    ExampleOptions,
    Images,
    VolumeOptions,
    calibrate_cases,
    check_cases,
    named_predictor,
    print_fitted,
)
from dropscope.display import Column, cut
from dropscope.errors import BadInput, Phrase
from dropscope.placement import Placement

if TYPE_CHECKING:
    from dropscope.deploy import Predictions, UncertaintyPredictor
    from dropscope.loading import LoadedData

_ID = 30  # columns of an example's name

GroupFile = Annotated[
    str | None,
    typer.Option(
        help="File with the group of every example, such as its patient, one per line. With --image: a table with the "
        "columns case and group."
    ),
]


@app.command("calibrate")
@takes_records()
def run_calibrate(
    *,
    model: ModelName,
    source: ExampleOptions,
    images: Images = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Table of an image folder. With --image: a folder of label maps, or 'seg/{case}.nii.gz'."),
    ] = None,
    how: PassOptions,
    windows: VolumeOptions,
    out: Annotated[str, typer.Option(help="Folder for the predictor; one that is there is replaced.")],
    placement: Annotated[
        str | None, typer.Option(help="Where noise goes, such as 'own' or 'last=0.5'. Default: one plain pass.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="What ranks examples. Default: predictive_entropy, or plain_max_probability without noise."),
    ] = None,
    passes: Passes = 100,
    max_error: Annotated[float, typer.Option(help="Error among the kept, at most.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="Probability with which that holds.")] = 0.9,
    budget: Annotated[float | None, typer.Option(help="Share of examples that may be deferred, at most.")] = None,
    groups: GroupFile = None,
    loss: Annotated[
        Literal["dice", "volume_error"],
        typer.Option(help="With --image: bounded is 1 - Dice, or the volume error."),
    ] = "dice",
    maps: Annotated[str | None, typer.Option(help="With --image: folder to keep the maps in, and resume from.")] = None,
    test: Annotated[
        str | None, typer.Option(help="Other labelled data, as --data or --image, to evaluate the predictor on.")
    ] = None,
    class_names: Annotated[str | None, typer.Option(help="In the order of the model's outputs, or a file.")] = None,
    transforms: Annotated[str | None, typer.Option(help="Preprocessing of your own: file.py:callable.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a predictor for production: calibrated on labelled data, with a rule for when to defer."""
    asked = None if placement is None else with_noises(model, lambda: Placement.parse(placement))
    check_passes(passes)
    from dropscope.deploy import UncertaintyPredictor, check_target

    check_target(out)
    if images:
        _check_volumes(source, how, placement)
        given = {
            **windows.arguments(), "measure": windows.rank_by if measure is None else measure, "loss": loss,
            "max_error": max_error, "confidence": confidence, "rule": None if budget is None else {"budget": budget},
            "maps": maps, "passes": passes, "class_names": class_names, "transforms": transforms, "seed": how.seed,
            "draws": how.draws, "outputs": how.outputs, "device": how.device,
        }  # fmt: skip
        del given["rank_by"]
        calibrate_cases(model, str(placement), images, labels, out, given, groups=groups, test=test, dry_run=dry_run,
                        as_json=as_json)  # fmt: skip
        return
    source = _data(source, labels=labels, class_names=class_names, transforms=transforms)
    members = None if groups is None else _lines(groups)
    loaded, data = load_both(model, source)
    if dry_run:
        noise = "none: one plain pass" if asked is None else str(asked)
        facts = {
            "placement": noise,
            "passes": 1 if asked is None else passes,
            "max_error": max_error,
            "would_write": out,
        }
        print_facts(facts, as_json)
        return
    fitted = UncertaintyPredictor.fit(
        loaded.module, data, asked, passes, measure=measure, max_error=max_error, confidence=confidence, groups=members,
        rule=None if budget is None else {"budget": budget}, tokenizer=source.tokenizer, **asdict(how),
    )  # fmt: skip
    fitted.save(out)
    evaluation = None if test is None else fitted.evaluate(_beside(source, test).open()(loaded))
    _keep_evaluation(out, None if evaluation is None else evaluation.facts())
    known = {"n": fitted.calibration.n, "accuracy": float(fitted.calibration.right.mean())}
    facts = {"folder": out, "recipe": fitted.recipe.facts(), **known}
    print_fitted(fitted, evaluation, facts, f"dropscope predict {model} --data NEW --predictor {out}", as_json)


@app.command("check")
@takes_records()
def run_check(
    *,
    model: ModelName,
    source: ExampleOptions,
    images: Images = None,
    predictor: Annotated[str, typer.Option(help="Folder that dropscope calibrate wrote.")],
    groups: GroupFile = None,
    maps: Annotated[str | None, typer.Option(help="With --image: folder to keep the maps in, and resume from.")] = None,
    alpha: Annotated[float, typer.Option(help="How often there may be a false alarm where nothing changed.")] = 0.05,
    device: Device = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Check recent inputs without labels: has what the predictor says moved? Estimates the accuracy, too."""
    if images:
        check_cases(model, images, predictor, maps=maps, groups=groups, alpha=alpha, transforms=source.transforms,
                    device=device, dry_run=dry_run, as_json=as_json)  # fmt: skip
        return
    members = None if groups is None else _lines(groups)
    opened, data = _opened(model, _data(source), predictor, device)
    if dry_run:
        print_facts({"recipe": str(opened.recipe), "calibration": opened.calibration.n, "alpha": alpha}, as_json)
        return
    found = opened.check(data, alpha=alpha, groups=members)
    print_json(found.facts()) if as_json else stdout().print(str(found), soft_wrap=True)


def _keep_evaluation(folder: str, facts: dict[str, Any] | None) -> None:
    """Beside the predictor, where `dropscope report` finds it; that of an earlier one goes."""
    from dropscope.atomic import atomic_write

    file, text = Path(folder) / "evaluation.json", json.dumps(facts, indent=2, default=float)
    if facts is None:
        file.unlink(missing_ok=True)
    else:
        atomic_write(file, lambda part: part.write_text(text, encoding="utf-8"))


def predict_examples(
    model: str, source: DataOptions, folder: str, out: str | None, *, overwrite: bool, device: str | None,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Class, probability, uncertainty, P(error) and whether to defer, for images and tables."""
    target = None if out is None else check_new_file(out, "out", TABLE_FORMS, overwrite=overwrite)
    predictor, data = _opened(model, source, folder, device)
    if dry_run:
        print_facts({"recipe": str(predictor.recipe), "would_write": out}, as_json)
        return
    said = predictor(data, progress=None)
    if target is not None:
        write_table(said.table, target)
    if as_json:
        print_json({"file": out, "deferred": float(said.defer.mean()), "examples": records(said.table)})
        return
    stdout().print(f"{predictor.recipe}, the most uncertain first", soft_wrap=True)
    _print(said)
    where = "; --out FILE.csv writes them all" if target is None else f", all in {target}"
    share = 100 * float(said.defer.mean())
    stdout().print(f"{len(said)} examples, {int(said.defer.sum())} deferred ({share:.1f} %){where}", soft_wrap=True)


def _print(said: Predictions, count: int = 10) -> None:
    """A line per example, the most uncertain first."""
    few = said.table.sort_values("uncertainty", ascending=False, kind="stable").head(count)
    named = few.predicted_class if "predicted_class" in few else few.prediction
    print_table(
        [
            Column("example", [cut(" ".join(str(one).split()), _ID) for one in few["id"]]),
            Column("predicted", [cut(str(one), 18) for one in named]),
            Column("probability", [f"{one:.3f}" for one in few.probability], right=True),
            Column("uncertainty", [f"{one:.4g}" for one in few.uncertainty], right=True, rank=1),
            Column("P(error)", [f"{one:.3f}" for one in few.error_probability], right=True),
            Column("", ["defer" if one else "" for one in few.defer]),
        ]
    )


def _opened(
    model: str, source: DataOptions, folder: str, device: str | None
) -> tuple[UncertaintyPredictor, LoadedData]:
    with named_predictor(folder):
        loaded, data = load_both(model, source, labelled=False)
        from dropscope.deploy import UncertaintyPredictor

        return UncertaintyPredictor.load(folder, loaded.module, tokenizer=source.tokenizer, device=device), data


def _data(source: ExampleOptions, **more: Any) -> ExampleOptions:
    """The options of examples, which must be there without volumes."""
    if source.data is None:
        raise BadInput("data must be given", "data", None, "pass examples, or volumes with --image")
    return replace(source, **more)


def _check_volumes(source: ExampleOptions, how: PassOptions, placement: str | None) -> None:
    if source.data is not None:
        raise BadInput("data must not be given with images", "data", source.data, "leave one of them out")
    if how.precision != "fp32":
        raise BadInput("precision must be fp32 for volumes", "precision", how.precision, "leave it out")
    if placement is None:
        raise BadInput("placement must be given for volumes", "placement", None, "write --placement own")


def _beside(source: DataOptions, data: str) -> DataOptions:
    """Other data, read in the same way."""
    return DataOptions(**{**asdict(source), "data": data, "labels": None})


def _lines(file: str) -> list[str]:
    from dropscope.loading import read_text

    lines = read_text(Path(file), "groups").splitlines()
    if not lines:
        raise BadInput("groups must hold a line per example", "groups", Phrase("none"), "write one group per line")
    return lines
