"""Measures: the uncertainty of each example (or voxel) from its passes. Higher always means more uncertain.

Each measure takes a `PassStatistics`, or stored passes `[passes, N, C, ...]` (with `plain=[N, C, ...]` where it
compares with the plain pass), and returns `[N, ...]`. Passes may come from anywhere: dropout, the members of an
ensemble, augmented inputs. Natural logarithms; 0·log 0 = 0. T is the number of passes, C
that of classes, p̂ the mean of the passes. `TABLE` lists the measures; `scores` says how good one is.
"""

from dropscope.measures.confidence import margin, max_probability, plain_entropy, plain_margin, plain_max_probability
from dropscope.measures.histograms import averaged_entropy, bhattacharyya, kullback_leibler
from dropscope.measures.information import (
    bald,
    bald_corrected,
    expected_entropy,
    mutual_information,
    predictive_entropy,
)
from dropscope.measures.spread import (
    averaged_std,
    averaged_variance,
    variation_max,
    variation_predicted,
    variation_ratio,
)
from dropscope.measures.table import (
    DEFAULT,
    PLAIN_TABLE,
    SEGMENTATION,
    TABLE,
    Measure,
    of_passes,
    of_statistics,
    resolve,
)

__all__ = [
    "DEFAULT",
    "PLAIN_TABLE",
    "SEGMENTATION",
    "TABLE",
    "Measure",
    "averaged_entropy",
    "averaged_std",
    "averaged_variance",
    "bald",
    "bald_corrected",
    "bhattacharyya",
    "expected_entropy",
    "kullback_leibler",
    "margin",
    "max_probability",
    "mutual_information",
    "of_passes",
    "of_statistics",
    "plain_entropy",
    "plain_margin",
    "plain_max_probability",
    "predictive_entropy",
    "resolve",
    "variation_max",
    "variation_predicted",
    "variation_ratio",
]
