"""Tunings: the best placement and measure for a model, or one plain pass, with everything else beside it.

Owns the run. A search chooses on one part of the examples, another part judges what was chosen beside the rules and
the rivals, and a third is left alone for a predictor. See `runs.searches` for how a search spends its work.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from dropscope import scores
from dropscope.atomic import output_folder
from dropscope.checks import check_choice, check_passes, finite_number
from dropscope.data import Data
from dropscope.deploy.rivals import Comparison, MeasuredPlacement, compare
from dropscope.deploy.tuning.choices import TunedChoice
from dropscope.deploy.tuning.plans import TuningPlan, plan_of
from dropscope.deploy.tuning.records import Record
from dropscope.engine import Session, SessionOptions, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.measures import Measure, resolve
from dropscope.parameters import shares
from dropscope.placement import Placement
from dropscope.progress import stage
from dropscope.runs import FINALISTS, SEARCH_RATES, Run, Space, deferral_table, judge, portions, race, sweep
from dropscope.scores import Score

PASSES = 48  # stratified: as exact as about 100 independent ones
RESERVE = 0.2
LEVEL = 0.98  # of an interval whose upper end is a bound on one side at 99 %
_LEAST = 20  # examples of each part
_SCORES = ("aurc", "augrc", "error_auroc")  # of the finalists


@shares(open_session, without=("ignore_label", "draws"))
def tune(
    model: nn.Module,
    data: Any,
    *,
    sites: Sequence[str] | None = None,
    rates: Sequence[float] = SEARCH_RATES,
    objective: str = "aurc",
    passes: int = PASSES,
    measures: Sequence[str | Callable[..., Tensor]] | None = None,
    rivals: Mapping[str, Any] | Sequence[Any] | None = None,
    reserve: float = RESERVE,
    budget: float | None = None,
    draws: str = "stratified",
    engine: str = "auto",
    out: str | Path | None = None,
    progress: bool | None = None,
    **options: Any,
) -> TunedChoice:
    """Finds the placement and measure that rank a model's errors best, or says that one plain pass does as well.

    Few sites are swept whole. Of many, single sites and suffixes race on a growing part of the examples under the same
    masks, those that are seen to be worse are left behind, and neighbours of the leaders join; at most five finalists
    run on all examples of the search. The best is judged on other examples, beside the model's own dropout, the
    penultimate rule and every rival of `compare`. It is chosen only if a one-sided 99 % interval of its paired
    difference to one plain pass excludes 0 there. Predictions are those of the plain pass throughout.

    Args:
        model: A trained classifier. It is left exactly as it was.
        data: Labelled data, as `sweep` takes it.
        sites: Sites to try, in call order; None takes every convolution, linear layer, recurrent layer, feed-forward
            block and attention.
        rates: Rates of dropping to choose from.
        objective: The score of a ranking to search by, such as "aurc", "augrc" or "error_auroc".
        passes: Passes of the finalists, and of the choice.
        measures: Names from `dropscope.measures`, or functions of your own; None takes `measures.DEFAULT`.
        rivals: What else is judged, as `compare` takes it; None is every rival that the model allows, () none.
        reserve: Share of the examples that is left alone, for `choice.predictor()`.
        budget: Seconds to spend, roughly; where a search would take longer, it begins with fewer placements. None sets
            no limit.
        draws: "stratified" or "independent" passes.
        engine: Which engine runs the passes, as of `sweep`.
        progress: True or False; None shows progress where it is read.
        out: Folder for everything that was found. A tuning that was killed goes on there; `open_choice` reads it.

    Returns:
        A `TunedChoice`: print it for the evidence and the verdict.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where noise would not take effect as asked.

    Examples:
        >>> labels = torch.randint(0, 2, (200,), generator=torch.Generator().manual_seed(0))
        >>> untrained = nn.Sequential(nn.Flatten(), nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 2))
        >>> choice = tune(untrained, (torch.rand(200, 3, 3), labels), passes=8, rivals=["entropy"], progress=False)
        >>> choice.placement is None, choice.measure.startswith("plain_"), choice.sizes["unused"]
        (True, True, 40)
    """
    started = time.monotonic()
    folder = None if out is None else output_folder(out)
    asked = Asked.checked(sites, rates, objective, passes, measures, reserve, budget, engine)
    with stage("reading the data, tracing the model", show=progress):
        job = prepare(model, data, asked, draws, options)
    record = Record.of(folder, job.specification(asked))
    plan = record.settled(plan_of(job.search, job.space, job.right, asked.passes, asked.budget, asked.engine))
    shared = {**job.how, "engine": asked.engine, "progress": progress, "objective": asked.objective.name}
    searched = record.searched
    if not plan.whole and searched is None:
        searched = race(
            job.search, job.space, asked.measures, asked.objective, job.right, opening=plan.opening,
            engine=asked.engine, show=progress,
        )  # fmt: skip
        record.keep(searched)
    chosen = plan.opening if searched is None else [*searched.finalists, *_rules(job.space, searched.rows)]
    evidence = sweep(
        model, chosen, job.search.data, plan.passes, seed=job.search.seed, measures=asked.measures, keep="top:10",
        out=record.at("evidence"), **shared,
    )  # fmt: skip
    short = _shortlist(evidence, asked.objective, job.space)
    ranking = [row for row in asked.measures if row.name in short.values()]
    judged = sweep(
        model, list(short), job.judging.data, plan.passes, seed=job.search.seed + 1, measures=ranking,
        scores=[*dict.fromkeys((*_SCORES, asked.objective.name))], keep="all", out=record.at("judged"), **shared,
    )  # fmt: skip
    compared = _compared(model, job, evidence, judged, short, rivals, asked, progress=progress)
    choice = _choice(model, job, asked, plan.passes, evidence, judged, compared, short)
    found = TunedChoice(
        **choice, objective=asked.objective.name, table=with_front(compared.table), differences=compared.differences,
        search=None if searched is None else searched.rows, judged=judged, sizes=job.sizes,
        predictions=_spent(evidence) + (0 if searched is None else searched.predictions),
        share=_share(evidence, searched, job.space, plan.passes), unused=job.unused, comparison=compared,
        remarks=(*plan.remarks, *compared.remarks), seconds=time.monotonic() - started, folder=folder,
    )  # fmt: skip
    record.write(found)
    return found


@shares(tune, without=("out", "progress", "rivals"))
def plan_tuning(model: nn.Module, data: Any, **options: Any) -> TuningPlan:
    """What `tune` with these arguments would do, and in what time.

    Args:
        model: A trained classifier. It is left exactly as it was.
        data: Labelled data, as `sweep` takes it.

    Returns:
        A `TuningPlan`: print it.

    Raises:
        BadInput: As `tune`.

    Examples:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> labels = torch.randint(0, 2, (90,), generator=torch.Generator().manual_seed(0))
        >>> plan = plan_tuning(net, (torch.rand(90, 3), labels), rates=[0.1, 0.3])
        >>> plan.whole, [str(placement) for placement in plan.opening]
        (True, ['last=0.1', 'last=0.3', '0=0.1', '0=0.3'])
    """
    given = {name: p.default for name, p in inspect.signature(tune).parameters.items()} | options
    names = ("sites", "rates", "objective", "passes", "measures", "reserve", "budget", "engine")
    asked = Asked.checked(*(given[name] for name in names))
    of_session = {name: options[name] for name in SessionOptions.__annotations__ if name in options}
    of_session.pop("draws", None)
    job = prepare(model, data, asked, given["draws"], of_session)
    return plan_of(job.search, job.space, job.right, asked.passes, asked.budget, asked.engine, sizes=job.sizes)


@dataclass(frozen=True, eq=False)
class Asked:
    """Arguments that need neither model nor data to be checked."""

    sites: Sequence[str] | None
    rates: tuple[float, ...]
    objective: Score
    passes: int
    measures: list[Measure]
    reserve: float
    budget: float | None
    engine: str

    @classmethod
    def checked(
        cls, sites: Any, rates: Any, objective: Any, passes: int, measures: Any, reserve: Any, budget: Any, engine: str
    ) -> Asked:
        """Raises `BadInput` for a value that cannot be used."""
        check_passes(passes)
        check_choice(objective, "objective", scores.RANKING)
        if isinstance(sites, str):
            raise BadInput("sites must be a list", "sites", sites, f"write sites=[{sites!r}]")
        share = finite_number(reserve)
        if share is None or not 0 <= share <= 0.8:
            raise BadInput("reserve must be a share from 0 to 0.8", "reserve", reserve, "write reserve=0.2")
        if budget is not None and not (finite_number(budget) or 0) > 0:
            raise BadInput("budget must be seconds above 0", "budget", budget, "write budget=600")
        rows = resolve(measures)
        if any(row.of == "plain" for row in rows):
            remedy = "leave it out: one plain pass is judged anyway"
            raise BadInput("measures must be of several passes", "measures", [row.name for row in rows], remedy)
        return cls(sites, tuple(rates), scores.TABLE[objective], passes, rows, share, budget, engine)


@dataclass(frozen=True, eq=False)
class Job:
    """A tuning that is checked: the parts of the data, and what there is to try."""

    search: Session
    judging: Session
    unused: Data | None
    space: Space
    right: Tensor  # of the search part, whether each prediction of the plain pass is right
    how: dict[str, Any]  # arguments of every run
    predicting: dict[str, Any]  # arguments of a predictor

    @property
    def sizes(self) -> dict[str, int]:
        unused = 0 if self.unused is None else self.unused.n
        return {"search": self.search.data.n, "judging": self.judging.data.n, "unused": unused}

    def specification(self, asked: Asked) -> dict[str, Any]:
        """What identifies the tuning, in values that JSON can hold."""
        session = self.search
        return {
            "sites": list(self.space.sites), "rates": list(self.space.rates), "objective": asked.objective.name,
            "passes": asked.passes, "measures": [row.name for row in asked.measures], "reserve": asked.reserve,
            "budget": asked.budget, "engine": asked.engine, "seed": session.seed, "masks": session.masks,
            "draws": session.draws, "precision": session.precision, "data": session.data.fingerprint,
        }  # fmt: skip


def prepare(model: nn.Module, data: Any, asked: Asked, draws: str, options: Any) -> Job:
    """Everything read, checked and split."""
    session = open_session(model, data, draws=draws, **options)
    half = (1 - asked.reserve) / 2
    shares_of = (half, half, *([asked.reserve] if asked.reserve else []))
    parts = [session.data.part(places.tolist()) for places in portions(session, shares_of)]
    for part in parts[:2]:
        if part.n < _LEAST:
            what = f"data must leave {_LEAST} examples to search on and {_LEAST} to judge on"
            raise BadInput(what, "data", Phrase(f"{part.n} of {session.data.n}"), "pass more, or a smaller reserve")
    search, judging = (session.with_data(part) for part in parts[:2])
    right = [_right(one) for one in (search, judging)]
    space = Space.of(session.site_map, asked.sites, asked.rates)
    session.resolve(space.opening())
    how = {
        "label": "plain", "masks": session.masks, "draws": session.draws, "outputs": session.outputs,
        "device": options.get("device"), "precision": session.precision,
    }  # fmt: skip
    predicting = {name: value for name, value in how.items() if name != "label"}
    predicting |= {"seed": session.seed + 1, "class_names": session.class_names, "tokenizer": options.get("tokenizer")}
    return Job(search, judging, parts[2] if len(parts) > 2 else None, space, right[0], how, predicting)


def _right(session: Session) -> Tensor:
    with torch.no_grad(), session.sealed():
        predicted = torch.cat([session.plain(batch).argmax(1).cpu() for batch in session.data.batches])
    assert session.data.labels is not None
    right = predicted == session.data.labels
    if bool(right.all()) or not bool(right.any()):
        count = int(right.sum())
        received = Phrase(f"{count} right predictions of {len(right)} in one of its parts")
        remedy = "pass more or harder examples" if count else "check that labels are in the order of the outputs"
        raise BadInput("data must hold right and wrong predictions to rank", "data", received, remedy)
    return right


def _rules(space: Space, rows: pd.DataFrame) -> list[Placement]:
    """The model's own dropout, and the penultimate rule at the rate that did best in the race."""
    texts = {str(placement): placement for placement in space.last}
    last = rows[rows.placement.isin(texts)].sort_values(["examples", "behind_leader"], ascending=[False, True])
    return [*space.own, *(texts[str(name)] for name in last.placement.head(1))]


