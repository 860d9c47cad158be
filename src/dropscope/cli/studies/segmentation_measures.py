"""The command `dropscope study segmentation-measures`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dropscope.cli.app import AsJson, DryRun, numbers, whole_numbers, words
from dropscope.cli.console import print_json, records, stdout
from dropscope.cli.studies.group import Preset, print_claims, study


@study.command("segmentation-measures")
def run_segmentation_measures(
    data: Annotated[
        str, typer.Option(help="A Medical Segmentation Decathlon folder, 'phantom', or a prepared.safetensors.")
    ] = "phantom",
    preset: Annotated[Preset, typer.Option(help="How large: as in the paper, minutes on a GPU, or seconds.")] = "small",
    n_train: Annotated[str | None, typer.Option(help="Training patients, comma-separated; nested.")] = None,
    rates: Annotated[str | None, typer.Option(help="Rates of dropping, comma-separated.")] = None,
    noises: Annotated[str | None, typer.Option("--noise", help="bernoulli, gaussian, or both comma-separated.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training set, per network.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps, the same for every network.")] = None,
    validations: Annotated[int | None, typer.Option(help="How often the validation loss is computed.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images per training step; 1 in the paper.")] = None,
    precision: Annotated[str | None, typer.Option(help="Of training: fp32, bf16, fp16, auto. Passes are fp32.")] = None,
    roi: Annotated[str | None, typer.Option(help="Region, comma-separated. Default: all of every volume.")] = None,
    passes: Annotated[int | None, typer.Option(help="Passes per test image.")] = None,
    features: Annotated[str | None, typer.Option(help="Feature maps per level of the U-Net, comma-separated.")] = None,
    n_validation: Annotated[int | None, typer.Option(help="Validation patients.")] = None,
    n_test: Annotated[int | None, typer.Option(help="Test patients.")] = None,
    model: Annotated[
        str | None, typer.Option(help="file.py:callable of another network, trained in the same way.")
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(help="Noise at inference, with {rate} and {noise}. Default: 'dropout={rate} noise={noise}'."),
    ] = None,
    dropout: Annotated[str, typer.Option(help="During 'training' too, or at 'inference' only.")] = "training",
    ignore_label: Annotated[int | None, typer.Option(help="Label of voxels that count nowhere.")] = None,
    workers: Annotated[int | None, typer.Option(help="Networks trained at once. Default: what memory allows.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    out: Annotated[str, typer.Option(help="Folder of the study; an interrupted study continues there.")] = (
        "segmentation-measures"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the split, the weights and the noise.")] = 0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Which uncertainty measure finds the wrong voxels of a segmentation: a grid of trained networks."""
    from dropscope.report import claims_table
    from dropscope.studies.segmentation_measures import Options, estimate, plan, run

    options = Options(
        data=data,
        preset=preset,
        out=out,
        n_train=None if n_train is None else whole_numbers(n_train, "--n-train"),
        rates=None if rates is None else numbers(rates, "--rates"),
        noises=None if noises is None else words(noises),
        epochs=epochs,
        steps=steps,
        validations=validations,
        batch=batch,
        precision=precision,
        roi=None if roi is None else whole_numbers(roi, "--roi"),
        passes=passes,
        features=None if features is None else whole_numbers(features, "--features"),
        n_validation=n_validation,
        n_test=n_test,
        workers=workers,
        device=device,
        seed=seed,
        model=model,
        placement=placement,
        dropout=dropout,
        ignore_label=ignore_label,
    )
    show = False if as_json else None
    planned = plan(options, show=show)
    if dry_run:
        facts = planned.facts() | {"estimate": estimate(planned)}
        print_json(facts) if as_json else _print_plan(facts)
        return
    outcome = run(planned, show=show)
    if as_json:
        claims, measures = records(claims_table(outcome.claims)), records(outcome.tables["measures"])
        print_json({"folder": str(outcome.folder), "claims": claims, "measures": measures})
        return
    print_claims(outcome.claims)
    stdout().print(f"tables, figures and summary.md in {outcome.folder}", soft_wrap=True)


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
