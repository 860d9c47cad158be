"""Statistics over tables of results. Nothing here sees a model."""

from dropscope.analysis.contrasts import cohens_d, difference_of_means, paired_d, rank_correlation, sign_test
from dropscope.analysis.crossed import crossed_difference, crossed_mean
from dropscope.analysis.effects import Choice, effect_over_networks, paired_differences, pairwise_contrasts, trends
from dropscope.analysis.inference import Estimate, bootstrap_p, holm, log_over_networks, over_clusters, over_networks
from dropscope.analysis.intervals import absolute_sum_interval, penalty_interval, t_factor, t_interval
from dropscope.analysis.placements import (
    QUANTITIES,
    marginal_means,
    per_layer_rate,
    with_quantities,
    without_equivalents,
)
from dropscope.analysis.pooling import LEAST_STUDIES, PooledEffect, pool_effects
from dropscope.analysis.posteriors import differences_over_patients, ordered_pairs, win_posterior
from dropscope.analysis.resampling import (
    HALVES,
    REPLICATES,
    bootstrap,
    bootstrap_calibration,
    bootstrap_scores,
    group_numbers,
    half_samples,
    interval,
    paired_interval,
    resamples,
    simultaneous_intervals,
)

__all__ = [
    "HALVES",
    "LEAST_STUDIES",
    "QUANTITIES",
    "REPLICATES",
    "Choice",
    "Estimate",
    "PooledEffect",
    "absolute_sum_interval",
    "bootstrap",
    "bootstrap_calibration",
    "bootstrap_p",
    "bootstrap_scores",
    "cohens_d",
    "crossed_difference",
    "crossed_mean",
    "difference_of_means",
    "differences_over_patients",
    "effect_over_networks",
    "group_numbers",
    "half_samples",
    "holm",
    "interval",
    "log_over_networks",
    "marginal_means",
    "ordered_pairs",
    "over_clusters",
    "over_networks",
    "paired_d",
    "paired_differences",
    "paired_interval",
    "pairwise_contrasts",
    "penalty_interval",
    "per_layer_rate",
    "pool_effects",
    "rank_correlation",
    "resamples",
    "sign_test",
    "simultaneous_intervals",
    "t_factor",
    "t_interval",
    "trends",
    "win_posterior",
    "with_quantities",
    "without_equivalents",
]