def _shortlist(evidence: Run, objective: Score, space: Space) -> dict[Placement, str]:
    """Finalists and rules, each with the measure that the examples of the search chose for it; the best first."""
    rows = evidence.rows.sort_values(objective.name, ascending=objective.direction == "lower", kind="stable")
    best = rows.drop_duplicates("placement")
    ranked = [(Placement.parse(str(row.placement)), str(row.measure)) for row in best.itertuples()]
    rules = {next((p for p, _ in ranked if p in some), None) for some in (space.own, space.last)}
    return {p: measure for n, (p, measure) in enumerate(ranked) if n < FINALISTS or p in rules}


def _compared(
    model: nn.Module, job: Job, evidence: Run, judged: Run, short: Mapping[Placement, str], rivals: Any, asked: Asked,
    *, progress: bool | None,
) -> Comparison:  # fmt: skip
    """Finalists, rules and rivals on the examples that judged; those of the search fit."""
    costs = judged.rows.drop_duplicates("placement").set_index("placement").cost
    measured: dict[str, Any] = {}
    for placement, measure in short.items():
        text = str(placement)
        measured[text] = MeasuredPlacement(measure, _values(judged, text, measure), float(costs[text]))
    plain = {name: name for name in ("max_probability", "entropy", "margin")}
    given = {"rivals": "rivals"} if rivals is None else rivals
    named = dict(given) if isinstance(given, Mapping) else {str(one): one for one in given}
    if "rivals" in named.values():
        plain = {}
    against = _rival(evidence, asked.objective).removeprefix("plain_")
    return compare(
        model, job.judging.data, {**plain, **named, **measured}, fit=job.search.data, passes=asked.passes,
        label="plain", against=against, seed=job.search.seed + 1, progress=progress,
        **{name: value for name, value in job.how.items() if name != "label"},
    )  # fmt: skip


