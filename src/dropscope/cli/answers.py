"""Commands that answer about one's own model and data: try, uncertainty."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dropscope.checks import check_choice, check_new_file, check_passes, check_share
from dropscope.cli.app import app
from dropscope.cli.console import print_examples, print_facts, print_json, records, stderr, stdout
from dropscope.cli.model import load_both, site_map_of, with_noises
from dropscope.cli.options import (
    AsJson,
    DataOptions,
    DryRun,
    EngineName,
    GoalOptions,
    LabelRule,
    MaxError,
    Measures,
    ModelName,
    Passes,
    PassOptions,
    PredictorFolder,
    takes_records,
    words,
)
from dropscope.errors import BadInput
from dropscope.placement import Placement

if TYPE_CHECKING:
    import pandas as pd

    from dropscope.loading import LoadedData, LoadedModel

TABLE_FORMS = (".csv", ".parquet")


@app.command("try")
@takes_records()
def run_try(
    model: ModelName,
    source: DataOptions,
    how: PassOptions,
    budget: Annotated[float, typer.Option(help="Seconds to spend, roughly; less is tried where they do not do.")] = 60,
    passes: Passes = 100,
    out: Annotated[str, typer.Option(help="Folder for rows, tables and the picture.")] = "dropscope-try",
    predictor: PredictorFolder = None,
    max_error: MaxError = 0.05,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Answer whether Monte Carlo Dropout helps on a model, without naming sites: tries many, judges the best."""
    check_passes(passes)
    from dropscope.report import accuracy_curves
    from dropscope.runs import plan_trial, try_out

    loaded, data = load_both(model, source)
    options: dict[str, Any] = {"budget": budget, "passes": passes, **asdict(how)}
    if dry_run:
        plan = plan_trial(loaded.module, data, **options)
        print_json(plan.facts()) if as_json else stdout().print(str(plan), soft_wrap=True)
        return
    if predictor is not None:
        from dropscope.deploy import check_target

        check_share(max_error, "max_error", 0.05)
        check_target(predictor)
    choice = try_out(loaded.module, data, out=out, **options)
    fitted = None if predictor is None else choice.predictor(max_error)
    if fitted is not None:
        fitted.save(str(predictor))
    picture = Path(out) / "curves.png"
    accuracy_curves(choice.rankings, picture, "What deferring the most uncertain examples would do")
    if as_json:
        answer = {**choice.facts(), "text": str(choice.judgement), "folder": out}
        answer |= {
            "predictor": predictor,
            "rule": None if fitted is None or fitted.rule is None else fitted.rule.facts(),
        }
        print_json({**answer, "picture": str(picture), "deferral": records(choice.deferral)})
        return
    stdout().print(str(choice), soft_wrap=True)
    if fitted is not None:
        stdout().print(f"\n{fitted}\nin       {predictor}", soft_wrap=True)
    stdout().print(f"\npicture  {picture}\nfiles    {out}/ (choice.json, deferral.csv, examples.csv, candidates/)")
    stdout().print(f"{choice.seconds:.0f} s in all", soft_wrap=True)


