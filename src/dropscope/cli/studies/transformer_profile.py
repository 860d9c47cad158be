"""`dropscope study transformer-profile`: options in, accuracies and claims out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dropscope.cli.console import print_json, records, stderr, stdout
from dropscope.cli.options import AsJson, DryRun, takes_records
from dropscope.cli.studies.group import print_claims, registers, study
from dropscope.studies.transformer_profile import Options

if TYPE_CHECKING:
    import pandas as pd


@study.command("transformer-profile")
@takes_records()
def run_transformer_profile(options: Options, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Dropout robustness and cognitive profile of transformers: five configurations, memory against reasoning."""
    from dropscope.report import claims_table
    from dropscope.studies.transformer_profile import estimate, plan, preregister, run

    planned = plan(options)
    if dry_run:
        facts = estimate(planned)
        print_json(facts) if as_json else _print_plan(facts)
        return
    if registers(options.preregister, lambda: preregister(planned), as_json=as_json):
        return
    outcome = run(planned)
    listed, accuracies = outcome.tables["models"], outcome.tables["passes"]
    if as_json:
        grouped = accuracies.groupby(["model", "configuration", "group"], sort=False).accuracy
        table = grouped.agg(mean="mean", std="std").reset_index()
        answer = {"out": str(outcome.folder), "models": records(listed), "accuracies": records(table)}
        print_json({**answer, "claims": records(claims_table(outcome.claims))})
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
