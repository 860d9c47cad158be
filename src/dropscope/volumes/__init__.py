"""NIfTI volumes: reading and writing, sliding windows, and predictions with maps, pictures and a table for review."""

from dropscope.volumes.nifti import (
    Header,
    channel_owner,
    check_aligned,
    find_cases,
    group_by_case,
    list_volumes,
    read_header,
    read_intensities,
    read_voxels,
    scale_intensities,
    volume_name,
    write_volume,
)
from dropscope.volumes.options import Options
from dropscope.volumes.prediction import PredictionPlan, plan_prediction, predict
from dropscope.volumes.tables import format_volume, rankings, rising
from dropscope.volumes.transforms import Transforms, run_transforms

__all__ = [
    "Header",
    "Options",
    "PredictionPlan",
    "Transforms",
    "channel_owner",
    "check_aligned",
    "find_cases",
    "format_volume",
    "group_by_case",
    "list_volumes",
    "plan_prediction",
    "predict",
    "rankings",
    "read_header",
    "read_intensities",
    "read_voxels",
    "rising",
    "run_transforms",
    "scale_intensities",
    "volume_name",
    "write_volume",
]
