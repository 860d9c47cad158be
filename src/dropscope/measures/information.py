"""Measures of information: entropies over classes, and the mutual information of prediction and mask."""

from __future__ import annotations

import torch
from torch import Tensor

from dropscope.errors import BadInput
from dropscope.measures.needs import measure_docs, statistics_of
from dropscope.measures.statistics import PassStatistics


@measure_docs()
def predictive_entropy(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Entropy of the mean of the passes.

    H(p̂) = −Σ_c p̂ log p̂. In [0, log C].

    Not expected_entropy, the mean of the entropies: that one leaves out the disagreement between passes.
    Reference: Benyamina and Jemelen, eq 11.

    Examples:
        >>> predictive_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
        [0.6931471824645996]
    """
    kept = statistics_of(passes, "predictive_entropy", plain)
    return torch.special.entr(kept.mean).sum(-1).to(kept.dtype)


@measure_docs()
def expected_entropy(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Mean over passes of each pass's entropy.

    (1/T) Σ_t H(p_t). In [0, log C].

    Not predictive_entropy, the entropy of the mean, which is never smaller than this.
    Reference: Benyamina and Jemelen, eq 12.

    Examples:
        >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
        [0.0]
    """
    kept = statistics_of(passes, "expected_entropy", plain)
    return kept.mean_entropy.to(kept.dtype)


@measure_docs(raises="Where a statistic was not kept.")
def bald(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Mutual information of prediction and mask: how much the passes disagree. Also called mutual_information.

    H(p̂) − (1/T) Σ_t H(p_t). In [0, predictive_entropy]. Biased low by about a factor 1 − 1/T. Differences below the
    rounding of the passes' own precision (8 eps·H) are 0: passes without any noise have exactly none.

    Not bald_corrected, which is without that bias; not expected_entropy, the part of the entropy that is left.
    Reference: Benyamina and Jemelen, eq 13.

    Examples:
        >>> bald(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).tolist()
        [0.6931471824645996]
    """
    kept = statistics_of(passes, "bald", plain)
    total = torch.special.entr(kept.mean).sum(-1)
    shared = (total - kept.mean_entropy).clamp_min(0).minimum(total)
    return torch.where(shared <= 8 * torch.finfo(kept.dtype).eps * total, 0.0, shared).to(kept.dtype)


mutual_information = bald


def bald_corrected(passes: PassStatistics | Tensor, *, plain: Tensor | None = None) -> Tensor:
    """Mutual information of prediction and mask, without the bias of a finite number of passes.

    bald + Σ_c s²_c / (2 T p̂_c), s² the sample variance over passes. In [0, log C − expected_entropy]. H(p̂) of a mean
    of T passes is low by Σ_c Var_c/(2 T p̄_c) to first order (delta method); the mean entropy is not biased. Where the
    spread is small this is the known factor T/(T − 1); where it is large that factor is too little.

    Not bald, which is not corrected and never larger. Reference: Miller (1955), for the expansion.

    Args:
        passes: Statistics of two passes or more that keep "class_moments" and "sum_plogp", or stored passes
            `[passes, N, C, ...]`.
        plain: Not used.

    Returns:
        The uncertainty of each example or voxel, `[N, ...]`. Higher is more uncertain.

    Raises:
        BadInput: Where there is one pass, or a statistic was not kept.

    Examples:
        >>> bald_corrected(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]))
        tensor([0.0637])
    """
    kept = statistics_of(passes, "bald_corrected", plain)
    if kept.passes < 2:
        rule = "passes must be at least 2 for bald_corrected"
        raise BadInput(rule, "passes", kept.passes, "run two passes or more, or use bald")
    spread = kept.class_variance * kept.passes / (kept.passes - 1)
    mean = kept.mean
    missing = torch.where(mean > 0, spread / (2 * kept.passes * mean.clamp_min(1e-300)), 0.0).sum(-1)
    shared = torch.special.entr(mean).sum(-1) - kept.mean_entropy
    room = torch.log(torch.tensor(float(mean.shape[-1]), dtype=torch.float64)).item() - kept.mean_entropy
    return (shared.clamp_min(0) + missing).minimum(room).clamp_min(0).to(kept.dtype)
