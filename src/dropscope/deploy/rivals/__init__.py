"""Rivals: what else one trained network offers to rank its errors, and comparisons of placements of dropout with it.

A rival is a function from a `PlainPass` to an uncertainty `[n]` or an `Answer`; one that is fitted first has
`fit(fitting)`, which returns such a function. `TABLE` lists those with a name.
"""

from dropscope.deploy.rivals.answers import Answer, Rival
from dropscope.deploy.rivals.catalogue import TABLE, Known
from dropscope.deploy.rivals.comparisons import ComparisonPlan, compare, plan_comparison
from dropscope.deploy.rivals.dropout import MeasuredPlacement
from dropscope.deploy.rivals.fitted import Laplace, Mahalanobis, MaxLogitPNorm, Temperature
from dropscope.deploy.rivals.forwards import PlainPass
from dropscope.deploy.rivals.repeated import Augmentation, Ensemble, MonteCarloBatchNorm
from dropscope.deploy.rivals.result import Comparison
from dropscope.deploy.rivals.stored import StoredProbabilities
from dropscope.deploy.rivals.verdicts import Verdict

__all__ = [
    "TABLE",
    "Answer",
    "Augmentation",
    "Comparison",
    "ComparisonPlan",
    "Ensemble",
    "Known",
    "Laplace",
    "Mahalanobis",
    "MaxLogitPNorm",
    "MeasuredPlacement",
    "MonteCarloBatchNorm",
    "PlainPass",
    "Rival",
    "StoredProbabilities",
    "Temperature",
    "Verdict",
    "compare",
    "plan_comparison",
]
