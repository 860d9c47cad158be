"""The choice of an engine: the shared one where the model can be captured and that pays, the loop otherwise."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from dropscope.checks import check_choice
from dropscope.device import free_bytes
from dropscope.engine.analytic import AnalyticEngine, ReadoutFailed, Tolerance
from dropscope.engine.engine import Engine
from dropscope.engine.graph import CaptureFailed, is_captured
from dropscope.engine.loop import LoopEngine, folds, folds_small, rows_at_once
from dropscope.engine.prices import always_captures, estimate
from dropscope.engine.session import Session, sealed
from dropscope.engine.shared import SharedEngine
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.injection import ResolvedPlacement
from dropscope.progress import format_count

log = logging.getLogger("dropscope")

ENGINES = ("auto", "shared", "loop", "reference", "analytic")
_FOLDED = 1e-5  # largest difference between passes in one forward and one by one
_FOLDED_HALF = 2e-2
_TOLERANCE = Tolerance(0.005)  # of the analytic engine, unless one is given


def choose_engine(
    session: Session,
    placements: Sequence[ResolvedPlacement],
    passes: int,
    engine: str = "auto",
    memory: int | None = None,
    *,
    fixed: bool = False,
    verified: bool = True,
    tolerance: Tolerance | None = None,
) -> Engine:
    """The engine for these placements.

    Args:
        session: Model and data.
        placements: Resolved placements; engines number them in this order.
        passes: Passes of each.
        engine: "auto" takes the shared engine where it can run and is worth its capture (see `prices`), and says why
            elsewhere; "shared" insists on it;
            "loop" takes the plain loop; "reference" the same, pass by pass and with every value followed; "analytic"
            needs no passes where noise enters just before the last linear layer, and samples where its error is large.
        memory: Bytes to plan with; what is free, if None.
        fixed: Whether block sizes must stay as planned, because a folder holds results of them.
        verified: Whether every site is compared with the loop; else one placement is, which is enough to plan by.
        tolerance: The error that is accepted in place of passes. Where it is given, "auto" runs none if it can.

    Raises:
        BadInput: For an unknown engine, or where the shared or the analytic one is asked for and cannot run.
    """
    check_choice(engine, "engine", ENGINES)
    if engine == "reference":
        return LoopEngine(session, placements, passes, traced=True)
    if engine == "analytic" or (engine == "auto" and tolerance is not None and any(placements)):
        accepted, asked = tolerance or _TOLERANCE, engine == "analytic"
        found = _analytic(session, placements, passes, accepted, asked=asked, fixed=fixed)
        if found is not None:
            return found
        engine = "auto"
    if engine == "loop":
        return _small_folded(session, placements, passes, memory, "")
    if not any(placements):
        return LoopEngine(session, placements, passes, reason="without noise there is nothing to share")
    if session.half:
        if engine == "shared":
            remedy = "write engine='auto', or precision='fp32'"
            raise BadInput("engine must be the loop for precision='bf16'", "engine", engine, remedy)
        return folded_loop(session, placements, passes, memory, "precision bf16 runs in the loop")
    if engine == "auto" and not always_captures() and (fixed or not _is_captured(session, placements)):
        expected = estimate(session, placements, passes)
        if expected.favours_loop:
            log.info("the plain loop runs: %s", expected)
            return folded_loop(session, placements, passes, memory, str(expected))
    try:
        free = memory or free_bytes(session.device)
        return SharedEngine.build(session, placements, passes, free, fixed=fixed, verified=verified)
    except CaptureFailed as reason:
        if engine == "shared":
            received = Phrase(f"one that cannot be captured: {reason}")
            raise BadInput(
                "model must be one the shared engine can run", "engine", received, "write engine='auto'"
            ) from reason
        log.warning("the plain loop runs instead of the shared engine: %s; %s", reason, _price(placements, passes))
        return folded_loop(session, placements, passes, memory, str(reason))


def _analytic(
    session: Session,
    placements: Sequence[ResolvedPlacement],
    passes: int,
    tolerance: Tolerance,
    *,
    asked: bool,
    fixed: bool,
) -> AnalyticEngine | None:
    """The analytic engine where it can run and its error is small enough; None where passes do better."""
    try:
        found = AnalyticEngine.build(session, placements, passes)
    except ReadoutFailed as reason:
        if asked:
            what = "noise must enter just before the last linear layer, and nowhere else, for engine='analytic'"
            remedy = "write a placement such as last=0.5, or engine='auto'"
            raise BadInput(what, "engine", Phrase(str(reason)), remedy) from reason
        log.debug("passes are run: %s", reason)
        return None
    error = found.error(tolerance)
    if error <= tolerance.error:
        log.info("no passes are run: without them, %s have an error of about %.2g", tolerance.name, error)
        return found
    if asked and fixed:  # its rows would be of another engine than the folder says
        what = f"{tolerance.name} must be right to {tolerance.error:g} without passes for engine='analytic'"
        raise BadInput(what, "engine", Phrase(f"an error of about {error:.2g}"), "write engine='auto'")
    say = log.warning if asked else log.info
    why = "passes are run: without them, %s have an error of about %.2g, above %.2g"
    say(why, tolerance.name, error, tolerance.error)
    return None


def _price(placements: Sequence[ResolvedPlacement], passes: int) -> str:
    """What the loop costs."""
    count = sum(map(bool, placements))
    of = f"{count} placement{'s' if count > 1 else ''} × {passes} passes"
    return f"that is {format_count(count * passes)} forwards of every example ({of})"


def _is_captured(session: Session, placements: Sequence[ResolvedPlacement]) -> bool:
    """Whether this process has the graph; a run with a folder is not asked, because its next process has not."""
    points = {point for resolved in placements for point in resolved}
    return is_captured(session.model, session.data.batches[0].call.to(session.device), points)


def folded_loop(
    session: Session, placements: Sequence[ResolvedPlacement], passes: int, memory: int | None, reason: str
) -> LoopEngine:
    """The loop, with several passes of a batch in one forward where that pays and gives the same answers.

    A run that goes on in its folder sizes its forwards by the `memory` it was planned with: last bits follow from it.
    """
    if not folds(session):
        return _small_folded(session, placements, passes, memory, reason)
    data = session.data
    if not session.dense:  # a prediction per token keeps the width of its texts
        data = data.length_sorted(lambda length: rows_at_once(session.model, length, session.device, memory))
    on_device = session.with_data(data.on(session.device))
    folded = LoopEngine(on_device, placements, passes, fold=True, memory=memory, reason=reason)
    return _if_alike(session, folded) or LoopEngine(session, placements, passes, reason=reason)


def _small_folded(
    session: Session, placements: Sequence[ResolvedPlacement], passes: int, memory: int | None, reason: str
) -> LoopEngine:
    if folds_small(session, memory) and any(placements):
        folded = _if_alike(session, LoopEngine(session, placements, passes, fold=True, memory=memory, reason=reason))
        if folded is not None:
            return folded
    return LoopEngine(session, placements, passes, reason=reason)


def _if_alike(session: Session, folded: LoopEngine) -> LoopEngine | None:
    """The folded loop, where its passes are those that run one by one."""
    try:
        apart = _difference(session, folded)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        log.debug("passes run one by one: in one forward, %s", first_line(error))
        return None
    if apart <= (_FOLDED if session.precision == "fp32" else _FOLDED_HALF):
        return folded
    log.warning("passes run one by one: in one forward they differ by %.1e", apart)
    return None


def _difference(session: Session, folded: LoopEngine) -> float:
    """Two passes of two examples in one forward against one by one, under the placement with the most noise."""
    number = max(range(len(folded.placements)), key=lambda i: len(folded.placements[i]))
    few = session.data.batches[0].first_two()
    plain = LoopEngine(session, folded.placements, 2, traced=True)
    with torch.no_grad(), sealed():
        fast, slow = (
            torch.cat([block.probabilities for block in engine.samples(number, few, range(2))])
            for engine in (folded, plain)
        )
    return float((fast - slow).abs().max())
