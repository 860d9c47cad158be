"""NIfTI volumes: reading, sliding windows, and predictions with uncertainty maps."""

from dropscope.volumes.nifti import CHANNEL, by_case
from dropscope.volumes.prediction import planned, predict

__all__ = ["CHANNEL", "by_case", "planned", "predict"]
