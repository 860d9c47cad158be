"""Scores: how good a measure (or a placement) is over a data set. `TABLE` lists them with direction and range.

All take tensors, wherever the uncertainty or the probabilities come from: dropout, an ensemble, one plain pass.
Dimensions before those named in a docstring (`...`) are computed at once, as if one by one.
"""

from dropscope.scores.agreement import PassLabels, pairwise_dice, volume_variation
from dropscope.scores.calibration import (
    Confidences,
    brier,
    calibration_means,
    calibration_of,
    calibration_terms,
    confidences_of,
    ece,
    nll,
)
from dropscope.scores.cases import foreground_mean, loss_aurc, loss_correlation, worst_patch
from dropscope.scores.detection import (
    augrc,
    aurc,
    class_risk,
    detection_scores,
    error_auprc,
    error_auroc,
    excess_aurc,
    risk_at_coverage,
    risk_coverage_curve,
)
from dropscope.scores.monotonicity import (
    accuracy_curve,
    isotonic_correction,
    isotonic_penalty,
    rearrangement_correction,
    rearrangement_penalty,
    reference_levels,
    running_minimum_correction,
    running_minimum_penalty,
)
from dropscope.scores.own import score_rankings
from dropscope.scores.segmentation import dice, voxel_auprc
from dropscope.scores.stability import (
    RunLevelAccuracy,
    flip_rate,
    group_difference,
    monte_carlo_error,
    run_level_accuracy,
    run_level_accuracy_of_counts,
)
from dropscope.scores.table import CALIBRATION, RANKING, TABLE, Score, check_score, of_ranking, ranking_scores, resolve
from dropscope.scores.temperatures import fit_temperature, tempered
from dropscope.scores.weighted import weighted_aurc, weighted_ranking_scores, weighted_risk_curve

__all__ = [
    "CALIBRATION",
    "RANKING",
    "TABLE",
    "Confidences",
    "PassLabels",
    "RunLevelAccuracy",
    "Score",
    "accuracy_curve",
    "augrc",
    "aurc",
    "brier",
    "calibration_means",
    "calibration_of",
    "calibration_terms",
    "check_score",
    "class_risk",
    "confidences_of",
    "detection_scores",
    "dice",
    "ece",
    "error_auprc",
    "error_auroc",
    "excess_aurc",
    "fit_temperature",
    "flip_rate",
    "foreground_mean",
    "group_difference",
    "isotonic_correction",
    "isotonic_penalty",
    "loss_aurc",
    "loss_correlation",
    "monte_carlo_error",
    "nll",
    "of_ranking",
    "pairwise_dice",
    "ranking_scores",
    "rearrangement_correction",
    "rearrangement_penalty",
    "reference_levels",
    "resolve",
    "risk_at_coverage",
    "risk_coverage_curve",
    "run_level_accuracy",
    "run_level_accuracy_of_counts",
    "running_minimum_correction",
    "running_minimum_penalty",
    "score_rankings",
    "tempered",
    "volume_variation",
    "voxel_auprc",
    "weighted_aurc",
    "weighted_ranking_scores",
    "weighted_risk_curve",
    "worst_patch",
]
