"""`dropscope study segmentation-measures`: reads what was asked, calls the study, prints where its answer lies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dropscope.cli.app import AsJson, DryRun, numbers, whole_numbers, words
from dropscope.cli.console import print_json, records, stdout
from dropscope.cli.studies.group import Preset, print_claims, study
from dropscope.progress import format_duration

if TYPE_CHECKING:
    from dropscope.studies.segmentation_measures.dice_training import Regime


@study.command("segmentation-measures")
def run_segmentation_measures(
    data: Annotated[
        str, typer.Option(help="A Medical Segmentation Decathlon folder, 'phantom', or a prepared.safetensors.")
    ] = "phantom",
    preset: Annotated[
        Preset, typer.Option(help="How large: the paper's, minutes on a GPU, or seconds.")
    ] = Preset.small,
    n_train: Annotated[str | None, typer.Option(help="Training patients, comma-separated; nested.")] = None,
    rates: Annotated[str | None, typer.Option(help="Rates of dropping, comma-separated.")] = None,
    noise: Annotated[str | None, typer.Option(help="bernoulli, gaussian, or both comma-separated.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training set, per network.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps, the same for every network.")] = None,
    validations: Annotated[int | None, typer.Option(help="How often the validation loss is taken.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images per training step; the paper's is 1.")] = None,
    precision: Annotated[str | None, typer.Option(help="Of training: fp32, bf16, fp16, auto. Passes are fp32.")] = None,
    roi: Annotated[str | None, typer.Option(help="Region, comma-separated; all of every volume if not given.")] = None,
    passes: Annotated[int | None, typer.Option(help="Passes per test image.")] = None,
    features: Annotated[str | None, typer.Option(help="Feature maps per level of the U-Net.")] = None,
    n_validation: Annotated[int | None, typer.Option(help="Validation patients.")] = None,
    n_test: Annotated[int | None, typer.Option(help="Test patients.")] = None,
    model: Annotated[
        str | None, typer.Option(help="file.py:callable of another network, trained the same way.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help="Noise at inference, with {rate} and {noise}; 'dropout={rate} noise={noise}'.")
    ] = None,
    dropout: Annotated[str, typer.Option(help="During 'training' too, or at 'inference' only.")] = "training",
    ignore_label: Annotated[int | None, typer.Option(help="Label of voxels that count nowhere.")] = None,
    workers: Annotated[int | None, typer.Option(help="Networks trained at once; by memory if not given.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where there is one if not given.")] = None,
    out: Annotated[str, typer.Option(help="Folder of the study; a killed one is taken up again there.")] = (
        "segmentation-measures"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the split, the weights and the noise.")] = 0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Which uncertainty measure finds the wrong voxels of a segmentation: a grid of trained networks."""
    from dropscope.report import claims_table
    from dropscope.studies.segmentation_measures.planning import estimated, plan
    from dropscope.studies.segmentation_measures.study import run

    planned = plan(
        data,
        preset.value,
        out,
        n_train=None if n_train is None else whole_numbers(n_train, "--n-train"),
        rates=None if rates is None else numbers(rates, "--rates"),
        noises=None if noise is None else words(noise),
        regime=_regime(preset.value, epochs, steps, validations, batch, precision),
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
        show=False if as_json else None,
    )
    if dry_run:
        facts = planned.facts() | {"estimate": estimated(planned)}
        print_json(facts) if as_json else _print_plan(facts)
        return
    outcome = run(planned, show=False if as_json else None)
    if as_json:
        found = {"folder": str(outcome.folder), "claims": records(claims_table(outcome.claims))}
        print_json({**found, "measures": records(outcome.tables["measures"])})
        return
    print_claims(outcome.claims)
    stdout().print(f"tables, figures and summary.md in {outcome.folder}", soft_wrap=True)


def _print_plan(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if name == "estimate":
            taken, gib = format_duration(value["seconds"]), value["bytes"] / 2**30
            each = f"{value['seconds_per_step']:.3g} s a step, {value['seconds_per_forward']:.3g} s a forward"
            stdout().print(f"estimate: about {taken} ({each}), {gib:.1f} GiB", soft_wrap=True)
            continue
        if value != []:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            stdout().print(f"{name.replace('_', ' ')}: {shown}", soft_wrap=True)


def _regime(
    preset: str,
    epochs: int | None,
    steps: int | None,
    validations: int | None,
    batch: int | None,
    precision: str | None,
) -> Regime | None:
    """The preset's training with what was asked for instead; None where nothing was."""
    from dropscope.studies.segmentation_measures.presets import PRESETS

    given = {"validations": validations, "batch": batch, "precision": precision}
    asked: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if epochs is not None or steps is not None:
        asked |= {"epochs": epochs, "steps": steps}
        if validations is None and epochs is not None:
            asked["validations"] = None  # a preset's number of validations belongs to its number of steps
    return replace(PRESETS[preset].regime, **asked) if asked else None  # type: ignore[arg-type]