@app.command("uncertainty")
@takes_records()
def run_uncertainty(
    model: ModelName,
    source: DataOptions,
    how: PassOptions,
    goal: GoalOptions,
    placement: Annotated[
        str | None, typer.Option(help="Where noise goes. Default: the model's own dropout, else last=0.5.")
    ] = None,
    measures: Measures = None,
    sort: Annotated[str | None, typer.Option(help="Measure to sort by, the most uncertain first.")] = None,
    passes: Annotated[str, typer.Option(help="Passes per example; auto: as many as its goal takes.")] = "100",
    label: LabelRule = "mean",
    errors: Annotated[
        bool, typer.Option(help="Beside each measure, how far another seed would move it: its Monte Carlo error.")
    ] = True,
    engine: EngineName = "auto",
    out: Annotated[str | None, typer.Option(help="File for the whole table: .csv or .parquet.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    show: Annotated[int, typer.Option(help="Rows to print.")] = 10,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure the uncertainty of every example: prediction, probability and each measure, the most uncertain first."""
    # A mistake in it is reported before torch is imported.
    asked = None if placement is None else with_noises(model, lambda: Placement.parse(placement))
    target = None if out is None else check_new_file(out, "out", TABLE_FORMS, overwrite=overwrite)
    count = _count(passes)
    from dropscope import measures as known
    from dropscope.runs import goal_of, uncertainty

    chosen = None if measures is None else list(words(measures))
    rows = known.resolve(chosen)
    columns = [row.name for row in rows]
    by = sort or next((name for name in ("predictive_entropy", "plain_entropy") if name in columns), columns[0])
    check_choice(by, "sort", columns)
    try:
        goal_of(count, rows, by=by if count == "auto" else None, **asdict(goal))
    except BadInput as error:
        if error.name != "by":
            raise
        what, remedy = (text.replace("by", "sort", 1) for text in (error.what, error.remedy))
        raise BadInput(what, "sort", by, remedy) from error
    loaded, data = load_both(model, source)
    used = asked or _usual_placement(loaded, data)
    if dry_run:
        print_facts({"placement": str(used), "passes": passes, "measures": columns, "would_write": out}, as_json)
        return
    wanted: dict[str, Any] = {"measures": chosen, "label": label, "errors": errors, "engine": engine}
    by_goal = by if count == "auto" else None
    table = uncertainty(loaded.module, used, data, count, **wanted, **asdict(how), **asdict(goal), by=by_goal)
    classes = int(table[["label", "prediction"]].max().max()) + 1 if "label" in table else 2
    table = table.sort_values(by, ascending=False, kind="stable").reset_index(drop=True)
    if target is not None:
        write_table(table, target)
    if as_json:
        answer = {"placement": str(used), "sorted_by": by, "file": out, **table.attrs}
        print_json({**answer, "examples": records(table)})
        return
    ran = "one plain pass" if used.is_none else f"placement {used}, {_passes_run(table, passes)}"
    stdout().print(f"{ran}, sorted by {by}", soft_wrap=True)
    print_examples(table.head(show), by)
    if "correct" in table and table.correct.mean() < 0.5 / max(classes, 2):
        stderr().print("remark: accuracy is far below chance: are the classes in the order of the model's outputs?")
    accuracy = f", accuracy {table.correct.mean():.3f}" if "correct" in table else ""
    left = f" ({show} shown)" if show < len(table) else ""
    where = f", all in {target}" if target is not None else "; --out FILE.csv writes them all" if left else ""
    stdout().print(f"{len(table)} examples{left}{accuracy}{where}", soft_wrap=True)
    if "settled" in table:
        stdout().print(_outcome(table, by), soft_wrap=True)


def _count(text: str) -> int | Literal["auto"]:
    return "auto" if text == "auto" else check_passes(int(text) if text.isdecimal() else text, "auto")


def _passes_run(table: pd.DataFrame, asked: str) -> str:
    if table.attrs["engine"] == "analytic":
        return "no passes"
    if "settled" not in table:
        return f"{asked} passes"
    return f"{table.passes.min()} to {table.passes.max()} passes ({table.passes.mean():.1f} on average)"


def _outcome(table: pd.DataFrame, by: str) -> str:
    """What a goal came to: how many examples are deferred, and for how many the passes were not enough."""
    left = int((~table.settled).sum())
    unsettled = f"not settled after {table.passes.max()} passes: {left}" if left else "all settled"
    if "deferred" not in table:
        return unsettled
    share = f"{int(table.deferred.sum())} deferred ({by} above {table.attrs['threshold']:.4g})"
    return f"{share}; {unsettled}"


def _usual_placement(loaded: LoadedModel, data: LoadedData) -> Placement:
    """The model's own dropout where it has any, else half of the last layer's input."""
    from dropscope.loading import few_inputs

    site_map = site_map_of(loaded, few_inputs(data, loaded.module))
    return Placement.parse("own" if site_map.has_own else "last=0.5")


def write_table(table: pd.DataFrame, target: Path) -> None:
    """Writes a table whole, as its ending says."""
    from dropscope.atomic import atomic_write

    write = table.to_csv if target.suffix == ".csv" else table.to_parquet
    atomic_write(target, lambda part: write(part, index=False))
