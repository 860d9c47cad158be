"""Study S1: where should dropout go in an image classifier? A sweep over a grid of placements, with its report."""

from typing import TYPE_CHECKING

from dropscope.studies.doors import late_imports
from dropscope.studies.where_to_drop.options import Options
from dropscope.studies.where_to_drop.presets import PRESETS

if TYPE_CHECKING:
    from dropscope.studies.where_to_drop.study import Outcome, Plan, estimate, plan, preregister, run

__all__ = ["PRESETS", "Options", "Outcome", "Plan", "estimate", "plan", "preregister", "run"]

__getattr__ = late_imports(f"{__name__}.study", __all__)
