"""Everything the study computes from its tables, once: what tables, figures, claims and the summary all draw from."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from dropscope.studies.transformer_profile import calibration, comparisons, levels
from dropscope.studies.transformer_profile.recommend import Recommendation, recommend
from dropscope.studies.transformer_profile.results import Evaluated


@dataclass(frozen=True)
class Findings:
    """One table per question; see the function of the same name for its columns."""

    e: Evaluated
    levels: pd.DataFrame
    consistency: pd.DataFrame
    stability: pd.DataFrame
    within: pd.DataFrame
    attention_or_ffn: pd.DataFrame
    quartiles: pd.DataFrame
    kinds: pd.DataFrame
    drops: pd.DataFrame
    family_or_size: pd.DataFrame
    calibration: pd.DataFrame
    differences: pd.DataFrame
    recommendations: list[Recommendation]


def find(e: Evaluated, replicates: int = calibration.REPLICATES) -> Findings:
    """Everything; `replicates` of the calibration's bootstrap."""
    run = levels.run_levels(e)
    steady = levels.stability(e, run)
    replicated = calibration.replicate(e, replicates)
    return Findings(
        e=e,
        levels=run,
        consistency=levels.consistency(e, run),
        stability=steady,
        within=comparisons.within_models(e),
        attention_or_ffn=comparisons.attention_or_ffn(e),
        quartiles=comparisons.quartiles(e, run, steady),
        kinds=comparisons.kinds(e, run),
        drops=comparisons.drops(e, run),
        family_or_size=comparisons.family_or_size(steady),
        calibration=calibration.calibration(e, replicated),
        differences=calibration.differences(e, replicated),
        recommendations=recommend(e, run, replicated),
    )
