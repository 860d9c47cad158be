"""Study S2: how do transformers take dropout at inference, on recall and on reasoning? Five configurations, audited."""

from typing import TYPE_CHECKING

from dropscope.studies.doors import late_imports
from dropscope.studies.transformer_profile.options import Options, Plan
from dropscope.studies.transformer_profile.presets import PRESETS

if TYPE_CHECKING:
    from dropscope.studies.transformer_profile.study import Outcome, estimate, plan, preregister, run

__all__ = ["PRESETS", "Options", "Outcome", "Plan", "estimate", "plan", "preregister", "run"]

__getattr__ = late_imports(f"{__name__}.study", __all__)
