"""From scores to decisions: deferral rules with a guarantee, and the predictor to ship."""

from dropscope.deploy.adapters import TextPipeline, mlflow_model
from dropscope.deploy.cases import VolumePredictor
from dropscope.deploy.deferral import defer
from dropscope.deploy.drift import DriftCheck
from dropscope.deploy.evaluation import Evaluation
from dropscope.deploy.explanations import Explanation
from dropscope.deploy.exports import export
from dropscope.deploy.folders import check_target
from dropscope.deploy.formats import Exported, ExportFacts, open_export
from dropscope.deploy.monitors import Monitor
from dropscope.deploy.predictions import Predictions
from dropscope.deploy.predictor import UncertaintyPredictor
from dropscope.deploy.rules import DeferralRule
from dropscope.deploy.scoring import Scored, Scorer, plan_scoring, score

__all__ = [
    "DeferralRule",
    "DriftCheck",
    "Evaluation",
    "Explanation",
    "ExportFacts",
    "Exported",
    "Monitor",
    "Predictions",
    "Scored",
    "Scorer",
    "TextPipeline",
    "UncertaintyPredictor",
    "VolumePredictor",
    "check_target",
    "defer",
    "export",
    "mlflow_model",
    "open_export",
    "plan_scoring",
    "score",
]
