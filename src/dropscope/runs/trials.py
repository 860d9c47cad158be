"""Trials: answers without naming sites. `try_out` chooses on one half of the data and judges on the other."""

from __future__ import annotations

import inspect
import json
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn
from typing_extensions import Unpack

from dropscope.atomic import atomic_write, output_folder, read_json, same_spec
from dropscope.checks import check_passes, check_rate, check_share, finite_number
from dropscope.data import Data
from dropscope.display import Table, headed
from dropscope.engine import PlanSummary, SessionOptions, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure, resolve
from dropscope.parameters import shares
from dropscope.placement import Placement
from dropscope.runs.candidates import Candidates, TrialPlan
from dropscope.runs.jobs import Asked
from dropscope.runs.partitions import split
from dropscope.runs.passes import uncertainty
from dropscope.runs.plots import accuracy_axes
from dropscope.runs.result import Run
from dropscope.runs.sweeps import plan_session, sweep
from dropscope.runs.verdicts import Judgement, deferral_lines, deferral_table, judge, short_placement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dropscope import UncertaintyPredictor

RATES = (0.1, 0.3, 0.5)
_KEPT = "top:10"
_LEAST_SHARE = 0.3  # of the budget goes into choosing, however long the preparation takes
_COMPILED = False  # seconds a segment, the first time: more than it gives back within a budget
_CHOOSING = 0.7  # share of the budget that choosing may take; set-up and judging take the rest


