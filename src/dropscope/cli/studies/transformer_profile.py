"""`dropscope study transformer-profile`: options in, accuracies and claims out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dropscope.cli.console import print_json, records, stderr, stdout
from dropscope.cli.options import AsJson, DryRun, takes_records
from dropscope.cli.studies.group import print_summary, registers, study, summary_record
from dropscope.studies.transformer_profile import Options

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 4  # models whose accuracies are printed; the tables have all


@study.command("transformer-profile")
@takes_records()
def run_transformer_profile(options: Options, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Dropout robustness and cognitive profile of transformers: five configurations, memory against reasoning."""
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
        print_json({**answer, **summary_record(outcome.summary)})
        return
    _print_accuracies(accuracies)
    for row in listed[listed.status == "skipped"].itertuples():
        stderr().print(f"skipped {row.model}: {row.reason}")
    print_summary(outcome.summary)
    stdout().print(f"summary: {outcome.folder / 'summary.md'}", soft_wrap=True)


def _print_plan(plan: dict[str, Any]) -> None:
    for name, value in plan.items():
        shown = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        stdout().print(f"{name}: {'; '.join(shown) if isinstance(shown, list) else shown}", soft_wrap=True)


def _print_accuracies(accuracies: pd.DataFrame) -> None:
    """Run-level accuracy of a few models, mean ± standard deviation over passes: a row per configuration."""
    from rich.table import Table

    if accuracies.model.nunique() > _SHOWN:
        return
    for model, own in accuracies.groupby("model", sort=False):
        cells = own.groupby(["configuration", "group"], sort=False).accuracy
        texts = {key: f"{values.mean():.3f} ± {values.std():.3f}" for key, values in cells}
        groups = list(own["group"].unique())
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("configuration", no_wrap=True)
        for group in groups:
            table.add_column(str(group), justify="right", no_wrap=True)
        for name in own.configuration.unique():
            table.add_row(str(name), *(texts[name, group] for group in groups))
        stdout().print(f"{model}, accuracy ± std over passes", soft_wrap=True, highlight=False)
        stdout().print(table)
