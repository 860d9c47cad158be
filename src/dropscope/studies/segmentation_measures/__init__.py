"""Which uncertainty measure finds the wrong voxels of a segmentation: a grid of trained networks."""

from typing import TYPE_CHECKING

from dropscope.studies.doors import late_imports
from dropscope.studies.segmentation_measures.options import Options

if TYPE_CHECKING:
    from dropscope.studies.segmentation_measures.study import (
        Outcome,
        Plan,
        calibrated,
        estimate,
        plan,
        preregister,
        run,
        trained_network,
    )

__all__ = ["Options", "Outcome", "Plan", "calibrated", "estimate", "plan", "preregister", "run", "trained_network"]

__getattr__ = late_imports(f"{__name__}.study", __all__)
