"""The claims of "Where to Drop", and two that it does not make, beside what was measured here.

Owns the list of claims. Each group of them has a file: numbers, the penultimate rule, trends and positions, use.
Rules about placements are judged over networks alone (R27): with one network they cannot be decided.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dropscope.report import Claim
from dropscope.studies.where_to_drop.effects import effects
from dropscope.studies.where_to_drop.gathered import Gathered, gather
from dropscope.studies.where_to_drop.judged_numbers import number_claims
from dropscope.studies.where_to_drop.judged_rule import early_claims, halves_claims, penultimate_claims
from dropscope.studies.where_to_drop.judged_trends import layer_count_claims, p_mean_claims, position_claims
from dropscope.studies.where_to_drop.judged_use import beats_plain_claims, useful_claims
from dropscope.studies.where_to_drop.task import NetworkResult, Task


def claims(task: Task, results: Sequence[NetworkResult]) -> list[Claim]:
    """Every claim of the study about this task, judged on these networks."""
    g = gather(task, results)
    return judged(g, effects(g))


def judged(g: Gathered, table: pd.DataFrame) -> list[Claim]:
    """The claims, from the gathered rows and their table of effects."""
    return [
        *number_claims(g),
        *penultimate_claims(g, table),
        *halves_claims(g, table),
        *p_mean_claims(g, table),
        *layer_count_claims(g, table),
        *position_claims(g, table),
        *early_claims(g, table),
        *useful_claims(g, table),
        *beats_plain_claims(g),
    ]
