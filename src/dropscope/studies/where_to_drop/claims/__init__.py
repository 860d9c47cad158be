"""Claims of "Where to Drop", and two that it does not make, beside what was measured here.

Owns the list of claims; each group has a module. Rules about placements are judged over networks alone, because
placements of one network are no replicates: with one network they cannot be decided.
"""

from __future__ import annotations

import pandas as pd

from dropscope.report import Claim
from dropscope.studies.where_to_drop.claims.numbers import number_claims
from dropscope.studies.where_to_drop.claims.penultimate import early_claims, halves_claims, penultimate_claims
from dropscope.studies.where_to_drop.claims.trends import layer_count_claims, p_mean_claims, position_claims
from dropscope.studies.where_to_drop.claims.usefulness import beats_plain_claims, useful_claims
from dropscope.studies.where_to_drop.rows import StudyRows

__all__ = ["judge"]


def judge(study: StudyRows, effects: pd.DataFrame) -> list[Claim]:
    """Every claim of the study about this task, from its rows and their table of effects."""
    return [
        *number_claims(study),
        *penultimate_claims(study, effects),
        *halves_claims(study, effects),
        *p_mean_claims(study, effects),
        *layer_count_claims(study, effects),
        *position_claims(study, effects),
        *early_claims(study, effects),
        *useful_claims(study, effects),
        *beats_plain_claims(study),
    ]
