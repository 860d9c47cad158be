"""Engines that run placements × passes × examples: the plain loop, and the shared tree."""

from dropscope.engine.choice import choose_engine
from dropscope.engine.engine import Engine, PassBlock, StatisticsBlock, Tick, WorkUnit, check_finite, quiet
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
    "WorkUnit",
    "check_finite",
    "choose_engine",
    "open_session",
    "quiet",
    "rows_at_once",
    "sealed",
    "timed",
]
