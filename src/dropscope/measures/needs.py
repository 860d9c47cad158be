"""Needs of the measures: which running statistics each reads, how stored passes become those; ranges and references.

See `statistics` for what each name keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor

from dropscope.measures.statistics import PassStatistics, from_passes
from dropscope.parameters import documented

Function = TypeVar("Function", bound=Callable[..., Tensor])
PLAIN = "predicted_deviation"  # the statistic that compares with the plain pass

_RETURNS = "The uncertainty of each example or voxel, `[N, ...]`. Higher is more uncertain."
_WHERE_TO_DROP, _SEGMENTATION = "Benyamina and Jemelen", "Camarasa et al. 2020"


class Facts(NamedTuple):
    """What a measure reads, as `PassStatistics` names it, the values it can take, and where it is defined."""

    needs: tuple[str, ...]
    range: str
    reference: str


FACTS = {
    "variation_predicted": Facts((PLAIN,), "[0, 1]", f"{_WHERE_TO_DROP}, eq 9"),
    "variation_max": Facts(("max_moments",), "[0, 1/4]", f"{_WHERE_TO_DROP}, eq 10"),
    "predictive_entropy": Facts(("sum_p",), "[0, log C]", f"{_WHERE_TO_DROP}, eq 11"),
    "expected_entropy": Facts(("sum_plogp",), "[0, log C]", f"{_WHERE_TO_DROP}, eq 12"),
    "bald": Facts(("sum_p", "sum_plogp"), "[0, predictive_entropy]", f"{_WHERE_TO_DROP}, eq 13"),
    "mutual_information": Facts(("sum_p", "sum_plogp"), "[0, predictive_entropy]", f"{_WHERE_TO_DROP}, eq 13, as bald"),
    "bald_corrected": Facts(("class_moments", "sum_plogp"), "[0, log C]", "Miller 1955"),
    "averaged_variance": Facts(("class_moments",), "[0, 1/4]", f"{_SEGMENTATION}, eq 3"),
    "averaged_std": Facts(("class_moments",), "[0, 1/2]", f"{_SEGMENTATION}, code of eq 3"),
    "averaged_entropy": Facts(("histogram",), "[0, log min(T, bins)]", f"{_SEGMENTATION}, eq 4"),
    "bhattacharyya": Facts(("histogram", "sum_p"), "[0, 1]", f"{_SEGMENTATION}, eq 5"),
    "kullback_leibler": Facts(("histogram", "sum_p"), "[-33, 0]", f"{_SEGMENTATION}, eq 6"),
    "variation_ratio": Facts(("votes",), "[0, 1 - 1/C]", "Gal 2016, eq 3.19"),
    "max_probability": Facts(("sum_p",), "[0, 1 - 1/C]", "Hendrycks and Gimpel 2017"),
    "margin": Facts(("sum_p",), "[0, 1]", "Scheffer et al. 2001"),
}


def statistics_of(passes: PassStatistics | Tensor, measure: str, plain: Tensor | None) -> PassStatistics:
    """Statistics as they are; stored passes `[passes, N, C, ...]` as the statistics that the measure reads."""
    if isinstance(passes, PassStatistics):
        return passes
    needs = FACTS[measure].needs
    return from_passes(passes, needs, plain if PLAIN in needs else None)


def measure_docs(
    raises: str = "Where the statistic was not kept.", plain: str = "Not used."
) -> Callable[[Function], Function]:
    """What the docstrings of all measures of passes have in common; the statistics named are those in `FACTS`."""

    def decorate(function: Function) -> Function:
        keeps = " and ".join(f'"{name}"' for name in FACTS[function.__name__].needs)
        passes = f"Statistics that keep {keeps}, or stored passes `[passes, N, C, ...]`."
        return documented({"passes": passes, "plain": plain}, _RETURNS, {"BadInput": raises})(function)

    return decorate


def plain_docs(raises: str = "Where `p` holds no probabilities.") -> Callable[[Function], Function]:
    """What the docstrings of all measures of one pass have in common."""
    args = {"p": "Probabilities `[N, C, ...]` of one pass.", "axis": "The dimension of the classes."}
    return documented(args, _RETURNS, {"BadInput": raises})
