"""Commands that decide: defer, from a table of scores to a rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dropscope.checks import check_new_file
from dropscope.cli.app import app
from dropscope.cli.console import print_facts, print_json, stderr, stdout
from dropscope.cli.options import AsJson, DryRun, in_words, takes_records, words
from dropscope.errors import BadInput, Phrase, nearest

if TYPE_CHECKING:
    import pandas as pd

_MEASURES = ("predictive_entropy", "plain_entropy", "uncertainty")
_TRUE, _FALSE = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")
_Method = Literal["fixed_sequence", "starts", "sgr", "holm", "average"]


@dataclass(frozen=True)
class ScoreColumns:
    """Which columns of a table of scores hold what.

    Attributes:
        uncertainty: Column of the uncertainty, or several. Default: predictive_entropy.
        correct: Column that says whether each is right, or its Dice score.
        loss: Column of losses from 0 to 1, such as volume_error, in place of `correct`.
        groups: Column of what is independent, such as patients. Default: 'group', if present.
        labels: Column of true classes. Default: 'label', if present.
        predictions: Column of predicted classes. Default: 'prediction', if present.
    """

    uncertainty: Sequence[str] | None = None
    correct: str = "correct"
    loss: str | None = None
    groups: str | None = None
    labels: str | None = None
    predictions: str | None = None


@app.command("defer")
@takes_records()
def run_defer(
    scores: Annotated[
        str, typer.Argument(metavar="SCORES", help="A .csv, .jsonl or .parquet: what uncertainty --out writes.")
    ],
    columns: ScoreColumns,
    max_error: Annotated[
        float | None, typer.Option(help="Error among the kept, at most. Default: 0.05, or none with --budget.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Probability with which the promise holds.")] = 0.9,
    method: Annotated[_Method, typer.Option(**in_words("How the threshold is found.", _Method))] = "fixed_sequence",
    budget: Annotated[float | None, typer.Option(help="Share of examples that may be deferred, at most.")] = None,
    max_false_negatives: Annotated[
        float | None, typer.Option(help="Share of misses among the kept of the positive class, at most.")
    ] = None,
    positive: Annotated[str | None, typer.Option(help="The positive class. Default: 1.")] = None,
    costs: Annotated[
        str | None, typer.Option(help="Cost of each mistake, TRUE:PREDICTED=COST, such as 1:0=5,0:1=1.")
    ] = None,
    max_cost: Annotated[float | None, typer.Option(help="Mean cost of the kept, at most.")] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="A threshold for every predicted class, and the promise in each.")
    ] = False,
    prevalence: Annotated[
        str | None, typer.Option(help="Shares of the classes in use, such as 0=0.99,1=0.01, or of the positive: 0.01.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="File for the rule: .json.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Find when to defer: the threshold that keeps most examples with a bounded error, from labelled scores."""
    target = None if out is None else check_new_file(out, "out", (".json",), overwrite=overwrite)
    shares, table_of_costs = _shares(prevalence), _costs(costs)
    if max_error is None and not (budget or max_false_negatives or max_cost):
        max_error = 0.05
    from dropscope.deploy import defer
    from dropscope.loading import read_table

    path = Path(scores)
    table = read_table(path, "scores")
    asked = _measures(table, path, columns.uncertainty)
    by_label, by_prediction = bool(max_false_negatives or max_cost or shares), bool(max_cost or per_class)
    usual = {
        "groups": _column(table, path, columns.groups, "groups", "group"),
        "labels": _column(table, path, columns.labels, "labels", "label") if by_label else None,
        "predictions": _column(table, path, columns.predictions, "predictions", "prediction")
        if by_prediction
        else None,
    }
    used = {name: column for name, column in usual.items() if column is not None}
    measured = {name: _numbers(table, path, name, "uncertainty") for name in asked}
    right = _outcomes(table, path, columns)
    if dry_run:
        plan = {
            "examples": len(table),
            "uncertainty": asked,
            "correct" if columns.loss is None else "loss": columns.loss or columns.correct,
            **used,
            "would_write": out,
        }
        print_facts(plan, as_json)
        return
    if columns.groups is None and "groups" in used:
        stderr().print(f"remark: the column {used['groups']!r} says what is independent")
    rule = defer(
        measured, right, max_error, confidence, method=method, budget=budget, positive=positive,
        max_false_negatives=max_false_negatives, costs=table_of_costs, max_cost=max_cost,
        per_class=per_class, prevalence=shares,
        **{name: table[column].astype(str).tolist() for name, column in used.items()},
    )  # fmt: skip
    if target is not None and rule.found:
        rule.save(target)
    if as_json:
        print_json({**rule.facts(), "file": out if rule.found else None})
    else:
        stdout().print(str(rule), soft_wrap=True)
        if target is not None and rule.found:
            stdout().print(f"rule     {target}", soft_wrap=True)
    if not rule.found:
        raise typer.Exit(1)


