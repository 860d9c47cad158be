"""The command `dropscope score`: a predictor over files of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from dropscope.cli.app import app
from dropscope.cli.console import print_facts, print_json, stdout
from dropscope.cli.model import load_model
from dropscope.cli.options import AsJson, Device, DryRun, ModelName, ShardText, takes_records
from dropscope.cli.volumes import named_predictor


@dataclass(frozen=True)
class RowOptions:
    """Which columns of the files hold what; arguments of `score` by the same names.

    Attributes:
        columns: Columns of the features, or one of lists. Default: 'features', else every column of floats.
        text_column: Column of the texts, for a model of texts.
        id_column: Column that names each row. Default: a hash of the row's features.
        batch_size: Rows at once.
    """

    columns: Sequence[str] | None = None
    text_column: str | None = None
    id_column: str | None = None
    batch_size: int = 8192


@app.command("score")
@takes_records()
def run_score(
    model: ModelName,
    predictor: Annotated[str, typer.Option(help="Folder that dropscope calibrate wrote.")],
    data: Annotated[
        list[str], typer.Option(help="Files of parquet: a path, 'rows/*.parquet', s3://…/*.parquet; may be repeated.")
    ],
    out: Annotated[str, typer.Option(help="Folder or address of the parts. An interrupted run resumes from it.")],
    rows: RowOptions,
    shard: ShardText = None,
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint whose tokenizer reads the texts.")] = None,
    device: Device = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Score files of any size: streaming, resumable, sharded any way, with one hash of the result."""
    from dropscope.deploy import UncertaintyPredictor, plan_scoring, score

    plan = plan_scoring(data, shard=shard or "1/1", **asdict(rows))
    with named_predictor(predictor):
        loaded = UncertaintyPredictor.load(predictor, load_model(model).module, tokenizer=tokenizer, device=device)
    if dry_run:
        print_facts({"recipe": str(loaded.recipe), **plan, "would_write": out}, as_json)
        return
    found = score(loaded, data, out, shard=shard or "1/1", **asdict(rows))
    print_json(asdict(found)) if as_json else stdout().print(str(found), soft_wrap=True)
