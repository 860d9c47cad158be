"""Engines that run placements × passes × examples: the plain loop, and the shared tree."""

from dropscope.engine.executor import possible
from dropscope.engine.graph import CaptureFailed
from dropscope.engine.loop import Block, passes_of, run_reference
from dropscope.engine.session import Session, precise, prepare
from dropscope.engine.shared import Shared, Unit
from dropscope.engine.summary import Explanation, explain, explain_loop, work_of

__all__ = [
    "Block",
    "CaptureFailed",
    "Explanation",
    "Session",
    "Shared",
    "Unit",
    "explain",
    "explain_loop",
    "passes_of",
    "possible",
    "precise",
    "prepare",
    "run_reference",
    "work_of",
]
