"""Rivals: what else one trained network offers to rank its errors, and comparisons of placements of dropout with it.

A rival is a function from a `PlainPass` to an uncertainty `[n]` or an `Answer`; one that is fitted first has
`fit(fitting)`, which returns such a function. `TABLE` lists those with a name.
"""

from dropscope.rivals.answers import Answer, Rival
from dropscope.rivals.catalogue import TABLE, Known
from dropscope.rivals.comparisons import ComparisonPlan, compare, plan_comparison
from dropscope.rivals.fitted import Laplace, Mahalanobis, MaxLogitPNorm, Temperature
from dropscope.rivals.forwards import PlainPass
from dropscope.rivals.repeated import Augmentation, Ensemble, MonteCarloBatchNorm
from dropscope.rivals.result import Comparison
from dropscope.rivals.stored import StoredProbabilities
from dropscope.rivals.verdicts import Verdict

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
    "MonteCarloBatchNorm",
    "PlainPass",
    "Rival",
    "StoredProbabilities",
    "Temperature",
    "Verdict",
    "compare",
    "plan_comparison",
]
