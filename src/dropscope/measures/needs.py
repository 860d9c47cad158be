"""Needs of the measures: which running statistics each reads, and how stored passes become those.

See `statistics` for what each name keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from dropscope.parameters import documented
from dropscope.statistics import PassStatistics, from_passes

Function = TypeVar("Function", bound=Callable[..., Tensor])
PLAIN = "predicted_deviation"  # the statistic that compares with the plain pass

_RETURNS = "The uncertainty of each example or voxel, `[N, ...]`. Higher is more uncertain."
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


def measure_docs(
    raises: str = "Where the statistic was not kept.", plain: str = "Not used."
) -> Callable[[Function], Function]:
    """What the docstrings of all measures of passes have in common; the statistics named are those in `NEEDS`."""

    def decorate(function: Function) -> Function:
        keeps = " and ".join(f'"{name}"' for name in NEEDS[function.__name__])
        passes = f"Statistics that keep {keeps}, or stored passes `[passes, N, C, ...]`."
        return documented({"passes": passes, "plain": plain}, _RETURNS, {"BadInput": raises})(function)

    return decorate


def plain_docs(raises: str = "Where `p` holds no probabilities.") -> Callable[[Function], Function]:
    """What the docstrings of all measures of one pass have in common."""
    args = {"p": "Probabilities `[N, C, ...]` of one pass.", "axis": "The dimension of the classes."}
    return documented(args, _RETURNS, {"BadInput": raises})
