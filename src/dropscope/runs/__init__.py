"""What a user runs: passes under one placement, sweeps over many, their rows and their folders."""

from dropscope.runs.passes import maps, sample, uncertainty
from dropscope.runs.result import Run
from dropscope.runs.sweeps import plan_sweep, sweep

__all__ = ["Run", "maps", "plan_sweep", "sample", "sweep", "uncertainty"]
