"""Statistics over tables of results. Nothing here sees a model."""

from dropscope.analysis.contrasts import cohens_d, difference_of_means, paired_d, rank_correlation, sign_test
from dropscope.analysis.effects import Choice, effect, paired, pairwise_contrasts, trends
from dropscope.analysis.inference import Estimate, bootstrap_p, holm, over_clusters, over_networks, simultaneous
from dropscope.analysis.placements import QUANTITIES, computed, described, marginal, per_layer_rate
from dropscope.analysis.posteriors import compared, ordered_pairs, patient_bootstrap
from dropscope.analysis.resampling import REPLICATES, bootstrap, interval, resamples

__all__ = [
    "QUANTITIES",
    "REPLICATES",
    "Choice",
    "Estimate",
    "bootstrap",
    "bootstrap_p",
    "cohens_d",
    "compared",
    "computed",
    "described",
    "difference_of_means",
    "effect",
    "holm",
    "interval",
    "marginal",
    "ordered_pairs",
    "over_clusters",
    "over_networks",
    "paired",
    "paired_d",
    "pairwise_contrasts",
    "patient_bootstrap",
    "per_layer_rate",
    "rank_correlation",
    "resamples",
    "sign_test",
    "simultaneous",
    "trends",
]
