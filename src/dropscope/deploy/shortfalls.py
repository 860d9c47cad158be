"""What to say where no threshold keeps a promise: how many examples it would take, and what could be promised."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dropscope.deploy.bounds import Floats, binomial_p, least_kept
from dropscope.deploy.questions import Question, ordered_by
from dropscope.deploy.risks import Numbers, Risk
from dropscope.deploy.thresholds import Search, cuts_of

_FINER, _COARSER = 1.1, 1.25  # steps between errors that could be promised instead; bets take longer
_MOST_NEEDED = 200  # times as many examples


def reason(question: Question, scores: Floats, delta: float) -> str:
    """Why no threshold was found for any class."""
    if question.method == "average":
        return "the risk is above its limit at every threshold"
    parts = np.unique(question.classes)
    delta = delta / len(parts)
    ordered, risks = ordered_by(scores, question.risks)
    cuts = cuts_of(ordered)
    each = f" in each of {len(parts)} classes" if len(parts) > 1 else ""
    n, what = question.outcomes.n, " or ".join(risk.name for risk in question.risks)
    if Search(risks, cuts, delta).first is None:
        least = f"n = {_least(risks, cuts, delta):,} examples are needed at least{each}"
        return f"{least}, even if there were no {what}, and {n:,} are there"
    needed = None if each else _needed_n(risks, cuts, delta)
    more = "" if needed is None else f"; about n = {needed:,} would be needed with a ranking like this one"
    return f"there is too much {what} among the most certain of {n:,} examples{each}{more}"


def _least(risks: list[Risk], cuts: Numbers, delta: float) -> int:
    """How many examples could pass at the least, if none had a loss."""
    needed = []
    for risk in risks:
        share = float((risk.weight > 0).mean())
        if risk.exact:
            needed.append(math.ceil(least_kept(risk.limit, delta) / max(share, 1e-9)))
            continue
        p = float(risk.p_values(cuts[-1:], delta, lossless=True)[0])
        needed.append(math.ceil(int(cuts[-1]) * math.log(delta) / min(math.log(p), -1e-9)))
    return max(needed)


def _needed_n(risks: list[Risk], cuts: Numbers, delta: float) -> int | None:
    """With how many examples the same curve would pass somewhere; None where it would not, or cannot be told."""
    if len(risks) > 1 or not risks[0].exact:
        return None
    counted = risks[0].weight > 0
    kept, errors = (np.cumsum(values)[cuts - 1].astype(float) for values in (counted, counted * risks[0].loss))
    start, factor = 3 * least_kept(risks[0].limit, delta), 1.0
    while factor < _MOST_NEEDED:
        factor *= 1.1
        more = np.floor(factor * kept)
        if (binomial_p(np.ceil(factor * errors), more, risks[0].limit)[more >= start] <= delta).any():
            return 10 * round(factor * int(cuts[-1]) / 10)
    return None


def reach(question: Question, scores: Floats, delta: float) -> tuple[tuple[float, float], ...]:
    """The least error that could be promised, and those with which half and almost all could be kept."""
    if not question.risks or question.risks[0].name not in ("error", "loss"):
        return ()
    first, *others = question.risks
    found: list[tuple[float, float]] = []
    step = _FINER if first.exact else _COARSER
    limit, wanted = first.limit * step, [0.0, 0.5, 0.95]
    while limit < 1 and wanted:
        eased = replace(question, risks=[first.at(limit), *others])
        coverage = eased.coverage(scores, eased.answer(scores, delta))
        if coverage > wanted[0]:
            found.append((math.ceil(1000 * limit) / 1000, coverage))
            wanted = [share for share in wanted if share >= coverage]
        limit *= step
    return tuple(found)