def _ranking(run: Run, placement: str, measure: str) -> pd.DataFrame:
    same = run.rows[run.rows.placement == placement].equivalent_to.dropna()
    computed = str(same.iloc[0]) if len(same) else placement  # equal by mathematics
    return run.examples[(run.examples.placement == computed) & (run.examples.measure == measure)]


def _values(run: Run, placement: str, measure: str) -> Tensor:
    return torch.tensor(_ranking(run, placement, measure).uncertainty.to_numpy(copy=True))


def _rival(evidence: Run, objective: Score) -> str:
    """The measure of one plain pass that the examples of the search rank best."""
    ordered = evidence.baseline.sort_values(objective.name, ascending=objective.direction == "lower", kind="stable")
    return str(ordered.measure.iloc[0])


def _choice(
    model: nn.Module, job: Job, asked: Asked, passes: int, evidence: Run, judged: Run, compared: Comparison,
    short: Mapping[Placement, str],
) -> dict[str, Any]:  # fmt: skip
    """What every `Choice` holds: the best of the search against one plain pass, on the examples that judged."""
    best, measure = next(iter(short.items()))
    names = (str(best), measure, _rival(evidence, asked.objective))
    of = {"mc": _ranking(judged, *names[:2]), "plain": _ranking(judged, "none", names[2])}
    found = judged.intervals[(judged.intervals.placement == names[0]) & (judged.intervals.measure == measure)]
    error = float(found[found.score == asked.objective.name].monte_carlo.iloc[0])
    judgement = judge(
        names, of["mc"], of["plain"], groups=job.judging.data.groups, score=asked.objective.name, level=LEVEL,
        monte_carlo=None if math.isnan(error) else error,
    )  # fmt: skip
    helps = judgement.word == "better"
    table = of["plain"][["id", "correct"]].reset_index(drop=True)
    table[measure], table[names[2]] = of["mc"].uncertainty.to_numpy(), of["plain"].uncertainty.to_numpy()
    ranked = {name: pd.DataFrame({"uncertainty": table[name], "correct": table.correct})
              for name in (measure, names[2])}  # fmt: skip
    return {
        "placement": best if helps else None, "measure": measure if helps else names[2],
        "passes": passes if helps else 1, "judgement": judgement, "deferral": deferral_table(ranked),
        "evidence": evidence, "examples": table, "judging": (model, job.judging.data, job.predicting),
    }  # fmt: skip


def with_front(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `front`: whether no other row is as good in accuracy, AURC and cost, and better in one of them.

    >>> rows = pd.DataFrame({"accuracy": [0.9, 0.9, 0.8], "aurc": [0.1, 0.2, 0.1], "cost": [2.0, 1.0, 2.0]})
    >>> with_front(rows).front.tolist()
    [True, True, False]
    """
    points = torch.tensor(table.assign(accuracy=-table.accuracy)[["accuracy", "aurc", "cost"]].to_numpy(float))
    as_good = (points[:, None] <= points[None]).all(-1)
    better = (points[:, None] < points[None]).any(-1)
    return table.assign(front=(~(as_good & better).any(0)).tolist())


def _spent(run: Run) -> int:
    return int(run.rows[run.rows.equivalent_to.isna()].placement.nunique()) * run.spec["passes"] * run.spec["examples"]


def _share(evidence: Run, searched: Any, space: Space, passes: int) -> float:
    spent = _spent(evidence) + (0 if searched is None else searched.predictions)
    return spent / (space.size * passes * evidence.spec["examples"])
