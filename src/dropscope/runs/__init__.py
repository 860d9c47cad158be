"""What a user runs: passes under one placement, sweeps over many, their rows and their folders."""

from dropscope.runs.folders import open_run
from dropscope.runs.passes import maps, sample, uncertainty
from dropscope.runs.plots import draw_accuracy_curves
from dropscope.runs.result import Run
from dropscope.runs.sweeps import plan_sweep, sweep

__all__ = ["Run", "draw_accuracy_curves", "maps", "open_run", "plan_sweep", "sample", "sweep", "uncertainty"]
