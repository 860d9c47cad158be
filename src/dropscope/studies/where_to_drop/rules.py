"""The claims of the study as they are registered before a run: what decides each, and by which margin.

`*` stands for the layers, measures and scores of a run.
"""

from __future__ import annotations

from dropscope.report import ClaimRule
from dropscope.studies.where_to_drop.claims.verdicts import AURC_WORDS, MARGIN_WORDS
from dropscope.studies.where_to_drop.published import AURC_MARGIN, FACTOR, USEFUL

_T = "t over three networks or more at .05"
_HOLM = f"{_T}, p by Holm within its family"
_NUMBER = f"interval of the logarithm over networks within a factor of {FACTOR:g}; only by a run of the paper's size"
_SHARE = MARGIN_WORDS
_BOTH = f"equivalent within {MARGIN_WORDS}, or {AURC_WORDS}"

RULES = (
    ClaimRule("accuracy", "The network has the published test accuracy", "interval inside the published range"),
    ClaimRule("p_mean-*-0.[19]", "The penalty at one end of p_mean is the published one", _NUMBER,
              f"a factor of {FACTOR:g}"),
    ClaimRule("p_mean-*", "The penalty rises, or falls, with p_mean", f"slope and both ends, {_T}"),
    ClaimRule("single-*", "The penalty of one layer masked alone is the published one", _NUMBER,
              f"a factor of {FACTOR:g}"),
    ClaimRule("table-3-order-*", "The first placement of table 3 has the lower penalties", f"both penalties, {_T}",
              _SHARE),
    ClaimRule("table-3-*", "A cell of table 3 is met", f"range of single batches, or {_NUMBER}",
              f"a factor of {FACTOR:g}"),
    ClaimRule("penultimate-*", "Masking the penultimate layer alone is better than several layers, or every other one",
              f"{_HOLM}; against every other layer all differences at .05; {_BOTH}"),
    ClaimRule("halves-*", "Masking the penultimate layer alone at least halves the mean penalty",
              f"ratio against .5 on logarithms, {_T}"),
    ClaimRule("n_layers-*", "The number of masked layers has no impact on the penalty",
              f"interval of the change from one layer to all within the margin, {_T}", _SHARE),
    ClaimRule("position-*", "The position of the masks makes no difference",
              f"an identity, or interval within the margin, {_T}", _SHARE),
    ClaimRule("highest-*", "The penalty is highest where the first layer alone is masked",
              f"all differences to other layers and to several, {_T}", _SHARE),
    ClaimRule("skewness-*", "BALD's penalty moves with the skewness of the rates over the layers",
              f"slope and rank correlation agree, either way, {_T}", _SHARE),
    ClaimRule("kurtosis-*", "BALD's penalty moves with the kurtosis of the rates over the layers",
              f"slope and rank correlation agree, either way, {_T}", _SHARE),
    ClaimRule("last-*", "The penalty rises with the last masked layer", _HOLM,
              f"{_SHARE}, from the first layer to the last"),
    ClaimRule("early-*", "The penalty is lowest with early layers only", _HOLM, _SHARE),
    ClaimRule("useful-*", "Placements of lower penalty have a lower AURC", f"rank correlation of both penalties, {_T}",
              f"useful above a rank correlation of {USEFUL:g}"),
    ClaimRule("beats-plain", "A placement chosen on validation examples beats one plain pass on test examples",
              "one measure of all, at .05 divided by their number",
              f"± {100 * AURC_MARGIN:.0f} % of the plain AURC"),
)  # fmt: skip
