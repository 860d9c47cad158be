"""Deferral with a guarantee: `defer`, from uncertainties and outcomes to a rule.

Owns what is tested on which examples at which level, and what the rule says. See `outcomes` for its arguments, `risks`
and `bounds` for the tests, `thresholds` for the searches, `shortfalls` for what is said where nothing is found.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dropscope.checks import check_choice, check_share
from dropscope.deploy.bounds import Floats, least_kept
from dropscope.deploy.outcomes import Costs, Outcomes, read_outcomes
from dropscope.deploy.questions import Question, Thresholds, behind, ordered_by, taken
from dropscope.deploy.risks import Risk
from dropscope.deploy.rules import DeferralRule, as_floats
from dropscope.deploy.shortfalls import reach, reason
from dropscope.deploy.thresholds import METHODS, cuts_of
from dropscope.errors import BadInput, Phrase

_ALL = ""  # the class of examples that are not divided by class
_FINALISTS = 5  # that are tested on all examples


def defer(
    uncertainty: ArrayLike | Mapping[str, ArrayLike],
    correct: ArrayLike,
    max_error: float | None = 0.05,
    confidence: float = 0.9,
    groups: Sequence[Hashable] | None = None,
    method: str = "fixed_sequence",
    *,
    budget: float | None = None,
    labels: Sequence[Hashable] | None = None,
    predictions: Sequence[Hashable] | None = None,
    positive: Hashable | None = None,
    max_false_negatives: float | None = None,
    costs: Costs | None = None,
    max_cost: float | None = None,
    per_class: bool = False,
    prevalence: Mapping[Hashable, float] | float | None = None,
) -> DeferralRule:
    """A threshold of uncertainty above which examples are deferred, so that the error among the rest is bounded.

    Thresholds are tested from the most certain examples on, each at the full level with the exact binomial tail, until
    one fails: with probability `confidence`, the error among the kept is at most `max_error`.

    Args:
        uncertainty: One number per example, higher where the model is less certain; NaN is always deferred. Several as
            {name: numbers}: up to five are tested on all examples, each at its share of the level, and the one that
            keeps most is taken; of more, one is chosen on half of the examples and tested on the other.
        correct: Whether each prediction is right; or a share from 0 to 1, such as a Dice score, whose shortfall from 1
            is the error then.
        max_error: What the error among the kept may be at most. None where only a budget or other risks are asked for.
        confidence: Probability, over draws of the examples, with which the promise holds.
        groups: What is independent, where examples are not: the patient, context or volume of each. The error is still
            that of an example.
        method: "fixed_sequence"; "starts" (several sequences, each at its share of the level); "sgr" (Geifman and
            El-Yaniv 2017); "holm" (over all thresholds); "average" (on average over draws, without a probability).
        budget: Share of examples that may be deferred at most. With max_error=None the budget is spent, and the rule
            says what error it buys.
        labels: The true class of each example, for false negatives, costs and prevalence.
        predictions: The predicted class of each, for costs and `per_class`.
        positive: The class whose misses are false negatives; 1, where None and labels are 0 and 1.
        max_false_negatives: What the share of misses among the kept examples of the positive class may be at most.
        costs: Cost of each mistake: a matrix, true × predicted, or {(true, predicted): cost}.
        max_cost: What the mean cost of the kept may be at most.
        per_class: Whether every predicted class gets a threshold of its own, and the promise holds in each.
        prevalence: How frequent classes will be, where these examples were enriched: {class: share}, or the share of
            the positive class of two.

    Returns:
        A `DeferralRule`. Its `threshold` is None where nothing can be promised; it says why, and what could be.

    Raises:
        BadInput: For anything that cannot be used.

    Examples:
        >>> rng = np.random.default_rng(1)
        >>> u = rng.random(3000)
        >>> rule = defer(u, rng.random(3000) > u**2, max_error=0.1)
        >>> rule.kept / rule.n == rule.coverage, rule.error < 0.1
        (True, True)
        >>> defer(u[:30], u[:30] < 0.9).threshold is None
        True
    """
    check_choice(method, "method", METHODS)
    delta = 1 - check_share(confidence, "confidence", 0.9)
    outcomes = read_outcomes(correct, groups=groups, labels=labels, predictions=predictions, positive=positive,
                             prevalence=prevalence)  # fmt: skip
    scores = _finalists(uncertainty, outcomes.n)
    if budget is not None:
        budget = check_share(budget, "budget", 0.2)
    risks = outcomes.risks(max_error, max_false_negatives, costs, max_cost)
    if not risks and budget is None:
        raise BadInput(
            "max_error must be given, or a budget or another risk", "max_error", None, "write max_error=0.05"
        )
    classes = np.full(outcomes.n, _ALL)
    if per_class:
        if outcomes.predictions is None or not risks:
            name = "predictions" if outcomes.predictions is None else "max_error"
            raise BadInput(f"{name} must be given with per_class", name, None, f"pass {name} too")
        classes = outcomes.predictions
    question = Question(outcomes, risks, method, classes)
    name, question, level, remarks = _chosen(scores, question, delta, budget)
    chosen = scores[name] if question.outcomes.n == outcomes.n else scores[name][_second_half(outcomes)]
    start = DeferralRule(
        None, 0.0, math.nan, 1.0, question.outcomes.n, 0, max_error, None if method == "average" else confidence,
        method, name or None, remarks=tuple(remarks),
        assumptions=_assumptions(question, enriched=prevalence is not None),
    )  # fmt: skip
    rule = (_promised if risks else _spent)(question, chosen, level, budget, start)
    if not (outcomes.right < 1).any():
        said = "no example is wrong, so nothing here says whether the uncertain ones are wrong more often"
        rule = replace(rule, remarks=(*rule.remarks, said))
    return rule


def check_asked(max_error: float | None, confidence: float, rule: Mapping[str, Any] | None) -> None:
    """Checks what a predictor will ask of `defer`, before anything is run for it.

    Raises:
        BadInput: If it cannot be used.
    """
    check_share(confidence, "confidence", 0.9)
    if max_error is not None:
        check_share(max_error, "max_error", 0.05)
    for name in rule or {}:
        check_choice(name, "rule", inspect.signature(defer).parameters)


# --- which uncertainty, at which level --------------------------------------------------------------------------------


def _finalists(uncertainty: ArrayLike | Mapping[str, ArrayLike], n: int) -> dict[str, Floats]:
    given = uncertainty if isinstance(uncertainty, Mapping) else {_ALL: uncertainty}
    if not given:
        raise BadInput("uncertainty must hold at least one measure", "uncertainty", {}, "pass {name: numbers}")
    found = {}
    for name, values in given.items():
        numbers = as_floats(values, "uncertainty")
        if len(numbers) != n:
            got = Phrase(f"{len(numbers)} for {n} examples" + (f" as {name!r}" if name else ""))
            raise BadInput(
                "uncertainty must be one number per example", "uncertainty", got, "pass as many as in correct"
            )
        if np.isnan(numbers).all():
            got = Phrase("NaN for every example" + (f" as {name!r}" if name else ""))
            raise BadInput("uncertainty must be numbers", "uncertainty", got, "pass another measure")
        found[str(name)] = np.clip(numbers, np.finfo(float).min, np.finfo(float).max)
    return found


def _second_half(outcomes: Outcomes) -> NDArray[np.bool_]:
    """The examples, whole units of them, that do not choose."""
    order = np.random.default_rng(0).permutation(outcomes.units) >= (outcomes.units + 1) // 2
    return order if outcomes.unit is None else order[outcomes.unit]


def _chosen(
    scores: dict[str, Floats], question: Question, delta: float, budget: float | None
) -> tuple[str, Question, float, list[str]]:
    """The finalist, the examples that test it, and the level it is tested at."""
    if len(scores) == 1:
        return next(iter(scores)), question, delta, []
    if not question.risks:
        what = "uncertainty must be one measure where a budget is spent, as errors do not choose there"
        raise BadInput(what, "uncertainty", Phrase(f"{len(scores)} measures"), "pass one, or give max_error")
    few = len(scores) <= _FINALISTS
    level = delta / len(scores) if few else delta
    testing = _second_half(question.outcomes)
    part = question if few else question.take(~testing)
    coverage = {}
    for name, values in scores.items():
        own = values if few else values[~testing]
        coverage[name] = part.coverage(own, part.answer(own, level))
    best = max(coverage, key=coverage.__getitem__)
    listed = ", ".join(f"{name} {100 * share:.1f} %" for name, share in coverage.items())
    if few:
        return best, question, level, [f"{len(scores)} measures, each tested at {level:.3g} on all examples: {listed}"]
    rest = question.take(testing)
    said = f"chosen on {part.outcomes.n:,} examples, tested on {rest.outcomes.n:,} others: {listed}"
    return best, rest, level, [said]


# --- rules ------------------------------------------------------------------------------------------------------------


def _promised(
    question: Question, scores: Floats, delta: float, budget: float | None, rule: DeferralRule
) -> DeferralRule:
    """The rule that keeps most with every risk in its limit."""
    searches = question.searches(scores, delta)
    thresholds = taken(searches, question.method)
    rule = _with_thresholds(rule, question, scores, thresholds)
    others = {name: question.coverage(scores, taken(searches, name)) for name in METHODS}
    rule = replace(
        rule, bound=rule.max_error if rule.found and rule.max_error is not None else 1.0, alternatives=others
    )
    if not rule.found:
        return replace(rule, reason=reason(question, scores, delta), reach=reach(question, scores, delta))
    if budget is not None and 1 - rule.coverage > budget:
        spent = _spent(replace(question, classes=np.full(question.outcomes.n, _ALL)), scores, delta, budget, rule)
        why = f"{100 * (1 - rule.coverage):.1f} % would be deferred, more than the budget of {100 * budget:g} %"
        instead = ((spent.bound, spent.coverage),) if spent.found else ()
        nothing = dict.fromkeys(thresholds)
        return replace(_with_thresholds(rule, question, scores, nothing), bound=1.0, reason=why, reach=instead)
    lost = [name for name, value in thresholds.items() if value is None]
    if lost:
        said = f"always deferred, for too few examples or too many errors: {', '.join(lost)}"
        rule = replace(rule, remarks=(*rule.remarks, said))
    return rule


def _spent(question: Question, scores: Floats, delta: float, budget: float | None, rule: DeferralRule) -> DeferralRule:
    """The rule that defers what the budget allows, and the error that is left; each holds at half of the level."""
    outcomes, share = question.outcomes, budget or 0.0
    ordered, (risk,) = ordered_by(scores, outcomes.risks(0.5, None, None, None))
    cuts, half = cuts_of(ordered), delta / 2
    deferred = Risk("deferred", share, np.ones(outcomes.n), risk.weight, risk.unit)
    place = None
    for number in reversed(range(len(cuts))):
        lost = replace(deferred, loss=(np.arange(outcomes.n) >= cuts[number]).astype(float))
        if lost.p_values(np.array([outcomes.n]), half)[0] > half:
            break
        place = number
    if place is None:
        least = least_kept(share, half)
        why = f"n = {least:,} examples are needed for a budget of {100 * share:g} %, and {outcomes.n:,} are there"
        return replace(rule, reason=why)
    cut = int(cuts[place])
    found = _with_thresholds(rule, replace(question, risks=[]), scores, {_ALL: behind(ordered, cut)})
    bound = risk.bound(cut, half)
    shown = {"name": "deferred", "limit": share, "observed": 1 - found.coverage}
    error = {"name": outcomes.loss_name, "limit": bound, "observed": found.error}
    return replace(found, bound=bound, risks=(error, shown))


def _with_thresholds(rule: DeferralRule, question: Question, scores: Floats, thresholds: Thresholds) -> DeferralRule:
    kept, weight = question.kept(scores, thresholds), question.outcomes.weight
    divided = list(thresholds) != [_ALL]
    ordered = [risk.take(np.flatnonzero(kept)) for risk in question.risks]
    total = float(weight[kept].sum())
    return replace(
        rule,
        threshold=None if divided else thresholds[_ALL],
        thresholds=dict(thresholds) if divided else None,
        coverage=total / float(weight.sum()),
        error=float((weight * (1 - question.outcomes.right))[kept].sum()) / total if total else math.nan,
        kept=int(kept.sum()),
        risks=tuple(
            {"name": risk.name, "limit": risk.scale * risk.limit, "observed": _known(risk.observed(len(risk.loss)))}
            for risk in ordered
        ),
    )  # fmt: skip


# --- small things -----------------------------------------------------------------------------------------------------


def _assumptions(question: Question, *, enriched: bool) -> tuple[str, ...]:
    outcomes = question.outcomes
    found = [f"new examples come from where these {outcomes.n:,} came from",
             "they neither trained the model nor chose the measure"]  # fmt: skip
    if outcomes.unit is not None:
        most = int(np.bincount(outcomes.unit).max())
        found.append(f"the {outcomes.units:,} groups are independent, and none is larger than {most:,}, as here")
    else:
        found.append("each is independent of the others (else pass groups)")
    if enriched:
        found.append("classes are as frequent as stated, and within a class examples are as they will be")
    if question.risks and question.method in ("fixed_sequence", "starts"):
        found.append("near the threshold, the more uncertain are the more often wrong")
    return tuple(found)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
