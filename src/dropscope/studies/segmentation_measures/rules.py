"""The claims of the study as they are registered before a run: what decides each, and by which margin."""

from __future__ import annotations

from dropscope.report import ClaimRule
from dropscope.studies.segmentation_measures import published
from dropscope.studies.segmentation_measures.rows import LABELS

_MARGIN = f"± {published.MARGIN:g} of AUC-PR"
_T = "two-way cluster t over experiments × patients"

RULES = (
    *(
        ClaimRule(
            f"{a} > {b}", f"{LABELS[a].capitalize()} finds misclassified voxels better than {LABELS[b]}",
            f"{_T}, p by Holm over the six pairs below .05; equivalent within the margin", _MARGIN,
        )
        for a, b in published.PAIRS
    ),
    ClaimRule(
        "order", "{averaged variance, averaged entropy} > Bhattacharyya > Kullback-Leibler",
        "all five pairs at .05 support it; one of them the other way round at .01 contradicts it", _MARGIN,
    ),
    ClaimRule(
        "variance = entropy", "Averaged variance and averaged entropy do not differ",
        f"{_T}: supported by an interval within the margin, contradicted by one wholly beyond it", _MARGIN,
    ),
    ClaimRule(
        "cost", "Averaged variance is the cheapest of the four",
        "time of one measure for one case against the cheapest other; no interval",
        f"± {100 * published.COST_MARGIN:.0f} %",
    ),
)  # fmt: skip
