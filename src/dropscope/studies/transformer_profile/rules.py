"""The claims of the study as they are registered before a run: what decides each, and by which margin."""

from __future__ import annotations

from dropscope.report import ClaimRule
from dropscope.studies.transformer_profile.published import (
    CHANCE_MARGIN,
    ERROR_MARGIN,
    MARGIN,
    QUARTILE_TESTS,
    RANK_MARGIN,
    ROBUST,
    SCALE_MARGIN,
    SCORE_MARGIN,
)

_POINTS = f"± {MARGIN:g} of accuracy"
_T = "two-way cluster t over models × contexts at .05; equivalent within the margin"
_ABLE = "of models above chance on the half of the contexts that is not measured"

RULES = (
    ClaimRule("deterministic_beats_mc", "Deterministic inference is more accurate than MC dropout at the baseline", _T,
              _POINTS),
    ClaimRule("collapse", "Rates of .1/.1 at inference bring some fine-tuned models down to chance",
              "the accuracy of a model falls at .05/15 and is below the margin at .05/models; never contradicted",
              f"less than chance + {CHANCE_MARGIN:g}"),
    ClaimRule("memory_bias", "Models are better at memory than at reasoning at the baseline", _T, _POINTS),
    ClaimRule("decoder_gap", "Decoders have the larger gap between memory and reasoning", f"{_T}; {_ABLE}", _POINTS),
    ClaimRule("memory_fragile", "High dropout costs memory more than reasoning", f"{_T}; {_ABLE}", _POINTS),
    ClaimRule("reasoning_robust", "Reasoning is robust to high dropout",
              f"two-way cluster t over models × contexts against {ROBUST:g}; {_ABLE}",
              f"robust = less than {ROBUST:g} lost"),
    ClaimRule("small_steady", "Small models are the most stable",
              "rank correlation of std with parameters, permutation test over models at .05",
              f"± {RANK_MARGIN:g} of the rank correlation"),
    ClaimRule("mid_sized_best", "Mid-sized models are the most accurate overall", _T, _POINTS),
    ClaimRule("large_remember", "Large models are the best at memory", _T, _POINTS),
    ClaimRule("family_over_size", "The family predicts stability better than the size",
              "errors of a left-out model's std, their ratio on logarithms, t over families at .05",
              f"± {100 * ERROR_MARGIN:.0f} % of the error by size"),
    ClaimRule("specialised_degrade", "Task-specialised checkpoints degrade more than general ones", _T, _POINTS),
    ClaimRule("calibration_on_reasoning", "Rates of .1 to .2 improve calibration on reasoning",
              "ECE, Brier and NLL all fall at .05; contradicted where one rises at .05/3",
              f"± {SCORE_MARGIN:g} of each"),
    ClaimRule("robustness_and_scale", "Robustness to dropout is uncorrelated with scale",
              "slope on log10(parameters), two-way cluster t over models × contexts within the margin",
              f"± {SCALE_MARGIN:g} of accuracy per tenfold"),
    ClaimRule("steady_and_accurate", "Steady and unsteady models differ in accuracy",
              f"one group differs at .05/{QUARTILE_TESTS}, either way; steadiness from the other half of the contexts",
              _POINTS),
    ClaimRule("gap_compression", "High dropout compresses the gap between memory and reasoning",
              "all three high configurations at .05, one the other way round at .05/3 contradicts", _POINTS),
    ClaimRule("gpt_neo_steady", "GPT-Neo does not react to dropout at all", "std over passes, which is 0 or not"),
    ClaimRule("albert_deterministic", "ALBERT varies even without dropout", "std over passes, which is 0 or not"),
)  # fmt: skip
