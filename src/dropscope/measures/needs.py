"""Needs of the measures: which running statistics each reads, and how stored passes become those.

See `statistics` for what each name keeps.
"""

from __future__ import annotations

from torch import Tensor

from dropscope.statistics import PassStatistics, from_passes

PLAIN = "predicted_deviation"  # the statistic that compares with the plain pass

NEEDS: dict[str, tuple[str, ...]] = {
    "variation_predicted": (PLAIN,),
    "variation_max": ("max_moments",),
    "predictive_entropy": ("sum_p",),
    "expected_entropy": ("sum_plogp",),
    "bald": ("sum_p", "sum_plogp"),
    "mutual_information": ("sum_p", "sum_plogp"),
    "bald_corrected": ("class_moments", "sum_plogp"),
    "averaged_variance": ("class_moments",),
    "averaged_std": ("class_moments",),
    "averaged_entropy": ("histogram",),
    "bhattacharyya": ("histogram", "sum_p"),
    "kullback_leibler": ("histogram", "sum_p"),
    "variation_ratio": ("votes",),
    "max_probability": ("sum_p",),
    "margin": ("sum_p",),
}


def statistics_of(passes: PassStatistics | Tensor, measure: str, plain: Tensor | None) -> PassStatistics:
    """Statistics as they are; stored passes `[passes, N, C, ...]` as the statistics that the measure reads."""
    if isinstance(passes, PassStatistics):
        return passes
    needs = NEEDS[measure]
    return from_passes(passes, needs, plain if PLAIN in needs else None)