@dataclass(frozen=True, eq=False)
class Choice:
    """What to use on a model, and why.

    Attributes:
        placement: Where noise should go; None where one plain pass is the better choice.
        measure: The measure to rank examples by.
        passes: Passes per example: 1 for a plain pass.
        judgement: The best placement against one plain pass, on examples that did not choose it.
        deferral: What deferring the most uncertain examples does, for both: `deferred`, `ranking`, `accuracy`,
            `errors_caught`, `errors_kept`.
        evidence: The rows of every candidate, on the examples that chose.
        examples: Per example of the part that judged: `id`, `prediction`, `correct` and both uncertainties.
        remarks: What was left out, and why.
        seconds: Wall time in all.
        folder: Where everything was written; None without `out`.
        judging: The model, the part of the data that judged, and how its passes ran.
    """

    placement: Placement | None
    measure: str
    passes: int
    judgement: Judgement
    deferral: pd.DataFrame
    evidence: Run
    examples: pd.DataFrame
    remarks: tuple[str, ...] = ()
    seconds: float = 0.0
    folder: Path | None = None
    judging: tuple[nn.Module, Data, dict[str, Any]] | None = None

    def predictor(self, target_risk: float = 0.05, confidence: float = 0.9, **rule: Any) -> UncertaintyPredictor:
        """A predictor with this placement and measure, or of one plain pass, calibrated on the examples that judged.

        These also decided between two rankings, so its rule is tested at half of the level.

        Args:
            target_risk: What the error among the kept may be at most.
            confidence: Probability with which that holds.
            **rule: Others that `defer` takes, such as budget=0.2.

        Returns:
            An `UncertaintyPredictor`.

        Raises:
            BadInput: For anything that cannot be used.
        """
        from dropscope import UncertaintyPredictor

        assert self.judging is not None
        model, data, options = self.judging
        level = 1 - (1 - check_share(confidence, "confidence", 0.9)) / 2
        fitted = UncertaintyPredictor.fit(
            model, data, self.placement, self.passes, measure=self.measure, max_error=target_risk, confidence=level,
            rule=rule, **options,
        )  # fmt: skip
        if fitted.rule is None or fitted.rule.confidence is None:
            return fitted
        said = "tested at half of the level: these examples also decided between two rankings"
        return replace(fitted, rule=replace(fitted.rule, confidence=confidence, remarks=(*fitted.rule.remarks, said)))

    @property
    def rankings(self) -> dict[str, pd.DataFrame]:
        """Both rankings of the part that judged, by name: tables with `uncertainty` and `correct`."""
        judged = self.judgement
        return _rankings(self.examples, (judged.placement, judged.measure, judged.rival))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Accuracy on the most certain share of the examples that judged, for both rankings.

        Args:
            ax: Axes to draw in; None makes a figure.

        Returns:
            The Axes.
        """
        return accuracy_axes(self.rankings, ax)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        names = dict(zip(self.rankings, ("best placement", "plain pass"), strict=True))
        rows = [[f"{100 * share:.0f} %", *(f"{100 * value:.1f} %" for value in part.accuracy),
                 *("–" if pd.isna(value) else f"{100 * value:.0f} %" for value in part.errors_caught)]
                for share, part in self.deferral.groupby("deferred", sort=False)]  # fmt: skip
        titles = ["deferred", *(f"accuracy, {name}" for name in names.values()),
                  *(f"errors caught, {name}" for name in names.values())]  # fmt: skip
        notes = [f"{said}: {name}" for name, said in names.items()]
        return Table(titles, rows, str(self.judgement), [*notes, *self.remarks]).html()

    def facts(self) -> dict[str, Any]:
        """The choice in values that JSON can hold."""
        return {
            "placement": None if self.placement is None else str(self.placement),
            "measure": self.measure,
            "passes": self.passes,
            "verdict": self.judgement.word,
            "judgement": asdict(self.judgement),
            "remarks": list(self.remarks),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        run, judged = self.evidence, self.judgement
        count, passes = run.rows.placement.nunique(), run.spec["passes"]
        measures = run.rows.measure.nunique()
        lines = [
            f"tried    {count} placements × {measures} measures, {passes} passes, on {run.spec['examples']} examples",
            f"judged   the best of them on {judged.examples} other examples, with fresh masks",
            *(line for remark in self.remarks for line in headed("remark", remark)),
            "",
            *deferral_lines(self.deferral, list(self.rankings)),
            "",
            *textwrap.wrap(f"Verdict: {judged}", 79),
        ]
        return "\n".join(lines)


@shares(open_session, without=("ignore_label",))
def try_out(
    model: nn.Module,
    data: Any,
    *,
    budget: float = 60.0,
    rates: Sequence[float] = RATES,
    passes: int = 100,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    engine: str = "auto",
    out: str | Path | None = None,
    progress: bool | None = None,
    **options: Unpack[SessionOptions],
) -> Choice:
    """Answers whether Monte Carlo Dropout helps on a model, without naming sites.

    Tries the model's own dropout, the input of the last layer, the last block and every single site at a few rates on
    one half of the examples (of the groups, where there are any), and judges the best of them on the other half
    against one plain pass. Predictions are those of the plain pass, so that every candidate ranks the same errors.

    Args:
        model: A trained classifier. It is left exactly as it was.
        data: Labelled data, as `sweep` takes it.
        budget: Seconds to spend, roughly. Where everything takes longer, passes and then single sites are left out.
        rates: Rates of dropping to try.
        passes: Passes per placement.
        measures: Names from `dropscope.measures`, or functions of your own; None takes `measures.DEFAULT`.
        engine: "auto", "shared" (refuses a model it cannot capture) or "loop" (the plain reference).
        out: Folder for the rows, tables and the choice. A trial that was killed goes on there.
        progress: True or False; None shows progress where it is read.

    Returns:
        A `Choice`, which prints the verdict.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where noise would not take effect as asked.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> choice = try_out(net, (torch.randn(80, 4), torch.randint(0, 3, (80,))), passes=5, progress=False)
        >>> choice.judgement.examples, choice.measure in choice.examples.columns
        (40, True)
    """
    started = time.monotonic()
    folder = None if out is None else output_folder(out)
    run_options = {"measures": measures, "engine": engine, "progress": progress}
    trial = _prepared(model, data, budget, rates, passes, run_options, options)
    candidates = _settled(trial, folder)
    run = sweep(
        model, candidates.placements, trial.choosing, candidates.passes, seed=trial.seed, keep=_KEPT,
        out=None if folder is None else folder / "candidates", compile=_COMPILED, **trial.shared,
    )  # fmt: skip
    best = run.best("aurc", 1).iloc[0]
    rival = str(run.baseline.sort_values("aurc", kind="stable").measure.iloc[0])
    names = (str(best.placement), str(best.measure), rival)
    both = {**trial.shared, "measures": [_measure_named(names[1], measures), rival]}
    both["errors"] = trial.shared["masks"] == "per_example"  # else those of different examples go together
    table = uncertainty(
        model, names[0], trial.judging, candidates.passes, seed=trial.seed + 1, **both
    )  # fmt: skip
    judgement = judge(names, *_rankings(table, names).values(), groups=trial.judging.groups)
    better = judgement.word == "better"
    choice = Choice(
        Placement.parse(names[0]) if better else None,
        names[1] if better else rival,
        candidates.passes if better else 1,
        judgement,
        deferral_table(_rankings(table, names)),
        run,
        table,
        candidates.remarks,
        time.monotonic() - started,
        folder,
        (model, trial.judging, trial.predicting | {"tokenizer": options.get("tokenizer")}),
    )
    if folder is not None:
        _write(choice, folder)
    return choice


@shares(try_out, without=("out", "progress"))
def plan_trial(model: nn.Module, data: Any, **options: Any) -> TrialPlan:
    """What `try_out` with these arguments would try, what it would leave out, and in what time.

    Args:
        model: A trained classifier. It is left exactly as it was.
        data: Labelled data, as `sweep` takes it.

    Returns:
        A `TrialPlan`, which prints itself.

    Raises:
        BadInput: As `try_out`.
    """
    given = {name: parameter.default for name, parameter in inspect.signature(try_out).parameters.items()} | options
    run = {name: given[name] for name in ("measures", "engine", "progress")}
    session = {name: options[name] for name in SessionOptions.__annotations__ if name in options}
    trial = _prepared(model, data, given["budget"], given["rates"], given["passes"], run, session)
    kept = _settled(trial, None)
    each = trial.seconds / len(trial.candidates.placements) * kept.passes / trial.candidates.passes
    seconds = 2 * trial.spent + each * (len(kept.placements) + 1)  # set up twice: to see what fits, and to try it
    return TrialPlan(kept, trial.choosing.n, trial.judging.n, trial.plan.engine, seconds)


@dataclass(frozen=True, eq=False)
class _Trial:
    """A trial that is checked: both halves, everything worth trying, and how long it would take."""

    choosing: Data
    judging: Data
    candidates: Candidates
    plan: PlanSummary  # of all of them
    spent: float  # on preparing
    budget: float
    seed: int
    shared: dict[str, Any]  # arguments of every run
    predicting: dict[str, Any]  # arguments of a predictor

    @property
    def seconds(self) -> float:
        """Expected for all candidates, once everything is set up."""
        return self.plan.seconds - self.plan.stages["set-up"]


def _prepared(
    model: nn.Module, data: Any, budget: float, rates: Sequence[float], passes: int, run: dict[str, Any], options: Any
) -> _Trial:
    """Everything checked and timed."""
    started = time.monotonic()
    check_passes(passes)
    if not (finite_number(budget) or 0) > 0:
        raise BadInput("budget must be seconds above 0", "budget", budget, "write budget=60")
    for rate in rates:
        check_rate(rate, "rates")
    session = open_session(model, data, **options)
    choosing, judging = split(session)
    how = {
        "label": "plain", "masks": session.masks, "draws": session.draws, "outputs": session.outputs,
        "device": options.get("device"), "precision": session.precision,
    }  # fmt: skip
    candidates = Candidates.of(session.site_map, rates, passes)
    if not candidates.placements:
        raise BadInput("model must have a site for noise", "model", Phrase("none"), "name a placement in sweep")
    asked = Asked.checked(candidates.placements, passes, run["measures"], None, "aurc", "plain")
    wanted = {"engine": run["engine"], "progress": run["progress"], "keep": _KEPT, "compile": _COMPILED}
    plan = plan_session(session.with_data(choosing), asked, started, audited=False, **wanted)  # the sweep audits them
    predicting = how | {"seed": session.seed + 1, "class_names": session.class_names}  # the masks that judge
    spent = time.monotonic() - started
    return _Trial(choosing, judging, candidates, plan, spent, budget, session.seed, run | how, predicting)


def _settled(trial: _Trial, folder: Path | None) -> Candidates:
    """What fits the budget. A trial taken up again tries what it began with, however fast the machine is now."""
    left = max(_CHOOSING * trial.budget - trial.spent, _LEAST_SHARE * trial.budget)
    kept = trial.candidates.within(trial.seconds, left, trial.budget)
    if folder is None:
        return kept
    file = folder / "trial.json"
    asked = {"budget": trial.budget, "passes": trial.candidates.passes, "rates": trial.candidates.rates}
    if not file.exists():
        record = {"asked": asked, "kept": {"sites": kept.sites, "passes": kept.passes, "remarks": kept.remarks}}
        atomic_write(file, lambda part: part.write_text(json.dumps(record, indent=2), encoding="utf-8"))
        return kept
    record = read_json(file)
    try:
        known, begun = record["kept"], dict(record["asked"])
        sites, passes, remarks = tuple(known["sites"]), int(known["passes"]), tuple(known["remarks"])
    except (KeyError, TypeError, ValueError) as error:
        received = Phrase(f"{file}, which is damaged")
        raise BadInput("out must hold a trial", "out", received, "delete the file, or choose another folder") from error
    same_spec(begun, asked, file, "choose another folder for out")
    return replace(trial.candidates, sites=sites, passes=passes, remarks=remarks)


def _measure_named(name: str, measures: Sequence[str | Callable[..., Tensor]] | None) -> Measure:
    """The measure of this name, which may be a function of the user's own."""
    return next(row for row in resolve(measures) if row.name == name)


def _rankings(table: pd.DataFrame, names: tuple[str, str, str]) -> dict[str, pd.DataFrame]:
    """The placement's ranking and that of the plain pass, by name."""
    placement, measure, rival = names
    plain = f"one plain pass, {rival.removeprefix('plain_')}"
    named = {f"{short_placement(placement)}, {measure}": measure, plain: rival}
    found = {}
    for name, column in named.items():
        found[name] = pd.DataFrame({"uncertainty": table[column], "correct": table.correct})
        if f"{column}_error" in table:
            found[name]["error"] = table[f"{column}_error"]
    return found


def _write(choice: Choice, folder: Path) -> None:
    """The tables and the choice, each written whole."""
    facts = json.dumps(choice.facts(), indent=2)
    atomic_write(folder / "choice.json", lambda part: part.write_text(facts, encoding="utf-8"))
    atomic_write(folder / "examples.csv", lambda part: choice.examples.to_csv(part, index=False))
    atomic_write(folder / "deferral.csv", lambda part: choice.deferral.to_csv(part, index=False))
