"""Engines that run placements × passes × examples: the plain loop, and the shared tree."""

from dropscope.engine.choice import choose_engine
from dropscope.engine.engine import Engine, StatisticsBlock, Tick, WorkUnit, quiet
from dropscope.engine.loop import LoopEngine, rows_at_once
from dropscope.engine.session import Session, SessionOptions, open_session, precise
from dropscope.engine.summary import PlanSummary

__all__ = [
    "Engine",
    "LoopEngine",
    "PlanSummary",
    "Session",
    "SessionOptions",
    "StatisticsBlock",
    "Tick",
    "WorkUnit",
    "choose_engine",
    "open_session",
    "precise",
    "quiet",
    "rows_at_once",
]
