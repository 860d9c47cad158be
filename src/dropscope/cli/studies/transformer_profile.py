"""`dropscope study transformer-profile`: options in, accuracies and claims out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dropscope.cli.app import AsJson, DryRun, words
from dropscope.cli.console import print_json, records, stderr, stdout
from dropscope.cli.studies.group import Preset, print_claims, study

if TYPE_CHECKING:
    import pandas as pd


Rates = Literal["config", "component"]
Masks = Literal["per_example", "per_pass"]
Protocol = Literal["once", "per_configuration", "none"]
Precision = Literal["auto", "fp32", "bf16"]
LongTexts = Literal["skip", "cut"]


@study.command("transformer-profile")
def run_transformer_profile(
    models: Annotated[
        str | None, typer.Option(help="Folders or Hub names, joined by commas; the preset's checkpoints if not given.")
    ] = None,
    squad: Annotated[str | None, typer.Option(help="SQuAD's official JSON: the memory domain.")] = None,
    hellaswag: Annotated[
        str | None, typer.Option(help="HellaSwag's official JSON lines: the reasoning domain.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A labelled .csv, .jsonl or .parquet instead of the two.")] = None,
    text_column: Annotated[str | None, typer.Option(help="Column of the texts in --data; 'text' if not given.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the labels in --data.")] = None,
    group_column: Annotated[str | None, typer.Option(help="Column of the groups; 'group' if there is one.")] = None,
    preset: Annotated[Preset, typer.Option(help="How much of the study is run.")] = "paper",
    items: Annotated[int | None, typer.Option(help="Items in all, a multiple of 20; a fifth is to test on.")] = None,
    passes: Annotated[int | None, typer.Option(help="Passes per configuration; the preset's if not given.")] = None,
    learning_rate: Annotated[float, typer.Option(help="Of the fine-tuning.")] = 2e-5,
    rates: Annotated[
        Rates, typer.Option(help="What a rate reaches: the family's config fields, or exactly the components.")
    ] = "config",
    masks: Annotated[Masks, typer.Option(help="Masks of their own for every item, or one per pass.")] = "per_example",
    train: Annotated[
        Protocol, typer.Option(help="Train once, once per configuration, or not at all (the checkpoints are trained).")
    ] = "once",
    context: Annotated[bool, typer.Option(help="Memory items show the start of their paragraph.")] = True,
    long_texts: Annotated[
        LongTexts, typer.Option(help="Texts longer than a model takes: left out with their context, or cut; counted.")
    ] = "skip",
    precision: Annotated[
        Precision, typer.Option(help="Of the passes; auto is bf16 on a GPU, with its difference to fp32 measured.")
    ] = "auto",
    out: Annotated[
        str, typer.Option(help="Folder of the results; a killed run continues there.")
    ] = "transformer-profile",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one.")] = None,
    seed: Annotated[int, typer.Option(help="Of items, training and noise.")] = 42,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Dropout robustness and cognitive profile of transformers: five configurations, memory against reasoning."""
    # Imported here, so that the other commands do not wait for torch.
    from dropscope.studies.transformer_profile import Options, estimate, plan, run

    planned = plan(Options(
        None if models is None else tuple(words(models)),
        squad=squad, hellaswag=hellaswag, data=data, text_column=text_column, label_column=label_column,
        group_column=group_column, preset=preset, items=items, passes=passes, learning_rate=learning_rate,
        rates=rates, masks=masks, train=train, context=context, long_texts=long_texts,
        precision=precision, seed=seed, out=out, device=device,
    ))  # fmt: skip
    if dry_run:
        facts = estimate(planned)
        print_json(facts) if as_json else _print_plan(facts)
        return
    outcome = run(planned)
    listed, accuracies = outcome.tables["models"], outcome.tables["passes"]
    if as_json:
        grouped = accuracies.groupby(["model", "configuration", "group"], sort=False).accuracy
        table = grouped.agg(mean="mean", std="std").reset_index()
        answer = {"out": str(outcome.folder), "models": records(listed), "accuracies": records(table)}
        print_json({**answer, "claims": [asdict(claim) for claim in outcome.claims]})
        return
    _print_accuracies(accuracies)
    for row in listed[listed.status == "skipped"].itertuples():
        stderr().print(f"skipped {row.model}: {row.reason}")
    print_claims(outcome.claims)
    stdout().print(f"summary: {outcome.folder / 'summary.md'}", soft_wrap=True)


def _print_plan(plan: dict[str, Any]) -> None:
    for name, value in plan.items():
        shown = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        stdout().print(f"{name}: {'; '.join(shown) if isinstance(shown, list) else shown}", soft_wrap=True)


def _print_accuracies(accuracies: pd.DataFrame) -> None:
    """Run-level accuracy of every group, mean ± standard deviation over passes."""
    from rich.table import Table

    grouped = accuracies.groupby(["model", "group", "configuration"], sort=False).accuracy
    cells = {key: f"{values.mean():.3f} ± {values.std():.3f}" for key, values in grouped}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", overflow="fold")
    table.add_column("group")
    names = list(dict.fromkeys(configuration for _, _, configuration in cells))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for model, group in dict.fromkeys((model, group) for model, group, _ in cells):
        table.add_row(model, group, *(cells[model, group, name] for name in names))
    stdout().print(table)
