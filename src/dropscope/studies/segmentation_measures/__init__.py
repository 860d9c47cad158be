"""Which uncertainty measure finds the wrong voxels of a segmentation: a grid of trained networks."""

from dropscope.studies.segmentation_measures.options import Options
from dropscope.studies.segmentation_measures.study import Outcome, Plan, estimate, plan, run, trained_network

__all__ = ["Options", "Outcome", "Plan", "estimate", "plan", "run", "trained_network"]
