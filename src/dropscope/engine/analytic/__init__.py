"""The engine that runs no passes, where noise enters just before the last linear layer."""

from dropscope.engine.analytic.moments import AnalyticEngine, Tolerance
from dropscope.engine.analytic.readout import ReadoutFailed

__all__ = ["AnalyticEngine", "ReadoutFailed", "Tolerance"]
