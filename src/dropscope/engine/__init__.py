"""Engines for placements × passes × examples: the plain loop, the shared tree, the last layer without passes."""

from dropscope.engine.analytic import AnalyticEngine, Tolerance
from dropscope.engine.choice import choose_engine
from dropscope.engine.engine import (
    Engine,
    PassBlock,
    StatisticsBlock,
    Tick,
    WorkUnit,
    check_finite,
    check_runs_passes,
    quiet,
)
from dropscope.engine.forwards import PassesForward, input_names, passes_forward
from dropscope.engine.graph import CaptureFailed, feed_values
from dropscope.engine.loop import LoopEngine, rows_at_once
from dropscope.engine.session import Session, SessionOptions, open_session, sealed
from dropscope.engine.summary import PlanSummary
from dropscope.engine.timing import timed

__all__ = [
    "AnalyticEngine",
    "CaptureFailed",
    "Engine",
    "LoopEngine",
    "PassBlock",
    "PassesForward",
    "PlanSummary",
    "Session",
    "SessionOptions",
    "StatisticsBlock",
    "Tick",
    "Tolerance",
    "WorkUnit",
    "check_finite",
    "check_runs_passes",
    "choose_engine",
    "feed_values",
    "input_names",
    "open_session",
    "passes_forward",
    "quiet",
    "rows_at_once",
    "sealed",
    "timed",
]
