"""The command `dropscope meta`: several runs of one study, claim by claim."""

from __future__ import annotations

from typing import Annotated

import typer

from dropscope.cli.app import app
from dropscope.cli.console import print_json, records, stdout
from dropscope.cli.options import AsJson


@app.command("meta")
def run_meta(
    folders: Annotated[list[str], typer.Argument(metavar="FOLDER", help="Folders of finished studies of one kind.")],
    out: Annotated[str, typer.Option(help="Folder for tables, forest plots and the summary.")] = "meta",
    as_json: AsJson = False,
) -> None:
    """Pool several runs of one study: a random-effects estimate and a forest plot for every claim."""
    from dropscope.report import meta

    made = meta(folders, out)
    if as_json:
        answer = {"study": made.study, "studies": list(made.studies), "folder": str(made.folder)}
        tables = {"pooled": records(made.table), "estimates": records(made.estimates)}
        print_json({**answer, **tables, "not_pooled": made.not_pooled, "remarks": list(made.remarks)})
        return
    stdout().print(str(made), soft_wrap=True, markup=False, highlight=False)
    stdout().print(f"summary, tables and forest plots in {made.folder}", soft_wrap=True)