# --- columns ----------------------------------------------------------------------------------------------------------


def _measures(table: pd.DataFrame, path: Path, asked: Sequence[str] | None) -> list[str]:
    """The columns that hold the uncertainty."""
    if asked is not None:
        return [_column(table, path, name, "uncertainty") or name for name in asked]
    found = next((name for name in _MEASURES if name in table.columns), None)
    if found is None:
        raise BadInput("uncertainty must name a column", "uncertainty", list(table.columns), "name one of these")
    return [found]


def _column(table: pd.DataFrame, path: Path, asked: str | None, name: str, usual: str | None = None) -> str | None:
    """The column that was asked for, else the usual one, if there is one."""
    if asked is None:
        return usual if usual in table.columns else None
    if asked not in table.columns:
        raise BadInput(f"{name} must be a column of {path.name}", name, asked, nearest(asked, map(str, table.columns)))
    return asked


def _numbers(table: pd.DataFrame, path: Path, column: str, name: str) -> list[float]:
    """The numbers of a column; a blank cell is NaN, as of a case in which nothing was found."""
    found = []
    for number, value in enumerate(table[column].tolist(), 1):
        blank = value is None or (isinstance(value, str) and not value.strip())
        try:
            found.append(float("nan") if blank else float(value))
        except (TypeError, ValueError) as error:
            what = f"{name} must be a column of numbers: row {number} of {path.name}, {column!r}"
            raise BadInput(what, name, value, "fix the row, or name another column") from error
    return found


def _outcomes(table: pd.DataFrame, path: Path, columns: ScoreColumns) -> list[float]:
    """Whether each is right, from words or numbers; or how far, from losses."""
    if columns.loss is not None:
        column = _column(table, path, columns.loss, "loss") or columns.loss
        losses = _numbers(table, path, column, "loss")
        wrong = next((at for at, value in enumerate(losses, 1) if not 0 <= value <= 1), None)
        if wrong is not None:
            what = f"loss must be from 0 to 1 in row {wrong} of {path.name}, {column!r}"
            raise BadInput(what, "loss", losses[wrong - 1], "fix the row, or leave it out")
        return [1 - value for value in losses]
    column = columns.correct
    if column not in table.columns:
        remedy = f"{nearest(column, map(str, table.columns))} Labelled examples have such a column"
        raise BadInput(f"correct must be a column of {path.name}", "correct", column, remedy)
    found = []
    for number, value in enumerate(table[column].tolist(), 1):
        word = str(value).strip().lower()
        if word in _TRUE or word in _FALSE:
            found.append(float(word in _TRUE))
            continue
        try:
            found.append(float(word))
        except ValueError as error:
            what = f"correct must be true, false or a share in row {number} of {path.name}, {column!r}"
            raise BadInput(what, "correct", value, "fix the row, or leave it out") from error
    return found


# --- values -----------------------------------------------------------------------------------------------------------


def _shares(text: str | None) -> dict[Any, float] | float | None:
    if text is None:
        return None
    pairs = _pairs(text, "prevalence", "0=0.99,1=0.01") if "=" in text else None
    return _number(text, "prevalence", "0.01") if pairs is None else dict(pairs)


def _costs(text: str | None) -> dict[tuple[Any, Any], float] | None:
    if text is None:
        return None
    found = {}
    for name, cost in _pairs(text, "costs", "1:0=5,0:1=1"):
        true, colon, predicted = name.partition(":")
        if not colon:
            what = "costs must be TRUE:PREDICTED=COST, comma-separated"
            raise BadInput(what, "costs", text, "write costs='1:0=5,0:1=1'")
        found[true.strip(), predicted.strip()] = cost
    return found


def _pairs(text: str, name: str, example: str) -> list[tuple[str, float]]:
    found = []
    for part in words(text):
        key, equals, value = part.rpartition("=")
        if not equals:
            raise BadInput(f"{name} must be pairs, comma-separated", name, text, f"write {name}='{example}'")
        found.append((key.strip(), _number(value, name, example)))
    return found


def _number(text: str, name: str, example: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BadInput(f"{name} must hold numbers", name, Phrase(repr(text)), f"write {name}='{example}'") from error
