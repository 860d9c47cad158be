"""Tuning: the best placement and measure for a model, or one plain pass, judged beside rules and rivals."""

from dropscope.deploy.tuning.choices import TunedChoice
from dropscope.deploy.tuning.plans import TuningPlan
from dropscope.deploy.tuning.records import open_choice
from dropscope.deploy.tuning.tunings import plan_tuning, tune

__all__ = ["TunedChoice", "TuningPlan", "open_choice", "plan_tuning", "tune"]
