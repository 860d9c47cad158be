"""Claims of "Where to Drop", and two that it does not make, beside what was measured here.

Owns the list of claims; each group has a module. Rules about placements are judged over networks alone, because
placements of one network are no replicates: fewer than three networks, fewer than thirty images or a network at chance
decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from dropscope.report import Claim
from dropscope.studies.where_to_drop.claims.numbers import number_claims
from dropscope.studies.where_to_drop.claims.penultimate import (
    early_claims,
    first_layer_claims,
    halves_claims,
    penultimate_claims,
)
from dropscope.studies.where_to_drop.claims.trends import (
    layer_count_claims,
    p_mean_claims,
    position_claims,
    shape_claims,
)
from dropscope.studies.where_to_drop.claims.usefulness import (
    beats_plain_claims,
    change_words,
    placement_counts,
    useful_claims,
)
from dropscope.studies.where_to_drop.claims.verdicts import IDENTITY
from dropscope.studies.where_to_drop.published import LEAST_EXAMPLES, LEAST_NETWORKS, published_for
from dropscope.studies.where_to_drop.rows import StudyRows
from dropscope.studies.where_to_drop.tables import untrained

__all__ = ["LEAST_NETWORKS", "change_words", "judge", "placement_counts"]


def judge(study: StudyRows, effects: pd.DataFrame, smaller: Sequence[str] = ()) -> list[Claim]:
    """Every claim of the study about this task, from its rows and their table of effects.

    `smaller` are the ways in which the run is not the paper's: they leave published numbers undecided. Of a user's own
    network, rules about networks that it cannot decide are left out.
    """
    claims = [
        *number_claims(study, smaller),
        *penultimate_claims(study, effects),
        *halves_claims(study, effects),
        *first_layer_claims(study, effects),
        *p_mean_claims(study, effects),
        *layer_count_claims(study, effects),
        *shape_claims(study, effects),
        *position_claims(study, effects),
        *early_claims(study, effects),
        *useful_claims(study, effects),
        *beats_plain_claims(study),
    ]
    reasons = []
    if study.examples < LEAST_EXAMPLES:
        reasons.append(f"{study.examples} test examples, and a verdict needs {LEAST_EXAMPLES}")
    if failed := untrained(study):
        reasons.append(f"at chance, so not trained: {', '.join(failed)}")
    if reasons:
        claims = [claim if _stands(claim) else _undecided(claim, "; ".join(reasons)) for claim in claims]
    own = published_for(study.task) is None and study.networks < LEAST_NETWORKS
    return [claim for claim in claims if not own or claim.verdict != "undecided" or claim.name == "beats-plain"]


def _stands(claim: Claim) -> bool:
    """Whether a claim needs neither images nor trained networks."""
    return claim.arithmetic or claim.how.startswith(IDENTITY)


def _undecided(claim: Claim, why: str) -> Claim:
    return replace(claim, verdict="undecided", how=f"{why}; {claim.how}", evidence=(), brief=why)
