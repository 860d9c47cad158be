"""Engines for placements × passes × examples: the plain loop, the shared tree, the last layer without passes."""

from dropscope.engine.analytic import Tolerance
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
from dropscope.engine.loop import LoopEngine, rows_at_once
from dropscope.engine.session import Session, SessionOptions, open_session, sealed
from dropscope.engine.summary import PlanSummary
from dropscope.engine.timing import timed

__all__ = [
    "Engine",
    "LoopEngine",
    "PassBlock",
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
    "open_session",
    "quiet",
    "rows_at_once",
    "sealed",
    "timed",
]
