"""The command that tunes: the best placement and measure for one's own model, or one plain pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dropscope.atomic import output_folder
from dropscope.checks import check_passes, check_share
from dropscope.cli.app import app
from dropscope.cli.console import print_json, stdout
from dropscope.cli.model import load_both
from dropscope.cli.options import (
    AsJson,
    DataOptions,
    Draws,
    DryRun,
    MaxError,
    ModelName,
    PassOptions,
    PredictorFolder,
    takes_records,
)

_NONE = "none"


@dataclass(frozen=True)
class SearchOptions:
    """What is searched, by what, and for how long; the fields are arguments of `tune` by the same names.

    Attributes:
        sites: Sites to try, comma-separated, in call order. Default: all of the usual kinds.
        rates: Rates of dropping to choose from.
        objective: Score of a ranking to search by.
        passes: Passes of the finalists.
        measures: Measures, comma-separated. Default: the usual ones.
        rivals: Rivals, comma-separated, or none. Default: every one that the model allows.
        reserve: Share of the examples that is left alone, for a predictor.
        budget: Seconds to spend, roughly. Default: no limit.
        out: Folder for everything that is found. An interrupted tuning resumes from it.
    """

    sites: Sequence[str] | None = None
    rates: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
    objective: Literal[
        "isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty", "aurc", "excess_aurc", "augrc",
        "error_auroc", "error_auprc",
    ] = "aurc"  # fmt: skip
    passes: int = 48
    measures: Sequence[str] | None = None
    rivals: Sequence[str] | None = None
    reserve: float = 0.2
    budget: float | None = None
    out: str = "dropscope-tune"


@app.command("tune")
@takes_records()
def run_tune(
    model: ModelName,
    source: DataOptions,
    search: SearchOptions,
    how: PassOptions,
    draws: Draws = "stratified",
    predictor: PredictorFolder = None,
    max_error: MaxError = 0.05,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Find the best placement and measure for a model, or that one plain pass does as well; judged beside rivals."""
    check_passes(search.passes)
    output_folder(search.out)
    if predictor is not None:
        from dropscope.deploy import check_target

        check_share(max_error, "max_error", 0.05)
        check_target(predictor)
    from dropscope.deploy.tuning import plan_tuning, tune

    loaded, data = load_both(model, source)
    options: dict[str, Any] = {**asdict(how), **asdict(search), "draws": draws}
    out, rivals = options.pop("out"), options.pop("rivals")
    if dry_run:
        plan = plan_tuning(loaded.module, data, **options)
        print_json(plan.facts()) if as_json else stdout().print(str(plan), soft_wrap=True)
        return
    chosen = None if rivals is None else [] if list(rivals) == [_NONE] else list(rivals)
    choice = tune(loaded.module, data, rivals=chosen, out=out, **options)
    fitted = None if predictor is None else choice.predictor(max_error)
    if fitted is not None:
        fitted.save(str(predictor))
    if as_json:
        rule = None if fitted is None or fitted.rule is None else fitted.rule.facts()
        print_json({**choice.facts(), "folder": out, "predictor": predictor, "rule": rule})
        return
    stdout().print(str(choice), soft_wrap=True)
    if fitted is not None:
        stdout().print(f"\n{fitted}\nin       {predictor}", soft_wrap=True)
    stdout().print(f"\nfiles    {out}/ (choice.json, table.csv, evidence/, judged/, comparison/)", soft_wrap=True)
    stdout().print(f"{choice.seconds:.0f} s in all", soft_wrap=True)
